"""The progress of a study, and one estimate of how long the rest takes, for its plan, its views and its dashboard.

A cell's whole trial takes the mean seconds of its runs so far; a cell of which nothing is timed takes what its FLOPs
tell, beside the timed cells. How much of a run a pruner lets train is learned from the trials that have ended, beside
what the rule of halving expects. Before a step was timed, in this run of the study or for its plan, nothing is told.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from sweeplab.formatting import duration, out_of
from sweeplab.lab.events import Event, RunEvaluated, StudyError, TrialClaimed, TrialEnded, TrialEvent
from sweeplab.lab.listing import StudyState, state_in_phase
from sweeplab.records.folders import WorkerPlace
from sweeplab.records.runs import RunState
from sweeplab.study.plan import CellPlan, Plan

if TYPE_CHECKING:
    from sweeplab.sweep.trials.sharing import ControlState

# From the start to the first claimed trial, on a quiet machine: workers import torch and load the data.
START_SECONDS = 4.0
# How long a cell takes beside others, before it is timed: FLOPs per second on a CPU and on a GPU, and what a step takes
# beside its FLOPs. In small models it is most of the time: of one that trains 150 times the FLOPs of another, steps
# took 3.4 times as long.
GUESSED_FLOPS, GUESSED_STEP_SECONDS = {"cpu": 5e10, "cuda": 5e12}, 0.003
# What other cells tell of a cell counts as this share of a timed run.
OTHERS_SHARE = 0.1
# The parts of a run for which early ends are counted, and the weight, in trials, of what is expected before that.
PARTS, EXPECTED_TRIALS = 20, 4.0
# The expected share of trials that a pruner ends in each part, if it does not halve.
PRUNED_SHARE = 0.04
# The factor of a halving pruner with a single rung, and the trials of a cell whose number is not limited.
USUAL_FACTOR, MANY_TRIALS = 4.0, 100
# More trials than this are not laid out over the workers: the last ones hardly matter then.
MOST_LAID_OUT = 300


def time_in_words(seconds: float | None) -> str:
    """Write an estimate: about 45s; under 2s; an empty text where there is none."""
    if seconds is None:
        return ""
    if seconds < 2:
        return "under 2s"
    # In steps of about a twentieth, as more digits would change all the time.
    step = next((step for most, step in ((20, 1), (100, 5), (600, 10), (3600, 60)) if seconds < most), 600)
    return f"about {duration(max(1, round(seconds / step) * step))}"


@dataclass
class _Trial:
    """A trial that has not ended: its share of a run so far, and when its last event came.

    `at` is None where that was before the study was last started, or the trial was saved since.
    """

    share: float = 0.0
    at: float | None = None
    is_live: bool = False
    is_evaluated: bool = False


@dataclass
class _Timed:
    """What a cell's trials have trained since the study was last started: shares of runs, in so many seconds."""

    shares: float = 0.0
    seconds: float = 0.0


class _Rest(NamedTuple):
    """What is left of a trial: the share of the workers that it takes, its seconds, and its cell and share so far."""

    size: float
    seconds: float
    cell: str
    share: float


@dataclass
class Remaining:
    """Estimates how long the rest of a study takes; times are in seconds since 1970.

    `since` is when the study was last started: the pace of earlier trials does not count, but what pruning saved does.
    """

    plan: Plan
    since: float
    _trials: dict[tuple[str, int], _Trial] = field(default_factory=dict)
    _timed: dict[str, _Timed] = field(default_factory=lambda: defaultdict(_Timed))
    # By cell and part of a run: the trials that ended there, a run's end being a part of its own; and those cut short.
    _reached: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    _stopped: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    _beside: list[float] = field(
        default_factory=list
    )  # seconds of each ended trial in which it did not train
    _flops: float = 0.0
    _has_begun: bool = False

    def replay(self, events: Sequence[Event], now: float) -> None:
        """Take in the past events of a study's folder, each at the time when its trial began or ended."""
        ends = {event.place: event.ended for event in events if isinstance(event, TrialEnded)}

        def at(event: Event) -> float:
            if isinstance(event, TrialClaimed):
                return event.started
            if isinstance(event, TrialEvent):
                return ends.get(event.place, now)
            return now

        for event in sorted(events, key=at):  # stable: an evaluation stays before its trial's end
            self.take_in(event, at(event))

    def clear_live(self) -> None:
        """Record that all trials that trained were saved."""
        for trial in self._trials.values():
            trial.is_live, trial.at = False, None

    def take_in(self, event: Event, now: float) -> None:
        """Learn from an event of a worker, or of the study's folder."""
        if not isinstance(event, TrialEvent) or event.cell not in self._cells:
            return
        if isinstance(event, TrialClaimed | RunEvaluated):
            trial = self._trials.setdefault(event.place, _Trial())
            trial.is_live = True
            self._has_begun |= now >= self.since
            if isinstance(event, RunEvaluated):
                length = self._cells[event.cell].max_iters
                self._advance(event.cell, trial, event.iteration / length if length else 0.0, now)
            elif now >= self.since:
                trial.at = now
            return
        if not isinstance(event, TrialEnded) or not event.ending.outcome.counts_towards_budget:
            trial = self._trials.setdefault(event.place, _Trial())
            trial.is_live, trial.at = False, None  # saved or lost
            if isinstance(event, TrialEnded):  # failed: another one is trained in its place
                del self._trials[event.place]
            return
        trial = self._trials.pop(event.place, _Trial())
        is_whole = event.ending.outcome is RunState.COMPLETE
        if is_whole and trial.share < 1.0:
            self._advance(event.cell, trial, 1.0, now)
        elif trial.at is not None:
            self._beside.append(now - trial.at)
        part = PARTS if is_whole else _part(trial.share)
        self._reached[event.cell][part] += 1
        if not is_whole:
            self._stopped[event.cell][part] += 1

    def left(self, now: float, counted: Mapping[str, int], elapsed: float = 0.0) -> float | None:
        """Return how long the rest takes, given each cell's ended trials and the seconds of the time budget used up.

        None before a step was timed.
        """
        budget = self.plan.budget
        most = math.inf if budget.time is None else max(0.0, budget.time - elapsed)
        if budget.trials_per_cell is None and budget.flops is None:
            return most
        stops = self._stops()
        waiting, live = (
            self._waiting(counted, stops),
            [key for key, trial in self._trials.items() if trial.is_live],
        )
        if not (waiting or live):
            return 0.0
        wholes = self._whole_seconds()
        if wholes is None:
            return None
        beside = median(self._beside[-MOST_LAID_OUT:]) if self._beside else 0.0
        rest: list[_Rest] = []
        for place in live:
            cell, trial = self._cells[place[0]], self._trials[place]
            passed = 0.0 if trial.at is None else max(0.0, now - trial.at)
            seconds = _kept(stops[cell.cell], trial.share) * wholes[cell.cell]
            rest.append(
                _Rest(1 / self._slots(cell), max(0.0, seconds - passed) + beside, cell.cell, trial.share)
            )
        for cell, share in waiting:
            seconds = _kept(stops[cell.cell], share) * wholes[cell.cell]
            rest.append(_Rest(1 / self._slots(cell), seconds + beside, cell.cell, share))
        # Of the last trials some train longer than the mean, while the others' slots stay empty.
        last, n_last = rest[-1], min(len(rest), round(1 / rest[-1].size))
        longer = _kept(stops[last.cell], last.share, n_last) - _kept(stops[last.cell], last.share)
        tail = longer * wholes[last.cell] / 2
        start = 0.0
        if not self._has_begun:
            start = max(0.0, START_SECONDS - max(0.0, now - self.since))
        return min(most, start + _laid_out(rest) + tail)

    @property
    def _cells(self) -> dict[str, CellPlan]:
        return {cell.cell: cell for cell in self.plan.cells}

    def _advance(self, name: str, trial: _Trial, share: float, now: float) -> None:
        """Take in that a trial has trained a share of its run."""
        share = min(1.0, share)
        if share <= trial.share and trial.is_evaluated:  # of another seed
            return
        cell = self._cells[name]
        self._flops += (share - trial.share) * cell.train_flops * len(cell.seeds)
        if trial.at is not None and share > trial.share:
            self._timed[name].seconds += max(0.0, now - trial.at)
            self._timed[name].shares += share - trial.share
        trial.share, trial.is_evaluated = share, True
        if now >= self.since:
            trial.at = now

    def _waiting(
        self, counted: Mapping[str, int], stops: Mapping[str, Sequence[float]]
    ) -> list[tuple[CellPlan, float]]:
        """Return the cell of each trial that is still to train, and its share of a run so far."""
        per_cell, flops = self.plan.budget.trials_per_cell, self.plan.budget.flops
        if per_cell is None:
            assert flops is not None
            cells = self.plan.cells
            a_round = sum(_kept(stops[cell.cell]) * cell.train_flops * len(cell.seeds) for cell in cells)
            n_rounds = math.ceil(max(0.0, flops - self._flops) / a_round)
            return [(cell, 0.0) for cell in cells] * n_rounds
        live = Counter(cell for (cell, _), trial in self._trials.items() if trial.is_live)
        saved = defaultdict[str, list[float]](list)
        for (name, _), trial in self._trials.items():
            if not trial.is_live:
                saved[name].append(trial.share)
        waiting = []
        for cell in self.plan.cells:
            n_left = max(0, cell.n_trials(per_cell) - counted.get(cell.cell, 0) - live[cell.cell])
            begun = saved[cell.cell][:n_left]
            waiting += [(cell, share) for share in begun] + [(cell, 0.0)] * (n_left - len(begun))
        return waiting

    def _slots(self, cell: CellPlan) -> float:
        """Return how many trials of a cell train at once."""
        n_slots = cell.stack * len(self.plan.workers) / len(cell.seeds)
        per_cell = self.plan.budget.trials_per_cell
        return max(1.0, n_slots if per_cell is None else min(n_slots, cell.n_trials(per_cell)))

    def _whole_seconds(self) -> dict[str, float] | None:
        """Return the seconds of a whole trial of each cell; None before a step was timed."""
        expected = {}
        for cell in self.plan.cells:
            seconds = cell.run_seconds
            if not seconds:
                steps = (cell.max_iters or 0) * GUESSED_STEP_SECONDS
                seconds = (steps + cell.train_flops / GUESSED_FLOPS[self.plan.device]) / len(
                    self.plan.workers
                )
            expected[cell.cell] = seconds * len(cell.seeds) * self._slots(cell)
        timed = {name: each for name, each in self._timed.items() if each.seconds}
        if timed:
            by_plan = sum(each.shares * expected[name] for name, each in timed.items())
            ratio = sum(each.seconds for each in timed.values()) / by_plan
        elif self.plan.timed_by:
            ratio = 1.0
        else:
            return None
        wholes = {}
        for name, seconds in expected.items():
            measured = self._timed[name]
            by_others = OTHERS_SHARE * ratio * seconds
            wholes[name] = (measured.seconds + by_others) / (measured.shares + OTHERS_SHARE)
        return wholes

    def _stops(self) -> dict[str, list[float]]:
        """Return for each cell and part of a run the share of trials that end in it, of those that reach it.

        At a rung it is what the rule of halving expects of the cell's next trials, corrected by how many trials of all
        cells have passed there beside how many the rule expected.
        """
        expected = 0.0
        if not self.plan.pruner.startswith("none") and not any(cell.rungs for cell in self.plan.cells):
            expected = PRUNED_SHARE
        passed = {cell.cell: self._passed(cell.cell) for cell in self.plan.cells}
        stopped = [sum(of_cell[part] for of_cell in self._stopped.values()) for part in range(PARTS)]
        n_passed = [sum(of_cell[part] for of_cell in passed.values()) for part in range(PARTS)]
        usual = [
            (stopped[part] + EXPECTED_TRIALS * expected) / (stopped[part] + n_passed[part] + EXPECTED_TRIALS)
            for part in range(PARTS)
        ]
        stops = {}
        for cell in self.plan.cells:
            of_cell = stops[cell.cell] = [*usual]
            n_trials, factor = self.plan.budget.trials_per_cell or MANY_TRIALS, USUAL_FACTOR
            if len(cell.rungs) > 1:
                factor = cell.rungs[1] / cell.rungs[0]
            for rung in cell.rungs if cell.max_iters else ():
                part = _part(rung / (cell.max_iters or 1))
                came = {name: self._stopped[name][part] + passed[name][part] for name in passed}
                by_rule = sum(_passes(0, n, factor) for n in came.values())
                to_come = max(1, n_trials - came[cell.cell])
                share = _passes(came[cell.cell], to_come, factor) / to_come
                of_cell[part] = 1 - min(
                    1.0, share * (n_passed[part] + EXPECTED_TRIALS) / (by_rule + EXPECTED_TRIALS)
                )
                n_trials = math.ceil(_passes(0, n_trials, factor))
        return stops

    def _passed(self, name: str) -> list[int]:
        """Return how many trials of a cell have passed each part of a run, those that train included."""
        reached = self._reached[name].copy()
        for (cell, _), trial in self._trials.items():
            if cell == name and trial.share > 0:  # the part that it is in is not passed
                reached[_part(trial.share)] += 1
        return [sum(count for part, count in reached.items() if part > at) for at in range(PARTS)]


def _passes(came: int, n_trials: int, factor: float) -> float:
    """Return how many of the next trials pass a rung of halving after so many have come there, in the mean.

    One passes if it is among the best share 1 / factor of those there, or the best.
    """
    return sum(max(1, number // factor) / number for number in range(came + 1, came + n_trials + 1))


def _part(share: float) -> int:
    """Return the part of a run that ends at a share of it, or has it inside."""
    return min(PARTS - 1, max(0, math.ceil(share * PARTS - 1e-9) - 1))


def _kept(stops: Sequence[float], share: float = 0.0, n_trials: int = 1) -> float:
    """Return how much of a run the longest of some trials at a share of it still trains, in the mean."""
    survive, kept = 1.0, 0.0
    for part in range(int(share * PARTS + 1e-9), PARTS):
        kept += (1 - (1 - survive) ** n_trials) * min(1 / PARTS, (part + 1) / PARTS - share)
        survive *= 1 - stops[part]
    return kept


def _laid_out(trials: Sequence[_Rest]) -> float:
    """Return when the last trial ends, if each takes its share of the workers and starts where enough is free."""
    if len(trials) > MOST_LAID_OUT:
        return sum(trial.size * trial.seconds for trial in trials)
    room, at, last = 1.0, 0.0, 0.0
    running: list[tuple[float, float]] = []
    for trial in trials:
        while room < trial.size - 1e-9:
            at, freed = heapq.heappop(running)
            room += freed
        room -= trial.size
        heapq.heappush(running, (at + trial.seconds, trial.size))
        last = max(last, at + trial.seconds)
    return last


# ---------------------------------------------------------------------- the progress


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
        """Return how many trials of the plan's cells count towards the budget so far."""
        of_cells = (self.cells.get(cell.cell) for cell in self.plan.cells)
        return sum(cell.counted for cell in of_cells if cell)

    @property
    def new(self) -> int:
        """Return how many of them ended since the study was last started."""
        return max(0, self.counted - self.done_before)

    @property
    def seconds(self) -> float:
        """Return how long ago the study was last started."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Return how many seconds the rest takes, at most the time budget's rest; None before a step was timed."""
        counted = {name: cell.counted for name, cell in self.cells.items()}
        return self.remaining.left(time.time(), counted, self.elapsed_before + self.seconds)

    def clear_live(self) -> None:
        """Record that all running trials were saved."""
        self.live.clear()
        self.remaining.clear_live()

    def begin(self, plan: Plan, since: float, past: Sequence[Event]) -> None:
        """Take over the plan with which the study was last started, at `since` (a time as in events), and its past."""
        self.plan, self.remaining = plan, Remaining(plan, since)
        self.remaining.replay(past, time.time())
        for cell in plan.cells:
            self.cells.setdefault(cell.cell, CellProgress())

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


def ended_in_words(event: TrialEnded, progress: StudyProgress) -> str:
    """Describe a trial that has ended in one line, with how far the study is."""
    outcome, value = event.ending.outcome, event.ending.value
    parts = [out_of(progress.counted, progress.plan.trials), f"{event.cell} trial {event.trial}", outcome]
    if outcome is RunState.FAILED:
        parts.append(progress.errors[-1])
    elif value is not None:
        parts.append(f"{progress.plan.metric} {value:.4f}")
    return "  ".join([*parts, ", ".join(pace(progress))])


def pace(progress: StudyProgress) -> Iterator[str]:
    """Yield the time left and the trials in a time, as far as they are known."""
    if progress.left:
        yield f"{time_in_words(progress.left)} left"
    if progress.new:
        per_minute = progress.new / progress.seconds * 60
        yield f"{per_minute:.1f} a minute" if per_minute >= 1 else f"{per_minute * 60:.1f} an hour"
