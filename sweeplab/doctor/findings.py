"""What a check found; the opened study that checks examine; where its storage, its run folders and MLflow disagree.

`doctor` lists the findings about a study, one for each run and fault, with their cures; --repair repairs them. A
trial's ending is written to its run folders first, then reported to Optuna; its numbers are in the folders, and only
there: MLflow is written and never read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweeplab.errors import DamagedFile
from sweeplab.files import read_bytes
from sweeplab.formatting import several_named
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import read_spec
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import FROM_A_COPY, RunEnd, RunFolder, RunStart, RunState
from sweeplab.study.space import Space
from sweeplab.study.spec import StudySpec
from sweeplab.tracking import open_tracker

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from sweeplab.sweep.trials.store import Store

Verdict = Literal["ok", "warn", "bad"]
# A run's cell, trial and seed.
Place = tuple[str, int, int]


@dataclass(frozen=True)
class Check:
    """What was examined and what was found; `cure` says what to do unless the verdict is ok.

    warn: studies run anyway, or a command repairs it; bad: studies do not run, or their numbers may be wrong.
    """

    name: str
    looked_at: str
    verdict: Verdict
    found: str
    cure: str = ""


def named(what: str, names: Sequence[str]) -> str:
    """Return a finding with the first few names that it concerns."""
    return f"{what}: {several_named(names)}"


class OpenedStudy:
    """A study whose storage can be opened."""

    def __init__(self, folder: StudyFolder, allow_plugins: bool = False) -> None:
        self.folder, self._allow_plugins = folder, allow_plugins
        self.is_running = folder.unfinished is RunState.RUNNING

    @cached_property
    def spec(self) -> StudySpec:
        """Return the study as it was last run."""
        return read_spec(self.folder, self._allow_plugins)

    @cached_property
    def store(self) -> Store:
        """Return the study's trials."""
        from sweeplab.sweep.trials.store import Store  # Optuna with it: slow to import

        sizes = self.folder.data.sizes
        return Store(self.spec, sizes, self.folder.storage_url)

    def seeds(self, place: tuple[str, int]) -> list[int]:
        """Return the seeds that a trial is trained with."""
        cell = next(cell for cell in self.store.cells if cell.key == place[0])
        if place in self.trials:
            return self.store.seeds(cell, self.trials[place])
        return [*self.store.spaces[cell.index].seeds]

    @cached_property
    def trials(self) -> Mapping[tuple[str, int], FrozenTrial]:
        """Return the trials that were or are trained in this study, by cell and number."""
        return {
            (cell.key, trial.number): trial
            for cell in self.store.cells
            for trial in self.store.trials(cell)
            if trial.state.name == "RUNNING" or "outcome" in trial.user_attrs
        }

    @cached_property
    def runs(self) -> Mapping[Place, RunFolder]:
        """Return the folders of all runs by cell, trial and seed, which are read from the folders' names."""
        paths = sorted((self.folder.path / "runs").glob("*/*/"))
        runs = [RunFolder(path) for path in paths if re.fullmatch("[0-9]+-[0-9]+", path.name)]
        return {(run.cell, run.trial, run.seed): run for run in runs}

    @property
    def run_again(self) -> str:
        """Return the command that continues the study as it was last run; it adds no trial to a full budget."""
        options = ["--allow-plugins"] if self.spec.plugins else []
        return self.folder.command("resume", *options)


@dataclass(frozen=True)
class Fault:
    """A kind of fault: its description, its verdict, and what repairing does; if it does nothing, the cure."""

    what: str
    verdict: Verdict
    repaired: str = ""
    cure: str = ""


_AGAIN = f"{FROM_A_COPY}; or {{repair}} recreates them"
_OF_THE_ARTIFACT = "put the run's artifact `checkpoint` from MLflow in its place"
FAULTS = {
    "damaged": Fault(
        "files that are not valid JSON", "bad", "set aside, and recreated", _AGAIN
    ),
    "cut_off": Fault(
        "files that are not valid JSON, of runs that have not ended", "warn", "set aside"
    ),
    "lost": Fault(
        "ended trials whose runs have lost run.json or end.json", "bad", "recreated", _AGAIN
    ),
    "no_curve": Fault("ended runs whose curves are gone", "bad", cure=FROM_A_COPY),
    "checkpoint": Fault("damaged or changed checkpoints", "bad", cure=_OF_THE_ARTIFACT),
    "no_checkpoint": Fault(
        "ended runs without the checkpoint that the study keeps", "warn", cure=_OF_THE_ARTIFACT
    ),
    "snapshot": Fault(
        "damaged snapshots: the runs continue from the ones before", "warn", "removed"
    ),
    "unreported": Fault(
        "ended runs that were not reported to the storage", "warn", "reported to the storage"
    ),
    "unknown": Fault(
        "runs whose trial the storage does not have", "warn", "put back in the storage"
    ),
    "differs": Fault(
        "runs that the storage contradicts", "bad", "reported to the storage again"
    ),
    "temporary": Fault("unfinished files left by a killed process", "warn", "removed"),
    "orphaned": Fault("folders that belong to no trial", "warn", "set aside"),
    # Of runs in MLflow.
    "unsent": Fault("runs have not been sent to MLflow yet", "warn", "sent"),
    "gone": Fault("runs were sent but are not in MLflow", "warn", "sent again"),
}
# Kinds of fault that do not affect a trial's values or its ending.
BESIDE_TRIALS = {"temporary", "snapshot", "checkpoint", "no_checkpoint", "no_curve"}


@dataclass(frozen=True)
class RunFault:
    """One fault of a run: its place, the file or folder, and details."""

    kind: str
    place: Place
    path: Path
    details: str = ""

    @property
    def more(self) -> str:
        """Return the details as they stand behind a name."""
        return f" ({self.details})" if self.details else ""

    @property
    def name(self) -> str:
        """Return the run's name as a person would write it, with the details."""
        cell, number, seed = self.place
        return f"{cell} #{number} seed {seed}{self.more}"


def folder_findings(study: OpenedStudy) -> Iterator[RunFault]:
    """Yield what is missing or cut off in run folders, or contradicts the storage."""
    # Read before the storage: a trial that a worker starts now gets its folder later.
    known = study.runs
    spaces = {space.cell.key: space for space in study.store.spaces}
    keeps = study.spec.track.checkpoints != "none"
    for place in sorted(
        {(*trial, seed) for trial in study.trials for seed in study.seeds(trial)} | {*known}
    ):
        run, trial, state = study.folder.run(*place), study.trials.get(place[:2]), "none"
        if trial:
            state = trial.state.name
        faults = list(_faults(run, state, keeps))
        for kind, path in faults:
            yield RunFault(kind, place, path)
        if {kind for kind, _ in faults} - BESIDE_TRIALS or place[0] not in spaces:
            continue
        if trial is None:
            yield RunFault("unknown", place, run.path)
        elif run.has_started and (details := _contradiction(trial, run, spaces[place[0]])):
            yield RunFault("differs", place, run.path, details)


def _faults(run: RunFolder, state: str, keeps: bool) -> Iterator[tuple[str, Path]]:
    from sweeplab.train.checkpoint import damaged_snapshots  # torch with it: slow to import

    described, ended = run.start_file, run.end_file
    if not described.exists() or not (ended.exists() or state in ("RUNNING", "none")):
        # A running trial gets its folder, or what is missing there, when it is continued.
        if state != "RUNNING":
            yield "orphaned" if state == "none" else "lost", run.path
        return
    for file in (described, ended):
        if file.exists() and not _is_whole(file):
            yield "cut_off" if state == "RUNNING" else "damaged", file
    for file in run.path.glob("*.tmp"):
        yield "temporary", file
    end = end_of(run)
    if state == "RUNNING" and end:
        yield "unreported", run.path
    for file in damaged_snapshots(run.path):
        yield "snapshot", file
    checkpoint = run.checkpoint()
    if checkpoint and _is_damaged(checkpoint):
        yield "checkpoint", checkpoint
    if end and end.state.has_value:
        if checkpoint is None and keeps:
            yield "no_checkpoint", run.path
        if not run.points():
            yield "no_curve", run.points_file


def _is_damaged(checkpoint: Path) -> bool:
    from sweeplab.train.checkpoint import DamagedCheckpoint, read_content

    try:
        read_content(checkpoint, "model")
    except (DamagedCheckpoint, OSError):
        return True
    return False


def _is_whole(file: Path) -> bool:
    try:
        return isinstance(json.loads(read_bytes(file)), dict)
    except (OSError, ValueError):
        return False


def end_of(run: RunFolder) -> RunEnd | None:
    """Return how a run ended; None if it has not, or if its end.json cannot be read."""
    try:
        return run.read_end()
    except DamagedFile:
        return None


def _contradiction(trial: FrozenTrial, run: RunFolder, space: Space) -> str:
    from sweeplab.sweep.trials.store import OPTUNA_STATES

    try:
        point = stored_point(space, run.read_start())
    except (ValueError, DamagedFile) as error:
        return str(error)
    for name, value in trial.params.items():
        if point.get(name) != value:
            return f"{name} {value} in Optuna, {point.get(name)} on disk"
    end = end_of(run)
    if end is None or not trial.state.is_finished():
        return ""
    outcome, value = end.ending.outcome, end.ending.value
    if OPTUNA_STATES[outcome] != trial.state or trial.user_attrs["outcome"] != outcome:
        return f"{trial.user_attrs['outcome']} in Optuna, {outcome} on disk"
    if outcome.has_value and trial.value != value:
        return f"value {trial.value} in Optuna, {value} on disk"
    return ""


def tracking_findings(study: OpenedStudy) -> Iterator[RunFault]:
    """Yield the runs of ended trials that MLflow lacks.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """
    tracker = open_tracker(study.folder.lab, study.folder.name, study.spec.track.uri)
    ids = tracker.run_ids()
    for place, run in study.runs.items():
        trial = study.trials.get(place[:2])
        if trial is None or not trial.state.is_finished() or not end_of(run):
            continue
        if not tracker.is_shipped(run.path):
            yield RunFault("unsent", place, run.path)
        elif run.tracked_id not in ids:
            yield RunFault("gone", place, run.path)


def stored_point(space: Space, start: RunStart) -> dict[str, Any]:
    """Return a run's searched values as Optuna stores them.

    Raises:
        ValueError: one is outside of its search range.
    """
    point: dict[str, Any] = {}
    for name, value in start.sampled.items():
        point |= space.stored(name, TABLE[name].check(value))
    return point
