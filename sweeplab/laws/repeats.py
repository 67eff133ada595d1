"""Rows of a file at one N and D: the seeds of a run, whose mean counts, or a search, whose best row counts.

The other columns decide: a column that differs within a point, and is neither a seed nor measured, was searched. If no
column decides and most points have several rows, the user is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.hyperparameters import TABLE
from sweeplab.laws.columns import COUNTS, Array, is_measured

if TYPE_CHECKING:
    import pandas as pd

BEST, MEAN, ALL = "best", "mean", "all"
_MANY = 2  # rows per point, on average: then it is no accident
_MOST_NAMED = 4
_SEED = re.compile(r"(.*[^a-z])?(seed|seeds|replicate|repeat|repetition)([^a-z].*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Reduced:
    """One row per point: the indices `places` of the rows, [m], their losses and weights, and descriptions.

    `n_rows` is the number of rows at each point, [m].
    """

    places: NDArray[np.intp]
    loss: Array
    weights: Array
    n_rows: Array
    said: str
    dropped: str


def one_of_each(
    frame: pd.DataFrame, columns: Mapping[str, Array], group: Any, roles: Sequence[str], how: str, source: str
) -> Reduced | None:
    """Return the best row of each N, D, C and group, or the mean of its seeds; None if every row is its own point.

    `columns` are the numbers by role, [n]; `roles` the names of their columns in `frame`. Rows that differ only in
    a seed are averaged, and k of them have weight k. `how` is BEST, MEAN, ALL, or empty to decide by the table.

    Raises:
        BadInput: most points have several rows, and no column says why.
    """
    counts = [role for role in COUNTS if role in columns]
    if how == ALL or len(counts) < 2:
        return None
    point = _numbered(
        [
            *(np.log(columns[role]).round(6) for role in counts),
            *([] if group is None else [np.array(group, object)]),
        ]
    )
    n, n_points = len(point), int(point.max()) + 1
    if n == n_points:
        return None
    several_rows = np.bincount(point)[point] > 1
    varying = [
        name
        for name in frame
        if name not in roles and (frame[name][several_rows].groupby(point[several_rows]).nunique() > 1).any()
    ]
    seeds = [name for name in varying if _SEED.fullmatch(str(name))]
    searched = [name for name in varying if name not in seeds and _is_a_setting(frame, name)]
    where = f"{several(n, 'row')} at {several(n_points, 'point')} of {' and '.join(counts[:2])}"
    if not how and not searched and not seeds:
        if n < _MANY * n_points:
            return None
        raise BadInput(
            f"{source}: {where}, and no column says why: --count rows=best takes the best of each (a search), "
            "rows=mean their mean (seeds), rows=all every row"
        )
    how = how or (BEST if searched else MEAN)
    differing = list(map(str, varying if how == MEAN else searched))
    names = ", ".join(differing[:_MOST_NAMED]) + (" …" if len(differing) > _MOST_NAMED else "")
    if how == MEAN:
        run = point
        said = f"the mean of the rows at each point{f', which differ in {names}' if names else ''} ({where})"
    else:
        own = [frame[name].to_numpy() for name in searched] if seeds else [np.arange(n)]
        run = _numbered([point, *own])
        said = f"the best at each point{f' over {names}' if names else ''}, as a law describes the best ({where})"
    weights = np.bincount(run).astype(float)
    loss = np.bincount(run, columns["loss"]) / weights
    first = np.unique(run, return_index=True)[1]
    order = np.lexsort((loss, point[first]))
    chosen = order[np.unique(point[first][order], return_index=True)[1]]
    chosen = chosen[np.argsort(first[chosen])]
    away = "averaged with another row of its point" if how == MEAN else "not the best of its point"
    n_rows = np.bincount(point).astype(float)[point[first[chosen]]]
    said += "; --count rows=all takes every row"
    return Reduced(first[chosen], loss[chosen], weights[chosen], n_rows, said, away)


def _numbered(keys: Sequence[Any]) -> NDArray[np.intp]:
    """Return the number of each row's distinct tuple of keys, [n]."""
    import pandas as pd

    found = np.zeros(len(keys[0]), np.intp)
    for key in keys:
        codes = pd.factorize(key, use_na_sentinel=False)[0]
        found = np.unique(found * (int(codes.max()) + 1) + codes, return_inverse=True)[1].astype(np.intp)
    return found


def _is_a_setting(frame: pd.DataFrame, name: Any) -> bool:
    """Return whether a column is a setting of the run: by its name, or because its values repeat."""
    if is_measured(str(name)):
        return False
    return str(name) in {*TABLE, "lr", "wd", "bs"} or 2 * frame[name].nunique() <= len(frame)
