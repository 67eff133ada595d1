"""Which rows share a compute budget: as the table has them, or in bins that a person asks for.

Rows of one budget are brought to the same FLOPs before a parabola is drawn through them: along their own ray of
tokens a parameter, and along the line of the lowest losses. It matters in wide bins and hardly elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.fit.forms import Array
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput, Problem

Rows = NDArray[np.intp]
SAME = 1.10  # rows that follow each other within this factor of FLOPs have one budget
WIDEST = 1.25  # and all of them lie within this one
SIZES = 3  # that a parabola takes
_FAR = 1.5  # a row so far from every budget that a person names belongs to none
_MOST_BINS = 100
_APART = 0.01  # of log N: sizes closer than this are one


@dataclass(frozen=True)
class Budget:
    """Rows of one budget: its FLOPs, the rows' places, and log N and the log loss of these at the budget."""

    flops: float
    rows: Rows
    log_n: Array
    log_loss: Array


def parse_budgets(text: str) -> int | tuple[float, ...]:
    """Return a number of bins, or budgets in FLOPs: 8, or 1e17,3e17,1e18.

    Raises:
        BadInput: neither.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and parts[0].isdecimal() and 1 <= int(parts[0]) <= _MOST_BINS:
        return int(parts[0])
    try:
        found = tuple(sorted({float(part) for part in parts}))
    except ValueError:
        found = (math.nan,)
    if not all(_MOST_BINS < each < math.inf for each in found):
        raise BadInput(
            Problem(f"--budgets {text!r}", "a number of bins, such as 8, or FLOPs: 1e17,3e17,1e18")
        )
    return found


def budgets_of(points: Points, asked: int | tuple[float, ...] | None = None) -> tuple[list[Budget], str]:
    """Return the budgets of three sizes or more, smallest first, and how the rows came to them; or why none did."""
    log_c, log_n = np.log(points.columns["flops"]), np.log(points.columns["params"])
    if asked is None:
        groups, how = _found(log_c, log_n)
    elif isinstance(asked, int):
        groups = [
            (float(log_c[rows].mean()), rows)
            for rows in np.array_split(np.argsort(log_c), asked)
            if rows.size
        ]
        how = f"the rows were binned by their FLOPs into {asked} budgets, as --budgets asks"
    else:
        groups, how = _named(log_c, asked), "the rows nearest to the budgets that --budgets names"
    groups = [(at, rows) for at, rows in groups if n_sizes(log_n[rows]) >= SIZES]
    if not groups:
        return [], how if how.startswith("no ") else f"no budget has rows of {SIZES} sizes"
    return _levelled(points, groups), how


def n_sizes(log_n: Array) -> int:
    """Return how many sizes there are, those within 1% of each other as one."""
    return int((np.diff(np.sort(log_n)) > _APART).sum()) + 1 if log_n.size else 0


def _found(log_c: Array, log_n: Array) -> tuple[list[tuple[float, Rows]], str]:
    order = np.argsort(log_c)
    breaks = np.flatnonzero(np.diff(log_c[order]) > math.log(SAME)) + 1
    groups = [rows for rows in np.split(order, breaks) if np.ptp(log_c[rows]) <= math.log(WIDEST)]
    groups = [rows for rows in groups if n_sizes(log_n[rows]) >= SIZES]
    held = sum(len(rows) for rows in groups)
    if 2 * held < len(log_c):
        return [], (
            f"no budgets: only {held} of {len(log_c)} rows share their FLOPs with rows of {SIZES - 1} other sizes "
            f"(within {SAME - 1:.0%} from one to the next); --budgets 8 would bin them"
        )
    how = f"rows within {SAME - 1:.0%} of each other in FLOPs are one budget"
    outside = len(log_c) - held
    return [(float(log_c[rows].mean()), rows) for rows in groups], how + (
        f"; {outside} rows belong to none of {SIZES} sizes" if outside else ""
    )


def _named(log_c: Array, asked: tuple[float, ...]) -> list[tuple[float, Rows]]:
    at = np.log(np.array(asked))
    nearest = np.abs(log_c[:, None] - at).argmin(1)
    near = np.abs(log_c - at[nearest]) <= math.log(_FAR)
    return [(float(each), np.flatnonzero((nearest == k) & near)) for k, each in enumerate(at)]


def _levelled(points: Points, groups: list[tuple[float, Rows]]) -> list[Budget]:
    log_c, log_n, log_loss = (np.log(points.columns[name]) for name in ("flops", "params", "loss"))
    at = np.array([each for each, _ in groups])
    lowest = np.array([log_loss[rows].min() for _, rows in groups])
    falls = np.zeros(len(groups))
    if len(groups) > 1:
        fall = np.polyfit(at - at.mean(), lowest, 2 if len(groups) > 4 else 1)
        falls = np.polyval(np.polyder(fall), at - at.mean())
    found = []
    for (budget, rows), slope in zip(groups, falls, strict=True):
        away = log_c[rows] - budget
        levelled = log_loss[rows] - slope * away
        found.append(Budget(math.exp(budget), rows, log_n[rows] - away / 2, levelled))
    return found
