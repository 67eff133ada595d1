"""The assessment of a law on a table: every number with its interval and verdict, and whether the form fits.

The terminal, `--json`, pages, the ledger and the Python API all report this one assessment. Every number is a quantile
of the draws of one posterior, pooled over the draws of the tuning excess. A loss is drawn from the bent form: what the
rows leave open of the form is part of its interval; a forecast adds the noise of a run. A verdict comes from the gate
on the design, the doubts, and the interval's width. What is doubted has other fits: the interval then holds theirs too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.laws.check import UNSEEN, Misfit, hold_out, misfit
from sweeplab.laws.core import LEVEL, Array, interval
from sweeplab.laws.doubts import Doubt, Tuning, along_family, doubts_of, tuning_of
from sweeplab.laws.fitting import Fit, fit
from sweeplab.laws.forms import (
    FEWEST_VALUES,
    LAWS,
    TOLERANCES,
    UNSEEN_BEND,
    Law,
    Quantity,
    loss_at,
    optimum_of,
    parameters_of,
    shown,
)
from sweeplab.laws.points import DECADES, LINES, SPREAD, STANDS, Points, across, path_of
from sweeplab.laws.sentences import Plain, Reason

IDENTIFIED, WEAK, NOT_IDENTIFIED = "identified", "weak", "not identified"
INTERVAL_ONLY = "interval only"
NEAR = 3.0  # a row is near the optimum if its tokens per parameter are within this factor


@dataclass(frozen=True)
class Verdict(Reason):
    """A verdict on a number, and why it is so."""

    verdict: str

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict != NOT_IDENTIFIED

    def entry(self, shown: Sequence[float | None], meaning: str) -> Plain:
        """Return a number's value, low and high with this verdict; the value is None if it is not identified."""
        value, low, high = shown
        return {
            "value": value if self.identified else None,
            "low": low,
            "high": high,
            "verdict": self.verdict,
            "code": self.code,
            "facts": dict(self.facts),
            "why": self.words,
            "meaning": meaning,
        }


def judge(
    kind: str,
    value: float,
    low: float,
    high: float,
    lacking: Reason | None = None,
    doubt: Reason | None = None,
) -> Verdict:
    """Return the verdict on a number with its interval, in logs if its kind has a factor.

    `lacking` is what its design lacks, `doubt` what is doubted.
    """
    if lacking:
        return Verdict(lacking.code, lacking.facts, NOT_IDENTIFIED)
    tolerance = TOLERANCES[kind]
    far = max(high - value, value - low)
    width = high - low
    form = "{:.2g}"
    if tolerance.is_factor:
        far = math.exp(min(far, 50.0))
        width = math.exp(min(width, 100.0))
        form = "a factor {:.3g}"
    needed = form.format(tolerance.identified)
    if far > tolerance.weak:
        # How far an end is from a value that is not shown would give it away.
        facts = {"width": form.format(width), "needed": needed}
        return Verdict("too wide", facts, NOT_IDENTIFIED)
    if doubt:
        return Verdict(doubt.code, doubt.facts, WEAK)
    facts = {"far": form.format(far), "needed": needed}
    if far > tolerance.identified:
        return Verdict("wide", facts, WEAK)
    return Verdict("narrow", facts, IDENTIFIED)


def design_lacks(points: Points, columns: Sequence[str], needs: Sequence[str]) -> Reason | None:
    """Return what rows lack to tell what the columns do, of which a number depends on those in `needs`."""
    for name in needs:
        logs = np.sort(np.log10(points.columns[name]))
        decades = float(logs[-1] - logs[0])
        without = float(min(logs[-1] - logs[1], logs[-2] - logs[0]))
        facts = {"column": name, "decades": decades, "needed": DECADES[name]}
        if decades < DECADES[name]:
            return Reason("decades", facts)
        if without < STANDS * DECADES[name]:
            return Reason("one row", facts | {"decades": without})
        distinct = 1 + np.count_nonzero(np.diff(logs) > 1e-9)
        if distinct < FEWEST_VALUES:
            return Reason("few values", {"column": name, "count": distinct})
    for one, other in LINES:
        if not {one, other} <= {*columns}:
            continue
        spread, without = across(points.columns, one, other)
        facts = {"one": one, "other": other}
        if spread < SPREAD:
            return Reason("ray", facts | {"spread": spread, "needed": SPREAD})
        if without < STANDS * SPREAD:
            return Reason("ray but one", facts)
    return None


@dataclass(frozen=True)
class Estimate:
    """A quantity with its value and the ends of its 90% interval, in the units of its measure, and its verdict."""

    quantity: Quantity
    value: float
    low: float
    high: float
    verdict: Verdict

    @property
    def shown(self) -> list[float]:
        """Return the value and the ends as numbers of the quantity itself."""
        return shown(self.quantity.kind, (self.value, self.low, self.high))

    def as_dict(self) -> Plain:
        """Return it as plain values; the value is null if it is not identified."""
        return self.verdict.entry(self.shown, self.quantity.meaning)


@dataclass(frozen=True, eq=False)
class Assessment:
    """The assessment of one law on one table.

    `tuning` has the points as measured and those that the law is fitted to; `doubts` say what makes every number weak
    at best.
    """

    tuning: Tuning
    fit: Fit
    budget: float
    misfit: Misfit
    doubts: tuple[Doubt, ...]

    @property
    def raw(self) -> Points:
        """Return the points as measured."""
        return self.tuning.raw

    @property
    def points(self) -> Points:
        """Return the points that the law is fitted to."""
        return self.tuning.points

    @property
    def law(self) -> Law:
        """Return the law."""
        return self.fit.law

    @cached_property
    def straight(self) -> tuple[list[Fit], list[Fit]]:
        """Return the fits of the points, all equally likely, and those of what is doubted."""
        return self._fits(is_bent=False)

    @cached_property
    def bent(self) -> tuple[list[Fit], list[Fit]]:
        """Return the fits of the bent form; where rows cannot show a bend, a stronger one is doubted."""
        fits, doubted = self._fits(is_bent=True)
        if self.misfit.status == UNSEEN:
            doubted.append(fit(self.points, replace(self.law, bend=UNSEEN_BEND), is_bent=True))
        return fits, doubted

    def _fits(self, is_bent: bool) -> tuple[list[Fit], list[Fit]]:
        doubted = []
        for doubt in self.doubts:
            if doubt.is_bent:
                doubted.append(fit(self.points, self.law, is_bent=True))
            for points in doubt.otherwise:
                try:
                    doubted.append(fit(points, self.law, is_bent))
                except BadInput:  # too few rows are left
                    continue
        return [fit(points, self.law, is_bent) for points in self.tuning.tables], doubted

    def ends(
        self, quantity: Quantity, added: Array | None = None
    ) -> tuple[float, float, float]:
        """Return the value of a quantity, and the ends of its interval over all that is doubted.

        `added` [S] are draws of errors besides the law's own, as those of a run.
        """
        fits, doubted = self.bent if quantity.kind == "loss" else self.straight
        draws = np.concatenate([quantity.measure(fitted.values) for fitted in fits])
        lows, highs = [], []
        for measured in (draws, *(quantity.measure(fitted.values) for fitted in doubted)):
            if added is not None:
                measured = measured + np.resize(added, len(measured))
            _, low, high = interval(measured)
            lows.append(low)
            highs.append(high)
        return float(np.median(draws)), min(lows), max(highs)

    def judged(self, quantity: Quantity, value: float, low: float, high: float) -> Verdict:
        """Return the verdict on a quantity with this interval."""
        lacking = design_lacks(self.points, self.law.columns, quantity.needs)
        if lacking is None and quantity.kind == "ratio":
            columns = self.points.columns
            away = np.log(columns["tokens"] / columns["params"]) - value
            if np.abs(away).min() > math.log(NEAR):
                # By what factor would give the number away.
                lacking = Reason("far from optimum", {"factor": NEAR})
        return judge(quantity.kind, value, low, high, lacking, next(iter(self.doubts), None))

    def estimate(self, quantity: Quantity) -> Estimate:
        """Return a quantity with its interval and verdict."""
        value, low, high = self.ends(quantity)
        return Estimate(quantity, value, low, high, self.judged(quantity, value, low, high))

    @cached_property
    def estimates(self) -> tuple[Estimate, ...]:
        """Return every number of the law; a scale is no better known than its exponent."""
        quantities = parameters_of(self.law)
        quantities += optimum_of(self.law, self.budget, self.points.flops_per_param_token)
        estimates = {each.name: self.estimate(each) for each in quantities}
        for name, scale in estimates.items():
            exponent = estimates.get(scale.quantity.of)
            if exponent and scale.verdict.identified and exponent.verdict.verdict != IDENTIFIED:
                verdict = exponent.verdict.verdict
                facts = {"exponent": scale.quantity.of, "verdict": verdict}
                estimates[name] = replace(scale, verdict=Verdict("scale", facts, verdict))
        return tuple(estimates.values())

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Return what speaks against the numbers, one sentence each."""
        law = self.law
        reasons = list[Reason](self.doubts)
        path = path_of(self.points)
        if path and len(law.columns) == 1 and law.columns[0] in ("params", "tokens"):
            reasons.append(Reason("path", {"law": law.name, "path": path.words}))
        return tuple(reason.words for reason in reasons)

    @property
    def measured(self) -> Plain:
        """Return what the residual is made of, each as a share of the loss with its 90% interval.

        `seeds` is one seed's spread, `tuning` the excess of a point, `left` the noise of a run about the law.
        """
        facts = {"left": interval(self.fit.draws.sigma)}
        spread = self.raw.seed_spread
        if spread is not None:
            from scipy.special import chdtri

            freedom = (self.raw.weights - 1).sum()
            low, high = (
                freedom / chdtri(freedom, tail) for tail in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
            )
            facts["seeds"] = spread, spread * math.sqrt(low), spread * math.sqrt(high)
        if self.tuning.record is not None:
            facts["tuning"] = interval(self.tuning.record.mean(1))
        return {
            name: dict(zip(("value", "low", "high"), ends, strict=True))
            for name, ends in facts.items()
        }

    def as_dict(self) -> Plain:
        """Return it as plain values; numbers that are not identified have no value."""
        law = self.law
        held_out = hold_out(self.points, self.law)
        parameters: Plain = {}
        derived: Plain = {}
        for estimate in self.estimates:
            entries = parameters if estimate.quantity.name in law.parameters else derived
            entries[estimate.quantity.name] = estimate.as_dict()
        return {
            "law": law.name,
            "formula": law.formula,
            "source": law.source,
            "n_points": self.points.n,
            "sigma": self.fit.sigma,
            "level": LEVEL,
            "parameters": parameters,
            "derived": derived,
            "budget_flops": self.budget,
            "measured": self.measured,
            "misfit": vars(self.misfit) | {"says": self.misfit.words},
            "holdout": vars(held_out) | {"says": held_out.words},
            "dropped": self.raw.dropped,
            "conventions": {**self.raw.conventions, "tuning": self.tuning.says},
            "warnings": list(self.warnings),
        }


def law_for(points: Points, name: str = "auto") -> Law:
    """Return a law by its name; `auto` is that of the sizes that vary, and of params where tokens follow them.

    Raises:
        BadInput: there is no such law.
    """
    if name == "auto":
        varied = points.varied & {"params", "tokens"}
        name = "chinchilla"
        if varied == {"params"} or path_of(points):
            name = "power-n"
        elif varied == {"tokens"}:
            name = "power-d"
    if name not in LAWS:
        raise BadInput(
            Problem(f"there is no law {name!r}", ", ".join(LAWS), nearest(name, LAWS))
        )
    return LAWS[name]


def assess(points: Points, law: Law, budget: float | None = None) -> Assessment:
    """Fit a law to a table and return every number with its interval and verdict, and the test of the form.

    A law of params is fitted along one depth where the table has enough rows of it. `budget` is the compute of the
    optimum, in FLOPs (the largest of the table when None).

    Raises:
        BadInput: a table or a budget that allows no fit.
    """
    tuning = tuning_of(along_family(points) if "params" in law.columns else points)
    points = tuning.points
    fitted = fit(points, law)
    if budget is None:
        budget = points.columns.get("flops", np.array([math.nan])).max()
    elif not 0 < budget < math.inf:
        raise BadInput(f"--flops {budget:g} is not a budget; it must be positive")
    form = misfit(points, fitted)
    return Assessment(
        tuning, fitted, budget, form, (*tuning.doubts, *doubts_of(points, fitted, form))
    )


@dataclass(frozen=True)
class Forecast:
    """The loss that a law predicts for a run, with its 90% prediction interval, which the verdict judges.

    `regret` is the part of the log loss that the run's values are expected to cost. A loss that is no number of a law
    has the verdict INTERVAL_ONLY.
    """

    loss: float
    low: float
    high: float
    verdict: Verdict
    regret: float


def predict(
    assessment: Assessment, at: Mapping[str, float], seeds: int = 1, regret: float = 0.0
) -> Forecast:
    """Predict the mean loss of `seeds` runs at a point {"params": …, "tokens": …}.

    A law is of tuned losses; `regret` is the expected excess of the runs' log loss, as the best values are not known
    exactly. It is quadratic in their errors, and taken for the square of one, whose tail is the longest.

    Raises:
        BadInput: the point lacks a column that the law uses, or it lies off the path that the law holds along.
    """
    points = assessment.points
    law = assessment.law
    fit = assessment.fit
    missing = [name for name in law.columns if name not in at]
    if missing:
        raise BadInput(f"{law.name} needs {' and '.join(missing)} too")
    for name in law.columns:
        if not 0 < at[name] < math.inf:
            raise BadInput(f"{name} {at[name]:g} is not the size of a run; it must be positive")
    quantity = loss_at(law, at)
    path = path_of(points)
    if path and len(law.columns) == 1 and path.misses(at):
        why = f"the law holds along one path, {path.words}, and this run lies off it"
        raise BadInput(f"{quantity.meaning} cannot be forecast: {why}")
    random = np.random.default_rng(2)
    # The mean of several seeds is less noisy only up to the number of seeds of the table's rows.
    few = min(seeds, np.median(points.weights))
    noise = fit.errors(random, at, few)
    value, low, high = assessment.ends(
        quantity, noise + regret * random.standard_normal(len(noise)) ** 2
    )
    loss = value + regret
    verdict = assessment.judged(quantity, loss, low, high)
    if not verdict.identified:
        verdict = replace(verdict, verdict=INTERVAL_ONLY)
    return Forecast(math.exp(loss), math.exp(low), math.exp(high), verdict, regret)
