"""A study's folder in the lab: where its storage, its runs and its reports lie, and who holds it."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweeplab.data.task import DataSizes
from sweeplab.errors import BadInput, DamagedFile, Problem
from sweeplab.files import database_url, machine, read_only_uri, write_whole
from sweeplab.records.runs import FROM_A_COPY, Inside, RunFolder, RunState, known, reading

if TYPE_CHECKING:
    from sqlalchemy import URL

DEFAULT_LAB = "lab"
NAMES = "letters, digits, . _ and -, at most 100"
# The storage of a study whose trials the lab's own server has: this, and the name of a schema.
OWN_SERVER = "lab:"
SERVICE = "sweeplab"  # what that server is called in its service file, and its user there
# Whoever only looks whether a study is running holds its lock for an instant.
LOOK_SECONDS = 1.0


def lab_folder(given: Path | None = None) -> Path:
    """Return the lab: as given, else SWEEPLAB_LAB, else `lab/` here.

    Raises:
        BadInput: its path is no UTF-8, in which files and databases write it down.
    """
    lab = (given or Path(os.environ.get("SWEEPLAB_LAB") or DEFAULT_LAB)).expanduser().absolute()
    try:
        str(lab).encode()
    except UnicodeEncodeError:
        raise BadInput(Problem(f"the lab's path {str(lab)!a} is no UTF-8", "a path in UTF-8")) from None
    return lab


def service_file(lab: Path) -> Path:
    """Return the file that says how to connect to the lab's own PostgreSQL server, where it has one."""
    return lab / "postgres" / "service.conf"


def service_url(file: Path) -> URL:
    """Return SQLAlchemy's URL of the PostgreSQL server that a service file of libpq's names, with its password."""
    from configparser import ConfigParser

    from sqlalchemy import URL

    read = ConfigParser(interpolation=None)
    read.read_string(file.read_text(encoding="utf-8"))
    said = dict(read[SERVICE])
    given = {"username": said.pop("user"), "password": said.pop("password"), "database": said.pop("dbname")}
    return URL.create(
        "postgresql+psycopg", **given, host=said.pop("host"), port=int(said.pop("port")), query=said
    )


def schema_url(url: URL, schema: str) -> str:
    """Return the URL, with its password, of one schema of a PostgreSQL database."""
    url = url.update_query_dict({"options": f'-csearch_path="{schema}"'})
    return url.render_as_string(hide_password=False)


def is_name(text: str) -> bool:
    """Return whether what has a folder in the lab may be called so."""
    return bool(re.fullmatch(r"[A-Za-z0-9._-]{1,100}", text) and text.strip("."))


@dataclass(frozen=True)
class DataDescription:
    """A study's data, data.json: counts are of tokens, but for `val_bytes`; digests are sha256.

    `val_targets` are the tokens that an evaluation on the whole validation split finds. Overlaps are shares of a
    split's text that stand in the training split too, and `n_duplicates` documents were left out. `init_digest` is
    that of the weights that runs start from, None where they are drawn from a seed.
    """

    corpus: str
    tokenizer: str
    vocab_size: int
    train_tokens: int
    val_tokens: int
    val_targets: int
    val_bytes: int
    text_digest: str
    token_digest: str
    test_tokens: int = 0
    val_overlap: float = 0.0
    test_overlap: float = 0.0
    n_duplicates: int = 0
    init_digest: str | None = None
    train_pairs: int | None = None
    labels: list[str] | None = None

    @property
    def sizes(self) -> DataSizes:
        """Return what of the study's values follows from its data."""
        return DataSizes(self.vocab_size, self.train_tokens, self.train_pairs, len(self.labels or ()) or None)

    def as_dict(self) -> dict[str, Any]:
        """Return the description fit for JSON; without an `init_digest` where there is none."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> DataDescription:
        """Return a description that was written as JSON."""
        return cls(**known(cls, plain))


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker is: waiting for a machine, or running on one.

    `process` is what names it to whoever would look at it or end it there: a process' number, a job, an actor.
    `why` says why it waits, or what keeps it from working.
    """

    worker: int
    state: Literal["queued", "running"]
    node: str
    process: str
    log: str
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the place as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class StudyFolder:
    """The places of one study."""

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
    warm_start_file = Inside("warm_start.json")  # how many trials of each source came into which cell
    # What fresh seeds and the test split say of the best configurations.
    confirm_file = Inside("confirm.json")
    # What it says tells a machine whether it sees this folder, or one called alike.
    seen_file = Inside("seen")
    workers_file = Inside("workers.json")  # where its workers are, while it is run
    elapsed_file = Inside("elapsed.json")  # how long it has been run so far
    report = Inside("report")  # the folder of the reports
    sample = Inside("sample")  # the folder of what the best run has written
    moving_file = Inside("moving.json")  # there while the study gets another name, or is removed
    lock_file = Inside("supervisor.lock")
    _runs = Inside("runs")  # made by the first worker

    @property
    def path(self) -> Path:
        """Return the folder itself."""
        return self.lab / "studies" / self.name

    def command(self, words: str, *more: str) -> str:
        """Write a command about this study as its user would type it here."""
        lab = [] if self.lab == lab_folder() else ["--lab", str(self.lab)]
        return shlex.join(["sweeplab", *words.split(), self.name, *more, *lab])

    def decided(self, cell: str) -> dict[str, Any]:
        """Return what the plan found for runs of a cell on a CPU: dtype, compile, and stack where it was timed."""
        if not self.plan_file.exists():
            return {}
        plan = self.read(self.plan_file)
        own: dict[str, Any] = next((each for each in plan["cells"] if each["cell"] == cell), {})
        stack = {"stack": own["stack"]} if own.get("stack_rates") else {}
        return {"dtype": plan["dtype"], "compile": own.get("compile", False), **stack}

    @property
    def storage_url(self) -> str:
        """Return the URL of the trials' storage; a file that this process may not write is to be read only.

        Raises:
            DamagedFile: it is a file that is gone or damaged, and trials have been trained.
        """
        if self.storage_file.exists():
            url = self.storage_file.read_text(encoding="utf-8")
            if not self.is_on_own_server:
                return url
            service = service_file(self.lab)
            if not service.exists():
                raise DamagedFile(service, "it is gone", FROM_A_COPY)
            return schema_url(service_url(service), url.removeprefix(OWN_SERVER))
        self.check_is_here()
        if self._runs.exists():
            self._check_database("SELECT 'ok'")
        if not self.database.exists() or all(os.access(each, os.W_OK) for each in (self.path, self.database)):
            return database_url(self.database)
        return f"{database_url(Path(read_only_uri(self.database)))}?uri=true"

    def check_is_here(self) -> None:
        """Make sure that no other machine has the study's database open, where it is a file.

        Its write-ahead log has an index in memory that its processes share: several machines would destroy the file.

        Raises:
            BadInput: another machine runs the study.
        """
        if self.storage_file.exists() or not self.lock_file.exists():
            return
        host, _, there = self.lock_file.read_text("utf-8").partition("\n")
        if there not in ("", machine()) and self.is_run:
            what = f"study {self.name} is run on {host}, and its trials are in an SQLite file"
            cure = "`sweeplab storage start` before a new study gives it a database that several may use"
            raise BadInput(f"{what}, which one machine alone may open: look at it there; {cure}")

    @property
    def is_on_own_server(self) -> bool:
        """Return whether the trials are stored by the lab's own server."""
        return self.storage_file.exists() and self.storage_file.read_text("utf-8").startswith(OWN_SERVER)

    def _check_database(self, query: str) -> None:
        import sqlite3

        try:
            with closing(sqlite3.connect(read_only_uri(self.database), uri=True)) as connection:
                connection.execute("SELECT 1 FROM trials LIMIT 1")
                (said,) = connection.execute(query).fetchone()
        except sqlite3.Error as error:
            said = str(error)
        if said != "ok":
            raise self.damaged(self.database, said)

    def damaged(self, file: Path, what: object) -> DamagedFile:
        """Return the error that a file of the study cannot be read, with its cure."""
        return DamagedFile(file, str(what).partition("\n")[0], self.cure_of(file))

    def cure_of(self, file: Path) -> str:
        """Return what to do where a file of the study is gone or damaged."""
        if file in (self.canonical_file, self.data_file, self.database):
            return f"put a copy of it back, or move {self.path} away and run the study again"
        return "put a copy of it back, or remove it and run the study again"

    def read(self, file: Path) -> dict[str, Any]:
        """Return what one of the study's JSON files says.

        Raises:
            DamagedFile: it is gone or damaged.
        """
        with reading(file, self.cure_of(file)):
            return dict(json.loads(file.read_bytes()))

    def check_whole(self) -> None:
        """Make sure that what a study goes on from is there and can be read.

        Raises:
            DamagedFile: it is not.
        """
        self.read(self.canonical_file)
        _ = self.data, self.elapsed_seconds
        if not self.storage_file.exists():
            self._check_database("PRAGMA quick_check(1)")

    @property
    def data(self) -> DataDescription:
        """Return the description of the study's data.

        Raises:
            DamagedFile: it is gone or damaged.
        """
        with reading(self.data_file, self.cure_of(self.data_file)):
            return DataDescription.of(self.read(self.data_file))

    @property
    def baselines(self) -> dict[str, Any]:
        """Return the n-gram baselines by cell; none of a study from before there were any."""
        return self.read(self.baselines_file) if self.baselines_file.exists() else {}

    def run(self, cell: str, number: int, seed: int) -> RunFolder:
        """Return the folder of one run."""
        return RunFolder(self._runs / cell / f"{number}-{seed}")

    @property
    def has_started(self) -> bool:
        """Return whether this is a study: it has been described, or has trained and lost its description."""
        return self.canonical_file.exists() or self._runs.exists()

    def runs(self) -> Iterator[RunFolder]:
        """Yield the folders of all runs that have started.

        Raises:
            DamagedFile: one has ended, and what it trained is gone.
        """
        yield from self._started("*/*/")

    def runs_of(self, cell: str, trial: int) -> Iterator[RunFolder]:
        """Yield the folders of one trial's runs, as `runs` does."""
        yield from self._started(f"{cell}/{trial}-*/")

    def _started(self, pattern: str) -> Iterator[RunFolder]:
        for run in map(RunFolder, sorted(self._runs.glob(pattern))):
            if run.has_started:
                yield run
            elif run.end_file.exists():
                raise DamagedFile(run.start_file, "it is gone, and the run has ended", FROM_A_COPY)

    def states(self, unfinished: RunState = RunState.WAITING) -> dict[str, int]:
        """Count the runs by state."""
        ends = (run.read_end() for run in self.runs())
        return dict(Counter(str(end.state if end else unfinished) for end in ends))

    @contextmanager
    def held(self, otherwise: str) -> Iterator[None]:
        """Hold the study for this process, as whoever runs it does.

        Raises:
            BadInput: another process holds it; says what is given as `otherwise`. Or its folder cannot be written.
        """
        from filelock import FileLock, Timeout

        try:
            lock = FileLock(self.lock_file).acquire(timeout=LOOK_SECONDS, poll_interval=0.05)
        except Timeout:
            raise BadInput(otherwise) from None
        except OSError as error:
            raise BadInput(f"cannot write {self.path}: {error.strerror}") from error
        with lock:
            with suppress(OSError):  # a full disk
                self.lock_file.write_text(f"{socket.gethostname()}\n{machine()}", encoding="utf-8")
            yield

    @property
    def is_run(self) -> bool:
        """Return whether somebody runs the study now."""
        import fcntl

        # As FileLock locks it, but only for reading: whoever looks needs not be allowed to write.
        try:
            with self.lock_file.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @property
    def unfinished(self) -> RunState:
        """Return the state of runs that have not ended: running while somebody runs the study."""
        return RunState.RUNNING if self.is_run else RunState.WAITING

    @property
    def workers(self) -> list[WorkerPlace]:
        """Return where the workers are that whoever runs the study has started; none while nobody does."""
        if not self.workers_file.exists() or not self.is_run:
            return []
        return [WorkerPlace(**each) for each in self.read(self.workers_file)["workers"]]

    def write_workers(self, places: Iterable[WorkerPlace]) -> None:
        """Write down where the workers are."""
        told = {"workers": [each.as_dict() for each in places]}
        write_whole(self.workers_file, json.dumps(told, indent=1).encode())

    @property
    def elapsed_seconds(self) -> float:
        """Return how long the study has been run so far, over all its continuations.

        Raises:
            DamagedFile: the file that says so cannot be read.
        """
        if not self.elapsed_file.exists():
            return 0.0
        with reading(self.elapsed_file, self.cure_of(self.elapsed_file)):
            return float(self.read(self.elapsed_file)["seconds"])

    def write_elapsed(self, seconds: float) -> None:
        """Remember how long the study has been run so far."""
        write_whole(self.elapsed_file, json.dumps({"seconds": seconds}, indent=1).encode())
