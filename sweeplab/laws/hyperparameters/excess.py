"""The tuning excess of every cell: how far the best tried loss lies above what the best values would reach.

It follows from the regression of `surface.py`: what the tried values cost where the best ones are a draw. The best of
the values tried that a draw has counts, not the one that was chosen: which of two like ones won is luck.

Legend: C cells, S draws, n points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.laws.columns import PLAIN, Counting
from sweeplab.laws.core import Array
from sweeplab.laws.hyperparameters.runs import SearchedRuns, runs_of_frame
from sweeplab.laws.hyperparameters.surface import fit_surface
from sweeplab.laws.points import EACH, Points, points_of_frame
from sweeplab.laws.reading import read_frame

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 6  # the best trials of a cell, one of which is the best


def searched_points(frame: pd.DataFrame, source: str, counting: Counting = PLAIN) -> Points:
    """Return the points of a table like `points_of_frame`, with the record of its trials if it has several a point."""
    points = points_of_frame(frame, source, counting)
    if points.tuned == EACH:
        points = replace(
            points, record=record_of(lambda: runs_of_frame(frame, source, counting))
        )
    return points.tuned_as(counting.tuned)


def file_points(path: Path, counting: Counting = PLAIN) -> Points:
    """Return the points of a file."""
    return searched_points(read_frame(path), str(path), counting)


def record_of(read: Callable[[], SearchedRuns]) -> Callable[[Points], Array | None]:
    """Return what the runs that `read` returns say about the tuning of points, when it is asked for."""

    @cache
    def known() -> tuple[SearchedRuns, Array] | None:
        """The runs that the regression takes, and draws of the excess of log loss of each of their cells, [S, C]."""
        try:
            surface = fit_surface(read())
        # Nothing was searched, or the trials are too few to show a minimum.
        except (BadInput, KeyError):
            return None
        runs = surface.runs
        order = np.lexsort((runs.y, runs.cell))
        by_cell = np.split(order, np.searchsorted(runs.cell[order], np.arange(1, runs.n_cells)))
        excesses = []
        for c, rows in enumerate(by_cell):
            costs = [surface.cost(runs.x[row], surface.optima[:, c]) for row in rows[:_SHOWN]]
            excesses.append(np.min(costs, axis=0))
        return runs, np.stack(excesses, 1)

    def record(points: Points) -> Array | None:
        """The excess of the nearest cell to each point."""
        excess = known()
        if excess is None:
            return None
        runs, draws = excess
        # A column at a time: a table may have thousands of points.
        far = np.zeros((points.n, runs.n_cells))
        for name in runs.sizes:
            if name in points.columns:
                far += (np.log(points.columns[name])[:, None] - runs.log_of(name)) ** 2
        return draws[:, far.argmin(1)]

    return record
