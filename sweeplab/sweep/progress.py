"""The progress of a study, and how long the rest takes: one estimate for its plan, its views and its dashboard.

A cell's runs begin with the duration that the plan expects; each evaluation then corrects it. How much pruning saves
is learned as well: the shares of runs that end early in each part of a run. The estimate is an interval, which narrows.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
# Where nothing was measured: FLOPs per second of a study's worker on a CPU and on a GPU, and what a step of a run takes
# beside its FLOPs, evaluations included. In small models it is most of the time: of one that trains 150 times the FLOPs
# of another, steps took 3.4 times as long.
GUESSED_FLOPS, GUESSED_STEP_SECONDS = {"cpu": 5e10, "cuda": 5e12}, 0.003
# Standard deviations of a duration's logarithm: of a cell's ratio to the plan, beside that of other cells; of what a
# whole run's measured time leaves open, such as later load on the machine; and of one run's time.
CELL_SPREAD, LEAST_SPREAD, RUN_SPREAD = 0.2, 0.25, 0.1
# A measured time counts half after this share of the study's time so far: other load on the machine comes and goes.
MEMORY = 0.2
# The interval reaches this many standard deviations to either side.
DEVIATIONS = 1.6
# Parts of a run for which early ends are counted; the weight, in trials, of what is expected before that.
PARTS, EXPECTED_TRIALS = 20, 2.0
# The expected share of runs that a pruner ends in each part, if it does not halve.
PRUNED_SHARE = 0.04
# The factor of a halving pruner with a single rung, and the trials of a cell whose number is not limited.
USUAL_FACTOR, MANY_TRIALS = 4.0, 100
# The trials at most that are laid out one by one; of more, the rest takes time in proportion.
MOST_TRIALS = 300


class TimeInterval(NamedTuple):
    """Seconds: the likeliest number, and those below and above which the truth is unlikely."""

    low: float
    likely: float
    high: float

    @property
    def in_words(self) -> str:
        """Write the interval: about 45s; 2m to 3m30s; under 2s."""
        if self.high < 2:
            return "under 2s"
        low, likely, high = (duration(_rounded(seconds)) for seconds in self)
        if low == high or self.high <= 1.4 * self.low:
            return f"about {likely}"
        return f"{low} to {high}"


def _rounded(seconds: float) -> float:
    # In steps of about a twentieth, as more digits would change all the time.
    step = next((step for most, step in ((20, 1), (100, 5), (600, 10), (3600, 60)) if seconds < most), 600)
    return max(1, round(seconds / step) * step)


@dataclass
class _Live:
    """A trial that trains: its share of a run at `at`, its last event, and the share from one evaluation to the next.

    `at` is None for a trial of which only later events were followed.
    """

    share: float
    at: float | None
    step: float = 1.0
    is_new: bool = True


@dataclass
class _Pace:
    """The measured time of a cell's trials: for `runs` whole runs in sum up to `at`, before and after."""

    seconds: float = 0.0
    runs: float = 0.0
    at: float = 0.0
    first: float = math.inf
    last: float = 0.0
    ended: int = 0


class _Duration(NamedTuple):
    """The seconds of a cell's whole trial, those that each trial takes beside, and the spread of the first."""

    seconds: float
    beside: float
    spread: float


class _Rest(NamedTuple):
    """What is left of a trial: the share of the workers that it takes, its seconds, those of a whole one, its share of
    a run so far, the spread of its duration, and the shares of trials that end in each part from there.
    """

    size: float
    seconds: float
    whole: float
    share: float
    spread: float
    ends: Sequence[float]


@dataclass
class Remaining:
    """Estimates how long the rest of a study takes; times are in seconds since 1970.

    `since` is when the study was last started: the pace of earlier trials does not count, but what pruning saved does.
    """

    plan: Plan
    since: float
    live: dict[tuple[str, int], _Live] = field(default_factory=dict)  # the trials that train
    _shares: dict[tuple[str, int], float] = field(default_factory=dict)  # of trials that have not ended
    _paces: dict[str, _Pace] = field(default_factory=lambda: defaultdict(_Pace))
    # By cell: how many trials passed each part of a run, and how many ended in it.
    _passed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * PARTS))
    _ended: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * PARTS))
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

    def take_in(self, event: Event, now: float) -> None:
        """Learn from an event of a worker, or of the study's folder."""
        if not isinstance(event, TrialEvent) or event.cell not in self._cells:
            return
        place, pace, known = event.place, self._paces[event.cell], self._shares.get(event.place, 0.0)
        match event:
            case TrialClaimed():
                is_followed = event.started >= self.since or place in self._shares
                self.live.setdefault(place, _Live(known, now if is_followed else None))
                self._has_begun |= now >= self.since
            case RunEvaluated():
                trial, iterations = (
                    self.live.setdefault(place, _Live(known, None)),
                    self._cells[event.cell].max_iters,
                )
                share = min(1.0, event.iteration / iterations) if iterations else 0.0
                self._has_begun |= now >= self.since
                if trial.is_new and share == known:
                    pace.first = min(pace.first, self._seconds_since(trial, now) or math.inf)
                elif share > trial.share:
                    self._note_part(trial, event, share, now)
                elif not trial.is_new:  # another seed's, or one of an unknown length
                    return
                self.live[place] = _Live(share, now, share - known or trial.step, is_new=False)
                self._shares[place] = share
            case TrialEnded() if event.ending.outcome.counts_towards_budget:
                trial = self.live.pop(place, _Live(known, None))
                if event.ending.outcome is RunState.COMPLETE and trial.share < 1.0:
                    self._note_part(trial, event, 1.0, now)
                elif seconds := self._seconds_since(trial, now):
                    pace.last, pace.ended = pace.last + seconds, pace.ended + 1
                if event.ending.outcome is not RunState.COMPLETE and trial.share < 1.0:
                    part = _part(trial.share)
                    self._ended[event.cell][part] += 1
                    # It did not pass the part, at whose end it ended.
                    self._passed[event.cell][part] -= trial.share > (part + 1) / PARTS - 1e-9
                self._shares.pop(place, None)
            case _:  # saved, lost or failed
                self.live.pop(place, None)
                if isinstance(event, TrialEnded):
                    self._shares.pop(place, None)

    def left(self, now: float, counted: Mapping[str, int], elapsed: float = 0.0) -> TimeInterval:
        """Return how long the rest takes, given each cell's ended trials and the seconds of the time budget used up."""
        budget = self.plan.budget
        most = math.inf if budget.time is None else max(0.0, budget.time - elapsed)
        if budget.trials_per_cell is None and budget.flops is None:
            return TimeInterval(most, most, most)
        waiting = self._waiting(counted)
        if not (waiting or self.live):
            return TimeInterval(0.0, 0.0, 0.0)
        seconds, spread = self._laid_out(waiting, now)
        factor, start, waited = math.exp(DEVIATIONS * spread), 0.0, 0.0
        if not self._has_begun:
            waited = max(0.0, now - self.since)
            start = max(START_SECONDS - waited, 1.0)
        # A start that has taken long may take as long again.
        latest = start + max(start, waited) + 1.0
        interval = (start / 2 + seconds / factor, start + seconds, latest + seconds * factor)
        return TimeInterval(*(min(end, most) for end in interval))

    @property
    def _cells(self) -> dict[str, CellPlan]:
        return {cell.cell: cell for cell in self.plan.cells}

    def _seconds_since(self, trial: _Live, now: float) -> float:
        # 0 if that was before the study was last started
        if trial.at is None or trial.at < self.since:
            return 0.0
        return max(0.0, now - trial.at)

    def _note_part(self, trial: _Live, event: TrialEvent, share: float, now: float) -> None:
        cell, pace = self._cells[event.cell], self._paces[event.cell]
        if seconds := self._seconds_since(trial, now):
            kept = 0.5 ** ((now - pace.at) / (MEMORY * max(now - self.since, START_SECONDS)))
            pace.at, pace.seconds = now, kept * pace.seconds + seconds
            pace.runs = kept * pace.runs + share - trial.share
        for part in range(PARTS):
            self._passed[event.cell][part] += trial.share <= (part + 1) / PARTS - 1e-9 < share
        self._flops += (share - trial.share) * cell.train_flops * len(cell.seeds)

    def _waiting(self, counted: Mapping[str, int]) -> list[tuple[CellPlan, float]]:
        per_cell, flops = self.plan.budget.trials_per_cell, self.plan.budget.flops
        saved = [(place[0], share) for place, share in self._shares.items() if place not in self.live]
        if per_cell is None:
            assert flops is not None
            cells, ends = self.plan.cells, self._ends()
            per_round = sum(_kept(ends[cell.cell]) * cell.train_flops * len(cell.seeds) for cell in cells)
            n_rounds = math.ceil(max(0.0, flops - self._flops) / per_round)
            return [(cell, 0.0) for cell in cells for _ in range(n_rounds)]
        live, waiting = Counter(cell for cell, _ in self.live), []
        for cell in self.plan.cells:
            n_left = max(0, cell.n_trials(per_cell) - counted.get(cell.cell, 0) - live[cell.cell])
            shares = [share for name, share in saved if name == cell.cell][:n_left]
            waiting += [(cell, share) for share in (*shares, *[0.0] * (n_left - len(shares)))]
        return waiting

    def _slots(self, cell: CellPlan) -> float:
        n_slots = cell.stack * len(self.plan.workers) / len(cell.seeds)
        per_cell = self.plan.budget.trials_per_cell
        return max(1.0, n_slots if per_cell is None else min(n_slots, cell.n_trials(per_cell)))

    def _expected(self, cell: CellPlan) -> float:
        seconds = cell.run_seconds
        if not seconds:
            steps = (cell.max_iters or 0) * GUESSED_STEP_SECONDS
            seconds = (steps + cell.train_flops / GUESSED_FLOPS[self.plan.device]) / len(self.plan.workers)
        return seconds * len(cell.seeds) * self._slots(cell)

    def _durations(self) -> dict[str, _Duration]:
        """Return the duration of each cell's trials.

        A cell's own measured time counts by how much its trials trained, beside what the plan expects, which the other
        cells' measured times correct.
        """
        cells, logs = self._cells, dict[str, float]()
        for name, pace in self._paces.items():
            if pace.runs and pace.seconds:
                logs[name] = math.log(pace.seconds / pace.runs / self._expected(cells[name]))
        noise = {name: LEAST_SPREAD**2 + RUN_SPREAD**2 / self._paces[name].runs for name in logs}
        weights = {name: 1 / (CELL_SPREAD**2 + noise[name]) for name in logs}
        total = self.plan.spread**-2 + sum(weights.values())
        common = sum(weights[name] * log for name, log in logs.items()) / total
        before = CELL_SPREAD**2 + 1 / total
        firsts = [pace.first for pace in self._paces.values() if pace.first < math.inf]
        ended = max(1, sum(pace.ended for pace in self._paces.values()))
        beside = min(firsts, default=0.0) + sum(pace.last for pace in self._paces.values()) / ended
        durations = {}
        for cell in self.plan.cells:
            log, weight = common, 0.0
            if cell.cell in logs:
                weight = before / (before + noise[cell.cell])
                log += weight * (logs[cell.cell] - common)
            spread = math.sqrt(before * (1 - weight) + LEAST_SPREAD**2)
            durations[cell.cell] = _Duration(self._expected(cell) * math.exp(log), beside, spread)
        return durations

    def _ends(self) -> dict[str, list[float]]:
        """Return for each cell and part of a run the share of further trials that end in it, of those that reach it.

        At a rung it is what the rule of halving expects of them, corrected by how many trials of all cells have passed
        there beside how many the rule expected.
        """
        passed = [sum(column) for column in zip([0] * PARTS, *self._passed.values(), strict=False)]
        ended = [sum(column) for column in zip([0] * PARTS, *self._ended.values(), strict=False)]
        halves = any(cell.rungs for cell in self.plan.cells)
        expected = 0.0 if halves or self.plan.pruner.startswith("none") else PRUNED_SHARE
        counted = [
            (ended[part] + EXPECTED_TRIALS * expected) / (passed[part] + ended[part] + EXPECTED_TRIALS)
            for part in range(PARTS)
        ]
        ratios, ends = dict[tuple[int, float], float](), dict[str, list[float]]()
        for cell in self.plan.cells:
            of_cell = ends[cell.cell] = [*counted]
            n_trials = self.plan.budget.trials_per_cell or MANY_TRIALS
            length = cell.max_iters
            for rung in cell.rungs if length else ():
                part, factor = _part(rung / (length or 1)), USUAL_FACTOR
                if len(cell.rungs) > 1:
                    factor = cell.rungs[1] / cell.rungs[0]
                if (part, factor) not in ratios:
                    counts = (self._came(name, part) for name in [*self._passed])
                    by_rule = sum(_promoted(0, count, factor) for count in counts)
                    ratios[part, factor] = (passed[part] + EXPECTED_TRIALS) / (by_rule + EXPECTED_TRIALS)
                came = self._came(cell.cell, part)
                to_come = max(1, n_trials - came)
                pass_there = ratios[part, factor] * _promoted(came, to_come, factor) / to_come
                of_cell[part] = 1 - min(1.0, pass_there)
                n_trials = math.ceil(_promoted(0, n_trials, factor))
        return ends

    def _came(self, cell: str, part: int) -> int:
        return self._passed[cell][part] + self._ended[cell][part]

    def _rests(self, waiting: Sequence[tuple[CellPlan, float]], now: float) -> Iterator[_Rest]:
        """Yield what is left of the trials that train, then of those that wait."""
        durations, cells, ends = self._durations(), self._cells, self._ends()
        for (name, _), trial in sorted(self.live.items(), key=lambda item: -item[1].share):
            whole, beside, spread = durations[name]
            kept, passed = _kept(ends[name], trial.share), self._seconds_since(trial, now)
            # It has not passed its next evaluation, of which we would know.
            seconds = max(kept * whole - passed, (kept - trial.step) * whole, 0.0) + beside / 2
            yield _Rest(1 / self._slots(cells[name]), seconds, whole, trial.share, spread, ends[name])
        for cell, share in waiting:
            whole, beside, spread = durations[cell.cell]
            seconds = _kept(ends[cell.cell], share) * whole + beside
            yield _Rest(1 / self._slots(cell), seconds, whole, share, spread, ends[cell.cell])

    def _laid_out(self, waiting: Sequence[tuple[CellPlan, float]], now: float) -> tuple[float, float]:
        """Lay out all trials over the study's workers: return the seconds until the last ends, and their spread.

        A trial takes its share of the workers; the next one begins where enough is free.
        """
        trials = [*self._rests(waiting, now)]
        every = max(1, -(-len(trials) // MOST_TRIALS))
        room, at, last = 1.0, 0.0, 0.0
        heap = list[tuple[float, float]]()
        for trial in trials[::every]:
            while room < trial.size - 1e-9:
                at, freed = heapq.heappop(heap)
                room += freed
            room -= trial.size
            heapq.heappush(heap, (at + trial.seconds, trial.size))
            last = max(last, at + trial.seconds)
        # Of the last trials some train longer than the mean, while the others' slots stay empty.
        final = trials[-1]
        longest = _kept(final.ends, final.share, len(heap)) - _kept(final.ends, final.share)
        busy = max(1e-9, sum(trial.seconds * trial.size for trial in trials))
        spread = sum(trial.seconds * trial.size * trial.spread for trial in trials) / busy
        lengths = sum(
            kept * (1 - trial.share - kept) * (trial.whole * trial.size) ** 2
            for trial in trials
            for kept in [_kept(trial.ends, trial.share)]
        )
        known = 1 + sum(sum(counts) / PARTS for counts in self._passed.values())
        known += sum(map(sum, self._ended.values()))
        parts = (spread, (1 - _kept(final.ends)) / math.sqrt(known), math.sqrt(max(0.0, lengths)) / busy)
        return last * every + longest * final.whole / 2, math.hypot(*parts)


def _part(share: float) -> int:
    # The part of a run that ends at a share of it, or has it inside.
    return min(PARTS - 1, max(0, math.ceil(share * PARTS - 1e-9) - 1))


def _promoted(came: int, n_trials: int, factor: float) -> float:
    """Return how many of the next trials pass a rung of halving after so many have come there, in the mean.

    One passes if it is among the best share 1 / factor of those there, or the best.
    """
    return sum(max(1, number // factor) / number for number in range(came + 1, came + n_trials + 1))


def _kept(ends: Sequence[float], share: float = 0.0, n_trials: float = 1.0) -> float:
    # How much of a run trials at a share of it still train, in the mean: the longest of so many.
    survive, kept = 1.0, 0.0
    for part in range(int(share * PARTS + 1e-9), PARTS):
        kept += min(1 / PARTS, (part + 1) / PARTS - share) * (1 - (1 - survive) ** n_trials)
        survive *= 1 - ends[part]
    return kept


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
    def left(self) -> TimeInterval:
        """Return how long the rest takes, at most the time budget's rest."""
        counted = {name: cell.counted for name, cell in self.cells.items()}
        return self.remaining.left(time.time(), counted, self.elapsed_before + self.seconds)

    def clear_live(self) -> None:
        """Record that all running trials were saved."""
        self.live.clear()
        self.remaining.live.clear()

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
    left = progress.left
    if left.high:
        yield f"{left.in_words} left"
    if progress.new:
        per_minute = progress.new / progress.seconds * 60
        yield f"{per_minute:.1f} a minute" if per_minute >= 1 else f"{per_minute * 60:.1f} an hour"
