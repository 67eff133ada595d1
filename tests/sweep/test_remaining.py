"""How long the rest of a study takes, on planted traces with a clock of their own: within a factor 1.5, and no jump."""

import heapq
import random
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median

import pytest

from sweeplab.lab.events import RunEvaluated, TrialClaimed, TrialEnded
from sweeplab.records.runs import RunState, TrialEnding
from sweeplab.study.spec import Budget, Engine
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.progress import Remaining

N_EVALUATIONS, RUNGS, FACTOR = 10, (2, 8), 4
PER_CELL, STACK = 24, 4


@pytest.fixture(scope="module")
def planned(tiny, tmp_path_factory):
    """Return a plan of three unlike cells, two workers and stacks of four; a whole run prolongs it by 1, 2 and 6 s."""
    budget, engine = Budget(trials_per_cell=PER_CELL), Engine(workers=2, stack=STACK)
    spec = tiny(grid={"n_embd": [8, 16, 24]}, budget=budget, engine=engine)
    plan, _, _ = make_plan(spec, tmp_path_factory.mktemp("planned"))
    timed = zip(plan.cells, (1.0, 2.0, 6.0), strict=True)
    cells = [
        replace(cell, max_iters=100, rungs=[], train_flops=1e11 * seconds)
        for cell, seconds in timed
    ]
    return replace(plan, cells=cells, pruner="none")


def trace(plan, chance, prunes, off):
    """Yield a study's events: cells one after the other on all slots, at speeds that the plan misses by about `off`."""
    factor = off ** chance.uniform(-1, 1)
    speeds = {cell.cell: factor * chance.uniform(0.8, 1.25) for cell in plan.cells}
    n_slots = STACK * len(plan.workers)
    waiting = [(cell, trial) for cell in plan.cells for trial in range(PER_CELL)]
    heap = []
    steps, losses = {}, defaultdict(list)

    def claim(now):
        cell, trial = waiting.pop(0)
        step = speeds[cell.cell] * cell.train_flops / 1e11 * n_slots / N_EVALUATIONS
        steps[cell.cell, trial] = step, chance.random()
        heapq.heappush(heap, (now, len(waiting), 0, cell.cell, trial))
        return TrialClaimed(cell=cell.cell, trial=trial, started=now)

    def is_pruned(cell, rung, loss):
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
            heapq.heappush(
                heap, (now + step * chance.uniform(0.9, 1.1), order, done + 1, cell, trial)
            )
            continue
        state = RunState.PRUNED if has_lost else RunState.COMPLETE
        yield now, TrialEnded(cell=cell, trial=trial, ending=TrialEnding(state, 2.0), ended=now)
        if waiting:
            yield now, claim(now)


def looks(plan, events):
    """Yield what is said at regular times while events come in, the truth, and the largest share trained by then."""
    remaining, counted = Remaining(plan, 0.0), Counter()
    end, queue, furthest = events[-1][0], list(events), 0.0
    for number in range(200):
        at = number * end / 200
        while queue and queue[0][0] <= at:
            now, event = queue.pop(0)
            remaining.take_in(event, now)
            counted[event.cell] += isinstance(event, TrialEnded)
            if isinstance(event, RunEvaluated):
                furthest = max(furthest, event.iteration / 100)
        yield remaining.left(counted), end - at, furthest


@pytest.mark.parametrize("prunes", [False, True])
def test_from_the_half_of_the_first_trial_on_the_truth_is_within_a_factor(planned, prunes):
    """FLOPs alone tell how unlike the cells are: the speed of each is up to a quarter off.

    The last tenth is left out: there a single trial is most of the rest.
    """
    cells, pruner = planned.cells, planned.pruner
    if prunes:
        pruner, rungs = "asha", [100 * rung // N_EVALUATIONS for rung in RUNGS]
        cells = [replace(cell, rungs=rungs) for cell in cells]
    plan = replace(planned, pruner=pruner, cells=cells)
    ratios = []
    for seed in range(16):
        said = [*looks(plan, [*trace(plan, random.Random(seed), prunes, 2.0)])]
        assert said[1][0] is None, "no estimate before a step was timed"
        for left, truth, furthest in said:
            if furthest >= 0.5 and truth > 0.1 * said[0][1]:
                ratios.append(left / truth)
    near = [ratio for ratio in ratios if 1 / 1.5 < ratio < 1.5]
    # With a pruner luck decides how many of the last, largest trials train on.
    assert len(near) >= (0.8 if prunes else 0.98) * len(ratios)
    assert 0.85 < median(ratios) < 1.15
