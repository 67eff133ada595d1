"""The assessment of a law on a table: every number with its interval and verdict, and whether the form fits.

The terminal, `--json`, pages, the ledger and the Python API all report this one assessment. A verdict comes from the
gate on the design, the width of the interval and the state of the fit. Gate and width are both needed (see README);
condition numbers do not separate bad designs from good ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import listed, several, short
from sweeplab.laws import forms, intervals
from sweeplab.laws.backtest import FormError, lean_of
from sweeplab.laws.choosing import LawChoice, along_family, choice_of, law_of_counts
from sweeplab.laws.columns import COUNTS, as_number, pairs_of
from sweeplab.laws.doubts import Outliers, Tuning, WhatIf, outliers_of, tuning_of
from sweeplab.laws.fitting import LEAST_SQUARES, LITERATURE, Fit, fit
from sweeplab.laws.forms import LAWS, Law, Quantity
from sweeplab.laws.intervals import Interval, Noise, Refits, Shared, noise_of
from sweeplab.laws.misfit import FLAGGED, Misfit, misfit
from sweeplab.laws.points import DECADES, SPREAD, STANDS, UNLIKE, Points, design, path_of

IDENTIFIED, WEAK, NOT_IDENTIFIED = "identified", "weak", "not identified"


@dataclass(frozen=True)
class Tolerance:
    """The largest distance of a 90% interval's ends from the value for `identified`, and for `weak`.

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
    "hyperparameter": Tolerance(1.5, 3.0, True),
    "irreducible": Tolerance(1.1, 1.3, True),
    "loss": Tolerance(1.03, 1.1, True),
}
_LINES = (  # measures of the design, the line that the rows may lie near, and the measure in words
    ("sd of log(tokens/params)", "ray of tokens to params", "the sd of log(tokens/params)"),
    ("sd across the line", "line of log tokens against log params", "their sd across it"),
    (UNLIKE, "line of log n_embd against log n_layer", "their sd across it"),
)
NEAR = 3.0  # a row is near the optimum if its tokens per parameter are within this factor


@dataclass(frozen=True)
class Verdict:
    """A verdict and its reason."""

    verdict: str
    reason: str

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict != NOT_IDENTIFIED

    def entry(self, shown: Sequence[float | None], meaning: str) -> dict[str, Any]:
        """Return a number's value, low and high with this verdict; the value is None if it is not identified."""
        entry = dict(zip(("value", "low", "high"), shown, strict=True))
        if not self.identified:
            entry["value"] = None
        return entry | {"verdict": self.verdict, "why": self.reason, "meaning": meaning}


def gate(quantity: Quantity, points: Points, fit: Fit, optimum_ratio: float | None = None) -> list[str]:
    """Return what the design lacks for a quantity; `optimum_ratio` is the log of the best tokens per parameter."""
    seen, failures = design(points, fit.law.columns), []
    for name in quantity.needs:
        decades, without = seen[f"decades of {name}"], seen[f"decades of {name} but for one row"]
        if decades < DECADES[name]:
            failures.append(f"{name} span {decades:.2f} decades and {DECADES[name]} are needed")
        elif without < STANDS * DECADES[name]:
            failures.append(f"{name} span {without:.2f} decades without one row: all depends on that row")
        if seen[f"distinct {name}"] < fit.law.fewest_values(name):
            failures.append(f"{name} have only {seen[f'distinct {name}']:.0f} distinct values")
    lines = [
        f"all rows lie near one {line} ({what} is {seen[name]:.2f}, {SPREAD} is needed)"
        for name, line, what in _LINES
        if seen.get(name, math.inf) < SPREAD
    ]
    if seen.get("sd across the line but for one row", math.inf) < STANDS * SPREAD:
        lines.append("all rows but one lie near one line of log tokens against log params")
    if lines:
        failures.append(f"{lines[0]}: the effects of the two on the loss cannot be separated")
    value = quantity.at(fit.theta)
    if quantity.within and not quantity.within[0] <= value <= quantity.within[1]:
        ends = " to ".join(short(quantity.shown(end)) for end in quantity.within)
        failures.append(f"it lies outside of those tried, {ends}")
    if optimum_ratio is not None:
        ratios = np.log(points.columns["tokens"] / points.columns["params"])
        away = float(np.abs(ratios - optimum_ratio).min())
        if away > math.log(NEAR):
            # By what factor would give the number away.
            failures.append(f"no row is within a factor {NEAR:g} of the optimum in D/N")
    return failures


def judge(
    quantity: Quantity, interval: Interval, fit: Fit, lacking: Sequence[str], doubt: str = ""
) -> Verdict:
    """Return the verdict on a quantity, with the most important reason; `lacking` is the result of `gate`.

    With a `doubt` about the whole fit it is weak at best.
    """
    if lacking:
        return Verdict(NOT_IDENTIFIED, "; ".join(lacking))
    if not quantity.derived and quantity.name in fit.at_bound():
        return Verdict(NOT_IDENTIFIED, "the best fit has it at the bound of its range")
    if len(interval.open_ends) == 1:
        return Verdict(NOT_IDENTIFIED, f"the rows give it no {interval.open_ends[0]} bound")
    verdict = by_width(quantity.kind, interval.value, interval.low, interval.high)
    if doubt and verdict.verdict == IDENTIFIED:
        return Verdict(WEAK, doubt)
    return verdict


def by_width(kind: str, value: float, low: float, high: float) -> Verdict:
    """Return the verdict by an interval's width, in logs if the kind has a factor."""
    tolerance = TOLERANCES[kind]
    far = max(high - value, value - low)
    if not math.isfinite(far):
        return Verdict(NOT_IDENTIFIED, "the rows give it no bounds")
    width, form = high - low, "{:.2g}"
    if tolerance.is_factor:
        far, width, form = math.exp(min(far, 50)), math.exp(min(width, 100)), "a factor {:.3g}"
    ends = f"its 90% interval ends {form.format(far)} from the value"
    needed = f"{form.format(tolerance.identified)} or less is needed"
    if far <= tolerance.identified:
        return Verdict(IDENTIFIED, ends)
    if far <= tolerance.weak:
        return Verdict(WEAK, f"{ends}; {needed}")
    # How far an end is from a value that is not shown would give it away.
    wide = f"its 90% interval is {form.format(width)} wide"
    return Verdict(NOT_IDENTIFIED, f"{wide}; {needed} between the value and each end")


def above_a_loss(fit: Fit) -> bool:
    """Return whether the best fit has E above the smallest loss of the table."""
    return "E" in fit.law.parameters and fit.minimizer()["E"] > math.exp(fit.rows.log_loss.min())


DELTAS = {"auto": None, "1e-3": LITERATURE, "least-squares": LEAST_SQUARES}
_FEW_GROUPS = 8
_UNEQUAL = 1.5  # the ratio of the largest to the smallest sd of a row above which to warn
_LARGE_RATIO = 1.5  # the ratio of a number's robust to its modelled error above which to warn
_UNSEEN = {"power-n": "tokens", "power-d": "params"}  # the column that a law does not use


@dataclass(frozen=True)
class Estimate:
    """A quantity with its interval and verdict; `refits` is the bootstrap interval, if there is one.

    `others` are the values under the other objectives, `mistuned` is the value if the points were tuned otherwise.
    """

    quantity: Quantity
    interval: Interval
    verdict: Verdict
    others: Mapping[str, float]
    refits: tuple[float, float] | None = None
    mistuned: float | None = None

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict.identified

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; the value is null if it is not identified, and so is an open end."""
        shown, ends = self.quantity.shown, self.interval
        low, high = (None if math.isinf(end) else shown(end) for end in (ends.low, ends.high))
        if low is None and self.quantity.is_log:
            low = 0.0
        entry = self.verdict.entry((shown(ends.value), low, high), self.quantity.meaning)
        if not self.identified:
            return entry
        if self.mistuned is not None:
            entry["if_tuned_otherwise"] = shown(self.mistuned)
        if self.refits:
            entry["bootstrap"] = [shown(end) for end in self.refits]
        return entry | {"by_delta": {name: shown(value) for name, value in self.others.items()}}


@dataclass(frozen=True)
class Assessment:
    """The assessment of one law on one table; `doubt` says why every number is weak at best, if that is so."""

    points: Points
    fit: Fit
    delta: str
    budget: float
    choice: LawChoice
    shared: Shared | None
    noise: Noise | None
    grouped_by: str
    misfit: Misfit
    doubt: str
    form_error: FormError
    estimates: tuple[Estimate, ...]
    warnings: tuple[str, ...]
    tuning: Tuning
    what_if: WhatIf | None = None
    outliers: Outliers | None = None
    refits: Refits | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; numbers that are not identified have no value."""
        fit, law, shared, refits = self.fit, self.fit.law, self.shared, self.refits
        logs = [f"log {name}" if name in law.scales else name for name in law.parameters]
        entries: dict[bool, dict[str, Any]] = {False: {}, True: {}}
        for estimate in self.estimates:
            entries[estimate.quantity.derived][estimate.quantity.name] = estimate.as_dict()
        return {
            "law": law.name,
            "formula": law.formula,
            "source": law.source,
            "departures": law.departures,
            "choice": list(self.choice.reasons(self.fit.law)),
            "objective": fit.objective,
            "delta": self.delta,
            "delta_log_units": fit.rows.delta,
            "n_points": fit.n_points,
            "sigma": fit.sigma,
            "level": intervals.LEVEL,
            "fit": {
                "converged": fit.converged,
                "starts": fit.n_starts,
                "starts_at_the_optimum": fit.n_reached,
                "at_bound": list(fit.at_bound()),
            },
            "parameters": entries[False],
            "derived": entries[True],
            "budget_flops": self.budget,
            "tuning": self.tuning.as_dict(),
            "misfit": self.misfit.as_dict(),
            "correlations": {"parameters": logs, "matrix": intervals.correlations(fit).tolist()},
            "groups": {
                "by": self.grouped_by,
                "count": shared and shared.n_groups,
                "shared_share_of_variance": shared and shared.share,
            },
            "bootstrap": refits and {"refits": len(refits.theta), "missed": refits.missed},
            "design": design(self.points, law.columns),
            "dropped": self.points.dropped,
            "conventions": self.points.conventions | {"tuning": self.tuning.says},
            "warnings": list(self.warnings),
        }


def find_law(name: str) -> Law:
    """Return a law by its name."""
    if name not in LAWS:
        raise BadInput(Problem(f"there is no law {name!r}", ", ".join(LAWS), nearest(name, LAWS)))
    return LAWS[name]


def law_for(points: Points, name: str = "auto") -> Law:
    """Return a law by its name; `auto` is that of the sizes that vary.

    Raises:
        BadInput: there is no such law.
    """
    if name != "auto":
        return find_law(name)
    return law_of_counts(points)


def parse_delta(text: str) -> float | None:
    """Return delta as a fit takes it: a number in log units, infinite for least squares, None for auto."""
    if text in DELTAS:
        return DELTAS[text]
    number = as_number(text)
    if not number > 0:
        raise BadInput(Problem(f"--delta {text!r}", "auto, least-squares or a positive number"))
    return number


def parse_target(text: str) -> dict[str, float]:
    """Return {"params": 1e9, …} of "params=1e9,…"."""
    target = {}
    for pair, name, number in pairs_of(text):
        target[name] = as_number(number)
        if name not in COUNTS or not 0 < target[name] < math.inf:
            allowed = "params=, tokens= or flops= and a positive number"
            raise BadInput(Problem(f"--at {pair!r}", allowed))
    return target


def checked_budget(budget: float | None, points: Points) -> float:
    """Return a budget in FLOPs, the largest of the table when None."""
    if budget is None:
        return float(np.max(points.columns.get("flops", np.array([math.nan]))))
    if not 0 < budget < math.inf:
        raise BadInput(f"--flops {budget:g} is not a budget; it must be positive")
    return budget


def assess(
    points: Points,
    law: Law,
    delta: str = "auto",
    budget: float | None = None,
    target: Mapping[str, float] | None = None,
    n_refits: int = 0,
    others: Collection[str] = DELTAS.keys(),
    say: Callable[[str], None] = lambda text: None,
    of_all_depths: bool = False,
) -> Assessment:
    """Fit a law to a table and return every number with its interval and verdict, and the test of the form.

    A law of params is fitted along one depth where the table has enough rows of it, unless it is to be `of_all_depths`.

    `budget` is the compute of the optimum, in FLOPs (the largest of the table when None); `target` is a point
    {"params": …, "tokens": …} at which to give the loss; `n_refits` is the number of bootstrap refits; `others` are the
    objectives whose values are given beside those of `delta`. `say` is called with each step that begins.

    Raises:
        BadInput: a table or a setting that allows no fit.
    """
    if "params" in law.columns and not of_all_depths:
        points = along_family(points)
    say(f"fitting {law.name} to {several(points.n, 'row')}")
    choice, raw = choice_of(points), points
    tuning = tuning_of(raw)
    points = tuning.points
    fitted = fit(points, law, parse_delta(delta))
    what_if, outliers = tuning.what_if(law, parse_delta(delta)), outliers_of(points, fitted)
    other_fits = {name: fit(points, law, DELTAS[name]) for name in others if name != delta}
    beside = dict.fromkeys(others, fitted) | other_fits
    budget = checked_budget(budget, points)
    groups, grouped_by = intervals.groups_of(points)
    shared, noise, refits = intervals.shared_of(points, fitted), noise_of(fitted), None
    if n_refits:
        refits = intervals.bootstrap(fitted, n_refits, groups, say=say)
    quantities = forms.parameters_of(law, fitted.center)
    ratios: dict[str, float] = {}  # the log of the best tokens per parameter, for the quantity of this kind
    if {"params", "tokens"} <= set(law.columns):
        k = points.flops_per_param_token
        quantities += forms.optimum_of(law, fitted.center, budget, k)
        log_n = forms.log_optimum(law, fitted.theta, fitted.center, budget, k)
        ratios["ratio"] = math.log(budget / k) - 2 * log_n
    if target:
        missing = [name for name in law.columns if name not in target]
        if missing:
            raise BadInput(f"the loss at a target needs {' and '.join(missing)} too; {law.name} uses it")
        quantities.append(forms.loss_at(law, fitted.center, target))
    say("testing the form")
    form = misfit(points, fitted)
    form_error = FormError(points, law, lean_of(points, fitted), form.status == FLAGGED)
    doubt = _doubt(points, fitted, form)
    estimates, numbers, doubted = [], [], list[str]()
    say("computing the profile intervals, and back-testing")
    profiled = intervals.profiles(fitted, quantities, shared, noise)
    for quantity, interval in zip(quantities, profiled, strict=True):
        interval = form_error.widened(fitted, quantity, interval)
        mistuned, of_tuning, of_outliers = None, "", ""
        ends, spread = interval, tuning.spread(fitted, noise, quantity)
        if what_if:
            mistuned, of_tuning = what_if.value(quantity), what_if.doubt(quantity, interval, spread)
        if outliers:
            of_outliers = outliers.doubt(quantity, interval)
        interval = tuning.widened(interval, spread)
        lacking = gate(quantity, points, fitted, ratios.get(quantity.kind))
        of_size = choice.doubt_of(law) if "params" in quantity.needs else ""
        reasons = filter(None, [doubt, of_size, of_tuning, of_outliers])
        verdict = judge(quantity, interval, fitted, lacking, next(reasons, ""))
        if verdict.identified:
            numbers.append((quantity, ends))
            doubted += [quantity.name] if of_tuning else []
        values = {name: quantity.at(other.theta) for name, other in beside.items()}
        estimate = Estimate(quantity, interval, verdict, values, mistuned=mistuned)
        if refits:
            estimate = replace(estimate, refits=refits.interval(quantity))
        estimates.append(estimate)
    otherwise = list[str]()
    if what_if:
        otherwise += what_if.warnings(numbers, doubted)
    if outliers:
        otherwise += outliers.warnings(numbers)
    return Assessment(
        points=raw,
        fit=fitted,
        delta=delta,
        budget=budget,
        choice=choice,
        shared=shared,
        noise=noise,
        grouped_by=grouped_by,
        misfit=form,
        doubt=doubt,
        form_error=form_error,
        estimates=tuple(estimates),
        warnings=(
            *form.flag,
            *filter(None, [choice.doubt_of(law), of_repeats(points)]),
            *form.doubts,
            *otherwise,
            *_warnings(points, fitted, estimates, shared, noise, refits),
        ),
        tuning=tuning,
        what_if=what_if,
        outliers=outliers,
        refits=refits,
    )


def _doubt(points: Points, fit: Fit, form: Misfit) -> str:
    """Why every number of a fit is weak at best; empty if numbers may be identified."""
    if form.status == FLAGGED:
        return "identified within this form, which does not fit"
    if above_a_loss(fit):
        return "its interval is narrow, but the best fit has E above the smallest loss of the table"
    if fit.at_bound():
        return (
            f"its interval is narrow, but the best fit has {listed(fit.at_bound())} at the bound of its range"
        )
    return of_repeats(points) or form.doubt


def of_repeats(points: Points) -> str:
    """Say that a law does not describe rows that read their text more than once; empty if there are none."""
    again = int(points.is_repeated.sum())
    if not again:
        return ""
    rows = f"{again} of {several(points.n, 'row')} read their text more than once (column {points.passes_by})"
    return f"{rows}, which the law does not describe (Muennighoff et al. 2023)"


def _warnings(
    points: Points,
    fit: Fit,
    estimates: list[Estimate],
    shared: Shared | None,
    noise: Noise,
    refits: Refits | None,
) -> list[str]:
    law, warnings = fit.law, []
    if not fit.converged:
        warnings.append("the fit did not converge: its numbers may change with more steps")
    warnings += [f"{name} is at the bound of the range that a fit may reach" for name in fit.at_bound()]
    if above_a_loss(fit):
        smallest = float(points.columns["loss"].min())
        warnings.append(f"the best fit has E above the smallest loss of the table, {smallest:.4g}")
    unseen = _UNSEEN.get(law.name, "")
    column, path = points.columns.get(unseen), path_of(points)
    if unseen and path:
        warnings.append(
            f"{law.name} holds along one path, {path.words}: what is due to tokens and what to params cannot be told"
        )
    elif column is not None and np.ptp(np.log(column)) > math.log(2):
        factor = column.max() / column.min()
        warnings.append(f"{law.name} does not use {unseen}, which vary by a factor {factor:.3g}")
    moved: dict[str, list[str]] = {}
    for estimate in estimates:
        ends = estimate.interval
        for objective, value in estimate.others.items():
            if estimate.identified and not ends.low <= value <= ends.high:
                moved.setdefault(objective, []).append(estimate.quantity.name)
    for objective, names in moved.items():
        outside = f"--delta {objective} puts {', '.join(names)} outside of the interval"
        warnings.append(f"the answer depends on the objective: {outside}")
    sds = fit.sigma * noise.relative  # per seed: points may have different numbers of seeds
    if sds.max() > _UNEQUAL * sds.min():
        slopes = {name: slope for name, slope in noise.slopes.items() if slope}
        ways = (f"{'falls' if slope < 0 else 'grows'} with {name}" for name, slope in slopes.items())
        first, last = sorted([sds.min(), sds.max()], reverse=any(slope < 0 for slope in slopes.values()))
        span = f"from {first:.2%} to {last:.2%} of the loss"
        warnings.append(
            f"noise that {listed([*ways])}, {span}, is allowed for in intervals, beside equal noise"
        )
    shown = [estimate for estimate in estimates if estimate.identified]
    wide = [each.quantity.name for each in shown if each.interval.robust_ratio > _LARGE_RATIO]
    if wide:
        much = f"more than {_LARGE_RATIO:g} times as uncertain as the noise model does"
        warnings.append(f"the residuals make {listed(wide)} {much}; the wider interval counts")
    if shared and shared.share > 0.1:
        part = f"{shared.share:.0%} of the errors' variance"
        warnings.append(f"{part} is shared within a group; intervals allow for it")
    if refits and refits.missed >= 0.01:
        part = f"{refits.missed:.0%} of the bootstrap refits"
        warnings.append(f"{part} missed their optimum: its intervals may be too narrow")
    if refits and shared and shared.n_groups < _FEW_GROUPS:
        few = f"{several(shared.n_groups, 'group')}: too few to resample"
        warnings.append(f"{few}: the bootstrap intervals are only a rough guide")
    return warnings
