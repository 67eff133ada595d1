"""Runs that could be made next: points of a log grid, of a file, or cells of a study, each with what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sweeplab.analysis.columns import own_columns, read_columns
from sweeplab.analysis.fit.forms import Array
from sweeplab.analysis.points import Points, read_frame
from sweeplab.errors import BadInput, Problem, nearest

_SIZES = ("params", "tokens")
N_SIZES, N_RATIOS = 13, 9
LEAST_SPAN = (
    30.0  # tokens a parameter differ at least by this factor among the candidates, whatever the table has
)
MOST = 2000
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Candidates:
    """The runs to choose from: what a law reads of each, [m] a column, and the FLOPs that one costs, [m].

    `cells` are their values in a study's grid; a point of a table has none. A run weighs as many rows as it has
    seeds.
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
        """Return those that cost no more than a budget, with about the tokens a parameter that the table has.

        Raises:
            BadInput: there are none.
        """
        low, high = _ratios(points)
        ratio = self.columns["tokens"] / self.columns["params"]
        kept = np.flatnonzero(
            (self.cost <= budget) & (ratio >= low * (1 - _ROUNDING)) & (ratio <= high * (1 + _ROUNDING))
        )
        if not len(kept):
            least = f"the least costs {self.cost.min():.3g}"
            raise BadInput(f"{budget:.3g} FLOPs are too few for any candidate: {least}")
        columns = {name: column[kept] for name, column in self.columns.items()}
        return replace(
            self,
            columns=columns,
            cost=self.cost[kept],
            cells=tuple(self.cells[k] for k in kept if self.cells),
        )


def parse_axes(text: str) -> dict[str, Array]:
    """Return {"params": values, …} of "params=1e6:1e8:9,tokens=1e7:1e10:7": from, to and how many, evenly in logs.

    Raises:
        BadInput: what is no such axis, or an axis that is named twice.
    """
    found: dict[str, Array] = {}
    for each in text.split(","):
        name, _, numbers = (part.strip() for part in each.partition("="))
        try:
            low, high, count = (float(number) for number in numbers.split(":"))
            ordered = 0 < low <= high < math.inf and count == int(count) and 1 <= count <= MOST
        except ValueError:
            ordered = False
        if not ordered or not name or name in found:
            raise BadInput(Problem(f"--candidates {each.strip()!r}", "NAME=FROM:TO:COUNT, each name once"))
        found[name] = np.geomspace(low, high, int(count))
    return found


def of_points(points: Points, budget: float) -> Candidates:
    """Return a log grid from the table's smallest size up to what the budget allows, at the table's tokens a parameter.

    Raises:
        BadInput: the table has no column of N or of D.
    """
    _check_sized(points)
    n, ratios = points.columns["params"], np.geomspace(*_ratios(points), N_RATIOS)
    largest = math.sqrt(budget / points.flops_per_param_token / ratios[0])
    sizes = np.geomspace(n.min(), max(largest, n.max()), N_SIZES)
    return _grid(points, sizes[:, None] + 0 * ratios, sizes[:, None] * ratios).like(points, budget)


def of_axes(points: Points, axes: Mapping[str, Array]) -> Candidates:
    """Return every combination of sizes and tokens; `ratio` in place of tokens is tokens a parameter.

    Raises:
        BadInput: other axes than params with tokens or ratio, more combinations than are looked at.
    """
    _check_sized(points)
    known = (*_SIZES, "ratio")
    if unknown := [name for name in axes if name not in known]:
        what = f"--candidates has no {unknown[0]!r} for a table"
        raise BadInput(Problem(what, ", ".join(known), nearest(unknown[0], known)))
    if "params" not in axes or len(axes) != 2:
        raise BadInput("--candidates of a table takes params and one of tokens and ratio")
    sizes, other = axes["params"][:, None], next(axes[name] for name in axes if name != "params")
    if sizes.size * other.size > MOST:
        raise BadInput(f"--candidates are {sizes.size * other.size:,}; at most {MOST:,} are looked at")
    return _grid(points, sizes + 0 * other, other * (sizes if "ratio" in axes else 1 + 0 * sizes))


def of_file(points: Points, path: Path) -> Candidates:
    """Return the candidates of a .csv or .parquet file with columns params and tokens, and flops if it has them.

    Raises:
        BadInput: no such file or column, or what is no number.
    """
    _check_sized(points)
    frame = read_frame(path)
    known = own_columns([str(name) for name in frame])
    if missing := [name for name in _SIZES if name not in known]:
        raise BadInput(Problem(f"{path}: no column {missing[0]!r}", ", ".join(map(str, frame))))
    wanted = {role: known[role] for role in (*_SIZES, "flops") if role in known}
    columns = {role: column.values for role, column in read_columns(frame, wanted, str(path)).items()}
    if not all(np.isfinite(each).all() for each in columns.values()):
        raise BadInput(f"{path}: a candidate lacks a number")
    return _of_columns(points, columns)


def _ratios(points: Points) -> tuple[float, float]:
    """Return the least and the most tokens a parameter to look at: the table's, further apart where these are close."""
    ratio = points.columns["tokens"] / points.columns["params"]
    low, high = float(ratio.min()), float(ratio.max())
    widen = math.sqrt(max(1.0, LEAST_SPAN * low / high))
    return low / widen, high * widen


def _grid(points: Points, params: Array, tokens: Array) -> Candidates:
    return _of_columns(points, {"params": params.ravel(), "tokens": tokens.ravel()})


def _of_columns(points: Points, columns: Mapping[str, Array]) -> Candidates:
    counted = points.flops_per_param_token * columns["params"] * columns["tokens"]
    flops = columns.get("flops", counted)
    return Candidates({"params": columns["params"], "tokens": columns["tokens"], "flops": flops}, flops)


def _check_sized(points: Points) -> None:
    if missing := [name for name in _SIZES if name not in points.columns]:
        raise BadInput(
            f"the next runs are chosen by params and tokens; the table has no {' and '.join(missing)}"
        )
