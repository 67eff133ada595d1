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
from dataclasses import dataclass

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.assessment import NOT_IDENTIFIED, Verdict, judge
from sweeplab.laws.core import Array, fit_line, interval
from sweeplab.laws.forms import D_OPT, FEWEST_VALUES, N_OPT
from sweeplab.laws.points import DECADES, Index, Points
from sweeplab.laws.sentences import Plain, Reason

SIZES = 4  # of a budget: a parabola and one more
_NEAR = math.log(8.0)  # rows within this factor of the lowest one's size: a cubic goes no further
_NOWHERE = 60.0  # log N of a minimum that is none


@dataclass(frozen=True)
class IsoFlop:
    """The numbers of the line through the minima as plain entries, and each budget with its rows, curve and minimum."""

    numbers: dict[str, Plain]
    budgets: list[Plain]


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
    log_c = np.array([np.log(points.columns["flops"][rows]).mean() for rows in groups])
    minima, budgets = _fitted(points, groups, log_c)
    at = math.log(budget or float(points.columns["flops"].max()))
    exponent = (minima[-1] - minima[0]) / (log_c[-1] - log_c[0])
    size = (minima[0] + minima[-1]) / 2 + exponent * (at - (log_c[0] + log_c[-1]) / 2)
    quantities = (
        (N_OPT, "exponent", exponent, "N_opt grows as C to this power"),
        (D_OPT, "exponent", 1 - exponent, "D_opt grows as C to this power"),
        ("N_opt", "ratio", size, f"the parameters of lowest loss for {math.exp(at):.3g} FLOPs"),
    )
    known = log_c[[not each["code"] for each in budgets]]
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


def _budgets(points: Points) -> list[Index]:
    """The rows of each budget with enough sizes near its lowest, in the order of the budgets."""
    log_c, log_n = np.log(points.columns["flops"]), np.log(points.columns["params"])
    order = np.argsort(log_c, kind="stable")
    groups = []
    for rows in np.split(order, np.flatnonzero(np.diff(log_c[order]) > 0.01) + 1):
        lowest = rows[np.argmin(points.columns["loss"][rows])]
        near = np.sort(rows[np.abs(log_n[rows] - log_n[lowest]) <= _NEAR])
        if len(np.unique(log_n[near].round(4))) >= SIZES:
            groups.append(near)
    return groups


def _fitted(points: Points, groups: list[Index], log_c: Array) -> tuple[list[Array], list[Plain]]:
    """Draws of the log N of each budget's minimum, [S], and the budgets; one without a minimum has a code why."""
    rows, place = np.concatenate(groups), np.repeat(np.arange(len(groups)), [len(each) for each in groups])
    log_n, log_loss = np.log(points.columns["params"]), np.log(points.columns["loss"])
    lowest = np.array([float(log_n[each][np.argmin(log_loss[each])]) for each in groups])
    c = log_c - log_c.mean()
    slope, center = np.polyfit(c, lowest, 1)
    z = log_n[rows] - center - slope * c[place]
    levels = np.eye(len(groups))[place]
    columns = np.column_stack([levels, z, z * c[place], z**2 / 2, z**3 / 6, z**2 / 2 * c[place]])
    draws = fit_line(log_loss[rows], columns, points.weights[rows]).scales
    minima, budgets = [], []
    for at, of_budget in enumerate(groups):
        sizes = np.linspace(log_n[of_budget].min(), log_n[of_budget].max(), 60)
        minimum, curve = _curve(draws, at, c[at], sizes - center - slope * c[at])
        minimum = minimum + center + slope * c[at]
        middle, low, high = interval(minimum)
        code = ""
        if high - low > _NOWHERE / 2:
            code = "no bend"
        elif low < sizes[0]:
            code = "minimum below"
        elif high > sizes[-1]:
            code = "minimum above"
        flops = math.exp(log_c[at])
        best = dict.fromkeys(("n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss"))
        if not code:
            best = {"n_opt": math.exp(middle), "n_opt_low": math.exp(low), "n_opt_high": math.exp(high)}
            best["d_opt"] = flops / points.flops_per_param_token / math.exp(middle)
            best["loss"] = float(np.interp(middle, sizes, curve))
        budget = {
            "flops": flops,
            "n_rows": len(of_budget),
            "rows": {name: points.columns[name][of_budget].tolist() for name in ("params", "loss")},
            "curve": {"params": np.exp(sizes).tolist(), "loss": curve.tolist()},
            "code": code,
            "why_none": Reason(code, {}).words if code else "",
        }
        minima.append(minimum)
        budgets.append(budget | best)
    return minima, budgets


def _curve(draws: Array, at: int, c: float, sizes: Array) -> tuple[Array, Array]:
    """Draws of z at the minimum of a budget, [S], and the median loss at some z."""
    k1, k2, k3, k4, k5 = draws[:, -5:].T
    first, second = k1 + k2 * c, k3 + k5 * c
    minimum = -first / second
    for _ in range(5):  # of Newton, from the minimum of the parabola
        bend = second + k4 * minimum
        minimum = minimum - (first + second * minimum + k4 * minimum**2 / 2) / bend
    # A draw without an upward bend has its minimum beyond all sizes, on the side to which the loss falls.
    minimum = np.where((second > 0) & (second + k4 * minimum > 0), minimum, -np.sign(first) * _NOWHERE)
    *levels, k1, k2, k3, k4, k5 = np.median(draws, axis=0)
    logs = levels[at] + (k1 + k2 * c) * sizes + (k3 + k5 * c) * sizes**2 / 2 + k4 * sizes**3 / 6
    return minimum, np.exp(logs)
