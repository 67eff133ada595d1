"""The compute-optimal size by IsoFLOP curves: at each compute budget the loss falls and rises again in log N.

Hoffmann et al. 2022, Training compute-optimal large language models, approach 2. Departure: one regression over the
rows of all budgets in place of a line through separately fitted minima, which is biased where sizes drift from one side
of the optimum to the other. With c the centered log of the budget and z = log N less a line in c through the lowest
rows, of budget b

    log loss = a_b + k1 z + k2 z c + (k3 + k5 c) z^2/2 + k4 z^3/6,

so that budgets share a curvature that may grow with c, and a skew, and the minimum at c is where the slope
k1 + k2 c + (k3 + k5 c) z + k4 z^2/2 is 0. A minimum
counts only if its interval lies between the smallest and the largest size of its budget.

Legend: n rows, B budgets, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.assessment import NOT_IDENTIFIED, Verdict, judge
from sweeplab.laws.core import Array, RowErrors, fit_line, interval
from sweeplab.laws.forms import D_OPT, FEWEST_VALUES, N_OPT
from sweeplab.laws.points import DECADES, Points
from sweeplab.laws.sentences import Reason

SIZES = 4  # of a budget: a parabola and one more
_NEAR = math.log(8.0)  # rows within this factor of the lowest one's size: a cubic goes no further
_NOWHERE = 60.0  # log N of a minimum that is none
_DRAWN = 60  # points of a curve


@dataclass(frozen=True)
class IsoFlop:
    """The numbers of the line through the minima as plain entries, and each budget with its rows, curve and minimum."""

    numbers: dict[str, dict[str, Any]]
    budgets: list[dict[str, Any]]


def isoflop(points: Points, budget: float | None = None, doubt: Reason | None = None) -> IsoFlop:
    """Return the compute-optimal size by curves at equal FLOPs.

    `budget` is the compute at which to give N_opt (the largest of the table when None); `doubt` is why every number is
    weak at best.

    Raises:
        BadInput: the table has no N or no C, or too few budgets with several sizes.
    """
    for name in ("params", "flops"):
        if name not in points.columns:
            raise BadInput(f"the compute-optimal size needs {name!r}; name its column with --columns")
    groups = _budgets(points)
    if len(groups) < FEWEST_VALUES:
        few = f"{several(len(groups), 'budget')} with {SIZES} sizes or more at equal FLOPs"
        raise BadInput(f"{few}; {FEWEST_VALUES} are needed")
    at = math.log(budget or float(points.columns["flops"].max()))
    log_c = np.array([float(np.log(points.columns["flops"][rows]).mean()) for rows in groups])
    minima, curves = _fitted(points, groups, log_c)
    budgets = [
        _entry(points, rows, middle, minimum, curve)
        for rows, middle, minimum, curve in zip(groups, log_c, minima, curves, strict=True)
    ]
    exponent = (minima[-1] - minima[0]) / (log_c[-1] - log_c[0])
    size = (minima[0] + minima[-1]) / 2 + exponent * (at - (log_c[0] + log_c[-1]) / 2)
    quantities = (
        (N_OPT, "exponent", exponent, "N_opt grows as C to this power"),
        (D_OPT, "exponent", 1 - exponent, "D_opt grows as C to this power"),
        ("N_opt", "ratio", size, f"the parameters of lowest loss for {math.exp(at):.3g} FLOPs"),
    )
    known = [middle for middle, each in zip(log_c, budgets, strict=True) if not each["code"]]
    lacking, numbers = None, {}
    if len(known) >= FEWEST_VALUES and np.ptp(known) / math.log(10) < DECADES["flops"]:
        facts = {"column": "flops of the minima", "needed": DECADES["flops"]}
        lacking = Reason("decades", facts | {"decades": float(np.ptp(known)) / math.log(10)})
    for name, kind, draws, meaning in quantities:
        if len(known) < FEWEST_VALUES:
            facts = {"count": len(known), "budgets": several(len(budgets), "budget"), "needed": FEWEST_VALUES}
            none = Verdict(NOT_IDENTIFIED, "few minima", facts)
            numbers[name] = none.entry((None, None, None), meaning)
            continue
        shown = interval(draws)
        verdict = judge(kind, *shown, lacking, doubt)
        numbers[name] = verdict.entry([math.exp(end) for end in shown] if kind == "ratio" else shown, meaning)
    return IsoFlop(numbers, budgets)


def _budgets(points: Points) -> list[NDArray[np.intp]]:
    """The rows of each budget with enough sizes near its lowest, in the order of the budgets."""
    log_c, log_n = np.log(points.columns["flops"]), np.log(points.columns["params"])
    order = np.argsort(log_c, kind="stable")
    breaks = np.flatnonzero(np.diff(log_c[order]) > 0.01) + 1
    groups = []
    for rows in np.split(order, breaks):
        lowest = rows[np.argmin(points.columns["loss"][rows])]
        near = np.sort(rows[np.abs(log_n[rows] - log_n[lowest]) <= _NEAR])
        if len(np.unique(log_n[near].round(4))) >= SIZES:
            groups.append(near)
    return groups


def _fitted(
    points: Points, groups: Sequence[NDArray[np.intp]], log_c: Array
) -> tuple[list[Array], list[Array]]:
    """Draws of the log N of each budget's minimum, [S], and its curve, the loss at _DRAWN sizes."""
    rows, place = np.concatenate(groups), np.repeat(np.arange(len(groups)), [len(each) for each in groups])
    log_n, log_loss = np.log(points.columns["params"]), np.log(points.columns["loss"])
    lowest = np.array([float(log_n[each][np.argmin(log_loss[each])]) for each in groups])
    c = log_c - log_c.mean()
    slope, center = np.polyfit(c, lowest, 1)
    z = log_n[rows] - center - slope * c[place]
    levels = np.eye(len(groups))[place]
    columns = np.column_stack([levels, z, z * c[place], z**2 / 2, z**3 / 6, z**2 / 2 * c[place]])
    draws = fit_line(log_loss[rows], columns, RowErrors(weights=points.weights[rows]))
    k1, k2, k3, k4, k5 = draws.scales[:, -5:].T
    *typical, t1, t2, t3, t4, t5 = np.median(draws.scales, axis=0)
    minima, curves = [], []
    for at in range(len(groups)):
        first, second = k1 + k2 * c[at], k3 + k5 * c[at]
        minimum = -first / second
        for _ in range(5):  # of Newton, from the minimum of the parabola
            bend = second + k4 * minimum
            minimum = minimum - (first + second * minimum + k4 * minimum**2 / 2) / bend
        # A draw without an upward bend has its minimum beyond all sizes, on the side to which the loss falls.
        minimum = np.where((second > 0) & (second + k4 * minimum > 0), minimum, -np.sign(first) * _NOWHERE)
        minima.append(minimum + center + slope * c[at])
        sizes = np.linspace(z[place == at].min(), z[place == at].max(), _DRAWN)
        slope_at, bend_at = t1 + t2 * c[at], t3 + t5 * c[at]
        curves.append(np.exp(typical[at] + slope_at * sizes + bend_at * sizes**2 / 2 + t4 * sizes**3 / 6))
    return minima, curves


def _entry(
    points: Points, rows: NDArray[np.intp], log_c: float, minimum: Array, curve: Array
) -> dict[str, Any]:
    """A budget as plain values; one without a minimum has the code of the reason."""
    columns, flops = points.columns, math.exp(log_c)
    log_n = np.log(columns["params"][rows])
    sizes = np.linspace(log_n.min(), log_n.max(), _DRAWN)
    middle, low, high = interval(minimum)
    entry: dict[str, Any] = {
        "flops": flops,
        "n_rows": len(rows),
        "rows": {name: columns[name][rows].tolist() for name in ("params", "loss")},
        "curve": {"params": np.exp(sizes).tolist(), "loss": curve.tolist()},
        "code": "",
        "why_none": "",
    }
    if high - low > _NOWHERE / 2:
        entry["code"] = "no bend"
    elif low < log_n.min():
        entry["code"] = "minimum below"
    elif high > log_n.max():
        entry["code"] = "minimum above"
    if entry["code"]:
        best: dict[str, float | None] = dict.fromkeys(("n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss"))
        return entry | best | {"why_none": Reason(entry["code"], {}).words}
    best = {"n_opt": math.exp(middle), "n_opt_low": math.exp(low), "n_opt_high": math.exp(high)}
    tokens = flops / points.flops_per_param_token / math.exp(middle)
    return entry | best | {"d_opt": tokens, "loss": float(np.interp(middle, sizes, curve))}
