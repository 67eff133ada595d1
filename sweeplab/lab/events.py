"""What happens to a study: read from its runs' folders by any process, or told to a program's functions as it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import CurveReader, RunFolder, run_key

_log = logging.getLogger("sweeplab")

# What a worker says: `event` is its kind, and `cell` and `trial` say of what.
Event = dict[str, Any]


@dataclass
class _LiveRun:
    """A run that has not been seen to end, and its curve as read so far."""

    folder: RunFolder
    curve: CurveReader
    is_new: bool = True

    @property
    def trial(self) -> tuple[str, int]:
        return self.folder.cell, self.folder.trial

    def event(self, kind: str, **more: Any) -> Event:
        return {"event": kind, "cell": self.folder.cell, "trial": self.folder.trial, **more}

    def evaluated(self) -> Event | None:
        """Return the run's latest evaluation, if there is one that has not been read."""
        for point in reversed(self.curve.new_points()):
            if point.val_loss is not None:
                key = run_key(*self.trial, self.folder.seed)
                return self.event("evaluated", run=key, iteration=point.iteration, val_loss=point.val_loss)
        return None


class EventStream:
    """The events of a study from its start on, as its workers tell them to their own supervisor, whoever trains.

    Each call of `new` yields what is new. The trials of a cell are looked for again only when something was added to
    the cell's folder.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._runs = folder.path / "runs"
        self._seen: dict[Path, int] = {}  # a cell's folder and when something was last added to it
        self._known: set[Path] = set()
        self._live: list[_LiveRun] = []
        self._ended: set[tuple[str, int]] = set()

    def past(self) -> Iterator[Event]:
        """Yield all that has happened so far."""
        yield from self.new()
        yield from self.new()  # an end is told no earlier than the look after the one that found the run

    def new(self) -> Iterator[Event]:
        """Yield what has happened since the last time."""
        for run in self._live:
            run.is_new = False
        yield from self._started()
        for run in list(self._live):
            if (event := run.evaluated()) and run.trial not in self._ended:
                yield event
            if run.is_new or (end := run.folder.read_end()) is None:
                continue
            self._live.remove(run)
            if run.trial not in self._ended:
                self._ended.add(run.trial)
                yield run.event("ended", **asdict(end.ending), ended=end.ended, stop_reason=end.stop_reason)

    def _started(self) -> Iterator[Event]:
        for cell in sorted(self._runs.glob("*")):
            changed = cell.stat().st_mtime_ns
            if self._seen.get(cell) == changed:
                continue
            found = [RunFolder(path) for path in sorted(cell.iterdir()) if path not in self._known]
            whole = [folder for folder in found if folder.has_started]
            if whole == found:  # else one is just being made
                self._seen[cell] = changed
            for folder in whole:
                self._known.add(folder.path)
                self._live.append(_LiveRun(folder, CurveReader(folder)))
                yield self._live[-1].event("claimed", started=folder.start_file.stat().st_mtime)


@dataclass(frozen=True)
class Evaluation:
    """One run's validation loss, in nats per token, at an iteration; not finite where the run diverges."""

    study: str
    cell: str
    trial: int
    seed: int
    iteration: int
    val_loss: float


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended: `outcome` is complete, stopped, pruned, diverged or failed; `states` are its seeds'.

    `value` is None where there was no finite loss, `error` a traceback where it failed.
    """

    study: str
    cell: str
    trial: int
    outcome: str
    value: float | None
    states: Mapping[int, str]
    error: str | None


OnEvaluation = Callable[[Evaluation], object]
OnTrialEnd = Callable[[TrialEnd], object]


class Callbacks:
    """Calls a program's functions with what happens, and survives what they raise: `errors` says it in the end."""

    def __init__(
        self, study: str, on_evaluation: OnEvaluation | None, on_trial_end: OnTrialEnd | None
    ) -> None:
        self._study = study
        self._on_evaluation, self._on_trial_end = on_evaluation, on_trial_end
        self._raised: dict[str, tuple[str, int]] = {}

    @property
    def errors(self) -> list[str]:
        """Return what each function raised first, and how often it raised."""
        return [f"{name} raised {said}, {times} times in all" for name, (said, times) in self._raised.items()]

    def hear(self, event: Event) -> None:
        """Tell of an event of a worker's, if it is one of those that are listened to."""
        if event["event"] == "evaluated" and self._on_evaluation:
            seed = int(event["run"].rpartition("/")[2])
            what = event["iteration"], event["val_loss"]
            record = Evaluation(self._study, event["cell"], event["trial"], seed, *what)
            self._call("on_evaluation", self._on_evaluation, record)
        elif event["event"] == "ended" and self._on_trial_end:
            states = {int(seed): state for seed, state in event["states"].items()}
            how = event["outcome"], event["value"], states, event["error"]
            end = TrialEnd(self._study, event["cell"], event["trial"], *how)
            self._call("on_trial_end", self._on_trial_end, end)

    def _call(self, name: str, function: Callable[[Any], object], record: Any) -> None:
        try:
            function(record)
        except Exception as error:
            said, times = self._raised.get(name, (f"{type(error).__name__}: {error}", 0))
            self._raised[name] = said, times + 1
            if not times:  # the others are counted
                _log.error("%s raised %s; the study goes on", name, said, exc_info=error)
