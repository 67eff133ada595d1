"""The tuning excess of every cell: how far its best tried loss lies above what its best values would reach.

The trials of all cells are fitted at once by the Gaussian process of `surrogate.py`, over the searched numbers and the
sizes. Draws of its posterior over a grid of searched values of every cell give draws of the excess: the loss at the
best tried value minus the lowest of the grid, never negative. The grid goes beyond the values tried, as the best one
may lie there.

Legend: C cells, J searched values, S draws, g values of a cell's grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput
from sweeplab.formatting import short
from sweeplab.laws.hyperparameters.runs import Runs, runs_of_frame
from sweeplab.laws.points import EACH, Points, TuningRecord, points_of_frame
from sweeplab.laws.surrogate import DEPARTURE, Columns, condition, fit_scales

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.laws.columns import Conventions

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
# Wider than the sampler's, whose proposals are to look around: in a narrow range departures from a quadratic are below
# 1% of the loss, and over decades of learning rates a tenth of it.
_DEPARTURE = (DEPARTURE[0], 1.5)
_EDGE = 0.25  # how likely a best value lies beyond the values tried, before a wider range is the cure


@dataclass(frozen=True)
class Excess:
    """Draws of the excess of log loss of each cell, [S, C], of trials that searched `names`.

    `again` [S, C] is the excess after as many trials again, spread over the values tried and a little beyond.
    `level` [C] is the expected log loss of the best value tried, NaN if it is not known, and `n_trials` [C] the number
    of values that compete for it. `beyond` [J, 2] is how likely the best value of any cell lies below or above all
    values tried of its study, and `tried` [J, 2] the lowest and highest of them.
    """

    names: tuple[str, ...]
    draws: Array
    again: Array
    beyond: Array
    tried: Array
    level: Array
    n_trials: Array

    @property
    def edge(self) -> tuple[int, int] | None:
        """Return the searched value whose best likely lies beyond those tried, and 0 (below) or 1 (above), or None."""
        if self.beyond.max(initial=0.0) < _EDGE:
            return None
        j, side = np.unravel_index(int(self.beyond.argmax()), self.beyond.shape)
        return int(j), int(side)

    @property
    def mean(self) -> Array:
        """Return the expected excess of each cell, [C]."""
        return np.asarray(self.draws.mean(0))


def cells_of(points: Points, runs: Runs) -> NDArray[np.intp]:
    """Return the cell of each point's trials, by its sizes, [n]."""
    columns = points.columns | points.shape
    names = [name for name in runs.sizes if name in columns]
    theirs = np.stack([runs.log_of(name) for name in names], 1)
    ours = np.stack([np.log(columns[name]) for name in names], 1)
    # A column at a time: a table may have thousands of points and cells.
    far = np.zeros((len(ours), len(theirs)))
    for one, other in zip(ours.T, theirs.T, strict=True):
        far += (one[:, None] - other) ** 2
    return np.asarray(far.argmin(1), np.intp)


def record_of(read: Callable[[], Runs]) -> Callable[[Points], TuningRecord | None]:
    """Return what the runs that `read` returns say about the tuning of points, when it is asked for."""

    @cache
    def known() -> tuple[Runs, Excess] | None:
        try:
            runs = read()
        except (BadInput, KeyError):  # nothing was searched, or no number
            return None
        excess = excess_of_many(runs)
        return excess and (runs, excess)

    def record(points: Points) -> TuningRecord | None:
        both = known()
        if both is None:
            return None
        runs, excess = both
        cells = cells_of(points, runs)
        luck = np.zeros((N_DRAWS, points.n))
        if points.is_lowest:
            luck = _luck(np.log(points.columns["loss"]), excess.level[cells], excess.n_trials[cells])
        return TuningRecord(excess.draws[:, cells], luck, _cure(runs, excess), runs.columns)

    return record


def _luck(losses: Array, levels: Array, n_trials: Array) -> Array:
    """Draws of how far points lie below the expected loss of their best values, as the lowest of several, [S, n].

    It is in proportion to the expected lowest of as many normal draws (Blom 1958), by one factor for all points: so it
    does not follow their noise.
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


def searched_points(
    frame: pd.DataFrame,
    source: str,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
    where: str = "",
) -> Points:
    """Return the points of a table like `points_of_frame`, with the record of its trials if it has several a point."""
    points = points_of_frame(frame, source, columns, conventions, where)
    if points.tuned != EACH:
        return points
    return replace(points, record=record_of(lambda: runs_of_frame(frame, source, columns, where=where)))


def _cure(runs: Runs, excess: Excess) -> str:
    if excess.edge:
        j, side = excess.edge
        beyond = f"{('below', 'above')[side]} {short(float(excess.tried[j, side]))}"
        return f"search {excess.names[j]} {beyond} too, at every size"
    size = runs.sizes[0]
    worst = short(float(np.exp(runs.log_of(size)[excess.mean.argmax()])))
    return f"run more trials in every cell, first where the excess is largest: at {size} {worst}"


def excess_of_many(runs: Runs) -> Excess | None:
    """Return the tuning excess like `excess_of`, of any number of cells.

    Of more than it takes, some are drawn, and each draw of the others is a parabola in the logs of the sizes of these.
    """
    if runs.n_cells <= _MOST_CELLS:
        return excess_of(runs)
    chosen = np.sort(np.random.default_rng(0).choice(runs.n_cells, _MOST_CELLS, replace=False))
    kept = np.isin(runs.cell, chosen)
    place = np.searchsorted(chosen, runs.cell[kept])
    part = replace(runs, x=runs.x[kept], y=runs.y[kept], cell=place, logs=runs.logs[chosen])
    excess = excess_of(part)
    if excess is None:
        return None
    logs = runs.logs[:, np.ptp(runs.logs, axis=0) > 1e-9]
    logs = (logs - logs.mean(0)) / np.maximum(logs.std(0), 1e-12)
    base = np.hstack([np.ones((runs.n_cells, 1)), logs, logs**2])
    between = base @ np.linalg.pinv(base[chosen])
    draws, again = (np.maximum(each @ between.T, 0.0) for each in (excess.draws, excess.again))
    level = np.full(runs.n_cells, np.nan)
    level[chosen] = excess.level
    cell, _, y = _trials(runs)
    return replace(excess, draws=draws, again=again, level=level, n_trials=_competing(cell, y, runs.n_cells))


def excess_of(runs: Runs) -> Excess | None:
    """Return the tuning excess of each cell of a table of runs; None if its trials are too few to tell."""
    cell, x, y = _trials(runs)
    lowest = np.full(runs.n_cells, np.inf)
    np.minimum.at(lowest, cell, y)
    if len(y) < _FEWEST * runs.n_cells or runs.n_cells > _MOST_CELLS or not np.isfinite(lowest).all():
        return None
    low, high = x.min(0), x.max(0)
    varied = np.ptp(runs.logs, axis=0) > 1e-9
    sizes = runs.logs[:, varied]
    sizes = (sizes - sizes.mean(0)) / np.maximum(sizes.std(0), 1e-12)
    # Params follow depth and width: one of two descriptions of a size is enough.
    if sizes.shape[1] > 2:
        sizes = sizes[:, np.array(runs.sizes)[varied] != "params"]
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
    scales = fit_scales(columns, rows, y[kept], nothing, _DEPARTURE)
    surrogate = condition(columns, scales, rows, y[kept], nothing)
    random = np.random.default_rng(0)
    grid = _grid(low, high)
    # The best of the values tried that a draw has, not the one that was chosen: which of two like ones won is luck.
    by_loss = np.argsort(y, kind="stable")
    shown = [x[by_loss[cell[by_loss] == c][:_SHOWN]] for c in range(runs.n_cells)]
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
    return Excess(
        names=runs.names,
        draws=lowest_tried - least,
        again=after - least,
        beyond=edges,
        tried=np.exp(np.stack([low, high], 1)),
        level=lowest_tried.mean(0),
        n_trials=_competing(cell, y, runs.n_cells),
    )


def _trials(runs: Runs) -> tuple[NDArray[np.intp], Array, Array]:
    """The cell, the searched values and the log loss of each trial, the mean of its seeds."""
    keys = np.column_stack([runs.cell, runs.x.round(6)])
    trials, place = np.unique(keys, axis=0, return_inverse=True)
    y = np.bincount(place.ravel(), runs.y) / np.bincount(place.ravel())
    return trials[:, 0].astype(np.intp), trials[:, 1:], y


def _competing(cell: NDArray[np.intp], y: Array, n_cells: int) -> Array:
    """The number of trials of each cell that are near its best."""
    lowest = np.full(n_cells, np.inf)
    np.minimum.at(lowest, cell, y)
    return np.bincount(cell[y < lowest[cell] + _NEAR], minlength=n_cells).astype(float)


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
