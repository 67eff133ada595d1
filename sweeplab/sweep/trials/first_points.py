"""Where TPE starts: quasi-random points, and first the best of the nearest finished cell.

TPE draws its first trials at random. A cell of a scaling study has few trials: evenly spread points, and a guess
from a neighbor of nearly the same size, serve it better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sweeplab.data.generators import generator_key

if TYPE_CHECKING:
    from sweeplab.study.space import Cell, Space
    from sweeplab.study.spec import StudySpec

Parameters = dict[str, Any]

# Optuna's own number of trials before TPE models anything.
TPE_STARTUP_TRIALS = 10


def first_point(
    spec: StudySpec, space: Space, number: int, finished: Callable[[], list[tuple[Cell, Parameters]]]
) -> Parameters | None:
    """Return Optuna's parameters for a cell's trial of this number, or None to leave it to the sampler.

    `finished` gives the other cells that have all their trials, each with the parameters of its best one.
    """
    startup = spec.sampler.options.get("n_startup_trials", TPE_STARTUP_TRIALS)
    names = space.distributions()
    if spec.sampler.type != "tpe" or number >= startup or not names:
        return None
    if number == 0 and (others := finished()):
        _, best = min(others, key=lambda other: (_distance(space.cell, other[0]), other[0].index))
        return {name: value for name, value in best.items() if name in names}
    return space.quasi_random(
        _sobol_point(generator_key(spec.first_seed, space.cell.key), len(names), number)
    )


def _sobol_point(key: int, dimension: int, index: int) -> list[float]:
    from torch.quasirandom import SobolEngine

    engine = SobolEngine(dimension, scramble=True, seed=key % 2**31)  # type: ignore[no-untyped-call]
    return [float(each) for each in engine.fast_forward(index).draw(1)[0]]  # type: ignore[no-untyped-call]


def _distance(one: Cell, other: Cell) -> float:
    """Return how far two cells are apart: doublings of a number, 1 for another name, or for what one alone changes."""

    def apart(a: Any, b: Any) -> float:
        both_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) and x > 0 for x in (a, b))
        return abs(math.log2(a / b)) if both_numbers else float(a != b)

    alone = one.values.keys() ^ other.values.keys()
    both = one.values.keys() & other.values.keys()
    return len(alone) + sum(apart(one.values[name], other.values[name]) for name in both)
