"""Where TPE starts: quasi-random points, and first the best of the nearest finished cell.

TPE draws its first trials at random. A cell of a scaling study has few trials: evenly spread points, and a guess
from a neighbour of nearly the same size, serve it better.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, TrialState

from sweeplab.data.generators import generator_key

if TYPE_CHECKING:
    from sweeplab.study.space import Cell
    from sweeplab.study.store import Store

# Optuna's own number of trials before TPE models anything.
TPE_STARTUP_TRIALS = 10


def first_point(store: Store, cell: Cell, number: int) -> dict[str, Any] | None:
    """Return Optuna's parameters for a cell's trial of this number, or None to leave it to the sampler."""
    spec = store.spec
    startup = spec.sampler.options.get("n_startup_trials", TPE_STARTUP_TRIALS)
    space = store.spaces[cell.index]
    names = space.distributions()
    n_parameters = len(names)
    if spec.sampler.type != "tpe" or number >= startup or not n_parameters:
        return None
    if number == 0 and (neighbour := _nearest_best(store, cell)):
        return {name: value for name, value in neighbour.params.items() if name in names}
    return space.quasi_random(_sobol_point(generator_key(spec.seeds[0], cell.key), n_parameters, number))


def _sobol_point(key: int, dimension: int, index: int) -> list[float]:
    from torch.quasirandom import SobolEngine

    engine = SobolEngine(dimension, scramble=True, seed=key % 2**31)  # type: ignore[no-untyped-call]
    return [float(each) for each in engine.fast_forward(index).draw(1)[0]]  # type: ignore[no-untyped-call]


def _nearest_best(store: Store, cell: Cell) -> FrozenTrial | None:
    finished = [other for other in store.cells if other.index != cell.index and store.is_finished(other)]
    for other in sorted(finished, key=lambda other: (_distance(cell, other), other.index)):
        ended = [trial for trial in store.trials(other) if trial.state == TrialState.COMPLETE]
        if ended:
            return min(ended, key=lambda trial: (trial.value, trial.number))
    return None


def _distance(one: Cell, other: Cell) -> float:
    """Return how far two cells are apart: doublings of a number, or 1 for another name."""

    def apart(a: Any, b: Any) -> float:
        both_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) and x > 0 for x in (a, b))
        return abs(math.log2(a / b)) if both_numbers else float(a != b)

    return sum(apart(value, other.values[name]) for name, value in one.values.items())
