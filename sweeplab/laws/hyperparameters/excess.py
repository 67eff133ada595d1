"""The tuning excess of every cell: how far the best tried loss lies above what the best values would reach.

It follows from the regression of `surface.py`: what the tried values cost where the best ones are a draw. The best of
the values tried that a draw has counts, not the one that was chosen: which of two like ones won is luck.

Legend: C cells, S draws, n points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.laws.columns import PLAIN, Counting
from sweeplab.laws.core import Array
from sweeplab.laws.hyperparameters.runs import SearchedRuns, runs_of_frame
from sweeplab.laws.hyperparameters.surface import fit_surface
from sweeplab.laws.points import EACH, Points, TuningRecord, points_of_frame
from sweeplab.laws.reading import read_frame

if TYPE_CHECKING:
    import pandas as pd

_NEAR = 0.10  # of log loss above a cell's best: trials farther say little about the best values
_SHOWN = 6  # the best trials of a cell, one of which is the best


@dataclass(frozen=True)
class Excess:
    """Draws of the excess of log loss of each cell of `runs`, [S, C].

    `level` [C] is the expected log loss of the best value tried, NaN where no row is near the optimum, and `n_trials`
    [C] the number of values that compete for it.
    """

    runs: SearchedRuns
    draws: Array
    level: Array
    n_trials: Array

    def record(self, points: Points) -> TuningRecord:
        """Return what the runs say about the tuning of points: those of the nearest cell to each."""
        columns = {**points.columns, **points.shape}
        # A column at a time: a table may have thousands of points.
        far = np.zeros((points.n, self.runs.n_cells))
        for name in self.runs.sizes:
            if name in columns:
                far += (np.log(columns[name])[:, None] - self.runs.log_of(name)) ** 2
        cells = far.argmin(1)
        draws = self.draws[:, cells]
        luck = np.zeros_like(draws)
        if points.is_lowest:
            levels = np.where(far.min(1) < 1e-2, self.level[cells], np.nan)
            luck = _luck(np.log(points.columns["loss"]), levels, self.n_trials[cells], len(draws))
        return TuningRecord(draws, luck)


def searched_points(frame: pd.DataFrame, source: str, counting: Counting = PLAIN) -> Points:
    """Return the points of a table like `points_of_frame`, with the record of its trials if it has several a point."""
    points = points_of_frame(frame, source, counting)
    if points.tuned == EACH:
        points = replace(points, record=record_of(lambda: runs_of_frame(frame, source, counting)))
    return points.tuned_as(counting.tuned)


def file_points(path: Path, counting: Counting = PLAIN) -> Points:
    """Return the points of a file."""
    return searched_points(read_frame(path), str(path), counting)


def record_of(read: Callable[[], SearchedRuns]) -> Callable[[Points], TuningRecord | None]:
    """Return what the runs that `read` returns say about the tuning of points, when it is asked for."""

    @cache
    def known() -> Excess | None:
        try:
            return excess_of(read())
        except (BadInput, KeyError):  # nothing was searched, or the trials are too few to show a minimum
            return None

    def record(points: Points) -> TuningRecord | None:
        excess = known()
        return excess.record(points) if excess else None

    return record


def excess_of(runs: SearchedRuns) -> Excess:
    """Return the tuning excess of each cell of a table of runs.

    Raises:
        BadInput: the trials are too few, or show no minimum.
    """
    surface = fit_surface(runs)
    runs = surface.runs
    order = np.lexsort((runs.y, runs.cell))
    by_cell = np.split(order, np.searchsorted(runs.cell[order], np.arange(1, runs.n_cells)))
    excesses = []
    for c, rows in enumerate(by_cell):
        costs = [surface.cost(runs.x[row], surface.optima[:, c]) for row in rows[:_SHOWN]]
        excesses.append(np.min(costs, axis=0))
    draws, is_near = np.stack(excesses, 1), runs.y < runs.lowest[runs.cell] + _NEAR
    n_trials = np.bincount(runs.cell[is_near], minlength=runs.n_cells).astype(float)
    return Excess(runs, draws, (surface.levels + draws).mean(0), n_trials)


def _luck(losses: Array, levels: Array, n_trials: Array, n_draws: int) -> Array:
    """Return draws, [S, n], of how far points lie below the expected loss of their best values: the lowest of several.

    It is in proportion to the expected lowest of as many normal draws (Blom 1958), by one factor for all points: so it
    does not follow their noise. Levels that are NaN are not known.
    """
    from scipy.special import ndtri

    lowest = ndtri((n_trials - 0.375) / (n_trials + 0.25))
    below = np.where(np.isfinite(levels), levels - losses, 0.0)
    known = np.isfinite(levels) & (n_trials > 1) & (np.abs(below) < _NEAR)
    if known.sum() < 2:  # one point says nothing of the error of a factor
        return np.zeros((n_draws, len(losses)))
    m, below = lowest[known], below[known]
    factor = float(m @ below / (m @ m))
    error = math.sqrt(float(((below - factor * m) ** 2).sum()) / (known.sum() - 1) / float(m @ m))
    factors = np.maximum(factor + error * np.random.default_rng(0).standard_normal(n_draws), 0.0)
    return factors[:, None] * lowest
