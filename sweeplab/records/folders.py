"""A study's folder in the lab: the places of its storage, runs and reports, its lock, and its confirmation."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sweeplab.data import DataSizes
from sweeplab.errors import BadInput, DamagedFile, Problem, nearest
from sweeplab.files import (
    database_url,
    keep_inside,
    machine,
    opened,
    read_bytes,
    read_only_uri,
)
from sweeplab.formatting import several, several_named
from sweeplab.permissions import STORAGE, allow, check_address, is_allowed, is_given
from sweeplab.records.runs import (
    FROM_A_COPY,
    Inside,
    RunFolder,
    RunState,
    present,
    read_json,
    reading,
    typed,
    write_json,
)

if TYPE_CHECKING:
    from sqlalchemy import URL


DEFAULT_LAB = "lab"
NAMES = "a letter or digit, then letters, digits, . _ and -, at most 100"
# The URL of a study whose trials are on the lab's own server is this prefix and the name of a schema.
OWN_SERVER = "lab:"
SERVICE = "sweeplab"  # the server's name in its service file, and its user there
# How long to wait for the lock: a process that only checks whether a study is running holds it for an instant.
LOOK_SECONDS = 1.0


def lab_folder(lab: str | Path | None = None) -> Path:
    """Return the lab: as given, else SWEEPLAB_LAB, else `lab/` here.

    Raises:
        BadInput: its path is not valid UTF-8, in which files and databases record it, or has control characters.
    """
    lab = Path(lab or os.environ.get("SWEEPLAB_LAB") or DEFAULT_LAB).expanduser().absolute()
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", str(lab)):
        what = f"the lab's path {str(lab)!a} is not UTF-8, or has control characters"
        raise BadInput(Problem(what, "a path in UTF-8, on one line"))
    keep_inside(lab)
    return lab


def command_in(lab: Path, *words: str) -> str:
    """Return a command about a lab as its user would type it in this folder."""
    option = [] if lab == lab_folder() else ["--lab", str(lab)]
    return shlex.join(["sweeplab", *words, *option])


def service_file(lab: Path) -> Path:
    """Return the libpq service file by which to connect to the lab's own PostgreSQL server, if it has one."""
    return lab / "postgres" / "service.conf"


def read_service(file: Path) -> URL:
    """Return the SQLAlchemy URL, with its password, of the PostgreSQL server in a libpq service file.

    Raises:
        DamagedFile: the file is not as it was written.
    """
    from configparser import ConfigParser, Error

    from sqlalchemy import URL

    read = ConfigParser(interpolation=None)
    try:
        read.read_string(read_bytes(file).decode())
        settings = dict(read[SERVICE])
        address = {name: settings.pop(name) for name in ("host", "password")}
        address |= {"username": settings.pop("user"), "database": settings.pop("dbname")}
        # Such as hostaddr, another host.
        others = settings.keys() - {"port", "sslmode", "sslrootcert"}
        if others:
            raise ValueError(f"unexpected keys: {', '.join(sorted(others))}")
        return URL.create(
            "postgresql+psycopg", **address, port=int(settings.pop("port")), query=settings
        )
    except (OSError, Error, KeyError, ValueError) as error:
        raise DamagedFile(file, "it does not say how to connect", FROM_A_COPY) from error


def service_url(file: Path) -> URL:
    """Return the URL, with its password, of a lab's own server, which may be contacted.

    Raises:
        BadInput: the user has not started the server, nor named its address.
        DamagedFile: the file is not as it was written.
    """
    url = read_service(file)
    address = f"postgresql://{url.host}:{url.port}/{url.database}"
    if is_allowed(*_known_as(url)) or is_given(STORAGE, address):
        return url
    what = (
        f"{file} names the server {address}, which you have not started: it was not contacted"
    )
    start = "sweeplab storage start --allow-data, if you trust whoever wrote its data"
    raise BadInput(Problem(what, f"{STORAGE.variable}={address}, or {start}"))


def allow_service(file: Path) -> None:
    """Remember a lab's own server, which the user starts: its address and its password, wherever the lab is."""
    allow(*_known_as(read_service(file)))


def _known_as(url: URL) -> tuple[str, str]:
    return f"{url.host}:{url.port}", hashlib.sha256(str(url.password).encode()).hexdigest()


def schema_url(url: URL, schema: str) -> str:
    """Return the URL, with its password, of one schema of a PostgreSQL database."""
    url = url.update_query_dict({"options": f'-csearch_path="{schema}"'})
    return url.render_as_string(hide_password=False)


def check_inside(folder: Path, file: Path) -> None:
    """Make sure that a file of a folder is no link that leads out of it: it may come from somebody else.

    Raises:
        BadInput: it is one.
    """
    if not file.resolve().is_relative_to(folder.resolve()):
        raise BadInput(
            Problem(
                f"{file} leads out of {folder}, to {file.resolve()}", "a file in this folder"
            )
        )


def is_name(text: str) -> bool:
    """Return whether the text is a valid name for a folder in the lab."""
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text))


@dataclass(frozen=True)
class DataDescription:
    """A study's data (data.json): sizes are in tokens; digests are SHA-256.

    Overlaps are the shares of a split's text that also occur in the training split; `n_duplicates` documents were left
    out. `init_digest` is the digest of the weights that runs start from, None if these are drawn from a seed. `notes`
    say how it was read.
    """

    corpus: str
    tokenizer: str
    vocab_size: int
    train_tokens: int
    val_tokens: int
    text_digest: str
    token_digest: str
    test_tokens: int = 0
    val_overlap: float = 0.0
    test_overlap: float = 0.0
    n_duplicates: int = 0
    init_digest: str | None = None
    train_pairs: int | None = None
    labels: list[str] | None = None
    notes: list[str] | None = None

    @property
    def sizes(self) -> DataSizes:
        """Return the sizes of the data from which values of the study follow."""
        return DataSizes(
            self.vocab_size, self.train_tokens, self.train_pairs, len(self.labels or ()) or None
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the description as plain data for JSON, without fields that are None."""
        return present(asdict(self))


@dataclass(frozen=True)
class WorkerPlace:
    """The place of a worker, which waits for a machine or runs on one.

    `process` identifies it there, for looking at it or ending it: a process ID, a job, an actor.
    `why` says why it waits, or what keeps it from working.
    """

    worker: int
    state: Literal["queued", "running"]
    node: str
    process: str
    log: str
    why: str = ""


class TrackedStudy(NamedTuple):
    """A study in MLflow: the place, and the ids of its experiment and of its parent run."""

    place: str
    experiment_id: str
    run_id: str


@dataclass(frozen=True)
class StudyFolder:
    """The files and folders of one study."""

    lab: Path
    name: str

    database = Inside("trials.db")  # the trials' storage
    storage_file = Inside("storage.url")  # its URL where it is another database
    study_file = Inside("study.yaml")  # the study file as it was last run
    canonical_file = Inside("study.json")  # the typed study: what workers read
    data_file = Inside("data.json")  # the description of the study's data, with its digests
    baselines_file = Inside("baselines.json")  # the n-gram baseline of each cell
    plan_file = Inside("plan.json")  # the plan that it was last started with
    code_file = Inside("code.json")  # the versions of the code that it was last started with
    # Losses of the best configurations on fresh seeds and on the test split.
    confirm_file = Inside("confirm.json")
    # By its content a machine recognizes whether it sees this folder, or another one of the same name.
    seen_file = Inside("seen")
    tracked_file = Inside("tracked.json")  # where MLflow has it
    workers_file = Inside("workers.json")  # where its workers are, while it is run
    elapsed_file = Inside("elapsed.json")  # how long it has been run so far
    notes_file = Inside("notes.json")  # what people wrote about trials
    report = Inside("report")  # the folder of the reports
    lock_file = Inside("supervisor.lock")
    run_log = Inside("run.log")  # of the process that runs the study
    _runs = Inside("runs")  # made by the first worker

    def __post_init__(self) -> None:
        keep_inside(self.lab)

    @property
    def path(self) -> Path:
        """Return the folder itself."""
        return self.lab / "studies" / self.name

    def command(self, words: str, *more: str) -> str:
        """Return a command about this study as its user would type it in this folder."""
        return command_in(self.lab, *words.split(), self.name, *more)

    @property
    def main_page(self) -> str:
        """Return the page that its run ends with: of its sizes, or of its trials if all cells are of one size."""
        cells = self.read_if_written(self.plan_file).get("cells", ())
        if len({(cell["n_params"], cell["train_tokens"]) for cell in cells}) == 1:
            return "sweep"
        return "scaling"

    def log(self, line: str) -> None:
        """Write a line to the log of the process that runs the study, if the disk takes it."""
        with suppress(OSError), opened(self.run_log, "ab") as file:
            file.write(f"{line}\n".encode())

    def decided(self, cell: str) -> dict[str, Any]:
        """Return what the plan decided for runs of a cell on a CPU: dtype and compile."""
        plan = self.read_if_written(self.plan_file)
        if not plan:
            return {}
        compiled = {row["cell"]: row.get("compile", False) for row in plan["cells"]}
        return {"dtype": plan["dtype"], "compile": compiled.get(cell, False)}

    @property
    def storage_url(self) -> str:
        """Return the URL of the trials' storage; a file that this process may not write is opened read-only.

        Raises:
            BadInput: only the study's folder names the database.
            DamagedFile: trials have been trained, but the storage's file is gone or damaged.
        """
        if self.storage_file.exists():
            url = read_bytes(self.storage_file).decode("utf-8", "replace")
            if not self.is_on_own_server:
                if not url.startswith("postgresql"):
                    raise self.damaged(self.storage_file, "it names no PostgreSQL database")
                check_address(STORAGE, url)
                return url
            service = service_file(self.lab)
            if not service.exists():
                raise DamagedFile(service, "it is gone", FROM_A_COPY)
            return schema_url(service_url(service), url.removeprefix(OWN_SERVER))
        self.check_is_here()
        check_inside(self.lab, self.database)
        if self._runs.exists():
            self._check_database("SELECT 'ok'")
        if not self.database.exists() or all(
            os.access(each, os.W_OK) for each in (self.path, self.database)
        ):
            return database_url(self.database)
        return f"{database_url(Path(read_only_uri(self.database)))}?uri=true"

    def check_is_here(self) -> None:
        """Make sure that no other machine has the study's database open, if it is an SQLite file.

        The index of its write-ahead log is in memory shared by its processes: several machines would destroy the file.

        Raises:
            BadInput: another machine runs the study.
        """
        if self.storage_file.exists() or not self.lock_file.exists():
            return
        host, _, there = read_bytes(self.lock_file).decode("utf-8", "replace").partition("\n")
        if there not in ("", machine()) and self.is_run:
            what = f"study {self.name} is run on {host}, and its trials are in an SQLite file"
            cure = "`sweeplab storage start` before a new study gives it a database that several machines may use"
            raise BadInput(f"{what}, which only one machine may open: use it there; {cure}")

    @property
    def is_on_own_server(self) -> bool:
        """Return whether the lab's own server stores the trials."""
        return self.storage_file.exists() and read_bytes(self.storage_file).startswith(
            OWN_SERVER.encode()
        )

    def query(self, query: str) -> list[Any]:
        """Return the rows that a query gives of the study's SQLite file, without a write to it.

        Raises:
            DamagedFile: the file cannot be read.
        """
        import sqlite3

        check_inside(self.lab, self.database)
        try:
            with closing(sqlite3.connect(read_only_uri(self.database), uri=True)) as connection:
                return connection.execute(query).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise self.damaged(self.database, error) from error

    def _check_database(self, query: str) -> None:
        ((answer,),) = self.query(query)
        if not self.query("SELECT name FROM sqlite_master"):
            answer = "it has no tables"
        if answer != "ok":
            raise self.damaged(self.database, answer)

    def damaged(self, file: Path, what: object) -> DamagedFile:
        """Return the error for a file of the study that cannot be read, with its cure."""
        what = getattr(what, "strerror", what)  # of an OSError; its text repeats the file
        return DamagedFile(file, str(what).partition("\n")[0], self.cure_of(file))

    def cure_of(self, file: Path) -> str:
        """Return what to do if a file of the study is gone or damaged."""
        if file in (self.canonical_file, self.data_file, self.database):
            return f"put a copy of it back, or move {self.path} away and run the study again"
        return "put a copy of it back, or remove it and run the study again"

    def read(self, file: Path) -> dict[str, Any]:
        """Return the content of one of the study's JSON files.

        Raises:
            DamagedFile: it is gone or damaged.
        """
        return read_json(file, self.cure_of(file), dict)

    def read_study(self) -> str:
        """Return the text of the study file that the study was last run from.

        Raises:
            DamagedFile: it is gone or damaged.
        """
        with reading(self.study_file, self.cure_of(self.study_file)):
            return read_bytes(self.study_file).decode()

    def read_if_written(self, file: Path) -> dict[str, Any]:
        """Return the content of one of the study's JSON files, as `read` does; nothing if it does not exist."""
        if file.exists():
            return self.read(file)
        return {}

    def check_whole(self) -> None:
        """Make sure that the files that a study needs to continue exist and can be read.

        Raises:
            DamagedFile: one is gone or damaged, or a link has the place of a run's folder.
        """
        for _ in self._run_folders():
            pass
        if self.stored_name != self.name:
            what = f"the study is named {self.stored_name} there: a rename was interrupted"
            raise DamagedFile(self.canonical_file, what, self.command("doctor", "--repair"))
        _ = self.data, self.elapsed_seconds
        if not self.storage_file.exists():
            self._check_database("PRAGMA quick_check(1)")

    @property
    def stored_name(self) -> str:
        """Return the study's name in its files; another one than its folder's after an interrupted rename."""
        name = self.read(self.canonical_file).get("name")
        if not isinstance(name, str):
            raise self.damaged(self.canonical_file, "it has no name")
        return name

    @property
    def data(self) -> DataDescription:
        """Return the description of the study's data.

        Raises:
            DamagedFile: it is gone or damaged.
        """
        return read_json(
            self.data_file,
            self.cure_of(self.data_file),
            lambda data: typed(DataDescription, data),
        )

    @property
    def baselines(self) -> dict[str, Any]:
        """Return the n-gram baselines by cell."""
        return self.read_if_written(self.baselines_file)

    def run(self, cell: str, number: int, seed: int) -> RunFolder:
        """Return the folder of one run."""
        return RunFolder(self._runs / cell / f"{number}-{seed}")

    @property
    def has_started(self) -> bool:
        """Return whether this is a study: it has a description, or has runs and lost its description."""
        return self.canonical_file.exists() or self._runs.exists()

    def runs(self, cell: str = "*", run: str = "*") -> Iterator[RunFolder]:
        """Yield the folders of all runs that have started, or of those of a cell or a trial.

        Raises:
            DamagedFile: a run has ended, but its run.json is gone; or a link has the place of its folder.
        """
        for folder in self._run_folders(cell, run):
            if folder.has_started:
                yield folder
            elif folder.end_file.exists():
                raise DamagedFile(
                    folder.start_file, "it is gone, though the run has ended", FROM_A_COPY
                )

    def runs_of(self, cell: str, trial: int) -> Iterator[RunFolder]:
        """Yield the folders of one trial's runs, as `runs` does."""
        return self.runs(cell, f"{trial}-*")

    def _run_folders(self, cell: str = "*", run: str = "*") -> Iterator[RunFolder]:
        for folder in sorted(self._runs.glob(cell)):
            _check_no_link(folder)
            for path in sorted(folder.glob(run)):
                _check_no_link(path)
                yield RunFolder(path)

    def states(self) -> dict[str, int]:
        """Count the runs by state; those that have not ended wait."""
        ends = (run.read_end() for run in self.runs())
        return dict(Counter(str(end.state if end else RunState.WAITING) for end in ends))

    @contextmanager
    def held(self, otherwise: str) -> Iterator[None]:
        """Hold the study's lock, as the process that runs a study does.

        Raises:
            BadInput: another process holds it, with the message `otherwise`; or its folder cannot be written.
        """
        from filelock import FileLock, Timeout

        check_inside(self.lab, self._runs)
        try:
            lock = FileLock(self.lock_file).acquire(timeout=LOOK_SECONDS, poll_interval=0.05)
        except Timeout:
            raise BadInput(otherwise) from None
        except OSError as error:
            raise BadInput(f"cannot write {self.path}: {error.strerror}") from error
        with lock:
            # A full disk is no error; the file is written in its place because the lock is on it.
            with suppress(OSError), opened(self.lock_file, "wb") as file:
                file.write(f"{socket.gethostname()}\n{machine()}".encode())
            yield

    @property
    def is_run(self) -> bool:
        """Return whether a process runs the study now."""
        import fcntl

        # The same lock as FileLock's, but for reading: no permission to write is needed.
        try:
            with opened(self.lock_file, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @property
    def unfinished(self) -> RunState:
        """Return the state of runs that have not ended: running while a process runs the study, else waiting."""
        if self.is_run:
            return RunState.RUNNING
        return RunState.WAITING

    @property
    def workers(self) -> list[WorkerPlace]:
        """Return the places of the study's workers; none while nobody runs the study."""
        if not self.workers_file.exists() or not self.is_run:
            return []
        return [WorkerPlace(**each) for each in self.read(self.workers_file)["workers"]]

    def write_workers(self, places: Iterable[WorkerPlace]) -> None:
        """Record the places of the workers."""
        write_json(self.workers_file, {"workers": [*places]})

    def write_tracked(self, tracked: TrackedStudy) -> None:
        """Record where MLflow has the study."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.tracked_file, tracked._asdict())

    def read_tracked(self) -> TrackedStudy | None:
        """Return where MLflow has the study; None if it was not sent, or by a version that did not record it.

        Raises:
            DamagedFile: the record is damaged.
        """
        if not self.tracked_file.exists():
            return None
        with reading(self.tracked_file, self.cure_of(self.tracked_file)):
            tracked = TrackedStudy(**self.read(self.tracked_file))
            if not re.fullmatch(
                r"\d+ \w+", f"{tracked.experiment_id} {tracked.run_id}", re.ASCII
            ):
                raise ValueError("no ids of MLflow")
        return tracked

    @property
    def elapsed_seconds(self) -> float:
        """Return how long the study has been run so far, over all its continuations.

        Raises:
            DamagedFile: the file with this time cannot be read.
        """
        if not self.elapsed_file.exists():
            return 0.0
        return read_json(
            self.elapsed_file,
            self.cure_of(self.elapsed_file),
            lambda elapsed: float(elapsed["seconds"]),
        )

    def write_elapsed(self, seconds: float) -> None:
        """Record how long the study has been run so far."""
        write_json(self.elapsed_file, {"seconds": seconds})


def _check_no_link(folder: Path) -> None:
    if folder.is_symlink():
        what = f"a symbolic link to {folder.readlink()} has its place, and is not followed"
        raise DamagedFile(folder, what, "put the folder itself there")


# ------------------------------------------------------------------ the name of a cell, as a person writes it


MOST_NAMED = 10
# A comma that begins another value: those within a value are quoted in names.
_BETWEEN = re.compile(r",(?=[^=,]+=)")


def some_of(names: Collection[str]) -> str:
    """Write names in a line, at most ten."""
    return several_named([*names], MOST_NAMED)


def named_cell(study: str, cells: Collection[str], text: str) -> str:
    """Return the cell that a text names: its name, or some of its values, in any order, that no other cell has.

    Raises:
        BadInput: no cell has these values, with the nearest; or several have them.
    """
    if text in cells:
        return text
    asked = {part.strip() for part in _BETWEEN.split(text)}
    fitting = [cell for cell in cells if asked <= {*_BETWEEN.split(cell)}]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        what = f"{several(len(fitting), 'cell')} of study {study} have {text}"
        raise BadInput(Problem(what, some_of(fitting)))
    raise BadInput(
        Problem(f"study {study} has no cell {text!r}", some_of(cells), nearest(text, cells))
    )
