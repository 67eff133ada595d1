"""A study's folder in the lab: where its storage, its runs and its reports lie.

A run's folder is written by its worker and read by the tracker. `end.json` is the word on how a run ended: it is
written before the storage is told, so a worker killed between the two is only repeated in the telling.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sweeplab.files import write_whole

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

    def states(self, unended: str = "waiting") -> dict[str, int]:
        """Count the trainings by state."""
        outcomes = (run.outcome for run in self.runs())
        return dict(Counter(outcome["state"] if outcome else unended for outcome in outcomes))

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
    def unended(self) -> str:
        """Return the state of trainings that have not ended: running while somebody runs the study."""
        return "running" if self.is_run else "waiting"

    @property
    def elapsed_seconds(self) -> float:
        """Return how long the study has been run so far, over all its continuations."""
        path = self.path / "elapsed.json"
        return float(json.loads(path.read_text())["seconds"]) if path.exists() else 0.0

    def write_elapsed(self, seconds: float) -> None:
        """Remember how long the study has been run so far."""
        write_whole(self.path / "elapsed.json", _json({"seconds": seconds}))


def run_key(cell: str, number: int, seed: int) -> str:
    """Return the name of a training inside its study."""
    return f"{cell}/{number}/{seed}"


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps({key: _finite(value) for key, value in content.items()}, indent=1).encode()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class RunFolder:
    """What one training leaves behind while it trains."""

    path: Path

    def start(self, description: Mapping[str, Any]) -> None:
        """Write run.json once, before the first point."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.has_begun:
            write_whole(self.path / "run.json", _json(description))

    @property
    def has_begun(self) -> bool:
        """Say whether run.json is there."""
        return (self.path / "run.json").exists()

    @property
    def description(self) -> dict[str, Any]:
        """Return what run.json says."""
        return dict(json.loads((self.path / "run.json").read_text(encoding="utf-8")))

    def append(self, points: Iterable[Mapping[str, Any]]) -> None:
        """Append points of the training curve; non-finite numbers become null.

        A kill may have left a torn line: the first line after it starts on a line of its own.
        """
        path = self.path / "points.jsonl"
        lines = [json.dumps({key: _finite(value) for key, value in point.items()}) for point in points]
        with path.open("ab+") as file:
            if file.tell() and _last_byte(path) != b"\n":
                file.write(b"\n")
            file.write("".join(f"{line}\n" for line in lines).encode())

    def points(self) -> list[dict[str, Any]]:
        """Return the points by iteration, without repetitions and torn lines."""
        path = self.path / "points.jsonl"
        found: dict[int, dict[str, Any]] = {}
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                point = json.loads(line)
            except ValueError:
                continue
            found.setdefault(point["iteration"], point)
        return [found[iteration] for iteration in sorted(found)]

    def end(self, outcome: Mapping[str, Any]) -> None:
        """Write how the run ended; nothing of the run is written after it."""
        write_whole(self.path / "end.json", _json(outcome))

    @property
    def outcome(self) -> dict[str, Any] | None:
        """Return how the run ended, or None while it has not."""
        path = self.path / "end.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)
