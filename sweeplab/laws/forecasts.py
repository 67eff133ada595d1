"""Forecasts of a run's loss: by a law, with its prediction interval and verdict, and by two rules without a law.

METHOD says how the interval is computed. Without the form's error, for a linear law with normal errors, it is the
classical prediction interval. The continuous ranked probability score is in log units; for a forecast without a spread
it is the absolute error, and lower is better. For a normal distribution, with z = (x - mean) / sd, it is (Gneiting and
Raftery 2007, Strictly proper scoring rules, prediction, and estimation, equation 21, with the sign turned)

    CRPS = sd * (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.assessment import Assessment, Verdict, gate, judge
from sweeplab.laws.forms import loss_at
from sweeplab.laws.intervals import LEVEL, profiles, run_noise, student
from sweeplab.laws.points import Points, path_of

INTERVAL_ONLY = "interval only"
LAW, LAST_POINT, LOG_LINE = "law", "last point", "log-linear line"  # who forecasts
METHOD = (
    "profile of the law (F quantile), a run's noise and the form's error in the back-test (t quantiles), "
    "added in quadrature in log loss; the form's error on the side to which the residuals lean; what values that are "
    "not known exactly are expected to cost"
)
_NORMAL_END = 1.6448536269514722  # of the standard normal distribution at 95%
_AWAY = 0.86  # the level of the side away from the lean: 7% of the outcomes are left out there
_FEWEST_FOR_A_LINE = 3
_STANDARD = NormalDist()
# Standard normal errors, equally probable.
_ERRORS = np.array([_STANDARD.inv_cdf(share) for share in (np.arange(400) + 0.5) / 400])


@dataclass(frozen=True)
class Regret:
    """The expected excess of a run's log loss over that of the best values.

    `error` is due to the best values' not being known exactly, `known` to values that are meant to lie off them.
    """

    error: float = 0.0
    known: float = 0.0

    @property
    def mean(self) -> float:
        """Return the expected excess."""
        return self.error + self.known

    def draws(self) -> NDArray[np.float64]:
        """Return 400 equally probable excesses.

        The excess is quadratic in the errors of the values. It is taken for the square of one error, whose tail is the
        longest.
        """
        return np.asarray((math.sqrt(self.known) + math.sqrt(self.error) * _ERRORS) ** 2)


NO_REGRET = Regret()


@dataclass(frozen=True)
class Normal:
    """A normal distribution of a log loss; with sd 0 it is a forecast without a spread."""

    mean: float
    sd: float

    def crps(self, value: float) -> float:
        """Return the continuous ranked probability score at `value`."""
        if self.sd == 0:
            return abs(value - self.mean)
        z = (value - self.mean) / self.sd
        within = z * (2 * _STANDARD.cdf(z) - 1) + 2 * _STANDARD.pdf(z) - 1 / math.sqrt(math.pi)
        return self.sd * within

    def pit(self, value: float) -> float:
        """Return the probability of less than `value`: even from 0 to 1 if forecasts are calibrated."""
        if self.sd == 0:
            if value == self.mean:
                return 0.5
            return float(value > self.mean)
        return _STANDARD.cdf((value - self.mean) / self.sd)


@dataclass(frozen=True)
class Forecast:
    """The loss that a law predicts for a run, with its prediction interval at `level`, which the verdict judges.

    `log_loss` is the normal distribution of the log loss with this interval; `law_low` and `law_high` bound the law
    alone, `noise` is the sd of a run's log loss about the law, and `form` the sd of the form's error there; `regret` is
    the part of the log loss that the run's values are expected to cost. A loss that is no number of a law has the
    verdict INTERVAL_ONLY. `without_outliers` is the loss without the rows far from the law, None if there are none.
    """

    loss: float
    low: float
    high: float
    level: float
    log_loss: Normal
    law_low: float
    law_high: float
    noise: float
    form: float
    without_outliers: float | None
    verdict: Verdict
    regret: float = 0.0


@dataclass(frozen=True)
class Naive:
    """A forecast without a law, or why there is none."""

    log_loss: Normal | None
    why: str


def predict(
    assessment: Assessment, at: Mapping[str, float], seeds: int = 1, regret: Regret = NO_REGRET
) -> Forecast:
    """Predict the mean loss of `seeds` runs at a point {"params": …, "tokens": …}.

    A law is of tuned losses; `regret` is by how much the runs' values are expected to miss them.

    Raises:
        BadInput: the point lacks a column that the law uses, it lies off the path that the law holds along, or the rows
            do not bound the loss there.
    """
    points, fit, shared = assessment.points, assessment.fit, assessment.shared
    missing = [name for name in fit.law.columns if name not in at]
    if missing:
        raise BadInput(f"{fit.law.name} needs {' and '.join(missing)} too: --{' and --'.join(missing)}")
    quantity, path = loss_at(fit.law, fit.center, at), path_of(points)
    if path and len(fit.law.columns) == 1 and path.misses(at):
        why = f"the law holds along one path, {path.words}, and this run lies off it"
        raise BadInput(f"{quantity.meaning} cannot be forecast: {why}")
    (interval,) = profiles(fit, [quantity], shared, assessment.noise)
    if interval.open_ends:
        why = f"the {several(fit.n_points, 'row')} give it no {interval.open_ends[0]} bound"
        why += ", so there is no interval to seal"
        raise BadInput(f"{quantity.meaning} cannot be forecast: {why}")
    # The mean of several seeds is less noisy only up to the number of seeds of the table's rows.
    few = np.minimum([float(seeds)], np.median(fit.rows.weights))
    logs = fit.centered({name: np.array([at[name]]) for name in fit.law.columns})
    (noise,), quantile = run_noise(fit, shared, assessment.noise, logs, few)
    form = assessment.form_error.sd(fit, quantity)
    reached = assessment.form_error.widened(fit, quantity, interval)
    spread = assessment.tuning.spread(fit, assessment.noise, quantity)
    of_rows, reached = reached, assessment.tuning.widened(reached, spread)
    below = math.hypot(interval.value - reached.low, quantile * noise)
    above = math.hypot(reached.high - interval.value, quantile * noise)
    if form:  # the side to which the residuals lean is the wider one, and hardly ever missed
        narrower = student(fit.freedom, _AWAY) / student(fit.freedom)
        if assessment.form_error.lean > 0:
            below *= narrower
        elif assessment.form_error.lean < 0:
            above *= narrower
    tuned = replace(interval, low=interval.value - below, high=interval.value + above)
    loss = interval.value + regret.mean
    low, high = interval.value + np.array(_ends(below, above, regret, fit.freedom))
    if not math.isfinite(low + high) or max(abs(low), abs(high)) > 700:
        raise BadInput(f"{quantity.meaning} cannot be forecast: its interval has no end that is a number")
    lacking = gate(quantity, points, fit)
    sealed = replace(interval, value=loss, low=low, high=high)
    reasons = [assessment.doubt, assessment.choice.doubt_of(fit.law)]
    if assessment.what_if:
        reasons.append(assessment.what_if.doubt(quantity, of_rows, spread))
    if assessment.outliers:
        reasons.append(assessment.outliers.doubt(quantity, tuned))
    verdict = judge(quantity, sealed, fit, lacking, next(filter(None, reasons), ""))
    if not verdict.identified:
        verdict = Verdict(INTERVAL_ONLY, f"no law; interval only: {verdict.reason}")
    without = None
    if assessment.outliers:
        without = math.exp(assessment.outliers.value(quantity) + regret.mean)
    return Forecast(
        loss=math.exp(loss),
        low=math.exp(low),
        high=math.exp(high),
        level=LEVEL,
        log_loss=Normal((low + high) / 2, (high - low) / 2 / _NORMAL_END),
        law_low=math.exp(interval.low),
        law_high=math.exp(interval.high),
        noise=noise,
        form=form,
        without_outliers=without,
        verdict=verdict,
        regret=regret.mean,
    )


def _ends(below: float, above: float, regret: Regret, freedom: float) -> tuple[float, float]:
    """Return the interval of the sum of an error whose own interval is -below to above, and of what values cost."""
    from scipy.optimize import brentq
    from scipy.special import stdtr

    if not regret.mean or not math.isfinite(below + above):
        return -below, above
    quantile, excesses = student(freedom), regret.draws()

    def share_below(x: float) -> float:
        errors = x - excesses
        sides = np.where(errors < 0, below, above) + 1e-12  # an exact table has no error at all
        return float(np.mean(stdtr(freedom, errors / sides * quantile)))

    most = above + float(excesses.max())
    low, high = (
        brentq(lambda x, end=end: share_below(x) - end, -2 * below, 2 * most) for end in (0.05, 0.95)
    )
    return low, high


def naive_forecasts(points: Points, at: Mapping[str, float]) -> dict[str, Naive]:
    """Return the forecasts without a law: the loss of the next smaller run, and a line of log loss over log C.

    Without FLOPs in the table, the line is over N or D.
    """
    known = points.columns.keys() & at.keys()
    x_name = next((name for name in ("flops", "params", "tokens") if name in known), "")
    if not x_name:
        return dict.fromkeys((LAST_POINT, LOG_LINE), Naive(None, "the table and the point share no column"))
    x, y = np.log(points.columns[x_name]), np.log(points.columns["loss"])
    where = math.log(at[x_name])
    smaller = np.flatnonzero(x <= where)
    if smaller.size:
        last = smaller[np.argmax(x[smaller])]
        nearest = Naive(Normal(float(y[last]), 0.0), f"the loss of the row with the next smaller {x_name}")
    else:
        nearest = Naive(None, f"every row has more {x_name}")
    return {LAST_POINT: nearest, LOG_LINE: _line(points, x_name, where)}


def _line(points: Points, x_name: str, where: float) -> Naive:
    x, y, weights = np.log(points.columns[x_name]), np.log(points.columns["loss"]), points.weights
    total = float(weights.sum())
    center = float(weights @ x) / total
    spread = float(weights @ (x - center) ** 2)
    if points.n < _FEWEST_FOR_A_LINE or spread < 1e-12:
        return Naive(
            None,
            f"{several(points.n, 'row')} at {several(len(np.unique(x)), 'value')} of {x_name} make no line",
        )
    slope = float(weights @ ((x - center) * y)) / spread
    offset = float(weights @ y) / total
    residual = y - offset - slope * (x - center)
    variance = float(weights @ residual**2) / (points.n - 2)
    error = math.sqrt(variance * (1 / float(np.median(weights)) + 1 / total + (where - center) ** 2 / spread))
    mean = offset + slope * (where - center)
    end = error * student(points.n - 2)
    return Naive(Normal(mean, end / _NORMAL_END), f"log loss as a line of log {x_name}")
