"""The compute-optimal size by three approaches (Hoffmann et al. 2022), and whether they disagree by more than noise.

The parabolas and the parametric fit use the same rows. To first order each of their numbers is linear in the rows'
errors, so the error of a difference follows, correlation included. The efficiency that a Huber fit loses to least
squares is added at its value for many normal errors; that is too much in small tables, whose intervals of a difference
are rather too wide. The envelope uses the curves before their ends; its error is taken as independent.

The envelope of training curves is the size of the lowest curve at each compute; a curve is loss over FLOPs, one for
each run of a study or each group of a table. It is approach 1 of Hoffmann et al. 2022, Training compute-optimal large
language models. Departures: the line is fitted to the points where the best size changes, not to every compute: N_opt
lies between the two sizes there, while between changes N_opt grows and the best of the given sizes stays. The best size
never shrinks as compute grows: of all such paths the one with the lowest summed log loss is taken, so that noise does
not make it jump back and forth. A change counts only if both sizes have a curve on both sides of it; a curve that
begins or ends causes no change. Intervals are from a bootstrap that draws runs with replacement.

Legend: T computes, R curves, S sizes, B draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput
from sweeplab.formatting import several
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
from sweeplab.laws.compute_optimal.isoflop import IsoFlop, check, isoflop
from sweeplab.laws.compute_optimal.lines import (
    FEWEST,
    N_AT,
    SAME_SIZE,
    Number,
    RowNoise,
    n_sizes,
    no_optimum,
    optimum_at,
    short_span,
)
from sweeplab.laws.doubts import tuning_of
from sweeplab.laws.fitting import Fit
from sweeplab.laws.forms import D_OPT, N_OPT, RATIO, Array
from sweeplab.laws.intervals import LEVEL, inverse_curvature
from sweeplab.laws.points import Points

FEWEST_POINTS = 3  # of a curve
N_COMPUTES = 256
N_DRAWS = 400
_MOST_LOST = 0.2  # the largest share of draws without a line
_FAR = 1e3  # stands for a missing log loss
# Cautions about losses before a run's end, by the schedule of the learning rate.
SCHEDULES = {
    "constant": "",
    "decays": "the learning rate was still decaying where the curves are compared: a run that ended there would have a "
    "lower loss, so the runs nearest to their end are favored",
    "unknown": "a table does not show whether the learning rate had decayed where the curves are compared; if it had "
    "not, the runs nearest to their end are favored",
}


@dataclass(frozen=True)
class Curve:
    """One run: its parameters, and log loss over log FLOPs, increasing, [m]."""

    name: str
    params: float
    log_flops: Array
    log_loss: Array


@dataclass(frozen=True)
class Curves:
    """The runs' curves; `schedule` is one of SCHEDULES, `why_none` says why there are no curves."""

    runs: tuple[Curve, ...]
    schedule: str
    why_none: str = ""


def curves_of_points(points: Points) -> Curves:
    """Return a curve for each group of a table that has one size, and a row at each of several FLOPs."""
    if not points.groups:
        none = "no curves: --columns group=COLUMN names the column that tells which rows are one run"
        return Curves((), "unknown", none)
    names = np.asarray(points.groups, object)
    log_n, log_c = np.log(points.columns["params"]), np.log(points.columns["flops"])
    curves = []
    for name in dict.fromkeys(points.groups):
        rows = np.flatnonzero(names == name)
        rows = rows[np.argsort(log_c[rows], kind="stable")]
        rows = rows[np.diff(log_c[rows], prepend=-np.inf) > 0]
        if len(rows) >= FEWEST_POINTS and n_sizes(log_n[rows]) == 1:
            size = float(points.columns["params"][rows].mean())
            curves.append(Curve(name, size, log_c[rows], np.log(points.columns["loss"][rows])))
    if not curves:
        none = f"no curves: no group has {FEWEST_POINTS} rows of one size at different FLOPs"
        return Curves((), "unknown", none)
    return Curves(tuple(curves), "unknown")


def _sizes_of(curves: Sequence[Curve]) -> tuple[Array, Array]:
    """Log N of the sizes, increasing, [sizes], and the curves of each, [sizes, curves] of 0 and 1."""
    log_n = np.log([curve.params for curve in curves])
    order = np.argsort(log_n, kind="stable")
    place = np.empty(len(log_n), int)
    place[order] = np.cumsum(np.diff(log_n[order], prepend=-np.inf) > SAME_SIZE) - 1
    belongs = np.eye(place.max() + 1)[place].T
    return np.asarray(belongs @ log_n / belongs.sum(1)), belongs


@dataclass(frozen=True)
class Envelope:
    """The lowest loss at each compute with its size, the changes of the best size, and the line through them.

    `envelope` has flops, loss and params, [T]; `changes` are the FLOPs and params between two sizes.
    """

    n_runs: int
    n_sizes: int
    schedule: str
    numbers: dict[str, Number]
    envelope: dict[str, list[float]]
    changes: tuple[dict[str, float], ...] = ()
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, with the data of the figure."""
        numbers = {name: each.as_dict() for name, each in self.numbers.items()}
        lists = {"changes": list(self.changes), "warnings": list(self.warnings)}
        return vars(self) | {"numbers": numbers} | lists


def envelope(curves: Curves, budget: float) -> Envelope:
    """Return the envelope of training curves, its exponents, and N_opt at a budget in FLOPs."""
    log_n, belongs = np.empty(0), np.empty(0)
    if curves.runs:
        log_n, belongs = _sizes_of(curves.runs)
    about = (len(curves.runs), len(log_n), curves.schedule)
    why = curves.why_none
    if not why and len(log_n) <= FEWEST:
        why = f"the curves are of {several(len(log_n), 'size')}; {FEWEST + 1} or more are needed"
    if why:
        nothing: dict[str, list[float]] = {"flops": [], "loss": [], "params": []}
        return Envelope(*about, no_optimum(why, math.log(budget)), nothing)
    begin = min(curve.log_flops[0] for curve in curves.runs)
    log_c = np.linspace(begin, max(curve.log_flops[-1] for curve in curves.runs), N_COMPUTES)
    losses = np.stack([np.interp(log_c, each.log_flops, each.log_loss, _FAR, _FAR) for each in curves.runs])
    by_size = _lowest(losses, belongs, np.ones((1, len(losses)), bool))
    path = _path(by_size)[0]
    lowest = by_size[0, path, np.arange(N_COMPUTES)]
    held = lowest < _FAR
    changes = _changes(by_size[0], path, log_c, log_n)
    random = np.random.default_rng(0)
    drawn = random.multinomial(len(losses), np.full(len(losses), 1 / len(losses)), size=N_DRAWS) > 0
    by_size = _lowest(losses, belongs, drawn)
    moved = [_changes(table, best, log_c, log_n) for table, best in zip(by_size, _path(by_size), strict=True)]
    redrawn = np.array([_line(table) for table in moved])
    caution = SCHEDULES[curves.schedule]
    numbers = _numbers(changes, redrawn, math.log(budget), caution)
    drawn_as = {"flops": log_c[held], "loss": lowest[held], "params": log_n[path][held]}
    return Envelope(
        *about,
        numbers,
        {name: np.exp(column).tolist() for name, column in drawn_as.items()},
        tuple({"flops": math.exp(c), "params": math.exp(n)} for c, n in changes),
        (caution,) if caution and len(changes) >= FEWEST else (),
    )


def _lowest(losses: Array, belongs: Array, present: NDArray[np.bool_]) -> Array:
    """The lowest log loss among the present curves of each size, [B, S, T]."""
    members = belongs.astype(bool)
    return np.stack([np.where(present[:, of, None], losses[of], _FAR).min(1) for of in members], axis=1)


def _path(losses: Array) -> NDArray[np.intp]:
    """The non-decreasing path of sizes with the lowest summed log loss over T: [B, T]."""
    n_draws, n_sizes, n_computes = losses.shape
    total = losses[:, :, 0]
    previous = np.zeros((n_computes, n_draws, n_sizes), int)
    sizes = np.arange(n_sizes)
    for at in range(1, n_computes):
        best = np.minimum.accumulate(total, axis=1)
        previous[at] = np.maximum.accumulate(np.where(total <= best, sizes, 0), axis=1)
        total = best + losses[:, :, at]
    path = np.empty((n_draws, n_computes), int)
    path[:, -1] = total.argmin(1)
    for at in range(n_computes - 1, 0, -1):
        path[:, at - 1] = previous[at, np.arange(n_draws), path[:, at]]
    return path


def _changes(losses: Array, path: NDArray[np.intp], log_c: Array, log_n: Array) -> Array:
    """Log C and log N of each change between two sizes with curves on both sides, [changes, 2]."""
    at = np.flatnonzero(np.diff(path))
    old, new = path[at], path[at + 1]
    both = (losses[old, at + 1] < _FAR) & (losses[new, at] < _FAR)
    at, old, new = at[both], old[both], new[both]
    return np.stack([(log_c[at] + log_c[at + 1]) / 2, (log_n[old] + log_n[new]) / 2], axis=1)


def _line(changes: Array) -> tuple[float, float]:
    if len(changes) < 2:
        return math.nan, math.nan
    slope, at = np.polyfit(changes[:, 0], changes[:, 1], 1)
    return float(slope), float(at)


def _numbers(changes: Array, draws: Array, at: float, caution: str) -> dict[str, Number]:
    if len(changes) < FEWEST:
        why = f"the best size changes {several(len(changes), 'time')} between sizes that both have curves"
        why += f"; a line needs {FEWEST}"
        return no_optimum(why, at)
    lacking = short_span("changes", changes[:, 0])
    held = draws[np.isfinite(draws[:, 0])]
    if len(held) < (1 - _MOST_LOST) * len(draws):
        lacking.append("too few bootstrap tables have a line: the runs give it no bounds")
    slope, offset = _line(changes)
    draws = held if len(held) else draws
    blank, numbers = optimum_at(at), {}
    for name, value, drawn in (
        (N_OPT, slope, draws[:, 0]),
        (D_OPT, 1 - slope, 1 - draws[:, 0]),
        (N_AT, offset + slope * at, draws @ np.array([at, 1.0])),
    ):
        low, high = map(float, np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        numbers[name] = blank[name].of(value, min(low, value), max(high, value), lacking, caution)
    return numbers


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
