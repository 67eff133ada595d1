"""The progress of a study, followed by any process, and one estimate of how long the rest takes.

A cell's whole trial takes the mean seconds of its runs so far; a cell of which nothing is timed takes what its FLOPs
tell, beside the timed cells. How much of a run a trial trains follows from the rule of halving, corrected by the trials
that have ended. Before anything was timed nothing is told.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sweeplab.files import GrowingFile
from sweeplab.formatting import duration, out_of, yaml_text
from sweeplab.lab.events import (
    Event,
    EventStream,
    OnLook,
    RunEvaluated,
    StudyNotice,
    Tick,
    TrialClaimed,
    TrialEnded,
    TrialEvent,
)
from sweeplab.lab.listing import StudyState, find_metric, state_in_phase, study_state
from sweeplab.records.folders import StudyFolder, WorkerPlace
from sweeplab.records.runs import RunState
from sweeplab.study.plan import CellPlan, Plan

if TYPE_CHECKING:
    from sweeplab.sweep.trials.sharing import Command, Commands, ControlState

# How long a cell takes beside others, before it is timed: FLOPs per second on a CPU and on a GPU, and what a step takes
# beside its FLOPs. In small models it is most of the time: of one that trains 150 times the FLOPs of another, steps
# took 3.4 times as long.
GUESSED_FLOPS, GUESSED_STEP_SECONDS = {"cpu": 5e10, "cuda": 5e12}, 0.003
# What other cells tell of a cell counts as this share of a timed run.
OTHERS_SHARE = 0.1
# What the rule of halving expects of a trial counts as so many ended trials.
EXPECTED_TRIALS = 4.0
# The factor of a halving pruner with a single rung.
USUAL_FACTOR = 4.0

LOOK_SECONDS = 0.5
# Phases that have another name in the log.
PHASES = {
    "run": "resume",
    "over": "time budget used up",
    "closing": "nothing left to do, or interrupted",
}


def time_in_words(seconds: float | None) -> str:
    """Write an estimate: about 45s; under 2s; an empty text where there is none."""
    if seconds is None:
        return ""
    if seconds < 2:
        return "under 2s"
    return f"about {duration(float(f'{seconds:.2g}'))}"  # more digits would change all the time


@dataclass
class _Trial:
    """A trial that has not ended: its share of a run so far, and from which share and time on it is timed.

    `since` is None where that was before the study was last started, or the trial was saved since.
    """

    share: float = 0.0
    timed: float = 0.0
    since: float | None = None


@dataclass
class Remaining:
    """Estimates how long the rest of a study takes; times are in seconds since 1970.

    `since` is when the study was last started: the pace of earlier trials does not count, but what pruning saved does.
    """

    plan: Plan
    since: float
    _trials: dict[tuple[str, int], _Trial] = field(default_factory=dict)
    # What the trials of a cell have trained since then: shares of runs, in so many seconds.
    _timed: Counter[str] = field(default_factory=Counter)
    _seconds: Counter[str] = field(default_factory=Counter)
    # Of ended trials.
    _shares: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def clear_live(self) -> None:
        """Record that all trials that trained were saved."""
        for trial in self._trials.values():
            trial.since = None

    def take_in(self, event: Event, now: float | None = None) -> None:
        """Learn from an event of a study's folder; `now` is its time, None for an evaluation of the past."""
        cells = {cell.cell: cell for cell in self.plan.cells}
        if not isinstance(event, TrialEvent) or event.cell not in cells:
            return
        trial = self._trials.setdefault(event.place, _Trial())
        match event:
            case TrialClaimed() if event.started >= self.since:
                trial.since = event.started
            case RunEvaluated():
                length = cells[event.cell].max_iters or math.inf
                trial.share = max(trial.share, min(1.0, event.iteration / length))
                if now is not None:
                    self._time(event.cell, trial, now)
            case TrialEnded():
                del self._trials[event.place]
                if event.ending.outcome is RunState.COMPLETE:
                    trial.share = 1.0
                self._time(event.cell, trial, event.ended)
                # Else another one is trained in its place.
                if event.ending.outcome.counts_towards_budget:
                    self._shares[event.cell].append(trial.share)

    def _time(self, cell: str, trial: _Trial, now: float) -> None:
        """Take in that a trial has come to its share; what precedes its first evaluation does not count."""
        grown = trial.share - trial.timed
        if trial.since is not None:
            if trial.share and not grown:  # another seed's evaluation
                return
            self._timed[cell] += grown  # type: ignore[assignment]
            if grown:
                self._seconds[cell] += max(0.0, now - trial.since)  # type: ignore[assignment]
        trial.timed, trial.since = trial.share, now

    def left(self, counted: Mapping[str, int], elapsed: float = 0.0) -> float | None:
        """Return how long the rest takes, given each cell's ended trials and the seconds of the time budget used up.

        None before anything was timed, and where neither a number of trials nor a time limits the study.
        """
        budget = self.plan.budget
        most = math.inf if budget.time is None else max(0.0, budget.time - elapsed)
        if budget.trials_per_cell is None:
            return None if budget.time is None else most
        by_rule = trained = EXPECTED_TRIALS
        for cell in self.plan.cells:
            by_rule += len(self._shares[cell.cell]) * _by_halving(cell, 0.0)
            trained += sum(self._shares[cell.cell])
        work = longest = tail = 0.0
        for cell in self.plan.cells:
            begun = [
                trial.share for (name, _), trial in self._trials.items() if name == cell.cell
            ]
            ended = counted.get(cell.cell, 0)
            n_new = cell.n_trials(budget.trials_per_cell) - ended - len(begun)
            # How much of a run each trial still trains; the last one stands for those to begin.
            shares = [
                min(1 - share, _by_halving(cell, share) * trained / by_rule)
                for share in [*begun, 0.0]
            ]
            shares = shares[:-1] + n_new * shares[-1:]
            if not shares:
                continue
            if not self._seconds.total():
                return None
            whole = self._whole_seconds(cell)
            n_slots = max(1.0, cell.stack * len(self.plan.workers) / len(cell.seeds))
            work += sum(shares) * whole / n_slots
            longest = max(longest, max(shares) * whole)
            # Of the last trials some train longer than the mean, while the others' slots stay empty.
            tail = (1 - _by_halving(cell, 0.0)) * whole / 2
        return min(most, max(work + tail, longest))

    def _whole_seconds(self, cell: CellPlan) -> float:
        """Return the seconds of a whole trial of a cell, by its own and, in proportion to FLOPs, by those of others."""
        by_flops = sum(self._timed[each.cell] * self._guessed(each) for each in self.plan.cells)
        like = self._seconds.total() / by_flops * self._guessed(cell)
        return (self._seconds[cell.cell] + OTHERS_SHARE * like) / (
            self._timed[cell.cell] + OTHERS_SHARE
        )

    def _guessed(self, cell: CellPlan) -> float:
        steps = (cell.max_iters or 0) * GUESSED_STEP_SECONDS
        return cell.stack * (steps + cell.train_flops / GUESSED_FLOPS[self.plan.device])


def _by_halving(cell: CellPlan, share: float) -> float:
    """Return how much of a run a trial at a share of it still trains, where a rung lets one of `factor` trials pass."""
    factor = USUAL_FACTOR
    if len(cell.rungs) > 1:
        factor = cell.rungs[1] / cell.rungs[0]
    survive, kept, at = 1.0, 0.0, share
    for rung in cell.rungs:
        place = rung / (cell.max_iters or math.inf)
        if place > at:
            kept += survive * (place - at)
            survive /= factor
            at = place
    return kept + survive * (1 - at)


# ---------------------------------------------------------------------- the progress


@dataclass
class CellProgress:
    """A cell's number of trials that count towards the budget so far, and its best value."""

    counted: int = 0
    best: float | None = None


@dataclass
class StudyProgress:
    """The state of a running study; `live` has the last event of every running trial, by cell and number.

    `elapsed` is how many seconds of the time budget are used up.
    """

    plan: Plan
    cells: dict[str, CellProgress]
    live: dict[tuple[str, int], TrialEvent] = field(default_factory=dict)
    remaining: Remaining = field(init=False)
    states: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    elapsed: float = 0.0
    phase: str = "run"
    state: StudyState = StudyState.RUNNING
    places: list[WorkerPlace] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.remaining = Remaining(self.plan, time.time())

    @property
    def counted(self) -> int:
        """Return how many trials of the plan's cells count towards the budget so far."""
        of_cells = (self.cells.get(cell.cell) for cell in self.plan.cells)
        return sum(cell.counted for cell in of_cells if cell)

    @property
    def seconds(self) -> float:
        """Return how long ago the study was last started."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Return how many seconds the rest takes, at most the time budget's rest; None before a step was timed."""
        counted = {name: cell.counted for name, cell in self.cells.items()}
        return self.remaining.left(counted, self.elapsed)

    def clear_live(self) -> None:
        """Record that all running trials were saved."""
        self.live.clear()
        self.remaining.clear_live()

    def begin(self, plan: Plan, since: float) -> None:
        """Take over the plan with which the study was last started, at `since` (seconds since 1970)."""
        self.plan = plan
        self.remaining = Remaining(plan, since)
        self.started = time.monotonic() - (time.time() - since)
        for cell in plan.cells:
            self.cells.setdefault(cell.cell, CellProgress())

    def take_in(self, event: Event, now: float | None = None) -> None:
        """Update the progress by one event of a worker; `now` is its time, None for one of the past."""
        self.remaining.take_in(event, now)
        match event:
            case TrialClaimed() | RunEvaluated():
                self.live[event.place] = event
            case TrialEnded():
                self.live.pop(event.place, None)
                self._end(event)
            case StudyNotice(is_error=True):
                self.errors.append(event.message)

    def _end(self, event: TrialEnded) -> None:
        ending = event.ending
        self.states[ending.outcome] = self.states.get(ending.outcome, 0) + 1
        if ending.outcome is RunState.FAILED:
            last = (ending.error or "").strip().rpartition("\n")[2]
            self.errors.append(f"trial {event.trial} in cell {event.cell} failed: {last}")
            return
        # One no longer in the grid has none.
        cell = self.cells.setdefault(event.cell, CellProgress())
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
        self.phase = state.phase
        self.state = state_in_phase(state.phase, self.places)
        if state.budget is not None:
            self.plan = self.remaining.plan = self.plan.with_budget(state.budget)


def ended_in_words(event: TrialEnded, progress: StudyProgress) -> str:
    """Describe a trial that has ended in one line, with how far the study is."""
    outcome, value = event.ending.outcome, event.ending.value
    parts = [
        out_of(progress.counted, progress.plan.trials),
        f"{event.cell} trial {event.trial}",
        outcome,
    ]
    if outcome is RunState.FAILED:
        parts.append(progress.errors[-1])
    elif value is not None:
        parts.append(f"{progress.plan.metric} {value:.4f}")
    return "  ".join([*parts, *time_left(progress)])


def time_left(progress: StudyProgress) -> list[str]:
    """Return the time left in words, if it is known."""
    return [f"{time_in_words(progress.left)} left"] if progress.left else []


# ---------------------------------------------------------------------- followed by any process


class Watched:
    """A study that any process runs: its commands, and its progress as its folder tells it.

    `hear` gets the runs that had not ended, as in `EventStream`.
    """

    def __init__(
        self,
        folder: StudyFolder,
        hear: OnLook = lambda run, points, end: None,
        commands: Commands | None = None,
    ) -> None:
        from sweeplab.sweep.trials.sharing import Commands  # SQLAlchemy with it: slow to import

        self.folder = folder
        self.commands = commands or Commands.open(folder)
        self._stream = EventStream(folder, hear)
        self.progress = StudyProgress(Plan.from_dict(folder.read(folder.plan_file)), {})
        self._has_begun = False

    def news(self, commands: Sequence[Command] | None = None) -> Iterator[Event]:
        """Yield what has happened since the last call; the progress has taken it in.

        `commands` are those that the caller has read since then.
        """
        for command in self.commands.read() if commands is None else commands:
            if command.kind == "start":
                self._has_begun = False
            elif command.kind == "reopen":
                cell = command.value["cell"]
                anew = command.value.get("anew", False)
                if self._stream.reopen(cell, command.value["trial"], anew):
                    self.progress.reopen(cell)
        progress = self.progress
        is_past = not self._has_begun
        if is_past:
            self._has_begun = True
            plan = Plan.from_dict(self.folder.read(self.folder.plan_file))
            progress.begin(plan, self.commands.state.started)
        for event in self._stream.new(latest_only=is_past):
            progress.take_in(event, None if is_past else time.time())
            yield event
        progress.elapsed = self.folder.elapsed_seconds
        progress.follow(self.commands.state)
        if commands is None:  # else the caller runs the study, and `follow` tells its state
            progress.state = study_state(self.folder)


def watch_study(
    folder: StudyFolder, listen: Callable[[Event, StudyProgress], None]
) -> str | None:
    """Follow a study until it ends; `listen` gets every event, and a `Tick` twice a second.

    Return how it ended: complete, interrupted or failed; None if its supervisor was killed or nobody runs it.
    """
    watched = Watched(folder)
    progress = watched.progress
    commands = watched.commands
    deque(watched.news(), maxlen=0)  # the past
    while folder.is_run:
        progress.places = folder.workers
        if progress.phase != "run":
            progress.clear_live()  # the study's folder does not say when a run was saved
        listen(Tick(), progress)
        time.sleep(LOOK_SECONDS)
        for event in watched.news():
            listen(event, progress)
    commands.read()
    return commands.state.status


class LogLine(TypedDict):
    """A line of a study's log: its time (seconds since 1970, None if unknown), its source, and its text."""

    time: float | None
    source: str
    text: str


def log_lines(folder: StudyFolder, follow: bool = False) -> Iterator[LogLine]:
    """Yield the events of a study in order, and the lines of its workers' logs.

    With `follow`, continue until nobody runs the study.
    """
    from sweeplab.sweep.trials.sharing import Commands

    stream = EventStream(folder)
    metric = find_metric(folder)
    commands = Commands.open(folder)
    started: set[tuple[str, int]] = set()  # a trial starts with the first of its runs
    logs: dict[Path, GrowingFile] = {}
    events = stream.new(latest_only=True)
    is_last = not follow
    while True:
        lines = [
            LogLine(time=each.given, source="study", text=_in_words(each))
            for each in commands.read()
        ]
        for event in events:
            name = f"{event.cell} trial {event.trial}"
            if isinstance(event, TrialClaimed) and event.place not in started:
                started.add(event.place)
                lines.append(
                    LogLine(time=event.started, source="trial", text=f"{name} started")
                )
            elif isinstance(event, TrialEnded):
                ending = event.ending
                text = f"{name} {ending.outcome}"
                if ending.value is not None:
                    text += f", {metric} {ending.value:.4f}"
                text += f" ({event.stop_reason or ''})"
                if ending.error:
                    text += f": {ending.error.strip().splitlines()[-1]}"
                lines.append(LogLine(time=event.ended, source="trial", text=text))
        yield from sorted(lines, key=lambda line: line["time"] or 0.0)
        for file in [folder.run_log, *sorted(folder.path.glob("worker-*.log"))]:
            added = logs.setdefault(file, GrowingFile(file)).new_lines()
            for text in added.decode("utf-8", "replace").splitlines():
                yield LogLine(time=None, source=file.stem, text=text)
        if is_last:
            return
        is_last = not folder.is_run
        time.sleep(LOOK_SECONDS)
        events = stream.new()


def _in_words(command: Command) -> str:
    value = command.value
    match command.kind:
        case "start":
            return f"started on {value['host']}, process {value['pid']}"
        case "wanted":
            return str(PHASES.get(value, value))
    return f"{command.kind}: {yaml_text(value)}"
