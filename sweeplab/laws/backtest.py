"""Compare laws by their predictions of larger runs, not by their goodness of fit.

Goodness of fit measures how well a law follows the rows, but laws are used beyond them. So in a back-test each law
predicts every row from rows of less compute only, for several cuts, and laws are compared by these errors.

A challenger predicts better only if its lead over the first law is larger than noise explains. The lead is the mean
reduction of the errors over all held-out rows. It is compared with the leads on tables that are simulated from the
first law's fit, with noise (of the law that follows the rows best), and back-tested by both laws in the same way.
Errors above one cut all come from one fit, and rows lie above several cuts, so a test that treated them as independent
would prefer a challenger too often.

Legend: k cuts, h rows above a cut, S drawn tables, n rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput
from sweeplab.formatting import listed, several
from sweeplab.laws.doubts import Tuning, tuning_of
from sweeplab.laws.fitting import LEAST_SQUARES, Fit, Rows, fit, solve
from sweeplab.laws.forms import LAWS, Array, Law, Quantity, log_compute
from sweeplab.laws.intervals import (
    LEVEL,
    Interval,
    allowed_rises,
    inverse_curvature,
    noise_of,
    run_noise,
    shared_errors,
    shared_of,
    student,
)
from sweeplab.laws.misfit import Misfit, misfit, projected
from sweeplab.laws.points import Points, path_of

N_CUTS = 4
SPARE = 2  # more rows below a cut than the largest law has parameters
FEWEST_ABOVE = 2
# Shares of the rows: with fewer, the errors reflect noise more than the form.
SHARE_BELOW, SHARE_ABOVE = 0.35, 0.1
_BY = ("flops", "tokens", "params")
N_TABLES = 200
BY_CHANCE = 0.05  # over all challengers together
_TOLERANCE = 1e-6
# The least sd of a form's error at ten times the compute, and the power of log compute with which it grows.
_LEAST_ERROR, _POWER = 0.016, 0.7
_PRIOR = 0.03  # of the loss
_SHOWN = 0.1  # the quantile of the growth that a back-test shows
# Growths of the error of a form that is not flagged, per unit of log compute: 5% at ten times the compute is much.
_USUAL = 0.02
_GROWTHS = np.append(0.0, np.geomspace(1e-5, 0.3, 120))  # of a form's error, per unit of log compute
_ROUNDING = 1e-16


@dataclass(frozen=True)
class Cut:
    """Rows with the column up to `at` and those above it, as row indices."""

    at: float
    below: NDArray[np.intp]
    above: NDArray[np.intp]


@dataclass(frozen=True)
class Cuts:
    """The cuts of a table in the column `by`; `why` says why there are none."""

    by: str
    cuts: tuple[Cut, ...]
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        cuts = [
            {"at": cut.at, "rows_below": len(cut.below), "rows_above": len(cut.above)} for cut in self.cuts
        ]
        return {"by": self.by, "cuts": cuts, "why_none": self.why}


@dataclass(frozen=True)
class Errors:
    """A law's errors above one cut, log(predicted / loss) [h], and half of its prediction intervals in log loss [h]."""

    cut: Cut
    fit: Fit
    errors: Array
    half: Array

    @property
    def held(self) -> NDArray[np.bool_]:
        """Return which losses lie inside the intervals."""
        return np.abs(self.errors) <= self.half


@dataclass(frozen=True)
class Backtest:
    """A law's errors above every cut; `why` says why it cannot be tested.

    Means over cuts of the mean above a cut: `error`, the absolute errors in log loss; `bias`, the signed errors,
    positive if predictions are too high; `coverage`, the share of losses inside the prediction intervals.
    """

    cuts: tuple[Errors, ...] = ()
    why: str = ""
    error: float = math.nan
    bias: float = math.nan
    coverage: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; only the reason if there are no errors."""
        if self.why:
            return {"why_none": self.why}
        by_cut = [
            {"at": errors.cut.at, "rows": errors.cut.above.tolist()}
            | {"errors": errors.errors.tolist(), "held": errors.held.tolist()}
            for errors in self.cuts
        ]
        means = {"error": self.error, "bias": self.bias, "coverage": self.coverage, "level": LEVEL}
        return means | {"by_cut": by_cut, "why_none": ""}


def cuts_of(points: Points, laws: Sequence[Law]) -> Cuts:
    """Return up to N_CUTS cuts, evenly spaced in log compute, with enough rows below them for every law."""
    by = next(name for name in _BY if name in points.columns)
    logs = np.log(points.columns[by])
    fewest = max(SPARE + max(len(law.parameters) for law in laws), math.ceil(SHARE_BELOW * points.n))
    above = max(FEWEST_ABOVE, math.ceil(SHARE_ABOVE * points.n))
    read = {name: max(law.fewest_values(name) for law in laws) for law in laws for name in law.columns}
    enough: list[tuple[float, NDArray[np.intp]]] = []
    for value in np.unique(logs.round(6)):
        rows = np.flatnonzero(logs <= value + 1e-6)
        # As many values of each column as a term has parameters.
        varied = all(_distinct(points.sizes[name][rows]) >= fewest for name, fewest in read.items())
        if len(rows) >= fewest and points.n - len(rows) >= above and varied:
            enough.append((float(value), rows))
    if not enough:
        needed = f"{several(fewest, 'row')} of several sizes below it and {above} above, of {points.n}"
        return Cuts(by, (), f"no cut in {by} leaves {needed}")
    aims = np.linspace(enough[0][0], enough[-1][0], N_CUTS)
    chosen = sorted({int(np.argmin([abs(value - aim) for value, _ in enough])) for aim in aims})
    everything = np.arange(points.n)
    cuts = ((math.exp(value), rows) for value, rows in (enough[at] for at in chosen))
    return Cuts(by, tuple(Cut(at, rows, np.setdiff1d(everything, rows)) for at, rows in cuts))


def _distinct(column: Array) -> int:
    return len(np.unique(np.log(column).round(6)))


def backtest(points: Points, law: Law, cuts: Cuts) -> Backtest:
    """Return the errors above each cut of a law fitted to the rows below it."""
    if not cuts.cuts:
        return Backtest(why=cuts.why)
    try:
        by_cut = tuple(_above(points, law, cut) for cut in cuts.cuts)
    except BadInput as problem:
        return Backtest(why=_why(problem))
    means = [(np.abs(each.errors).mean(), each.errors.mean(), each.held.mean()) for each in by_cut]
    error, bias, coverage = (float(np.mean(column)) for column in zip(*means, strict=True))
    return Backtest(by_cut, "", error, bias, coverage)


def _why(refused: BadInput) -> str:
    return "; ".join(map(str, refused.problems))


def _above(points: Points, law: Law, cut: Cut) -> Errors:
    below = points.only(cut.below)
    fitted = fit(below, law)
    columns = {name: points.sizes[name][cut.above] for name in law.columns}
    errors = np.log(fitted.predict(columns) / points.columns["loss"][cut.above])
    half = _half_intervals(below, fitted, columns, points.weights[cut.above])
    return Errors(cut, fitted, errors, half)


def _half_intervals(points: Points, fit: Fit, columns: dict[str, Array], weights: Array) -> Array:
    """Half the width of each prediction interval, in log loss: of the law, to first order, and of a run."""
    logs = fit.centered(columns)
    slopes = fit.law.derivatives(fit.theta[None], logs)[1][0].T
    spread = ((slopes @ inverse_curvature(fit)) * slopes).sum(1)
    shared, noise = shared_of(points, fit), noise_of(fit)
    sd, quantile = run_noise(fit, shared, noise, logs, weights)
    return np.asarray(
        np.sqrt(2 * allowed_rises(fit, slopes, shared, noise)[0] * spread + (quantile * sd) ** 2)
    )


@dataclass(frozen=True)
class FormError:
    """The error of a form beyond its table, in log loss.

    Errors of the back-test are modelled as normal, with the variance of the law, of noise, and of a growth times the
    distance from the largest fitted row. The growth is its posterior median, so that growths which the errors cannot
    rule out count too. Its prior is flat for a form that the residuals flag, and else half-Cauchy with the scale _USUAL
    (Gelman 2006, Prior distributions for variance parameters): a flat one would make few errors mean growths that no
    law of losses has. The error is at least 1.6% at ten times the compute, because a bend in one column that a
    back-test cannot see is often as large. That holds for the side to which the residuals `lean` (the sign of
    `lean_of`): on the other side only the growth counts that the back-test shows, its lower decile. So an interval is
    as wide as a departure needs on the side where there may be one; a right form, whose residuals lean to either side
    by chance, is still missed on the other.
    """

    points: Points
    law: Law
    lean: float = 0.0
    flagged: bool = False

    @cached_property
    def test(self) -> Backtest:
        """Return the law's back-test."""
        return backtest(self.points, self.law, cuts_of(self.points, [self.law]))

    @cached_property
    def _growths(self) -> tuple[float, float]:
        """The lower decile and the median of the growth; without a back-test none is shown."""
        if not self.test.cuts:
            return 0.0, 0.0
        sizes = log_compute({name: np.log(self.points.sizes[name]) for name in self.law.columns})
        chances = np.zeros(len(_GROWTHS))
        for errors in self.test.cuts:  # errors above one cut come from one fit: together they count as one
            leads = np.maximum(sizes[errors.cut.above] - sizes[errors.cut.below].max(), 0.0)
            variance = (
                (errors.half / student(errors.fit.freedom)) ** 2
                + (_GROWTHS[:, None] * leads) ** 2
                + _ROUNDING
            )
            chances -= 0.5 * (np.log(variance) + errors.errors**2 / variance).mean(1)
        density = np.exp(chances - chances.max())
        if not self.flagged:
            density = density / (1 + (_GROWTHS / _USUAL) ** 2)
        steps = np.diff(_GROWTHS) * (density[1:] + density[:-1])
        shares = np.append(0.0, steps.cumsum()) / steps.sum()
        low, median = np.interp([_SHOWN, 0.5], shares, _GROWTHS)
        return float(low), float(median)

    def sd(self, fit: Fit, quantity: Quantity) -> float:
        """Return the sd of the form's error in a quantity; nonzero only for losses of runs larger than the table's."""
        lead = self._lead(fit, quantity)
        return max(self._growths[1] * lead, _LEAST_ERROR * math.pow(lead / math.log(10), _POWER))

    def _lead(self, fit: Fit, quantity: Quantity) -> float:
        """How far a run lies beyond the table's largest, in log compute; 0 for what is no loss of a larger run."""
        if quantity.size is None:
            return 0.0
        return max(quantity.size - float(np.max(log_compute(fit.rows.logs))), 0.0)

    def widened(self, fit: Fit, quantity: Quantity, interval: Interval) -> Interval:
        """Return a quantity's interval with the form's error added in quadrature on each side."""
        lead = self._lead(fit, quantity)
        if not lead:
            return interval
        likely, shown = self.sd(fit, quantity), self._growths[0] * lead
        below, above = {-1.0: (likely, shown), 1.0: (shown, likely)}.get(np.sign(self.lean), (likely, likely))
        t = student(fit.freedom)
        low = math.hypot(interval.low - interval.value, t * below)
        high = math.hypot(interval.high - interval.value, t * above)
        return replace(interval, low=interval.value - low, high=interval.value + high)


def lean_of(points: Points, fit: Fit) -> float:
    """Return the change of the log loss beyond the table for which the residuals speak, however weakly; 0 for none.

    It is the mean over all directions of a departure, each as likely as the residuals make it. In each direction the
    change is normal with the sd _PRIOR before the residuals are seen.
    """
    space = projected(points, fit)[2]
    errors = np.abs(space.gains) * space.noise  # of the change, as the residuals in a direction give it
    seen = (errors > _ROUNDING) & (errors < 1)
    if not seen.any():
        return 0.0
    z, odds = space.lengths()[seen] / space.noise, (_PRIOR / errors[seen]) ** 2
    kept = odds / (1 + odds)
    logs = z**2 * kept / 2 - np.log1p(odds) / 2
    weights = np.exp(logs - logs.max())
    return float(weights @ (kept * z * space.gains[seen] * space.noise) / weights.sum())


@dataclass(frozen=True)
class Lead:
    """How much smaller a challenger's errors are than the first law's, in log loss, and the effect of noise.

    `chance` is the share of tables simulated from the first law with a lead as large, `spread_by_noise` the sd of their
    leads; None if there is no lead.
    """

    value: float
    spread_by_noise: float | None = None
    chance: float | None = None


@dataclass(frozen=True)
class LawRow:
    """A law's fit to all rows, whether its form is flagged, its back-test and its lead over the first law."""

    fit: Fit
    misfit: Misfit
    backtest: Backtest
    lead: Lead | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "law": self.fit.law.name,
            "formula": self.fit.law.formula,
            "in_sample": self.fit.sigma,
            "backtest": self.backtest.as_dict(),
            "misfit": self.misfit.as_dict(),
            "lead": self.lead and asdict(self.lead),
        }


@dataclass(frozen=True)
class Comparison:
    """Laws side by side; `better` is the challenger that predicts better than the first by more than noise."""

    points: Points
    rows: tuple[LawRow, ...]
    left_out: dict[str, str]
    cuts: Cuts
    better: str | None
    sentences: tuple[str, ...]
    tuning: Tuning

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what speaks against the first law's fit, and against a comparison of forms."""
        bends = (
            "larger sizes that are tuned worse bend a law, so a form may be flagged or lead for that alone"
        )
        return (*self.rows[0].misfit.doubts, *self.tuning.warnings(bends))

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "n_points": self.points.n,
            "dropped": self.points.dropped,
            "laws": [each.as_dict() for each in self.rows],
            "left_out": self.left_out,
            "cuts": self.cuts.as_dict(),
            "better": self.better,
            "sentences": list(self.sentences),
            "tuning": self.tuning.as_dict(),
            "warnings": list(self.warnings),
        }


def compare(
    points: Points, laws: Sequence[Law], say: Callable[[str], None] = lambda text: None
) -> Comparison:
    """Compare laws with the first one; `say` is called with each step that begins."""
    tuning = tuning_of(points)
    points = tuning.points
    raced = race(points, laws, say)
    leads = raced.leads
    say("testing the forms")
    rows = tuple(
        LawRow(fitted, misfit(points, fitted), raced.tests[name], leads.get(name))
        for name, fitted in raced.fits.items()
    )
    chances = {name: lead.chance * len(leads) for name, lead in leads.items() if lead.chance is not None}
    sure = [name for name, chance in chances.items() if chance <= BY_CHANCE]
    better = max(sure, key=lambda name: leads[name].value, default=None)
    sentences = tuple(_sentences(rows, raced.cuts, better))
    return Comparison(points, rows, raced.left_out, raced.cuts, better, sentences, tuning)


@dataclass(frozen=True)
class Race:
    """Laws by name, fitted and back-tested side by side, with the leads of all but the first over the first."""

    fits: dict[str, Fit]
    tests: dict[str, Backtest]
    leads: dict[str, Lead]
    cuts: Cuts
    left_out: dict[str, str]

    @property
    def why(self) -> str:
        """Return why the first law cannot be compared with others; empty if it can."""
        return next(iter(self.tests.values())).why

    @property
    def errors(self) -> dict[str, float]:
        """Return the mean absolute errors in log loss on larger runs of the laws that have one."""
        return {name: test.error for name, test in self.tests.items() if not test.why}


def race(points: Points, laws: Sequence[Law], say: Callable[[str], None] = lambda text: None) -> Race:
    """Fit laws, and back-test them; `say` is called with each step that begins.

    Raises:
        BadInput: none can be fitted.
    """
    fits: dict[str, Fit] = {}
    left_out: dict[str, str] = {}
    for law in laws:
        say(f"fitting {law.name} to {several(points.n, 'row')}")
        try:
            fits[law.name] = fit(points, law)
        except BadInput as problem:
            left_out[law.name] = _why(problem)
    if not fits:
        raise BadInput(*dict.fromkeys(left_out.values()))
    cuts = cuts_of(points, [fitted.law for fitted in fits.values()])
    tests = {}
    for name, fitted in fits.items():
        say(f"back-testing {name}")
        tests[name] = backtest(points, fitted.law, cuts)
    raced = Race(fits, tests, {}, cuts, left_out)
    if raced.why:
        return raced
    return replace(raced, leads=_leads(points, [*fits.values()], [*tests.values()], say))


def suited(points: Points) -> list[Law]:
    """Return the laws that use every column that varies in the table, and along a path those of one size.

    Where tokens do not follow params, none is of N or D alone if both vary.
    """
    there = {"params", "tokens", "flops"} & (points.varied or points.columns.keys())
    suited = [law for law in LAWS.values() if set(law.columns) <= there]
    if path_of(points):
        suited = [law for law in suited if len(law.columns) == 1]
    elif {"params", "tokens"} <= there:
        suited = [law for law in suited if law.columns[0] == "flops" or law.columns[1:]]
    return suited


def _leads(
    points: Points, fits: Sequence[Fit], tests: Sequence[Backtest], say: Callable[[str], None]
) -> dict[str, Lead]:
    """Each challenger's lead over the first law; only positive leads are compared with noise."""
    first, *others = zip(fits, tests, strict=True)
    leads = {fit.law.name: Lead(first[1].error - test.error) for fit, test in others if not test.why}
    ahead = [both for both in others if not both[1].why and leads[both[0].law.name].value > 0]
    if not ahead:
        return leads
    # Outliers count as noise, so that they cannot favor a challenger.
    drawn = _drawn(points, first[0], min(math.sqrt(each.variance) for each in fits))
    back_testing = f"back-testing {{}} on {N_TABLES} drawn tables".format
    say(back_testing(first[0].law.name))
    by_first = _simulated(points, *first, drawn, first[0])
    for challenger, test in ahead:
        name = challenger.law.name
        say(back_testing(name))
        by_noise = by_first - _simulated(points, challenger, test, drawn, first[0])
        chance = (1 + int((by_noise >= leads[name].value).sum())) / (1 + len(by_noise))
        leads[name] = Lead(leads[name].value, float(by_noise.std()), chance)
    return leads


def _drawn(points: Points, first: Fit, noise: float, seed: int = 0) -> Array:
    """Simulate log losses of tables for which the first law is right, [S, n], with noise shared in groups."""
    random = np.random.default_rng(seed)
    errors = random.standard_normal((N_TABLES, points.n))
    if points.groups:
        shared = shared_errors(first, points.groups)
        errors = math.sqrt(1 - shared.share) * errors / np.sqrt(points.weights)
        common = random.standard_normal((N_TABLES, shared.n_groups))[:, shared.place]
        errors += math.sqrt(shared.share) * common
    else:
        errors /= np.sqrt(points.weights)
    return np.asarray(np.log(first.predict(points.sizes)) + noise * noise_of(first).relative * errors)


def _simulated(points: Points, tested: Fit, test: Backtest, drawn: Array, truth: Fit) -> Array:
    """`Backtest.error` of a law on each of the simulated tables, [S].

    Each refit starts at the law's fit to the noise-free table.
    """
    law, means, sizes = tested.law, truth.predict(points.sizes), []
    for errors in test.cuts:
        below, above, rows = errors.cut.below, errors.cut.above, errors.fit.rows
        # Through its log, around which tables are drawn.
        clean = points.only(below).with_loss(np.exp(np.log(means)[below]))
        start = fit(clean, law, LEAST_SQUARES).theta
        weights = np.broadcast_to(rows.weights, (len(drawn), len(below)))
        tables = Rows(rows.logs, drawn[:, below], weights, rows.delta)
        refits = solve(law, np.tile(start, (len(drawn), 1)), tables, tol=_TOLERANCE)
        logs = errors.fit.centered({name: points.sizes[name][above] for name in law.columns})
        sizes.append(np.abs(law.log_loss(refits.theta, logs) - drawn[:, above]).mean(1))
    return np.asarray(np.mean(sizes, axis=0))


def _sentences(rows: Sequence[LawRow], cuts: Cuts, better: str | None) -> list[str]:
    first, *others = rows
    name, why = first.fit.law.name, cuts.why or first.backtest.why
    forms = [f"{row.fit.law.name}: {row.misfit.sentences[0]}" for row in rows]
    if why:
        return [f"laws cannot be compared by their predictions: {why}", *forms]
    off = f"{name} is off by {first.backtest.error:.2%} of the loss on larger runs"
    best = next((row for row in others if row.fit.law.name == better), None)
    if best and best.lead:
        off = (
            f"{better} predicts larger runs better than {name}: it is off by {best.backtest.error:.2%} of the "
            f"loss where {name} is off by {first.backtest.error:.2%}; if {name} were right, noise would give such a "
            f"lead in {best.lead.chance:.1%} of tables"
        )
    elif others:
        names = listed([row.fit.law.name for row in others])
        off += f"; {names} {'do' if others[1:] else 'does'} not predict them better by more than noise"
    return [off, *forms]
