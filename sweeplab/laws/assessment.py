"""The assessment of a law on a table: every number with its interval and verdict, and whether the form fits.

The terminal, `--json`, pages, the ledger and the Python API all report this one assessment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import listed
from sweeplab.laws.columns import pairs_of
from sweeplab.laws.estimation import forms, intervals
from sweeplab.laws.estimation.doubts import doubts
from sweeplab.laws.estimation.fitting import LEAST_SQUARES, LITERATURE, Fit, fit
from sweeplab.laws.estimation.forms import LAWS, Law, Quantity
from sweeplab.laws.estimation.intervals import Interval, Refits, Shared
from sweeplab.laws.estimation.noise import Noise, noise_of
from sweeplab.laws.estimation.verdicts import Verdict, above_a_loss, design, gate, judge
from sweeplab.laws.misfit.comparison import FormError
from sweeplab.laws.misfit.form import FLAGGED, Misfit, misfit
from sweeplab.laws.points import Points

DELTAS = {"auto": None, "1e-3": LITERATURE, "least-squares": LEAST_SQUARES}
_FEW_GROUPS = 8
_UNEQUAL = 1.5  # the ratio of the largest to the smallest sd of a row above which to warn
_LARGE_RATIO = 1.5  # the ratio of a number's robust to its modelled error above which to warn
_TARGETS = ("params", "tokens", "flops")
_UNSEEN = {"power-n": "tokens", "power-d": "params"}  # the column that a law does not use


@dataclass(frozen=True)
class Estimate:
    """A quantity with its interval and verdict; `refits` is the bootstrap interval, if there is one.

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
        """Return it as plain values; the value is null if it is not identified, and so is an open end."""
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
    """The assessment of one law on one table; `doubt` says why every number is weak at best, if that is so."""

    points: Points
    fit: Fit
    delta: str
    budget: float
    shared: Shared | None
    noise: Noise | None
    grouped_by: str
    misfit: Misfit
    doubt: str
    form_error: FormError
    estimates: tuple[Estimate, ...]
    warnings: tuple[str, ...]
    refits: Refits | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; numbers that are not identified have no value."""
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
            "misfit": self.misfit.as_dict(),
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
        raise BadInput(f"--flops {budget:g} is not a budget; it must be positive")
    return budget or float(points.columns["flops"].max() if "flops" in points.columns else math.nan)


def assess(
    points: Points,
    law: Law,
    delta: str = "auto",
    budget: float | None = None,
    target: Mapping[str, float] | None = None,
    n_refits: int = 0,
    others: Collection[str] = DELTAS.keys(),
    say: Callable[[str], None] = lambda text: None,
) -> Assessment:
    """Fit a law to a table and return every number with its interval and verdict, and the test of the form.

    `budget` is the compute of the optimum, in FLOPs (the largest of the table when None); `target` is a point
    {"params": …, "tokens": …} at which to give the loss; `n_refits` is the number of bootstrap refits; `others` are the
    objectives whose values are given beside those of `delta`. `say` is called with each step that begins.

    Raises:
        BadInput: a table or a setting that allows no fit.
    """
    say(f"fitting {law.name} to {points.n:,} rows")
    found = fit(points, law, parse_delta(delta))
    beside = {each: found if each == delta else fit(points, law, DELTAS[each]) for each in others}
    budget = checked_budget(budget, points)
    groups, grouped_by = intervals.groups_of(points)
    shared = intervals.shared_errors(found, groups) if groups else None
    noise = noise_of(found)
    refits = intervals.bootstrap(found, n_refits, groups, say=say) if n_refits else None
    quantities = forms.parameters_of(law, found.center)
    ratio = None
    if {"params", "tokens"} <= set(law.columns):
        k = points.flops_per_param_token
        quantities += forms.optimum_of(law, found.center, budget, k)
        ratio = math.log(budget / k) - 2 * forms.log_optimum(law, found.theta, found.center, budget, k)
    if target:
        if missing := [name for name in law.columns if name not in target]:
            raise BadInput(f"the loss at a target needs {' and '.join(missing)} too; {law.name} uses it")
        quantities.append(forms.loss_at(law, found.center, target))
    say("testing the form")
    form, form_error = misfit(points, found), FormError(points, law)
    doubt = _doubt(found, form)
    estimates = []
    say("computing the profile intervals, and back-testing")
    profiled = intervals.profiles(found, quantities, shared, noise)
    for quantity, interval in zip(quantities, profiled, strict=True):
        interval = form_error.widened(found, quantity, interval)
        near = ratio if quantity.kind == "ratio" else None
        verdict = judge(quantity, interval, found, gate(quantity, points, found, near), doubt)
        values = {name: float(quantity.measure(other.theta[None])[0][0]) for name, other in beside.items()}
        ends = refits.interval(quantity) if refits else None
        estimates.append(Estimate(quantity, interval, verdict, values, ends))
    warnings = (*form.flag, *_warnings(points, found, estimates, shared, noise, refits))
    said = (form, doubt, form_error, tuple(estimates), warnings, refits)
    return Assessment(points, found, delta, budget, shared, noise, grouped_by, *said)


def _doubt(found: Fit, form: Misfit) -> str:
    """Return why every number of a fit is weak at best; empty if numbers may be identified."""
    if form.status == FLAGGED:
        return "identified within this form, which does not fit"
    if above_a_loss(found):
        return "its interval is narrow, but the best fit has E above the smallest loss of the table"
    if bound := found.at_bound():
        return f"its interval is narrow, but the best fit has {listed(bound)} at the bound of its range"
    return ""


def _warnings(
    points: Points,
    found: Fit,
    estimates: list[Estimate],
    shared: Shared | None,
    noise: Noise,
    refits: Refits | None,
) -> list[str]:
    law, said = found.law, []
    if not found.converged:
        said.append("the fit did not converge: its numbers may change with more steps")
    said += [f"{name} is at the bound of the range that a fit may reach" for name in found.at_bound()]
    if above_a_loss(found):
        smallest = float(points.columns["loss"].min())
        said.append(f"the best fit has E above the smallest loss of the table, {smallest:.4g}")
    column = points.columns.get(unseen := _UNSEEN.get(law.name, ""))
    if column is not None and np.ptp(np.log(column)) > math.log(2):
        factor = column.max() / column.min()
        said.append(f"{law.name} does not use {unseen}, which vary by a factor {factor:.3g}")
    said += doubts(points, found)
    said += _moved_by_delta(estimates)
    sds = found.sigma * noise.relative  # per seed: points may have different numbers of seeds
    if sds.max() > _UNEQUAL * sds.min():
        ways = (
            f"{'falls' if slope < 0 else 'grows'} with {name}"
            for name, slope in noise.slopes.items()
            if slope
        )
        ends = f"from {sds.max():.2%} to {sds.min():.2%} of the loss"
        said.append(f"noise {listed([*ways])}, {ends}; intervals allow for it")
    shown = (each for each in estimates if each.identified)
    if wide := [each.quantity.name for each in shown if each.interval.robust_ratio > _LARGE_RATIO]:
        much = f"more than {_LARGE_RATIO:g} times as uncertain as the noise model does"
        said.append(f"the residuals make {listed(wide)} {much}; the wider interval counts")
    if shared and shared.share > 0.1:
        part = f"{shared.share:.0%} of the errors' variance"
        said.append(f"{part} is shared within a group; intervals allow for it")
    if refits and refits.missed >= 0.01:
        part = f"{refits.missed:.0%} of the bootstrap refits"
        said.append(f"{part} missed their optimum: its intervals may be too narrow")
    if refits and shared and shared.n_groups < _FEW_GROUPS:
        few = f"{shared.n_groups} groups are too few to resample"
        said.append(f"{few}: the bootstrap intervals are only a rough guide")
    return said


def _moved_by_delta(estimates: list[Estimate]) -> list[str]:
    """Return a warning for each objective that puts numbers outside of their intervals."""
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
