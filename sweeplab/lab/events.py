"""Events of a study, read from its folder by any process, and the callbacks of a user's program."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sweeplab.files import GrowingFile, make_folder
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import (
    CurvePoint,
    CurveReader,
    RunEnd,
    RunFolder,
    TrialEnding,
    append_lines,
)

_log = logging.getLogger("sweeplab")

NOTICES = "notices"  # the folder in a study's folder with what its workers have to say


@dataclass(frozen=True)
class Event:
    """Something that happens to a study."""


class Tick(Event):
    """An event several times a second, even when nothing happened."""


@dataclass(frozen=True)
class WorkerExited(Event):
    """The process of worker number `worker` has ended, with this exit code."""

    worker: int
    code: int


@dataclass(frozen=True)
class StudyNotice(Event):
    """Something that the study's owner should know; an error is one of the study, not the failure of a trial."""

    message: str
    is_error: bool = False


@dataclass(frozen=True)
class TrialEvent(Event):
    """Something that happens to one trial."""

    cell: str
    trial: int

    @property
    def place(self) -> tuple[str, int]:
        """Return the trial's cell and number."""
        return self.cell, self.trial


@dataclass(frozen=True)
class TrialClaimed(TrialEvent):
    """A worker has claimed the trial; `started` is in seconds since 1970."""

    started: float


@dataclass(frozen=True)
class RunEvaluated(TrialEvent):
    """One run of the trial has been evaluated; the loss, in its objective's unit, may be infinite or NaN."""

    seed: int
    iteration: int
    val_loss: float
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialEnded(TrialEvent):
    """The trial has ended, at `ended` (seconds since 1970); `stop_reason` comes from one of its runs."""

    ending: TrialEnding
    ended: float
    stop_reason: str | None = None

    @property
    def value(self) -> float | None:
        """Return the trial's value, None where it has none."""
        return self.ending.value


class Notices:
    """What workers have to say to the study's owner from now on: each writes a file in the folder `notices`."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder.path / NOTICES
        self._files: dict[Path, GrowingFile] = {}
        self.new()  # of an earlier start

    def new(self) -> list[StudyNotice]:
        """Return what was said since the last call."""
        notices = []
        for path in sorted(self._folder.glob("*.jsonl")):
            file = self._files.setdefault(path, GrowingFile(path))
            notices += [
                StudyNotice(**json.loads(line)) for line in file.new_lines().splitlines()
            ]
        return notices


def write_notice(folder: StudyFolder, worker: str, notice: StudyNotice) -> None:
    """Write a notice or an error into the file of a worker, whose name no other process has."""
    append_lines(
        make_folder(folder.path / NOTICES) / f"{worker}.jsonl", [json.dumps(asdict(notice))]
    )


OnLook = Callable[[RunFolder, Sequence[CurvePoint], RunEnd | None], object]


class EventStream:
    """The events of a study from its start on, read from its runs' folders, so by any process.

    Each call of `new` yields what is new. The trials of a cell are looked for again only when something was added to
    the cell's folder. At every call `hear` gets each run that had not ended, the new points of its curve, and its end.
    """

    def __init__(
        self, folder: StudyFolder, hear: OnLook = lambda run, points, end: None
    ) -> None:
        self._runs, self._hear = folder.path / "runs", hear
        # A cell's folder and when something was last added to it.
        self._seen: dict[Path, int] = {}
        self._known: dict[Path, CurveReader] = {}  # by the folders of runs
        self._live: list[CurveReader] = []
        self._ended: set[tuple[str, int]] = set()
        # End times of resumed runs, until the ends are removed.
        self._taken_back: dict[Path, float] = {}

    def reopen(self, cell: str, trial: int, anew: bool = False) -> bool:
        """Follow a trial that had ended and is resumed; return False if it is not resumed.

        With `anew`, and if all of its runs have ended, only the storage's record of the trial is written again.
        """
        curves = [
            curve
            for curve in self._known.values()
            if (curve.folder.cell, curve.folder.trial) == (cell, trial)
        ]
        if anew and curves and all(curve.folder.end_file.exists() for curve in curves):
            return False
        self._ended.discard((cell, trial))
        for curve in curves:
            if curve in self._live:
                continue
            end = curve.folder.read_end()
            if end:
                self._taken_back[curve.folder.path] = end.ended
            self._live.append(curve)
        return True

    def new(self, latest_only: bool = False) -> Iterator[TrialEvent]:
        """Yield what has happened since the last time, with all evaluations of each run or with its latest only."""
        yield from self._started()
        for curve in [*self._live]:
            # Before its points: none is written after it.
            run, end = curve.folder, curve.folder.read_end()
            if end and self._taken_back.get(run.path) == end.ended:
                end = None
            points, place = curve.new_points(), (run.cell, run.trial)
            self._hear(run, points, end)
            if end:
                self._live.remove(curve)
            if place in self._ended:  # by another of its runs
                continue
            evaluated = [point for point in points if point.eval_seconds is not None]
            if latest_only:
                evaluated = evaluated[-1:]
            for point in evaluated:
                yield RunEvaluated(
                    cell=run.cell,
                    trial=run.trial,
                    seed=run.seed,
                    iteration=point.iteration,
                    val_loss=math.nan if point.val_loss is None else point.val_loss,
                    measures=point.measures,
                )
            if end:
                self._ended.add(place)
                yield TrialEnded(
                    cell=run.cell,
                    trial=run.trial,
                    ending=end.ending,
                    ended=end.ended,
                    stop_reason=end.stop_reason,
                )

    def _started(self) -> Iterator[TrialEvent]:
        for cell in sorted(self._runs.glob("*")):
            changed = cell.stat().st_mtime_ns
            if self._seen.get(cell) == changed:
                continue
            folders = [
                RunFolder(path) for path in sorted(cell.iterdir()) if path not in self._known
            ]
            whole = [folder for folder in folders if folder.has_started]
            if whole == folders:  # else a run's folder is just being made
                self._seen[cell] = changed
            for folder in whole:
                self._known[folder.path] = curve = CurveReader(folder)
                self._live.append(curve)
                if (folder.cell, folder.trial) not in self._ended:
                    yield TrialClaimed(
                        cell=folder.cell, trial=folder.trial, started=folder.started
                    )


OnEvaluation = Callable[[RunEvaluated], object]
OnTrialEnd = Callable[[TrialEnded], object]


class Callbacks:
    """Calls a program's functions with the events, and catches what they raise: see `errors`."""

    def __init__(
        self, on_evaluation: OnEvaluation | None, on_trial_end: OnTrialEnd | None
    ) -> None:
        self._on_evaluation, self._on_trial_end = on_evaluation, on_trial_end
        self._raised: dict[str, str] = {}  # what each function raised first

    @property
    def errors(self) -> list[str]:
        """Return what each function raised first."""
        return [*self._raised.values()]

    def hear(self, event: Event) -> None:
        """Call the function for an event, if there is one."""
        try:
            if self._on_evaluation and isinstance(event, RunEvaluated):
                name = "on_evaluation"
                self._on_evaluation(event)
            elif self._on_trial_end and isinstance(event, TrialEnded):
                name = "on_trial_end"
                self._on_trial_end(event)
        except Exception as error:
            if name not in self._raised:
                self._raised[name] = f"{name} raised {type(error).__name__}: {error}"
                _log.error("%s; the study goes on", self._raised[name], exc_info=error)
