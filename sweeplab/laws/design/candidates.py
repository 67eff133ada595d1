"""Candidates for the next runs with their cost: points of a log grid, of a file, or cells of a study.

For cells of a study, also the study file that trains the chosen ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.laws.columns import guessed_columns, own_columns, pairs_of, read_columns
from sweeplab.laws.estimation.forms import Array
from sweeplab.laws.points import Points
from sweeplab.laws.reading import read_frame

if TYPE_CHECKING:
    pass


_SIZES = ("params", "tokens")
N_SIZES, N_RATIOS = 13, 9
# The candidates' tokens per parameter span at least this factor, whatever the table's span.
LEAST_SPAN = 30.0
MOST = 2000
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Candidates:
    """The runs to choose from: the columns of the law, [m] each, and the FLOPs of one run, [m].

    `cells` are their values in a study's grid; empty for points of a table. `weight` is the number of seeds of a run.
    """

    columns: Mapping[str, Array]
    cost: Array
    cells: tuple[Mapping[str, Any], ...] = ()
    weight: float = 1.0

    @property
    def n(self) -> int:
        """Return the number of candidates."""
        return len(self.cost)

    def like(self, points: Points, budget: float) -> Candidates:
        """Return the candidates within a budget whose tokens per parameter are about those of the table.

        Raises:
            BadInput: there are none.
        """
        low, high = _ratios(points)
        ratio = self.columns["tokens"] / self.columns["params"]
        within = (ratio >= low * (1 - _ROUNDING)) & (ratio <= high * (1 + _ROUNDING))
        kept = np.flatnonzero((self.cost <= budget) & within)
        if not len(kept):
            least = f"the least costs {self.cost.min():.3g}"
            raise BadInput(f"{budget:.3g} FLOPs are too few for any candidate: {least}")
        columns = {name: column[kept] for name, column in self.columns.items()}
        cells = tuple(self.cells[k] for k in kept if self.cells)
        return replace(self, columns=columns, cost=self.cost[kept], cells=cells)


def parse_axes(text: str) -> dict[str, Array]:
    """Return {"params": values, …} of "params=1e6:1e8:9,tokens=1e7:1e10:7": from, to and count, evenly in logs.

    Raises:
        BadInput: an invalid axis, or an axis that is named twice.
    """
    found: dict[str, Array] = {}
    for each, name, numbers in pairs_of(text):
        try:
            low, high, count = map(float, numbers.split(":"))
        except ValueError:
            low = high = count = 0.0
        is_axis = 0 < low <= high < math.inf and count.is_integer() and 1 <= count <= MOST
        if not is_axis or not name or name in found:
            raise BadInput(Problem(f"--candidates {each!r}", "NAME=FROM:TO:COUNT, each name once"))
        found[name] = np.geomspace(low, high, int(count))
    return found


def of_points(points: Points, budget: float) -> Candidates:
    """Return a log grid from the table's smallest size up to the budget, at the table's tokens per parameter.

    Raises:
        BadInput: the table has no column of N or of D.
    """
    _check_sized(points)
    n, ratios = points.columns["params"], np.geomspace(*_ratios(points), N_RATIOS)
    largest = math.sqrt(budget / points.flops_per_param_token / ratios[0])
    sizes = np.geomspace(n.min(), max(largest, n.max()), N_SIZES)
    return _of_columns(points, sizes[:, None], sizes[:, None] * ratios).like(points, budget)


def of_axes(points: Points, axes: Mapping[str, Array]) -> Candidates:
    """Return every combination of sizes and tokens; `ratio` in place of tokens is tokens per parameter.

    Raises:
        BadInput: other axes than params with tokens or ratio, or too many combinations.
    """
    _check_sized(points)
    known = (*_SIZES, "ratio")
    if unknown := [name for name in axes if name not in known]:
        what = f"--candidates has no {unknown[0]!r} for a table"
        raise BadInput(Problem(what, ", ".join(known), nearest(unknown[0], known)))
    if "params" not in axes or len(axes) != 2:
        raise BadInput("--candidates for a table needs params and one of tokens and ratio")
    sizes, other = axes["params"][:, None], next(axes[name] for name in axes if name != "params")
    if sizes.size * other.size > MOST:
        raise BadInput(f"--candidates are {sizes.size * other.size:,}; at most {MOST:,} are allowed")
    return _of_columns(points, sizes, sizes * other if "ratio" in axes else other)


def of_file(points: Points, path: Path) -> Candidates:
    """Return the candidates of a file's table with columns params and tokens, and flops if it has them.

    Raises:
        BadInput: no such file or column, or what is no number.
    """
    _check_sized(points)
    frame = read_frame(path)
    names = [str(name) for name in frame]
    known = guessed_columns(names) | own_columns(names)
    if missing := [name for name in _SIZES if name not in known]:
        raise BadInput(Problem(f"{path}: no column {missing[0]!r}", ", ".join(map(str, frame))))
    wanted = {role: known[role] for role in (*_SIZES, "flops") if role in known}
    columns = {role: column.values for role, column in read_columns(frame, wanted, str(path)).items()}
    if not all(np.isfinite(each).all() for each in columns.values()):
        raise BadInput(f"{path}: a candidate lacks a number")
    return _of_columns(points, **columns)


def _ratios(points: Points) -> tuple[float, float]:
    """Return the range of tokens per parameter of candidates: the table's, widened if it is narrow."""
    ratio = points.columns["tokens"] / points.columns["params"]
    low, high = float(ratio.min()), float(ratio.max())
    widen = math.sqrt(max(1.0, LEAST_SPAN * low / high))
    return low / widen, high * widen


def _of_columns(points: Points, params: Array, tokens: Array, flops: Array | None = None) -> Candidates:
    """Return the candidates of columns that broadcast to one grid; without C it is the table's mean C/ND."""
    n, d = (each.ravel() for each in np.broadcast_arrays(params, tokens))
    cost = points.flops_per_param_token * n * d if flops is None else flops
    return Candidates({"params": n, "tokens": d, "flops": cost}, cost)


def _check_sized(points: Points) -> None:
    if missing := [name for name in _SIZES if name not in points.columns]:
        lacking = " and ".join(missing)
        raise BadInput(f"the next runs are chosen by params and tokens; the table has no {lacking}")
