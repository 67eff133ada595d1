"""The tuning excess of every cell: how far the best tried loss lies above what the best values would reach.

The trials of all cells are fitted at once by the Gaussian process of `surrogate.py`, over the searched numbers and the
sizes. Draws of its posterior over a grid of searched values of every cell give draws of the excess: the loss at the
best tried value minus the lowest of the grid, never negative. The grid goes beyond the values tried, as the best one
may lie there.

Legend: C cells, J searched values, S draws, g values of a cell's grid, n points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.laws.columns import PLAIN, Counting
from sweeplab.laws.core import Array
from sweeplab.laws.hyperparameters.runs import SearchedRuns, runs_of_frame
from sweeplab.laws.points import EACH, Index, Points, TuningRecord, points_of_frame
from sweeplab.laws.surrogate import DEPARTURE, MOST_ROWS, Columns, condition, fit_scales

if TYPE_CHECKING:
    import pandas as pd

N_DRAWS = 300
# Wider than the sampler's, whose proposals are to look around: in a narrow range departures from a quadratic are below
# 1% of the loss, and over decades of learning rates a tenth of it.
_DEPARTURE = (DEPARTURE[0], 1.5)
_NEAR = 0.10  # of log loss above a cell's best: trials farther say little about the best values
_FEWEST = 2  # trials in a cell, on average
_LEAST_TRIALS = 3  # of a cell that are kept, however far
_SHOWN = 6  # the best trials of a cell, one of which is the best
_MARGIN = 0.5  # of half the range tried, beyond either end
_ALONG, _DRAWN = 17, 24  # values of a cell's grid, if one or several are searched
_MOST_CELLS = 60  # the joint draw over all grids takes the cube of their values


@dataclass(frozen=True)
class Excess:
    """Draws of the excess of log loss of each cell of `runs`, [S, C].

    `level` [C] is the expected log loss of the best value tried, and `n_trials` [C] the number of values that compete
    for it.
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
        luck = np.zeros((N_DRAWS, points.n))
        if points.is_lowest:
            levels = np.where(far.min(1) < 1e-2, self.level[cells], np.nan)
            luck = _luck(np.log(points.columns["loss"]), levels, self.n_trials[cells])
        return TuningRecord(self.draws[:, cells], luck)


def searched_points(frame: pd.DataFrame, source: str, counting: Counting = PLAIN) -> Points:
    """Return the points of a table like `points_of_frame`, with the record of its trials if it has several a point."""
    points = points_of_frame(frame, source, counting)
    if points.tuned == EACH:
        points = replace(points, record=record_of(lambda: runs_of_frame(frame, source, counting)))
    return points.tuned_as(counting.tuned)


def record_of(read: Callable[[], SearchedRuns]) -> Callable[[Points], TuningRecord | None]:
    """Return what the runs that `read` returns say about the tuning of points, when it is asked for."""

    @cache
    def known() -> Excess | None:
        try:
            return excess_of(read().of_cells(_MOST_CELLS))
        except (BadInput, KeyError):  # nothing was searched, or no number
            return None

    def record(points: Points) -> TuningRecord | None:
        excess = known()
        return excess.record(points) if excess else None

    return record


def _luck(losses: Array, levels: Array, n_trials: Array) -> Array:
    """Return draws, [S, n], of how far points lie below the expected loss of their best values: the lowest of several.

    It is in proportion to the expected lowest of as many normal draws (Blom 1958), by one factor for all points: so it
    does not follow their noise. Levels that are NaN are not known.
    """
    from scipy.special import ndtri

    lowest = ndtri((n_trials - 0.375) / (n_trials + 0.25))
    below = np.where(np.isfinite(levels), levels - losses, 0.0)
    known = np.isfinite(levels) & (n_trials > 1) & (np.abs(below) < _NEAR)
    if known.sum() < _FEWEST:
        return np.zeros((N_DRAWS, len(losses)))
    m, below = lowest[known], below[known]
    factor = float(m @ below / (m @ m))
    error = math.sqrt(float(((below - factor * m) ** 2).sum()) / (known.sum() - 1) / float(m @ m))
    factors = np.maximum(factor + error * np.random.default_rng(0).standard_normal(N_DRAWS), 0.0)
    return np.asarray(factors[:, None] * lowest)


def excess_of(runs: SearchedRuns) -> Excess | None:
    """Return the tuning excess of each cell of a table of runs; None if its trials are too few to tell."""
    trials = runs.averaged()
    cell, x, y = trials.cell, trials.x, trials.y
    if len(y) < _FEWEST * runs.n_cells:
        return None
    low, high, sizes = x.min(0), x.max(0), _sizes(runs)
    order = np.lexsort((y, cell))
    by_cell = np.split(order, np.searchsorted(cell[order], np.arange(1, runs.n_cells)))
    is_near = y < trials.lowest[cell] + _NEAR
    n_near = np.bincount(cell[is_near], minlength=runs.n_cells).astype(float)
    for of_cell in by_cell:
        is_near[of_cell[:_LEAST_TRIALS]] = True
    kept = np.flatnonzero(is_near)[-MOST_ROWS:]

    def inputs(values: Array, of_cell: Index) -> Array:
        return np.hstack([(values - (low + high) / 2) / ((high - low) / 2), sizes[of_cell]])

    rows, nothing = inputs(x[kept], cell[kept]), np.zeros(len(kept))
    columns = Columns(np.arange(rows.shape[1]) < x.shape[1], np.ones(rows.shape[1], np.bool_))
    scales = fit_scales(columns, rows, y[kept], nothing, _DEPARTURE)
    surrogate = condition(columns, scales, rows, y[kept], nothing)
    # The best of the values tried that a draw has, not the one that was chosen: which of two like ones won is luck.
    most = min(_SHOWN, max(map(len, by_cell)))
    grid = _grid(low, high)
    tried = (x[of_cell[np.minimum(np.arange(most), len(of_cell) - 1)]] for of_cell in by_cell)
    values = np.concatenate([part for each in tried for part in (each, grid)])
    per_cell = most + len(grid)
    predicted = surrogate.predict(inputs(values, np.repeat(np.arange(runs.n_cells), per_cell)))
    spread, directions = np.linalg.eigh(predicted.covariance + 1e-9 * np.eye(len(values)))
    root = directions * np.sqrt(np.maximum(spread, 0.0))
    drawn = predicted.mean + np.random.default_rng(0).standard_normal((N_DRAWS, len(values))) @ root.T
    losses = drawn.reshape(N_DRAWS, runs.n_cells, per_cell)
    lowest_tried = losses[:, :, :most].min(2)
    return Excess(runs, lowest_tried - losses.min(2), lowest_tried.mean(0), n_near)


def _sizes(runs: SearchedRuns) -> Array:
    """Return the standardized log sizes that vary, [C, k]; params follow depth and width, and are left out then."""
    names = [name for name in runs.sizes if np.ptp(runs.log_of(name)) > 1e-9]
    if len(names) > 2 and "params" in names:
        names.remove("params")
    logs = np.array([runs.log_of(name) for name in names]).reshape(len(names), runs.n_cells).T
    return np.asarray((logs - logs.mean(0)) / logs.std(0))


def _grid(low: Array, high: Array) -> Array:
    """Return values that a cell might take, [g, J], evenly spread a little beyond the range tried.

    Several values take Roberts's sequence, whose steps are powers of the root of x^(J + 1) = x + 1.
    """
    n_searched = len(low)
    margin = (high - low) * _MARGIN / 2
    unit = np.linspace(0, 1, _ALONG)[:, None]
    if n_searched > 1:
        root = 2.0
        for _ in range(30):
            root = (1 + root) ** (1 / (n_searched + 1))
        unit = (0.5 + np.arange(1, _DRAWN + 1)[:, None] * root ** -np.arange(1.0, n_searched + 1)) % 1
    return np.asarray(low - margin + unit * (high - low + 2 * margin))
