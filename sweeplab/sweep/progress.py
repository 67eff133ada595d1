"""The progress of a running study: for those who watch it, and for its owner, who is notified by Apprise.

The study file names environment variables that hold Apprise's URLs: a URL may contain a secret, and the study file is
recorded.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import counts, duration, out_of
from sweeplab.lab.describing import summarize
from sweeplab.lab.events import Event, RunEvaluated, StudyError, TrialClaimed, TrialEnded, TrialEvent
from sweeplab.lab.listing import StudyState, state_in_phase
from sweeplab.records.folders import StudyFolder, WorkerPlace
from sweeplab.records.runs import RunState
from sweeplab.study.plan import Plan
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.remaining import Interval, Remaining

if TYPE_CHECKING:
    from apprise import Apprise

    from sweeplab.sweep.trials.commands import ControlState

# A study without an event for this long is idle: an evaluation should take far less.
IDLE_SECONDS = 1800.0


@dataclass
class CellProgress:
    """A cell's number of trials that count towards the budget so far, and its best value."""

    counted: int = 0
    best: float | None = None


@dataclass
class StudyProgress:
    """The state of a running study; `live` has the last event of every running trial, by cell and number.

    `lowest` has the lowest loss so far of each of them.
    """

    plan: Plan
    cells: dict[str, CellProgress]
    live: dict[tuple[str, int], TrialEvent] = field(default_factory=dict)
    lowest: dict[tuple[str, int], float] = field(default_factory=dict)
    remaining: Remaining = field(init=False)
    states: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    done_before: int = 0
    elapsed_before: float = 0.0
    phase: str = "run"
    state: StudyState = StudyState.RUNNING
    places: list[WorkerPlace] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.remaining = Remaining(self.plan, time.time())

    @property
    def counted(self) -> int:
        """Return how many trials count towards the budget so far."""
        return sum(cell.counted for cell in self.cells.values())

    @property
    def new(self) -> int:
        """Return how many of them ended since the study was last started."""
        return max(0, self.counted - self.done_before)

    @property
    def seconds(self) -> float:
        """Return how long ago the study was last started."""
        return time.monotonic() - self.started

    @property
    def left(self) -> Interval:
        """Return how long the rest takes, at most the time budget's rest."""
        counted = {name: cell.counted for name, cell in self.cells.items()}
        return self.remaining.left(time.time(), counted, self.elapsed_before + self.seconds)

    def clear_live(self) -> None:
        """Record that all running trials were saved."""
        self.live.clear()
        self.remaining.forget_live()

    def begin(self, plan: Plan, since: float, past: Sequence[Event]) -> None:
        """Take over the plan with which the study was last started, at `since` (a time as in events), and its past."""
        self.plan, self.remaining = plan, Remaining(plan, since)
        self.remaining.replay(past, time.time())

    def take_in(self, event: Event) -> None:
        """Update the progress by one event of a worker."""
        self.remaining.take_in(event, time.time())
        match event:
            case TrialClaimed() | RunEvaluated():
                self.live[event.place] = event
                if isinstance(event, RunEvaluated) and math.isfinite(event.val_loss):
                    self.lowest[event.place] = min(event.val_loss, self.lowest.get(event.place, math.inf))
            case TrialEvent():
                self.live.pop(event.place, None)
                self.lowest.pop(event.place, None)
            case StudyError():
                self.errors.append(event.message)
        if not isinstance(event, TrialEnded):
            return
        ending = event.ending
        self.states[ending.outcome] = self.states.get(ending.outcome, 0) + 1
        if ending.outcome is RunState.FAILED:
            last = (ending.error or "").strip().splitlines()[-1:]
            self.errors.append(f"trial {event.trial} in cell {event.cell} failed: {''.join(last)}")
            return
        cell = self.cells.setdefault(event.cell, CellProgress())  # one no longer in the grid has none
        cell.counted += 1
        if ending.outcome.has_value and ending.value is not None:
            cell.best = min(value for value in (cell.best, ending.value) if value is not None)

    def reopen(self, cell: str) -> None:
        """Record that a pruned trial of a cell continues."""
        if cell in self.cells:
            self.cells[cell].counted -= 1
        if self.states.get(RunState.PRUNED):
            self.states[RunState.PRUNED] -= 1

    def follow(self, state: ControlState) -> None:
        """Apply the phase and the budget that the study's commands have set."""
        self.phase, self.state = state.phase, state_in_phase(state.phase, self.places)
        if state.budget is not None:
            self.plan = self.remaining.plan = self.plan.with_budget(state.budget)


class Notifier:
    """Notifies the targets that the study file names; failures to send are kept in `errors`, without URLs.

    Raises:
        BadInput: a variable is not set or holds no URL that Apprise knows, or Apprise is not installed.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._study = spec.name
        self._targets = _targets(spec) if spec.notify else {}
        self._last_event = time.monotonic()
        self.errors: list[str] = []

    def note_event(self) -> None:
        """Record that something happened."""
        self._last_event = time.monotonic()

    def notify_if_idle(self, phase: str) -> None:
        """Notify once when nothing has happened for IDLE_SECONDS; `phase` is the study's, such as pause."""
        seconds = time.monotonic() - self._last_event
        if seconds > IDLE_SECONDS:
            self._last_event = math.inf
            why = {"run": ""}.get(phase, f"; {phase} was asked for")
            self._notify("idle", f"nothing happened for {duration(seconds)}{why}")

    def notify_end(self, folder: StudyFolder, status: str, errors: list[str]) -> None:
        """Notify how the study ended: its runs by state, its best value, and the first error."""
        if not self._targets:
            return  # a summary reads every run's folder
        summary = summarize(folder, status)
        lines = [f"runs: {counts(summary['counts']) or 'none'}"]
        if summary["best_value"] is not None:
            lines.append(f"best {summary['metric']} {summary['best_value']:.4f} in {summary['best_run']}")
        lines += [f"error: {each}" for each in errors[:1]]
        if len(errors) > 1:
            lines.append(f"and {len(errors) - 1} more")
        lines.append(f"show it: {folder.command('study show')}")
        self._notify(status, "\n".join(lines))

    def _notify(self, what: str, text: str) -> None:
        for variable, target in self._targets.items():
            if not target.notify(title=f"sweeplab: {self._study} {what}", body=text):
                self.errors.append(f"{variable}: Apprise could not send that the study is {what}")


def _targets(spec: StudySpec) -> dict[str, Apprise]:
    try:
        from apprise import Apprise
    except ImportError:
        how = "pip install 'sweeplab[notify]'"
        raise BadInput(spec.problem(("notify",), "notify needs Apprise", how)) from None
    targets, problems = {}, list[Problem]()
    for index, variable in enumerate(spec.notify):
        place, urls = ("notify", index), os.environ.get(variable, "")
        target = targets[variable] = Apprise()
        # Apprise imports its plug-ins when it first sees a URL, and they use deprecated parts of Python.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            is_known = target.add(urls)
        if not urls.strip():
            allowed = "one or more Apprise URLs in it"
            problems.append(spec.problem(place, f"{variable} is not set", allowed))
        elif not is_known:
            what = f"{variable} holds no URL that Apprise knows"
            problems.append(spec.problem(place, what, "such as ntfys://my-topic"))
    if problems:
        raise BadInput(*problems)
    return targets


def ended_in_words(event: TrialEnded, progress: StudyProgress) -> str:
    """Describe a trial that has ended in one line, with how far the study is."""
    return "  ".join(_ended(event, progress))


def _ended(event: TrialEnded, progress: StudyProgress) -> Iterator[str]:
    yield out_of(progress.counted, progress.plan.trials)
    yield f"{event.cell} trial {event.trial}"
    yield event.ending.outcome
    if event.ending.outcome is RunState.FAILED:
        yield progress.errors[-1]
    elif event.ending.value is not None:
        yield f"{progress.plan.metric} {event.ending.value:.4f}"
    yield ", ".join(pace(progress))


def pace(progress: StudyProgress) -> Iterator[str]:
    """Yield the time left and the trials in a time, as far as they are known."""
    if (left := progress.left).high:
        yield f"{left.in_words} left"
    if progress.new:
        per_minute = progress.new / progress.seconds * 60
        yield f"{per_minute:.1f} a minute" if per_minute >= 1 else f"{per_minute * 60:.1f} an hour"
