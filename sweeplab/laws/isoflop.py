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
from sweeplab.laws.forms import D_OPT, N_OPT
from sweeplab.laws.points import DECADES, Points
from sweeplab.laws.sentences import Reason

N_AT = "N_opt"
SIZES = 4  # of a budget: a parabola and one more
FEWEST = 3  # minima: any two lie on a line
_SAME_BUDGET = 0.01  # in log C
_NEAR = math.log(8.0)  # rows within this factor of the lowest one's size: a cubic goes no further
_NOWHERE = 60.0  # log N of a minimum that is none
_STEPS = 5  # of Newton, from the minimum of the parabola
_DRAWN = 60  # points of a curve
_MEANINGS = {
    N_OPT: "N_opt grows as C to this power",
    D_OPT: "D_opt grows as C to this power",
    N_AT: "the parameters of lowest loss for {:.3g} FLOPs",
}


@dataclass(frozen=True, eq=False)
class BudgetRows:
    """The rows of one budget that count, their log N, and draws of the log N of its minimum, [S]."""

    log_flops: float
    rows: NDArray[np.intp]
    log_n: Array
    minimum: Array
    curve: Array

    @property
    def why_none(self) -> str:
        """Return why the budget has no minimum; empty if it has one."""
        if not len(self.minimum):
            return "no minimum: too few sizes"
        _, low, high = interval(self.minimum)
        if high - low > _NOWHERE / 2:
            return "no minimum: the losses do not bend upward by more than the noise"
        if low < self.log_n.min():
            return "no minimum: it may lie below the smallest size"
        if high > self.log_n.max():
            return "no minimum: it may lie above the largest size"
        return ""


@dataclass(frozen=True, eq=False)
class IsoFlop:
    """The budgets of a table with their minima, and the numbers of the line through them: value, low, high, verdict."""

    points: Points
    how: str
    budgets: tuple[BudgetRows, ...]
    numbers: dict[str, dict[str, Any]]

    @property
    def warnings(self) -> list[str]:
        """Return what speaks against the numbers."""
        without = sum(bool(each.why_none) for each in self.budgets)
        if not without:
            return []
        return [f"{without} of {several(len(self.budgets), 'budget')} have no minimum"]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, with the curves to draw."""
        budgets = [self._budget(each) for each in self.budgets]
        return {"how": self.how, "numbers": self.numbers, "budgets": budgets, "warnings": self.warnings}

    def _budget(self, budget: BudgetRows) -> dict[str, Any]:
        columns, flops = self.points.columns, math.exp(budget.log_flops)
        sizes = np.linspace(budget.log_n.min(), budget.log_n.max(), _DRAWN)
        entry: dict[str, Any] = {
            "flops": flops,
            "n_rows": len(budget.rows),
            "rows": {name: columns[name][budget.rows].tolist() for name in ("params", "loss")},
            "curve": {"params": np.exp(sizes).tolist(), "loss": budget.curve.tolist()},
            "why_none": budget.why_none,
        }
        best: dict[str, float | None] = dict.fromkeys(("n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss"))
        if not budget.why_none:
            middle, low, high = interval(budget.minimum)
            loss = float(np.interp(middle, sizes, budget.curve))
            tokens = flops / self.points.flops_per_param_token / math.exp(middle)
            best = {"n_opt": math.exp(middle), "n_opt_low": math.exp(low), "n_opt_high": math.exp(high)}
            best |= {"d_opt": tokens, "loss": loss}
        return entry | best


def isoflop(points: Points, budget: float | None = None, doubt: str = "") -> IsoFlop:
    """Return the compute-optimal size by curves at equal FLOPs.

    `budget` is the compute at which to give N_opt (the largest of the table when None); `doubt` is why every number is
    weak at best.

    Raises:
        BadInput: the table has no N or no C.
    """
    for name in ("params", "flops"):
        if name not in points.columns:
            raise BadInput(points.lacks("the compute-optimal size", name))
    at = math.log(budget or float(points.columns["flops"].max()))
    groups = _budgets(points)
    if len(groups) < FEWEST:
        how = (
            f"{several(len(groups), 'budget')} with {SIZES} sizes or more at equal FLOPs; {FEWEST} are needed"
        )
        return IsoFlop(points, how, (), _none(how, at))
    how = f"{several(len(groups), 'budget')} of rows at equal FLOPs"
    fitted = _fitted(points, groups)
    minima = [each for each in fitted if not each.why_none]
    log_c = np.array([each.log_flops for each in minima])
    if len(minima) < FEWEST:
        why = f"{len(minima)} of {several(len(fitted), 'budget')} have a minimum; a line needs {FEWEST}"
        return IsoFlop(points, how, fitted, _none(why, at))
    lacking = ""
    decades = float(np.ptp(log_c)) / math.log(10)
    if decades < DECADES["flops"]:
        lacking = f"the minima span {decades:.2f} decades of FLOPs and {DECADES['flops']} are needed"
    first, last = fitted[0], fitted[-1]
    exponent = (last.minimum - first.minimum) / (last.log_flops - first.log_flops)
    middle = (first.minimum + last.minimum) / 2
    size = middle + exponent * (at - (first.log_flops + last.log_flops) / 2)
    numbers = {
        N_OPT: _number("exponent", exponent, _MEANINGS[N_OPT], lacking, doubt),
        D_OPT: _number("exponent", 1 - exponent, _MEANINGS[D_OPT], lacking, doubt),
        N_AT: _number("ratio", size, _MEANINGS[N_AT].format(math.exp(at)), lacking, doubt),
    }
    return IsoFlop(points, how, fitted, numbers)


def _budgets(points: Points) -> list[NDArray[np.intp]]:
    """The rows of each budget with enough sizes near its lowest, in the order of the budgets."""
    log_c, log_n = np.log(points.columns["flops"]), np.log(points.columns["params"])
    order = np.argsort(log_c, kind="stable")
    breaks = np.flatnonzero(np.diff(log_c[order]) > _SAME_BUDGET) + 1
    groups = []
    for rows in np.split(order, breaks):
        lowest = rows[np.argmin(points.columns["loss"][rows])]
        near = np.sort(rows[np.abs(log_n[rows] - log_n[lowest]) <= _NEAR])
        if len(np.unique(log_n[near].round(4))) >= SIZES:
            groups.append(near)
    return groups


def _fitted(points: Points, groups: Sequence[NDArray[np.intp]]) -> tuple[BudgetRows, ...]:
    """The budgets with draws of their minima."""
    rows, place = np.concatenate(groups), np.repeat(np.arange(len(groups)), [len(each) for each in groups])
    log_n, log_loss = np.log(points.columns["params"]), np.log(points.columns["loss"])
    log_c = np.array([float(np.log(points.columns["flops"][each]).mean()) for each in groups])
    lowest = np.array([float(log_n[each][np.argmin(log_loss[each])]) for each in groups])
    c = log_c - log_c.mean()
    slope, center = np.polyfit(c, lowest, 1)
    z = log_n[rows] - center - slope * c[place]
    levels = np.eye(len(groups))[place]
    columns = np.column_stack([levels, z, z * c[place], z**2 / 2, z**3 / 6, z**2 / 2 * c[place]])
    draws = fit_line(log_loss[rows], columns, RowErrors(weights=points.weights[rows]))
    k1, k2, k3, k4, k5 = draws.scales[:, -5:].T
    budgets = []
    for at, of_budget in enumerate(groups):
        first, second = k1 + k2 * c[at], k3 + k5 * c[at]
        minimum = -first / second
        for _ in range(_STEPS):
            bend = second + k4 * minimum
            minimum = minimum - (first + second * minimum + k4 * minimum**2 / 2) / bend
        # A draw without an upward bend has its minimum beyond all sizes, on the side to which the loss falls.
        minimum = np.where((second > 0) & (second + k4 * minimum > 0), minimum, -np.sign(first) * _NOWHERE)
        sizes = np.linspace(z[place == at].min(), z[place == at].max(), _DRAWN)
        typical = np.median(draws.scales, axis=0)
        slope_at, bend_at, skew = (
            typical[-5] + typical[-4] * c[at],
            typical[-3] + typical[-1] * c[at],
            typical[-2],
        )
        curve = np.exp(typical[at] + slope_at * sizes + bend_at * sizes**2 / 2 + skew * sizes**3 / 6)
        log_minimum = minimum + center + slope * c[at]
        budgets.append(BudgetRows(float(log_c[at]), of_budget, log_n[of_budget], log_minimum, curve))
    return tuple(budgets)


def _number(kind: str, draws: Array, meaning: str, lacking: str, doubt: str) -> dict[str, Any]:
    value, low, high = interval(draws)
    lacks = Reason("said", {"words": lacking}) if lacking else None
    doubted = Reason("said", {"words": doubt}) if doubt else None
    verdict = judge(kind, value, low, high, lacks, doubted)
    shown = [value, low, high]
    if kind == "ratio":
        shown = [math.exp(each) for each in shown]
    return verdict.entry(shown, meaning)


def _none(why: str, at: float) -> dict[str, dict[str, Any]]:
    none = Verdict(NOT_IDENTIFIED, why)
    return {
        name: none.entry((None, None, None), meaning.format(math.exp(at)))
        for name, meaning in _MEANINGS.items()
    }
