"""A law, a table, and what may be said: every number with its interval, its verdict and the fit's own state.

Which numbers a table identifies takes a gate on its design and a limit on the width, both needed. Width alone cannot
refuse a bad design: on one ray of N and D a fit is precise if the law is exact, and nothing in the table can show
that it is not. Condition numbers do not tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeplab.analysis.columns import pairs_of
from sweeplab.analysis.fit import forms, intervals
from sweeplab.analysis.fit.doubts import doubts
from sweeplab.analysis.fit.fitting import LEAST_SQUARES, LITERATURE, Fit, fit
from sweeplab.analysis.fit.forms import LAWS, Array, Law, Quantity
from sweeplab.analysis.fit.intervals import Interval, Refits, Shared
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput, Problem, nearest

IDENTIFIED, WEAK, NOT_IDENTIFIED = "identified", "weak", "not identified"
DELTAS = {"auto": None, "1e-3": LITERATURE, "least-squares": LEAST_SQUARES}
_FEW_GROUPS = 8
_TARGETS = ("params", "tokens", "flops")
_UNSEEN = {"power-n": "tokens", "power-d": "params"}  # what a law does not read


@dataclass(frozen=True)
class Tolerance:
    """How far the ends of a 90% interval may be from the value to be `identified`, and to be `weak`.

    A factor where `is_factor`: 3 is a third to three times the value. Otherwise a difference.
    """

    identified: float
    weak: float
    is_factor: bool


TOLERANCES = {
    "exponent": Tolerance(0.12, 0.3, False),
    "power": Tolerance(0.3, 1.0, False),
    "scale": Tolerance(3.0, 10.0, True),
    "ratio": Tolerance(3.0, 10.0, True),
    "irreducible": Tolerance(1.1, 1.3, True),
    "loss": Tolerance(1.03, 1.1, True),
}
DECADES = {"params": 0.8, "tokens": 0.8, "flops": 1.0}  # that a column has to span
SPREAD = 0.5  # of log(D/N), or across any other line of log D against log N: under it the rows lie near one
STANDS = 2 / 3  # of these that has to be left without any one row
DISTINCT = 3  # values of a column: E, a scale and an exponent
NEAR = 3.0  # a row's tokens per parameter within this factor of the optimum's is near it


@dataclass(frozen=True)
class Verdict:
    """A verdict, and why, in words that follow it."""

    verdict: str
    reason: str

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict != NOT_IDENTIFIED

    def entry(self, shown: Sequence[float | None], meaning: str) -> dict[str, Any]:
        """Return a number's value, low and high with this verdict; no value where it is not identified."""
        value, low, high = shown
        ends = {"value": value if self.identified else None, "low": low, "high": high}
        return ends | {"verdict": self.verdict, "why": self.reason, "meaning": meaning}


def design(points: Points, columns: tuple[str, ...]) -> dict[str, float]:
    """Return what the gate looks at: decades, distinct values, and how far the rows lie from one line.

    "but for one row" is what is left without the row that matters most.
    """
    found = {}
    for name in columns:
        logs = np.sort(np.log10(points.columns[name]))
        found[f"decades of {name}"] = float(logs[-1] - logs[0])
        found[f"decades of {name} but for one row"] = float(min(logs[-1] - logs[1], logs[-2] - logs[0]))
        found[f"distinct {name}"] = float(len(np.unique(points.columns[name].round(12))))
    if {"params", "tokens"} <= set(columns):
        found["sd of log(tokens/params)"] = float(_log_ratio(points.columns).std())
        found["sd across the line"], found["sd across the line but for one row"] = _across(points.columns)
    return found


def gate(quantity: Quantity, points: Points, fit: Fit, optimum_ratio: float | None = None) -> list[str]:
    """Return what the design lacks for a quantity; `optimum_ratio` is the log of the best tokens per parameter."""
    seen, failures = design(points, fit.law.columns), []
    for name in quantity.needs:
        decades, without = seen[f"decades of {name}"], seen[f"decades of {name} but for one row"]
        if decades < DECADES[name]:
            failures.append(f"{name} span {decades:.2f} decades and {DECADES[name]} are needed")
        elif without < STANDS * DECADES[name]:
            failures.append(f"{name} span {without:.2f} decades but for one row: all hangs on that row")
        if seen[f"distinct {name}"] < DISTINCT:
            failures.append(f"{name} have only {seen[f'distinct {name}']:.0f} distinct values")
    if line := _near_one_line(seen):
        failures.append(f"{line}: which of the two lowers the loss cannot be told")
    if optimum_ratio is not None:
        away = float(np.abs(_log_ratio(points.columns) - optimum_ratio).min())
        if away > math.log(NEAR):
            # A fit of noise can put its optimum at e^900 tokens per parameter, past what a float holds.
            factor = f"a factor {math.exp(away):.1f}" if away < math.log(1e6) else "more than a factor 1e6"
            failures.append(f"no row is near the optimum: the nearest is {factor} from it")
    return failures


def _near_one_line(seen: Mapping[str, float]) -> str:
    for name, line, what in (
        ("sd of log(tokens/params)", "ray of tokens to params", "the sd of log(tokens/params)"),
        ("sd across the line", "line of log tokens against log params", "their sd across it"),
    ):
        if (sd := seen.get(name, math.inf)) < SPREAD:
            return f"all rows lie near one {line} ({what} is {sd:.2f}, {SPREAD} is needed)"
    if seen.get("sd across the line but for one row", math.inf) < STANDS * SPREAD:
        return "but for one row all lie near one line of log tokens against log params"
    return ""


def _across(columns: Mapping[str, Array]) -> tuple[float, float]:
    """Return how far rows lie from the line that fits log N and log D best, and the same but for one row.

    It is sqrt(2) times the sd across the line: on a ray of tokens per parameter, the sd of log(D/N).
    """
    logs = np.stack([np.log(columns["params"]), np.log(columns["tokens"])])
    logs -= logs.mean(1, keepdims=True)
    n = logs.shape[1]
    products = np.stack([logs[0] ** 2, logs[1] ** 2, logs[0] * logs[1]])
    whole = products.sum(1)
    others = (whole[:, None] - products * n / (n - 1)) / (n - 1)  # the moments without each row in turn
    nn, dd, nd = np.column_stack([whole / n, others])
    least = (nn + dd) / 2 - np.sqrt((nn - dd) ** 2 / 4 + nd**2)
    spread = np.sqrt(2 * np.maximum(least, 0.0))
    return float(spread[0]), float(spread[1:].min())


def _log_ratio(columns: Mapping[str, Array]) -> Array:
    return np.asarray(np.log(columns["tokens"] / columns["params"]))


def judge(quantity: Quantity, interval: Interval, fit: Fit, lacking: Sequence[str]) -> Verdict:
    """Return the verdict on a quantity, with the reason that weighs most; `lacking` is what `gate` returned."""
    if lacking:
        return Verdict(NOT_IDENTIFIED, "; ".join(lacking))
    if not quantity.derived and quantity.name in fit.at_bound():
        return Verdict(NOT_IDENTIFIED, "the best fit has it at the end of its range")
    if open_ends := interval.open_ends:
        ends = "limits" if len(open_ends) == 2 else f"{open_ends[0]} limit"
        return Verdict(NOT_IDENTIFIED, f"the rows set it no {ends}")
    found = by_width(quantity.kind, interval.value, interval.low, interval.high)
    if found.verdict == IDENTIFIED and quantity.kind == "irreducible" and above_a_loss(fit):
        return Verdict(WEAK, f"{found.reason}, but it is above the smallest loss of the table")
    return found


def by_width(kind: str, value: float, low: float, high: float) -> Verdict:
    """Return the verdict that an interval's width allows, of logs where the kind has a factor."""
    tolerance = TOLERANCES[kind]
    far = max(high - value, value - low)
    if not math.isfinite(far):
        return Verdict(NOT_IDENTIFIED, "the rows set it no limits")
    if tolerance.is_factor:
        far = math.exp(min(far, 50))
        width, wanted = f"a factor {far:.3g} from the value", f"a factor {tolerance.identified:g}"
    else:
        width, wanted = f"{far:.2g} from the value", f"{tolerance.identified:g}"
    ends = f"its 90% interval ends {width}"
    if far <= tolerance.identified:
        return Verdict(IDENTIFIED, ends)
    return Verdict(WEAK if far <= tolerance.weak else NOT_IDENTIFIED, f"{ends}; within {wanted} is wanted")


def above_a_loss(fit: Fit) -> bool:
    """Return whether the best fit has E above the smallest loss of the table."""
    return "E" in fit.law.parameters and fit.minimizer()["E"] > math.exp(fit.rows.log_loss.min())


@dataclass(frozen=True)
class Estimate:
    """A quantity with its interval and verdict; `refits` is the bootstrap's interval, if one was asked for.

    `others` are the values under the other objectives.
    """

    quantity: Quantity
    interval: Interval
    verdict: Verdict
    others: Mapping[str, float]
    refits: tuple[float, float] | None = None

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict.identified

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values. No value where it is not identified; an open end is null."""
        shown, ends = self.quantity.shown, self.interval
        open_low = 0.0 if self.quantity.is_log else None
        low = open_low if math.isinf(ends.low) else shown(ends.low)
        high = None if math.isinf(ends.high) else shown(ends.high)
        said = self.verdict.entry((shown(ends.value), low, high), self.quantity.meaning)
        if not self.identified:
            return said
        refits = {"bootstrap": [shown(end) for end in self.refits]} if self.refits else {}
        return said | refits | {"by_delta": {name: shown(value) for name, value in self.others.items()}}


@dataclass(frozen=True)
class Assessment:
    """All that is said about one law and one table."""

    points: Points
    fit: Fit
    delta: str
    budget: float
    shared: Shared | None
    grouped_by: str
    estimates: tuple[Estimate, ...]
    warnings: tuple[str, ...]
    refits: Refits | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values. `minimizer` is where the objective is lowest: to compute with, no estimate."""
        found, law, shared, refits = self.fit, self.fit.law, self.shared, self.refits
        logs = [f"log {name}" if name in law.scales else name for name in law.parameters]
        entries: dict[bool, dict[str, Any]] = {False: {}, True: {}}
        for each in self.estimates:
            entries[each.quantity.derived][each.quantity.name] = each.as_dict()
        return {
            "law": law.name,
            "formula": law.formula,
            "source": law.source,
            "departures": law.departures,
            "objective": found.objective,
            "delta": self.delta,
            "delta_log_units": found.rows.delta,
            "n_points": found.n_points,
            "sigma": found.sigma,
            "level": intervals.LEVEL,
            "fit": {
                "converged": found.converged,
                "starts": found.n_starts,
                "starts_at_the_optimum": found.n_reached,
                "at_bound": list(found.at_bound()),
            },
            "parameters": entries[False],
            "derived": entries[True],
            "budget_flops": self.budget,
            "minimizer": found.minimizer(),
            "correlations": {"parameters": logs, "matrix": intervals.correlations(found).tolist()},
            "groups": {
                "by": self.grouped_by,
                "count": shared.n_groups if shared else None,
                "shared_share_of_variance": shared.share if shared else None,
            },
            "bootstrap": {"refits": len(refits.theta), "missed": refits.missed} if refits else None,
            "design": design(self.points, law.columns),
            "dropped": self.points.dropped,
            "conventions": self.points.conventions,
            "warnings": list(self.warnings),
        }


def find_law(name: str) -> Law:
    """Return a law by its name.

    Raises:
        BadInput: there is no such law; offers the nearest name.
    """
    if name not in LAWS:
        raise BadInput(Problem(f"there is no law {name!r}", ", ".join(LAWS), nearest(name, LAWS)))
    return LAWS[name]


def parse_delta(text: str) -> float | None:
    """Return delta as a fit takes it: a number in log units, infinite for least squares, None for auto.

    Raises:
        BadInput: neither a positive number nor one of the words.
    """
    if text in DELTAS:
        return DELTAS[text]
    number = _float(text)
    if not number > 0:
        raise BadInput(Problem(f"--delta {text!r}", "auto, least-squares or a positive number"))
    return number


def parse_target(text: str) -> dict[str, float]:
    """Return {"params": 1e9, …} of "params=1e9,…".

    Raises:
        BadInput: what is no pair of a column and a positive number.
    """
    found = {}
    for pair, name, number in pairs_of(text):
        found[name] = _float(number)
        if name not in _TARGETS or not 0 < found[name] < math.inf:
            raise BadInput(Problem(f"--at {pair!r}", "params=, tokens= or flops= and a positive number"))
    return found


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def checked_budget(budget: float | None, points: Points) -> float:
    """Return a budget in FLOPs, the largest of the table when None.

    Raises:
        BadInput: it is not positive.
    """
    if budget is not None and not 0 < budget < math.inf:
        raise BadInput(f"--flops {budget:g} is no budget; it takes a positive number")
    return budget or float(points.columns["flops"].max() if "flops" in points.columns else math.nan)


def assess(
    points: Points,
    law: Law,
    delta: str = "auto",
    budget: float | None = None,
    target: Mapping[str, float] | None = None,
    n_refits: int = 0,
    others: Collection[str] = DELTAS.keys(),
) -> Assessment:
    """Fit a law to a table and return every number with its interval and verdict.

    `budget` is what the optimum is asked for, in FLOPs (the largest of the table when None); `target` a point
    {"params": …, "tokens": …} to give the loss at; `n_refits` how many bootstrap refits stand beside the profiles;
    `others` the objectives whose values stand beside those of `delta`.

    Raises:
        BadInput: a table or a setting that allows no fit.
    """
    found = fit(points, law, parse_delta(delta))
    beside = {each: found if each == delta else fit(points, law, DELTAS[each]) for each in others}
    budget = checked_budget(budget, points)
    groups, grouped_by = intervals.groups_of(points)
    shared = intervals.shared_errors(found, groups) if groups else None
    refits = intervals.bootstrap(found, n_refits, groups) if n_refits else None
    quantities = forms.parameters_of(law, found.center)
    ratio = None
    if {"params", "tokens"} <= set(law.columns):
        k = points.flops_per_param_token
        quantities += forms.optimum_of(law, found.center, budget, k)
        ratio = math.log(budget / k) - 2 * forms.log_optimum(law, found.theta, found.center, budget, k)
    if target:
        if missing := [name for name in law.columns if name not in target]:
            raise BadInput(f"the loss at a target takes {' and '.join(missing)} too; {law.name} reads it")
        quantities.append(forms.loss_at(law, found.center, target))
    estimates = []
    for quantity, interval in zip(quantities, intervals.profiles(found, quantities, shared), strict=True):
        near = ratio if quantity.kind == "ratio" else None
        verdict = judge(quantity, interval, found, gate(quantity, points, found, near))
        values = {name: float(quantity.measure(other.theta[None])[0][0]) for name, other in beside.items()}
        ends = refits.interval(quantity) if refits else None
        estimates.append(Estimate(quantity, interval, verdict, values, ends))
    warnings = tuple(_warnings(points, found, estimates, shared, refits))
    return Assessment(points, found, delta, budget, shared, grouped_by, tuple(estimates), warnings, refits)


def _warnings(
    points: Points, found: Fit, estimates: list[Estimate], shared: Shared | None, refits: Refits | None
) -> list[str]:
    law, said = found.law, []
    if not found.converged:
        said.append("the fit did not come to rest: its numbers may move with more steps")
    said += [f"{name} stands at the end of the range that a fit may reach" for name in found.at_bound()]
    if above_a_loss(found):
        smallest = float(points.columns["loss"].min())
        said.append(f"the best fit has E above the smallest loss of the table, {smallest:.4g}")
    column = points.columns.get(unseen := _UNSEEN.get(law.name, ""))
    if column is not None and np.ptp(np.log(column)) > math.log(2):
        factor = column.max() / column.min()
        said.append(f"{law.name} does not see {unseen}, which vary by a factor {factor:.3g}")
    said += doubts(points, found)
    said += _moved_by_delta(estimates)
    if shared and shared.share > 0.1:
        part = f"{shared.share:.0%} of the errors' variance"
        said.append(f"{part} is shared within a group; intervals allow for it")
    if refits and refits.missed >= 0.01:
        part = f"{refits.missed:.0%} of the bootstrap refits"
        said.append(f"{part} missed their optimum: take its intervals as narrow")
    if refits and shared and shared.n_groups < _FEW_GROUPS:
        few = f"{shared.n_groups} groups are too few to draw from"
        said.append(f"{few}: the bootstrap's intervals are only a hint")
    return said


def _moved_by_delta(estimates: list[Estimate]) -> list[str]:
    """Return which numbers another objective puts outside of their intervals: once for each objective."""
    names: dict[str, list[str]] = {}
    for each in estimates:
        ends = each.interval
        for objective, value in each.others.items():
            if each.identified and not ends.low <= value <= ends.high:
                names.setdefault(objective, []).append(each.quantity.name)
    return [
        f"the answer depends on the objective: --delta {objective} puts {', '.join(moved)} outside of the interval"
        for objective, moved in names.items()
    ]
