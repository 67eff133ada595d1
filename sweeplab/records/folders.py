"""A study's folder in the lab: where its storage, its runs and its reports lie, and who holds it."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.records.runs import Inside, RunFolder, RunState, known

DEFAULT_LAB = "lab"
NAMES = "letters, digits, . _ and -, at most 100"
# Whoever only looks whether a study is running holds its lock for an instant.
LOOK_SECONDS = 1.0


def lab_folder(given: Path | None = None) -> Path:
    """Return the lab: as given, else SWEEPLAB_LAB, else `lab/` here."""
    return (given or Path(os.environ.get("SWEEPLAB_LAB") or DEFAULT_LAB)).expanduser().absolute()


def is_name(text: str) -> bool:
    """Say whether what has a folder in the lab may be called so."""
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

    def as_dict(self) -> dict[str, Any]:
        """Return the description fit for JSON; without an `init_digest` where there is none."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> DataDescription:
        """Return a description that was written as JSON."""
        return cls(**known(cls, plain))


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
    confirm_file = Inside(
        "confirm.json"
    )  # what fresh seeds and the test split say of the best configurations
    elapsed_file = Inside("elapsed.json")  # how long it has been run so far
    report = Inside("report")  # the folder of the reports
    sample = Inside("sample")  # the folder of what the best run has written
    lock_file = Inside("supervisor.lock")

    @property
    def path(self) -> Path:
        """Return the folder itself."""
        return self.lab / "studies" / self.name

    def command(self, words: str, *more: str) -> str:
        """Write a command about this study as its user would type it here."""
        lab = [] if self.lab == lab_folder() else ["--lab", str(self.lab)]
        return shlex.join(["sweeplab", *words.split(), self.name, *more, *lab])

    @property
    def storage_url(self) -> str:
        """Return the URL of the trials' storage."""
        try:
            return self.storage_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return f"sqlite:///{self.database}"

    @staticmethod
    def read(file: Path) -> dict[str, Any]:
        """Return what one of the study's JSON files says."""
        return dict(json.loads(file.read_text(encoding="utf-8")))

    @property
    def baselines(self) -> dict[str, Any]:
        """Return the n-gram baselines by cell; none of a study from before there were any."""
        return self.read(self.baselines_file) if self.baselines_file.exists() else {}

    def run(self, cell: str, number: int, seed: int) -> RunFolder:
        """Return the folder of one run."""
        return RunFolder(self.path / "runs" / cell / f"{number}-{seed}")

    def runs(self) -> Iterator[RunFolder]:
        """Yield the folders of all runs that have started."""
        for file in sorted((self.path / "runs").glob("*/*/run.json")):
            yield RunFolder(file.parent)

    def runs_of(self, cell: str, trial: int) -> Iterator[RunFolder]:
        """Yield the folders of one trial's runs."""
        for file in sorted((self.path / "runs" / cell).glob(f"{trial}-*/run.json")):
            yield RunFolder(file.parent)

    def states(self, unfinished: RunState = RunState.WAITING) -> dict[str, int]:
        """Count the runs by state."""
        ends = (run.read_end() for run in self.runs())
        return dict(Counter(str(end.state if end else unfinished) for end in ends))

    @contextmanager
    def held(self, otherwise: str) -> Iterator[None]:
        """Hold the study for this process, as whoever runs it does.

        Raises:
            BadInput: another process holds it; says what is given as `otherwise`.
        """
        from filelock import FileLock, Timeout

        try:
            lock = FileLock(self.lock_file).acquire(timeout=LOOK_SECONDS, poll_interval=0.05)
        except Timeout:
            raise BadInput(otherwise) from None
        with lock:
            yield

    @property
    def is_run(self) -> bool:
        """Say whether somebody runs the study now."""
        from filelock import FileLock, Timeout

        if not self.path.exists():
            return False
        try:
            with FileLock(self.lock_file, blocking=False):
                return False
        except Timeout:
            return True

    @property
    def unfinished(self) -> RunState:
        """Return the state of runs that have not ended: running while somebody runs the study."""
        return RunState.RUNNING if self.is_run else RunState.WAITING

    @property
    def elapsed_seconds(self) -> float:
        """Return how long the study has been run so far, over all its continuations."""
        return float(self.read(self.elapsed_file)["seconds"]) if self.elapsed_file.exists() else 0.0

    def write_elapsed(self, seconds: float) -> None:
        """Remember how long the study has been run so far."""
        write_whole(self.elapsed_file, json.dumps({"seconds": seconds}, indent=1).encode())
