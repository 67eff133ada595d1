"""The tuning excess of every cell: how far its best tried loss lies above what its best values would reach.

The trials of all cells are fitted at once by the Gaussian process of `surrogate.py`, over the searched numbers and the
sizes. Draws of its posterior over a grid of searched values of every cell give draws of the excess: the loss at the
best tried value minus the lowest of the grid, never negative. The grid goes beyond the values tried, as the best one
may lie there.

Legend: C cells, J searched values, S draws, g values of a cell's grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeplab.laws.hyperparameters.runs import Runs
from sweeplab.laws.surrogate import Columns, condition, fit_scales

Array = NDArray[np.float64]

N_DRAWS = 300
_MARGIN = 0.5  # of half the range tried, beyond either end
_ALONG = 17  # values of a cell's grid, if one is searched; more of several
_DRAWN = 24
_MOST_CELLS, _MOST_ROWS = 60, 600
# Of log loss above a cell's best: trials farther, but for the best of a cell, say little about the best values.
_NEAR, _LEAST_TRIALS = 0.10, 3
_FEWEST = 2  # trials in a cell, on average
_SHOWN = 6  # the best trials of a cell, one of which is the best


@dataclass(frozen=True)
class Excess:
    """Draws of the excess of log loss of each cell, [S, C], of trials that searched `names`.

    `again` [S, C] is the excess after as many trials again, spread over the values tried and a little beyond.
    `beyond` [J, 2] is how likely the best value of any cell lies below or above all values tried of its study, and
    `tried` [J, 2] the lowest and highest of them.
    """

    names: tuple[str, ...]
    draws: Array
    again: Array
    beyond: Array
    tried: Array

    @property
    def mean(self) -> Array:
        """Return the expected excess of each cell, [C]."""
        return np.asarray(self.draws.mean(0))


def excess_of(runs: Runs) -> Excess | None:
    """Return the tuning excess of each cell of a table of runs; None if its trials are too few to tell."""
    keys = np.column_stack([runs.cell, runs.x.round(6)])
    trials, place = np.unique(keys, axis=0, return_inverse=True)
    counts = np.bincount(place.ravel())
    y = np.bincount(place.ravel(), runs.y) / counts
    cell, x = trials[:, 0].astype(np.intp), trials[:, 1:]
    lowest = np.full(runs.n_cells, np.inf)
    np.minimum.at(lowest, cell, y)
    if len(y) < _FEWEST * runs.n_cells or runs.n_cells > _MOST_CELLS or not np.isfinite(lowest).all():
        return None
    low, high = x.min(0), x.max(0)
    sizes = runs.logs[:, np.ptp(runs.logs, axis=0) > 1e-9]
    sizes = (sizes - sizes.mean(0)) / np.maximum(sizes.std(0), 1e-12)
    # Params follow depth and width: one of two descriptions of a size is enough.
    if sizes.shape[1] > 2:
        sizes = sizes[:, [k for k in range(sizes.shape[1]) if _varied(runs)[k] != "params"]]
    rank = np.empty(len(y), np.intp)
    order = np.lexsort((y, cell))
    rank[order] = np.arange(len(y)) - np.searchsorted(cell[order], cell[order])
    kept = np.flatnonzero((y < lowest[cell] + _NEAR) | (rank < _LEAST_TRIALS))[-_MOST_ROWS:]

    def inputs(values: Array, of_cell: NDArray[np.intp]) -> Array:
        return np.hstack([(values - (low + high) / 2) / ((high - low) / 2), sizes[of_cell]])

    n_searched, n_sizes = x.shape[1], sizes.shape[1]
    columns = Columns(
        np.repeat([True, False], [n_searched, n_sizes]), np.ones(n_searched + n_sizes, np.bool_)
    )
    rows, nothing = inputs(x[kept], cell[kept]), np.zeros(len(kept))
    surrogate = condition(columns, fit_scales(columns, rows, y[kept], nothing), rows, y[kept], nothing)
    random = np.random.default_rng(0)
    grid = _grid(low, high)
    # The best of the values tried that a draw has, not the one that was chosen: which of two like ones won is luck.
    shown = [_lowest(x[cell == c], y[cell == c]) for c in range(runs.n_cells)]
    most = max(map(len, shown))
    shown = [np.vstack([each, np.repeat(each[:1], most - len(each), 0)]) for each in shown]
    values = np.concatenate([np.vstack([each, grid]) for each in shown])
    per_cell = len(grid) + most
    predicted = surrogate.predict(inputs(values, np.repeat(np.arange(runs.n_cells), per_cell)))
    jitter = 1e-9 * np.eye(len(values))
    spread, directions = np.linalg.eigh(predicted.covariance + jitter)
    root = directions * np.sqrt(np.maximum(spread, 0.0))
    drawn = predicted.mean + random.standard_normal((N_DRAWS, len(values))) @ root.T
    losses = drawn.reshape(N_DRAWS, runs.n_cells, per_cell)
    where = losses.argmin(2)  # [S, C]
    at = values.reshape(runs.n_cells, per_cell, n_searched)[np.arange(runs.n_cells), where]
    edges = np.stack([(at < low - 1e-9).mean(0), (at > high + 1e-9).mean(0)], 2).max(0)
    least, lowest_tried = losses.min(2), losses[:, :, :most].min(2)
    n_more = max(1, round(len(y) / runs.n_cells))
    more = random.integers(most, per_cell, (N_DRAWS, runs.n_cells, n_more))
    after = np.minimum(np.take_along_axis(losses, more, 2).min(2), lowest_tried)
    return Excess(runs.names, lowest_tried - least, after - least, edges, np.exp(np.stack([low, high], 1)))


def _lowest(x: Array, y: Array) -> Array:
    return x[np.argsort(y, kind="stable")[:_SHOWN]]


def _varied(runs: Runs) -> list[str]:
    return [name for name, column in zip(runs.sizes, runs.logs.T, strict=True) if np.ptp(column) > 1e-9]


def _grid(low: Array, high: Array) -> Array:
    """Values that a cell might take, [g, J], evenly spread a little beyond the range tried (Roberts's R sequence)."""
    n_searched = len(low)
    ends = (high - low) * _MARGIN / 2
    unit = np.linspace(0, 1, _ALONG)[:, None]
    if n_searched > 1:
        root = 2.0
        for _ in range(30):
            root = (1 + root) ** (1 / (n_searched + 1))
        unit = (0.5 + np.arange(1, _DRAWN + 1)[:, None] * root ** -np.arange(1.0, n_searched + 1)) % 1
    return np.asarray(low - ends + unit * (high - low + 2 * ends))
