"""Choose the point (the searched values) of a cell's next trial.

A sampler that models trials draws its first ones at random. A cell of a scaling study has few trials, for which evenly
spread points work better, starting with the best point of the nearest finished cell: these replace the random ones. No
point is trained twice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeplab.data.generators import generator_key
from sweeplab.study.algorithms import make_sampler
from sweeplab.study.space import Cell, Space
from sweeplab.study.spec import Sampler, StudySpec
from sweeplab.sweep.trials.counting import CellTally
from sweeplab.sweep.trials.tpe import ObservedTPE

# After MOST_REPEATS repeated points in a row a new point is drawn at random, in at most MOST_LOOKED_AT attempts.
MOST_REPEATS = 3
MOST_LOOKED_AT = 2_000


def ask(
    study: optuna.Study,
    spec: StudySpec,
    space: Space,
    tally: CellTally,
    n_startup: int,
    best_nearby: Callable[[], FrozenTrial | None],
) -> optuna.Trial | None:
    """Start the next trial of a cell: an enqueued one, else a new one; None if no new point is found.

    The first `n_startup` points are spread evenly, but the very first is `first_trial`, else that of `best_nearby`.
    """
    number = len(tally.trials.trials)
    waiting = min(tally.waiting(), key=lambda trial: trial.number, default=None)
    if waiting:  # a person enqueued it
        seed_sampler(study, spec, space, tally, waiting.number, n_startup)
        study._storage.set_trial_state_values(waiting._trial_id, TrialState.RUNNING)
        return optuna.Trial(study, waiting._trial_id)
    point = None
    if tally.repeats(MOST_REPEATS):
        if (point := _new_point(spec, space, tally)) is None:
            return None
    elif space.distributions() and (
        tally.modelled + len(tally.running()) < n_startup or (number == 0 and spec.first_trial)
    ):
        point = _startup_point(spec, space, number, best_nearby)
    seed_sampler(study, spec, space, tally, number, n_startup)
    given = create_trial(state=TrialState.RUNNING, system_attrs={"fixed_params": point}) if point else None
    return optuna.Trial(study, study._storage.create_new_trial(study._study_id, given))


def seed_sampler(
    study: optuna.Study, spec: StudySpec, space: Space, tally: CellTally, number: int, n_startup: int
) -> None:
    """Give a study a sampler seeded for one trial, so that its draws do not depend on a process' history."""
    seed = generator_key(spec.first_seed, f"{space.cell.key}/{number}") % 2**31
    cell_seed = generator_key(spec.first_seed, space.cell.key) % 2**31
    sampler = spec.sampler
    if n_startup:  # the startup points are chosen here: the sampler models every trial from the first on
        options = sampler.options | {"n_startup_trials": min(1, n_startup)}
        sampler = Sampler(type=sampler.type, options=options)
    before: Any = study.sampler
    made: Any = make_sampler(sampler, seed, space, cell_seed)
    if isinstance(made, optuna.samplers.TPESampler):
        made = ObservedTPE.of(made, tally.observations)
    if type(before) is type(made) and hasattr(before, "_search_space"):
        # Keep Optuna's intersection of search spaces, so that it reads only new trials instead of all of them.
        made._search_space = before._search_space
    study.sampler = made


def nearest(cell: Cell, others: Iterable[Cell]) -> list[Cell]:
    """Return other cells, the most similar first."""
    return sorted(others, key=lambda other: _distance(cell, other))


def _new_point(spec: StudySpec, space: Space, tally: CellTally) -> dict[str, Any] | None:
    """Return parameters that meet the constraints and that no trial of the cell has; None if none are found."""
    number = len(tally.trials.trials)
    draw = random.Random(generator_key(spec.first_seed, f"{space.cell.key}/{number}"))
    for _ in range(MOST_LOOKED_AT):
        point, values = space.point([draw.random() for _ in space.parameters])
        if tally.twin(point, number) is None and not space.broken(values):
            return point
    return None


def _startup_point(
    spec: StudySpec, space: Space, number: int, best_nearby: Callable[[], FrozenTrial | None]
) -> dict[str, Any]:
    """Return the parameters of a startup trial, before the sampler has trials to model."""
    names = space.distributions()
    if number == 0 and not spec.first_trial and (best := best_nearby()):
        return {name: value for name, value in best.params.items() if name in names}
    from torch.quasirandom import SobolEngine

    seed = generator_key(spec.first_seed, space.cell.key) % 2**31
    engine = SobolEngine(len(names), scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    point = engine.fast_forward(number).draw(1)[0]  # type: ignore[no-untyped-call]
    first: dict[str, Any] = {}
    for name, value in spec.first_trial.items() if number == 0 else ():
        with suppress(ValueError):  # this cell does not search it, or the value is outside of its range
            first |= space.stored(name, value)
    return space.quasi_random([float(each) for each in point]) | first


def _distance(one: Cell, other: Cell) -> float:
    """Return the distance of two cells: doublings between numbers, 1 for other values or those of only one cell."""

    def apart(a: Any, b: Any) -> float:
        both_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) and x > 0 for x in (a, b))
        return abs(math.log2(a / b)) if both_numbers else float(a != b)

    alone = one.values.keys() ^ other.values.keys()
    both = one.values.keys() & other.values.keys()
    return len(alone) + sum(apart(one.values[name], other.values[name]) for name in both)
