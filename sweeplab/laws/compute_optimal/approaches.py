"""The compute-optimal size by three approaches (Hoffmann et al. 2022), and whether they disagree by more than noise.

The parabolas and the parametric fit use the same rows. To first order each of their numbers is linear in the rows'
errors, so the error of a difference follows, correlation included. The efficiency that a Huber fit loses to least
squares is added at its value for many normal errors; that is too much in small tables, whose intervals of a difference
are rather too wide. The envelope uses the curves before their ends; its error is taken as independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.laws.assessment import (
    IDENTIFIED,
    WEAK,
    Assessment,
    Estimate,
    Verdict,
    assess,
    checked_budget,
    find_law,
)
from sweeplab.laws.compute_optimal.envelope import Curves, Envelope, curves_of_points, envelope
from sweeplab.laws.compute_optimal.isoflop import IsoFlop, check, isoflop
from sweeplab.laws.compute_optimal.lines import N_AT, Number, RowNoise, no_optimum, optimum_at
from sweeplab.laws.doubts import tuning_of
from sweeplab.laws.fitting import Fit
from sweeplab.laws.forms import D_OPT, N_OPT, RATIO
from sweeplab.laws.intervals import LEVEL, inverse_curvature
from sweeplab.laws.points import Points

ISOFLOP, ENVELOPE, PARAMETRIC = "isoflop", "envelope", "parametric"
COMPARED = (N_OPT, N_AT)
_SAYS = {
    (False, False): "{0} and {1} agree within noise",
    (True, False): "{0} and {1} disagree by more than noise on the exponent: {n_opt_exponent}",
    (False, True): "{0} and {1} agree on the exponent, and disagree by more than noise on N_opt: {n_opt}",
    (True, True): "{0} and {1} disagree by more than noise: {n_opt_exponent}, and {n_opt}",
}


@dataclass(frozen=True)
class Discrepancy:
    """The difference of a number between two approaches, or the log of their ratio if `is_ratio`, with its interval."""

    value: float
    low: float
    high: float
    is_ratio: bool

    @property
    def more_than_noise(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        ends = {"difference": self.value, "low": self.low, "high": self.high}
        if self.is_ratio:
            values = (math.exp(min(max(end, -700.0), 700.0)) for end in ends.values())
            ends = dict(zip(("ratio", "low", "high"), values, strict=True))
        return ends | {"more_than_noise": self.more_than_noise}

    def __str__(self) -> str:
        shown = self.as_dict()
        first = f"{self.value:+.3f}"
        if self.is_ratio:
            first = f"a factor {shown['ratio']:.3g}"
        return f"{first} (90% interval {shown['low']:.3g} to {shown['high']:.3g})"


@dataclass(frozen=True)
class Disagreement:
    """The differences of two approaches in each number that both have; `why_none` says why there are none."""

    between: tuple[str, str]
    differences: dict[str, Discrepancy]
    why_none: str = ""

    @property
    def says(self) -> str:
        """Return it in a sentence."""
        if self.why_none:
            return self.why_none
        exponent, size = (self.differences.get(name) for name in COMPARED)
        more = tuple(bool(each and each.more_than_noise) for each in (exponent, size))
        return _SAYS[more[0], more[1]].format(*self.between, n_opt_exponent=exponent, n_opt=size)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "between": list(self.between),
            "differences": {name: each.as_dict() for name, each in self.differences.items()},
            "more_than_noise": any(each.more_than_noise for each in self.differences.values()),
            "says": self.says,
        }


@dataclass(frozen=True)
class Approaches:
    """The three approaches; `numbers` has the exponents and N_opt at `budget` of each.

    `parametric` is None, and `why_none` says why, if the table allows no fit.
    """

    points: Points
    budget: float
    isoflop: IsoFlop
    envelope: Envelope
    parametric: Assessment | None
    law: str
    why_none: str
    numbers: dict[str, dict[str, Number]]
    disagreements: tuple[Disagreement, ...]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values: each approach's numbers first, then the details of each."""
        roads = {
            approach: {name: each.as_dict() for name, each in numbers.items()}
            for approach, numbers in self.numbers.items()
        }
        return {
            "budget_flops": self.budget,
            "level": LEVEL,
            "law": self.law,
            "n_points": self.points.n,
            "roads": roads,
            "disagreements": [each.as_dict() for each in self.disagreements],
            ISOFLOP: self.isoflop.as_dict(),
            ENVELOPE: self.envelope.as_dict(),
            PARAMETRIC: {"why_none": self.why_none},
            "dropped": self.points.dropped,
            "conventions": self.points.conventions,
            "warnings": list(self.warnings),
        }


def approaches(
    points: Points,
    curves: Curves | None = None,
    law: str = "chinchilla",
    asked: int | tuple[float, ...] | None = None,
    budget: float | None = None,
    assessment: Assessment | None = None,
) -> Approaches:
    """Return the three approaches for a table; `curves` are a study's, or the table's own groups when None.

    `asked` is the result of `parse_budgets`; `budget` is the compute at which to give N_opt (the largest of the table
    when None); `assessment` is one made before, whose budget and law are then used.
    """
    check(points)
    if not {"params", "tokens"} <= set(find_law(law).columns):
        raise BadInput(f"{law} has no compute-optimal size; use a law of N and D, such as chinchilla")
    at, why, shared = checked_budget(budget, points), "", None
    if assessment is None:
        try:
            assessment = assess(points, find_law(law), budget=budget)
        except BadInput as refused:
            why = "; ".join(problem.what for problem in refused.problems)
    parametric, warnings = no_optimum(why, math.log(at)), tuple[str, ...]()
    if assessment:
        law, at, shared = assessment.fit.law.name, assessment.budget, assessment.shared
        parametric, warnings = _parametric(points, assessment), assessment.warnings
    if curves is None:
        curves = curves_of_points(points)
    tuning = tuning_of(points)
    parabolas, lowest = isoflop(tuning.points, asked, at, shared), envelope(curves, at)
    numbers = {
        ISOFLOP: _at_most(tuning.doubt, parabolas.numbers),
        ENVELOPE: _at_most(tuning.doubt, lowest.numbers),
        PARAMETRIC: parametric,
    }
    by_name = {ISOFLOP: parabolas.warnings, ENVELOPE: lowest.warnings, PARAMETRIC: warnings}
    pairs = combinations((PARAMETRIC, ISOFLOP, ENVELOPE), 2)
    return Approaches(
        points=points,
        budget=at,
        isoflop=parabolas,
        envelope=lowest,
        parametric=assessment,
        law=law,
        why_none=why,
        numbers=numbers,
        disagreements=tuple(_disagreement(pair, numbers, parabolas.noise) for pair in pairs),
        warnings=tuple(f"{name}: {warning}" for name, those in by_name.items() for warning in those),
    )


def _at_most(doubt: str, numbers: Mapping[str, Number]) -> dict[str, Number]:
    """The numbers, weak at best if there is a doubt about how the points were tuned."""
    weak = Verdict(WEAK, doubt)
    return {
        name: replace(number, verdict=weak) if doubt and number.verdict.verdict == IDENTIFIED else number
        for name, number in numbers.items()
    }


def _parametric(points: Points, assessment: Assessment) -> dict[str, Number]:
    """The numbers of a fit; N_opt follows from its tokens per parameter and the budget."""
    by_name = {each.quantity.name: _number(assessment.fit, each) for each in assessment.estimates}
    numbers = {name: by_name[name] for name in (N_OPT, D_OPT) if name in by_name}
    ratio, at = by_name[RATIO], math.log(assessment.budget)
    total = math.log(assessment.budget / points.flops_per_param_token)
    value, low, high = ((total - each) / 2 for each in (ratio.value, ratio.high, ratio.low))
    optimum = replace(optimum_at(at)[N_AT], value=value, low=low, high=high, verdict=ratio.verdict)
    if ratio.influence is not None:
        optimum = replace(optimum, influence=-ratio.influence / 2)
    return numbers | {N_AT: optimum}


def _number(fit: Fit, estimate: Estimate) -> Number:
    quantity, interval = estimate.quantity, estimate.interval
    slope = quantity.measure(fit.theta[None])[1][0]
    # The Huber loss bounds the influence of outliers: only the share of errors within delta moves a number.
    inside = float((np.abs(fit.residuals()) < fit.rows.delta).mean())
    influence = inside * slope @ inverse_curvature(fit) @ (fit.jacobian * fit.rows.weights)
    words = (quantity.name, quantity.meaning, quantity.kind, quantity.is_log)
    lost = _lost(fit.rows.delta / fit.sigma if fit.sigma > 0 else math.inf)
    ends = (interval.value, interval.low, interval.high)
    return Number(*words, *ends, estimate.verdict, np.asarray(influence, float), lost)


def _lost(k: float) -> float:
    """By what share a Huber fit varies more than least squares under normal errors; delta is k sigmas.

    Huber 1964: E[psi^2] / E[psi']^2 - 1. This part of the error is not shared with a least-squares approach.
    """
    if not math.isfinite(k):
        return 0.0
    inside, density = math.erf(k / math.sqrt(2)), math.exp(-k * k / 2) / math.sqrt(2 * math.pi)
    squares = inside - 2 * k * density + k * k * (1 - inside)
    return squares / inside**2 - 1


def _disagreement(
    between: tuple[str, str], numbers: Mapping[str, Mapping[str, Number]], noise: RowNoise | None
) -> Disagreement:
    first, second = (numbers[name] for name in between)
    differences = {
        name: _difference(first[name], second[name], noise)
        for name in COMPARED
        if name in first and name in second and first[name].identified and second[name].identified
    }
    if differences:
        return Disagreement(between, differences)
    lacking = [name for name in between if not any(each.identified for each in numbers[name].values())]
    who = ("they share", f"{' and '.join(lacking)} has", f"{' and '.join(lacking)} have")[len(lacking)]
    return Disagreement(between, {}, f"{' and '.join(between)} cannot be compared: {who} no number")


def _difference(first: Number, second: Number, noise: RowNoise | None) -> Discrepancy:
    value = second.value - first.value
    if noise and first.influence is not None and second.influence is not None:
        variance = noise.of(second.influence - first.influence)
        variance += first.alone * noise.of(first.influence) + second.alone * noise.of(second.influence)
        below = above = noise.quantile() * math.sqrt(variance)
    else:
        below = math.hypot(second.value - second.low, first.high - first.value)
        above = math.hypot(second.high - second.value, first.value - first.low)
    return Discrepancy(value, value - below, value + above, first.is_log)
