"""How long the rest of a study takes, on planted traces with a clock of their own: no jump, and the truth inside."""

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import pytest

from sweeplab.lab.events import Event, RunEvaluated, TrialClaimed, TrialEnded
from sweeplab.records.runs import RunState, TrialEnding
from sweeplab.study.plan import Plan
from sweeplab.study.spec import Budget, Engine
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.progress import Remaining, TimeInterval

N_EVALUATIONS, RUNGS, FACTOR = 10, (2, 8), 4
PER_CELL, STACK = 24, 4


@pytest.fixture(scope="module")
def planned(tiny, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Return a plan of three unlike cells, two workers and stacks of four."""
    budget, engine = Budget(trials_per_cell=PER_CELL), Engine(workers=2, stack=STACK)
    spec = tiny(grid={"n_embd": [8, 16, 24]}, budget=budget, engine=engine)
    plan, _, _ = make_plan(spec, tmp_path_factory.mktemp("planned"))
    timed = zip(plan.cells, (1.0, 2.0, 6.0), strict=True)
    cells = [replace(cell, max_iters=100, rungs=[], run_seconds=seconds) for cell, seconds in timed]
    return replace(plan, cells=cells, pruner="none", spread=0.35)


@dataclass
class Look:
    """What is said at a time, what is true then, and whether an event came since the last look."""

    at: float
    left: TimeInterval
    truth: float
    is_news: bool


def trace(plan: Plan, chance: random.Random, prunes: bool, off: float) -> Iterator[tuple[float, Event]]:
    """Yield a study's events: cells one after the other on all slots, at speeds that the plan misses by about `off`."""
    factor = off ** chance.uniform(-1, 1)
    speeds = {cell.cell: factor * chance.uniform(0.8, 1.25) for cell in plan.cells}
    n_slots = STACK * len(plan.workers)
    waiting = [(cell, trial) for cell in plan.cells for trial in range(PER_CELL)]
    heap: list[tuple[float, int, int, str, int]] = []
    steps, losses = {}, defaultdict[tuple[str, int], list[float]](list)

    def claim(now: float) -> TrialClaimed:
        cell, trial = waiting.pop(0)
        step = speeds[cell.cell] * cell.run_seconds * n_slots / N_EVALUATIONS
        steps[cell.cell, trial] = step, chance.random()
        heapq.heappush(heap, (now, len(waiting), 0, cell.cell, trial))
        return TrialClaimed(cell=cell.cell, trial=trial, started=now)

    def is_pruned(cell: str, rung: int, loss: float) -> bool:
        there = losses[cell, rung]
        there.append(loss)
        return sorted(there).index(loss) >= max(1, len(there) // FACTOR)

    for _ in range(n_slots):
        yield 3.0, claim(3.0)
    while heap:
        now, order, done, cell, trial = heapq.heappop(heap)
        step, loss = steps[cell, trial]
        at = {"seed": 0, "iteration": 100 * done // N_EVALUATIONS}
        yield now, RunEvaluated(cell=cell, trial=trial, val_loss=2.0, **at)
        has_lost = prunes and done in RUNGS and is_pruned(cell, done, loss)
        if done < N_EVALUATIONS and not has_lost:
            heapq.heappush(heap, (now + step * chance.uniform(0.9, 1.1), order, done + 1, cell, trial))
            continue
        state = RunState.PRUNED if has_lost else RunState.COMPLETE
        yield now, TrialEnded(cell=cell, trial=trial, ending=TrialEnding(state, 2.0), ended=now)
        if waiting:
            yield now, claim(now)


def looks(plan: Plan, events: list[tuple[float, Event]], every: float) -> Iterator[Look]:
    """Yield what is said at regular times while the events come in."""
    remaining, counted = Remaining(plan, 0.0), Counter[str]()
    end, at, queue = events[-1][0], 0.0, list(events)
    while at < end:
        is_news = False
        while queue and queue[0][0] <= at:
            now, event = queue.pop(0)
            remaining.take_in(event, now)
            counted[event.cell] += isinstance(event, TrialEnded)
            is_news = True
        yield Look(at, remaining.left(at, counted), end - at, is_news)
        at += every


@pytest.mark.slow
@pytest.mark.parametrize("prunes", [False, True])
def test_the_truth_is_inside_and_nothing_jumps(planned: Plan, prunes: bool) -> None:
    """A plan misses the machine's speed by up to 1.5 times, and each cell's by up to a quarter more.

    News may double the rest only where a pruner decides about the last trials, and stays inside what was said before.
    """
    plan = planned
    if prunes:
        rungs = [100 * rung // N_EVALUATIONS for rung in RUNGS]
        plan = replace(plan, pruner="asha", cells=[replace(cell, rungs=rungs) for cell in plan.cells])
    ratios: list[list[float]] = [[], [], [], []]
    errors: list[list[float]] = [[], [], [], []]
    inside, quiet = list[bool](), list[float]()
    for seed in range(16):
        events = [*trace(plan, random.Random(seed), prunes, 1.5)]
        said = [*looks(plan, events, events[-1][0] / 200)]
        for look in said:
            inside.append(look.left.low <= look.truth <= look.left.high)
            quarter = min(3, int(4 * look.at / events[-1][0]))
            ratios[quarter].append(look.left.likely / look.truth)
            errors[quarter].append(abs(look.left.likely - look.truth) / said[0].truth)
        for before, after in pairwise(said):
            if after.truth > 0.15 * said[0].truth:
                passed = (before.left.likely - after.left.likely) / (after.at - before.at)
                quiet += [] if after.is_news else [passed]
                assert before.left.low < after.left.likely + 1 and after.left.likely < before.left.high
                assert prunes or 0.5 < after.left.likely / before.left.likely < 2, (seed, before, after)
    assert sum(inside) > 0.85 * len(inside)
    assert min(quiet) >= -1e-6 and max(quiet) <= 1 + 1e-6  # without news at most the clock goes on
    assert all(0.8 < median(of_quarter) < 1.25 for of_quarter in ratios)
    assert median(errors[3]) < median(errors[0])


def test_a_start_goes_on_with_the_clock_and_one_that_takes_long_may_take_as_long_again(planned: Plan) -> None:
    begun = [Remaining(planned, 0.0).left(float(at), {}) for at in (0, 2, 10, 60)]
    assert [left.likely - begun[-1].likely for left in begun] == pytest.approx([3.0, 1.0, 0.0, 0.0])
    assert begun[3].high - begun[2].high == pytest.approx(50.0)


@pytest.mark.parametrize("seconds", [0.4, 7, 95, 388, 3599, 4 * 3600.0, 1e6])
@pytest.mark.parametrize("width", [1.1, 3.0])
def test_an_interval_is_short_in_words(seconds: float, width: float) -> None:
    words = TimeInterval(seconds / width, seconds, seconds * width).in_words
    assert len(words) <= 22 and words.count(" ") in (1, 2)
