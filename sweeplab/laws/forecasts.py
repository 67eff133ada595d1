"""Forecasts of a run's loss: by a law, with its prediction interval and verdict, and by two rules without a law.

METHOD says how the interval is computed. The continuous ranked probability score is in log units; for a forecast
without a spread it is the absolute error, and lower is better. For a normal distribution, with z = (x - mean) / sd, it
is (Gneiting and Raftery 2007, Strictly proper scoring rules, prediction, and estimation, equation 21, with the sign
turned)

    CRPS = sd * (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.assessment import Assessment, Verdict
from sweeplab.laws.core import LEVEL
from sweeplab.laws.forms import loss_at
from sweeplab.laws.points import Points, path_of

INTERVAL_ONLY = "interval only"
LAW, LAST_POINT, LOG_LINE = "law", "last point", "log-linear line"  # who forecasts
METHOD = (
    "draws of the law's bent form, of a run's noise, and of what values that are not known exactly are expected to "
    "cost; over all that is doubted"
)
_NORMAL_END = 1.6448536269514722  # of the standard normal distribution at 95%
_FEWEST_FOR_A_LINE = 3
_STANDARD = NormalDist()


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

    def draws(self, random: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return draws of the excess, [count].

        The excess is quadratic in the errors of the values. It is taken for the square of one error, whose tail is the
        longest.
        """
        errors = random.standard_normal(count)
        return np.asarray((math.sqrt(self.known) + math.sqrt(self.error) * errors) ** 2)


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

    `log_loss` is the normal distribution of the log loss with this interval, and `regret` the part of it that the run's
    values are expected to cost. A loss that is no number of a law has the verdict INTERVAL_ONLY.
    """

    loss: float
    low: float
    high: float
    level: float
    log_loss: Normal
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
        BadInput: the point lacks a column that the law uses, or it lies off the path that the law holds along.
    """
    points, law, fit = assessment.points, assessment.law, assessment.fit
    missing = [name for name in law.columns if name not in at]
    if missing:
        raise BadInput(f"{law.name} needs {' and '.join(missing)} too: --{' and --'.join(missing)}")
    quantity, path = loss_at(law, at), path_of(points)
    if path and len(law.columns) == 1 and path.misses(at):
        why = f"the law holds along one path, {path.words}, and this run lies off it"
        raise BadInput(f"{quantity.meaning} cannot be forecast: {why}")
    random = np.random.default_rng(2)
    # The mean of several seeds is less noisy only up to the number of seeds of the table's rows.
    few = min(float(seeds), float(np.median(points.weights)))
    noise = fit.errors(random, at, few)
    value, low, high = assessment.ends(quantity, noise + regret.draws(random, len(noise)))
    loss = value + regret.mean
    verdict = assessment.judged(quantity, loss, low, high)
    if not verdict.identified:
        words = f"no law; interval only: {verdict.reason}"
        verdict = Verdict(INTERVAL_ONLY, words, verdict.code, verdict.facts)
    return Forecast(
        loss=math.exp(loss),
        low=math.exp(low),
        high=math.exp(high),
        level=LEVEL,
        log_loss=Normal((low + high) / 2, (high - low) / 2 / _NORMAL_END),
        verdict=verdict,
        regret=regret.mean,
    )


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
    from scipy.special import stdtrit

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
    end = error * float(stdtrit(points.n - 2, (1 + LEVEL) / 2))
    return Naive(Normal(mean, end / _NORMAL_END), f"log loss as a line of log {x_name}")
