"""Refits of resampled tables: an interval that asks nothing of the errors but that rows, or groups, are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeplab.analysis.laws.fitting import Fit
from sweeplab.analysis.laws.forms import Array
from sweeplab.analysis.laws.solver import solve
from sweeplab.analysis.laws.starts import starts

N_STARTS = 3  # besides the optimum: from it alone up to a third of refits end in another valley
N_CHECKED = 64
_SAME = 1e-4
_BATCH = 256


@dataclass(frozen=True)
class Refits:
    """The vectors of the refits, [refits, p], and the share of them that missed their lowest objective.

    `missed` is measured on the first refits, by starting these from all over the grid.
    """

    theta: Array
    missed: float


def bootstrap(fit: Fit, n_refits: int, groups: Sequence[str] | None = None, seed: int = 0) -> Refits:
    """Return refits of tables drawn with replacement, whole groups where there are groups."""
    weights = _weights(fit, n_refits, groups, np.random.default_rng(seed))
    grid = starts(fit.law, fit.rows)
    few = np.concatenate([fit.theta[None], grid[:N_STARTS]])
    theta, objective = _lowest(fit, weights, few)
    n_checked = min(N_CHECKED, n_refits)
    checked, lower = _lowest(fit, weights[:n_checked], grid)
    missed = lower < objective[:n_checked] * (1 - _SAME)
    theta[:n_checked][missed] = checked[missed]
    return Refits(theta, float(missed.mean()))


def _lowest(fit: Fit, weights: Array, begin: Array) -> tuple[Array, Array]:
    """Return the best of several starts for every row of weights."""
    found, lowest = [], []
    for at in range(0, len(weights), _BATCH):
        some = weights[at : at + _BATCH]
        rows = replace(fit.rows, weights=np.repeat(some, len(begin), axis=0))
        solution = solve(fit.law, np.tile(begin, (len(some), 1)), rows)
        objective = solution.objective.reshape(len(some), len(begin))
        best = objective.argmin(1)
        each = np.arange(len(some))
        found.append(solution.theta.reshape(len(some), len(begin), -1)[each, best])
        lowest.append(objective[each, best])
    return np.concatenate(found), np.concatenate(lowest)


def _weights(fit: Fit, n_refits: int, groups: Sequence[str] | None, random: np.random.Generator) -> Array:
    names = np.arange(fit.n_points) if groups is None else np.unique(groups, return_inverse=True)[1]
    n_groups = int(names.max()) + 1
    drawn = random.multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=n_refits)
    return np.asarray(drawn[:, names] * fit.rows.weights, float)
