"""A study's folder in the lab: where its storage, its runs and its reports lie."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sweeplab.files import write_whole
from sweeplab.records.runs import RunFolder, RunState

DEFAULT_LAB = "lab"
NAMES = "letters, digits, . _ and -, at most 100"


def lab_folder(given: Path | None = None) -> Path:
    """Return the lab: as given, else SWEEPLAB_LAB, else `lab/` here."""
    return (given or Path(os.environ.get("SWEEPLAB_LAB") or DEFAULT_LAB)).expanduser().absolute()


def is_name(text: str) -> bool:
    """Say whether what has a folder in the lab may be called so."""
    return bool(re.fullmatch(r"[A-Za-z0-9._-]{1,100}", text) and text.strip("."))


@dataclass(frozen=True)
class StudyFolder:
    """The places of one study."""

    lab: Path
    name: str

    @property
    def path(self) -> Path:
        """Return the folder itself."""
        return self.lab / "studies" / self.name

    def command(self, words: str, *more: str) -> str:
        """Write a command about this study as its user would type it here."""
        lab = [] if self.lab == lab_folder() else ["--lab", str(self.lab)]
        return shlex.join(["sweeplab", *words.split(), self.name, *more, *lab])

    @property
    def database(self) -> Path:
        """Return the file of the trials' storage."""
        return self.path / "trials.db"

    @property
    def storage_file(self) -> Path:
        """Return the file that holds the storage's URL where that is another database than the study's own."""
        return self.path / "storage.url"

    @property
    def storage_url(self) -> str:
        """Return the URL of the trials' storage."""
        try:
            return self.storage_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return f"sqlite:///{self.database}"

    @property
    def study_file(self) -> Path:
        """Return the study file as it was last run."""
        return self.path / "study.yaml"

    @property
    def canonical_file(self) -> Path:
        """Return the typed study as JSON: what workers read."""
        return self.path / "study.json"

    @property
    def data_file(self) -> Path:
        """Return the description of the study's data, with its digests."""
        return self.path / "data.json"

    @property
    def baselines_file(self) -> Path:
        """Return what counting alone makes of each cell's data: a baseline a cell."""
        return self.path / "baselines.json"

    @property
    def baselines(self) -> dict[str, Any]:
        """Return the baselines by cell; none of a study from before there were any."""
        return self.read(self.baselines_file) if self.baselines_file.exists() else {}

    @property
    def plan_file(self) -> Path:
        """Return the plan that the study was last started with."""
        return self.path / "plan.json"

    @property
    def code_file(self) -> Path:
        """Return the versions of the code that the study was last started with."""
        return self.path / "code.json"

    @property
    def warm_start_file(self) -> Path:
        """Return what the study started from: how many trials of each source came into which cell."""
        return self.path / "warm_start.json"

    @property
    def report(self) -> Path:
        """Return the folder of the reports."""
        return self.path / "report"

    @property
    def sample(self) -> Path:
        """Return the folder of what the best run has written."""
        return self.path / "sample"

    def run(self, cell: str, number: int, seed: int) -> RunFolder:
        """Return the folder of one training."""
        return RunFolder(self.path / "runs" / cell / f"{number}-{seed}")

    @staticmethod
    def read(file: Path) -> dict[str, Any]:
        """Return what one of the study's JSON files says."""
        return dict(json.loads(file.read_text(encoding="utf-8")))

    def runs(self) -> Iterator[RunFolder]:
        """Yield the folders of all trainings that were ever started."""
        for file in sorted((self.path / "runs").glob("*/*/run.json")):
            yield RunFolder(file.parent)

    def runs_of(self, cell: str, trial: int) -> Iterator[RunFolder]:
        """Yield the folders of one trial's trainings."""
        for file in sorted((self.path / "runs" / cell).glob(f"{trial}-*/run.json")):
            yield RunFolder(file.parent)

    def states(self, unfinished: RunState = RunState.WAITING) -> dict[str, int]:
        """Count the runs by state."""
        ends = (run.read_end() for run in self.runs())
        return dict(Counter(str(end.state if end else unfinished) for end in ends))

    @property
    def supervisor_lock(self) -> FileLock:
        """Return the lock that whoever runs the study holds; it waits for nobody."""
        return FileLock(self.path / "supervisor.lock", blocking=False)

    @property
    def is_run(self) -> bool:
        """Say whether somebody runs the study now."""
        if not self.path.exists():
            return False
        try:
            with self.supervisor_lock:
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
        path = self.path / "elapsed.json"
        return float(json.loads(path.read_text())["seconds"]) if path.exists() else 0.0

    def write_elapsed(self, seconds: float) -> None:
        """Remember how long the study has been run so far."""
        write_whole(self.path / "elapsed.json", json.dumps({"seconds": seconds}, indent=1).encode())
