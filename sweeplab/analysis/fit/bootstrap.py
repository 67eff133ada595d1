"""Refits of resampled tables: an interval that asks nothing of the errors but that rows, or groups, are alike."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from sweeplab.analysis.fit.fitting import Fit
from sweeplab.analysis.fit.forms import Array
from sweeplab.analysis.fit.solver import solve
from sweeplab.analysis.fit.starts import starts

N_STARTS = 3  # besides the optimum: from it alone up to a third of refits end in another valley
N_CHECKED = 64
_APART = 4  # steps of the grid of exponents: far starts, since few
_SAME = 1e-4
_AT_REST = 1e-8  # an objective this close to its lowest moves no number by a hundredth of its spread
_BATCH = 65_536  # rows times vectors at once: about what stays in a core's cache


@dataclass(frozen=True)
class Refits:
    """The vectors of the refits, [refits, p], and the share of them that missed their lowest objective.

    `missed` is measured on the first refits, by starting these from all over the grid. To miss is to end higher
    by 1e-4 of the objective, or of the mean refit's: a sample of few rows may be fitted exactly.
    """

    theta: Array
    missed: float


def bootstrap(
    fit: Fit, n_refits: int, groups: Sequence[str] | None = None, seed: int = 0, n_checked: int = N_CHECKED
) -> Refits:
    """Return refits of tables drawn with replacement, whole groups where there are groups."""
    weights = _weights(fit, n_refits, groups, np.random.default_rng(seed))
    few = np.concatenate([fit.theta[None], starts(fit.law, fit.rows, _APART)[:N_STARTS]])
    theta, objective = _lowest(fit, weights, few)
    n_checked = min(n_checked, n_refits)
    checked, lower = _lowest(fit, weights[:n_checked], starts(fit.law, fit.rows))
    missed = lower < objective[:n_checked] - _SAME * np.maximum(objective[:n_checked], objective.mean())
    theta[:n_checked][missed] = checked[missed]
    return Refits(theta, float(missed.mean()))


def _lowest(fit: Fit, weights: Array, begin: Array) -> tuple[Array, Array]:
    """Return the best of several starts for every row of weights; batches go to threads, NumPy holds no lock."""
    size = max(1, _BATCH // (fit.n_points * len(begin)))

    def of(at: int) -> tuple[Array, Array]:
        some = weights[at : at + size]
        rows = replace(fit.rows, weights=np.repeat(some, len(begin), axis=0))
        solution = solve(fit.law, np.tile(begin, (len(some), 1)), rows, still=_AT_REST)
        objective = solution.objective.reshape(len(some), len(begin))
        best = objective.argmin(1)
        each = np.arange(len(some))
        return solution.theta.reshape(len(some), len(begin), -1)[each, best], objective[each, best]

    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(n_cores) as pool:
        theta, lowest = zip(*pool.map(of, range(0, len(weights), size)), strict=True)
    return np.concatenate(theta), np.concatenate(lowest)


def _weights(fit: Fit, n_refits: int, groups: Sequence[str] | None, random: np.random.Generator) -> Array:
    names = np.arange(fit.n_points) if groups is None else np.unique(groups, return_inverse=True)[1]
    n_groups = int(names.max()) + 1
    drawn = random.multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=n_refits)
    return np.asarray(drawn[:, names] * fit.rows.weights, float)
