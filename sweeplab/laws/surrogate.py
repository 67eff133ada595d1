"""A surrogate of the loss over searched values and sizes: one Gaussian process for all cells of a study.

The log loss of a trial at the searched values z and the sizes s of its cell is

    trend(s) + response(z, s) + departure(z, s) + noise

- trend: a quadratic in s, with wide normal priors on its coefficients. It lets cells of unlike size be compared.
- response: a quadratic in z whose linear term depends on s, so that an optimum may move with the size.
- departure: a Matérn 5/2 process with a length scale for each column.
- noise: normal, with a log standard deviation that is linear in z: losses scatter more above the best learning rate.

The length scales, amplitudes and noise have normal priors on their logs and are fitted by maximum a posteriori
probability (Rasmussen and Williams 2006, Gaussian processes for machine learning, sections 2.7 and 5.4, with the
gradients of equation 5.9). Rows that lie far from what all others predict (leave-one-out, equation 5.12) count less.

Legend: n rows, d columns, m points to predict.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_pairs = functools.cache(np.triu_indices)

# A row's leave-one-out error may be this many standard deviations before the row counts less.
FAR = 2.0
# The hyperparameters of the process are fitted to at most this many rows: the fit takes O(n³).
MOST_FITTED = 200
# It is conditioned on at most this many rows.
MOST_ROWS = 600
# What a variance is at least, so that covariances have a Cholesky factor in double precision.
_JITTER = 1e-8
# Standard deviations of a hyperparameter's prior: beyond, exponentials may overflow.
_FARTHEST = 6.0
# A fit ends after so many steps, or where the next one promises less log density.
_MOST_STEPS, _CONVERGED = 40, 1e-2
# Priors: the center of a log, and its standard deviation.
_SEARCHED_SCALE, _SIZE_SCALE = (0.0, 0.5), (math.log(2.0), 0.7)
_DEPARTURE, _RESPONSE = (math.log(0.05), 0.7), (math.log(0.1), 0.7)
_NOISE, _NOISE_SLOPE = (math.log(0.008), 0.7), (0.7, 0.5)


class Columns(NamedTuple):
    """What the columns of a table of inputs are: searched or sizes, numbers or indicators (0 or 1) of a choice.

    Searched numbers run from -1 to 1 over their range; sizes have mean 0 and standard deviation 1.
    """

    is_searched: NDArray[np.bool_]
    is_number: NDArray[np.bool_]

    @property
    def numbers(self) -> NDArray[np.intp]:
        """Return the searched columns that are numbers."""
        return np.flatnonzero(self.is_searched & self.is_number)

    def trend(self, x: Floats) -> Floats:
        """Return the terms of the trend [n, …]: a quadratic in the sizes."""
        sizes = x[:, ~self.is_searched]
        smooth = x[:, ~self.is_searched & self.is_number]
        return np.hstack([np.ones((len(x), 1)), sizes, _products(smooth, smooth)])

    def response(self, x: Floats) -> Floats:
        """Return the terms of the response [n, …]: a quadratic in searched numbers, and their products with sizes."""
        z, sizes = x[:, self.numbers], x[:, ~self.is_searched]
        moved = (z[:, :, None] * sizes[:, None, :]).reshape(len(x), -1)
        return np.hstack([z, x[:, self.is_searched & ~self.is_number], _products(z, z), moved])


def _products(one: Floats, other: Floats) -> Floats:
    first, second = _pairs(one.shape[1])
    return one[:, first] * other[:, second]


class Posterior(NamedTuple):
    """The log losses expected at some points [m], and their covariance [m, m] without the noise of a run."""

    mean: Floats
    covariance: Floats


class Scales(NamedTuple):
    """The hyperparameters of the process over some columns, as logs but for `noise_slope`."""

    columns: Columns
    length: Floats
    departure: float
    response: float
    noise: float
    noise_slope: Floats

    @classmethod
    def of(cls, columns: Columns, vector: Floats) -> Scales:
        """Return the hyperparameters that a vector holds."""
        n_columns = len(columns.is_searched)
        length, rest = vector[:n_columns], vector[n_columns:]
        return cls(columns, length, rest[0], rest[1], rest[2], rest[3:])

    def noise_sd(self, x: Floats) -> Floats:
        """Return the standard deviation of a run's log loss about its mean at some points."""
        return np.exp(self.noise + x[:, self.columns.numbers] @ self.noise_slope)


@dataclass(frozen=True)
class Surrogate:
    """A fitted process: predict the log loss at any point with `predict`."""

    scales: Scales
    x: Floats
    y: Floats
    extra: Floats  # variance of each row besides the noise
    center: float
    _lower: Floats
    _weights: Floats

    @property
    def errors(self) -> Floats:
        """Return each row's error if it is predicted from all others, in standard deviations [n]."""
        return self._weights / np.sqrt(np.diag(_divided(self._lower, np.eye(len(self.y)))))

    def _expected(self, x: Floats) -> tuple[Floats, Floats]:
        """The expected log losses at points [m, d], and what the rows explain of them [n, m], whitened."""
        from scipy.linalg import solve_triangular

        across = _covariance(self.scales, x, self.x)
        explained = solve_triangular(self._lower, across.T, lower=True, check_finite=False)
        return across @ self._weights + self.center, explained

    def predict(self, x: Floats) -> Posterior:
        """Return the expected log losses at points [m, d] and their covariance."""
        mean, explained = self._expected(x)
        return Posterior(mean, _covariance(self.scales, x, x) - explained.T @ explained)

    def marginal(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the expected log losses at points [m, d] and the standard deviation of each [m]."""
        mean, explained = self._expected(x)
        columns = self.scales.columns
        response = math.exp(2 * self.scales.response) * (columns.response(x) ** 2).sum(axis=1)
        trend = (columns.trend(x) ** 2).sum(axis=1)
        diagonal = trend + response + math.exp(2 * self.scales.departure)
        variance = diagonal - (explained**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, _JITTER))

    def expecting(self, x: Floats) -> Surrogate:
        """Return the surrogate if runs at these points ended with their expected losses (the kriging believer)."""
        y = np.append(self.y, self.predict(x).mean)
        extra = np.append(self.extra, np.zeros(len(x)))
        return _conditioned(self.scales, np.vstack([self.x, x]), y, extra, self.center)


def fit_scales(columns: Columns, x: Floats, y: Floats, extra: Floats) -> Scales:
    """Fit the hyperparameters of the process to rows: inputs [n, d], log losses [n], known variance of each row [n].

    Newton's method with the average of observed and expected information (Gilmour, Thompson and Cullis 1995), which
    needs products with vectors alone; a step is halved until the posterior density grows. Beyond MOST_FITTED rows the
    last ones are used.
    """
    x, y, extra = x[-MOST_FITTED:], y[-MOST_FITTED:], extra[-MOST_FITTED:]
    center, sd = _priors(columns)
    # A row that is far under the priors must not shorten the length scales, which would then explain it.
    fitted = condition(Scales.of(columns, center), x, y, extra)
    vector, loss = center, _surprise(fitted)
    for _ in range(_MOST_STEPS):
        slopes, information = _slopes(fitted)
        slopes += (vector - center) / sd**2
        step = np.linalg.solve(information + np.diag(sd**-2.0), slopes)
        if slopes @ step < _CONVERGED:
            break
        for halvings in range(10):
            tried = vector - step / 2**halvings
            away = (tried - center) / sd
            if np.abs(away).max() > _FARTHEST:
                continue
            there = _conditioned(Scales.of(columns, tried), x, y, fitted.extra, fitted.center)
            lower = _surprise(there) + away @ away / 2
            if lower < loss:
                break
        else:
            break
        vector, loss, fitted = tried, lower, there
    return fitted.scales


def _surprise(surrogate: Surrogate) -> float:
    """The negative log likelihood of the rows, without its constant."""
    squares = (surrogate.y - surrogate.center) @ surrogate._weights
    return float(squares / 2 + np.log(np.diag(surrogate._lower)).sum())


def _slopes(surrogate: Surrogate) -> tuple[Floats, Floats]:
    """The gradient of `_surprise` by the hyperparameters, and their average information."""
    scales, x, weights = surrogate.scales, surrogate.x, surrogate._weights
    inverse = _divided(surrogate._lower, np.eye(len(x)))
    scaled = ((x[:, None] - x) / np.exp(scales.length)).transpose(2, 0, 1) ** 2
    root = np.sqrt(5 * scaled.sum(axis=0))
    decayed = math.exp(2 * scales.departure) * np.exp(-root)
    terms = math.exp(scales.response) * scales.columns.response(x)
    by_covariance = np.stack(
        [
            *(scaled * decayed * (1 + root) * (5 / 3)),
            2 * decayed * (1 + root + root**2 / 3),
            2 * terms @ terms.T,
        ]
    )
    # The noise has a slope for each searched number, and stands on the diagonal alone.
    levels = np.insert(x[:, scales.columns.numbers], 0, 1.0, axis=1)
    by_noise = 2 * scales.noise_sd(x)[:, None] ** 2 * levels
    outer = np.outer(weights, weights) - inverse
    slopes = np.append((by_covariance * outer).sum(axis=(1, 2)), np.diag(outer) @ by_noise)
    moved = np.hstack([(by_covariance @ weights).T, by_noise * weights[:, None]])
    return -slopes / 2, moved.T @ inverse @ moved / 2


def condition(scales: Scales, x: Floats, y: Floats, extra: Floats) -> Surrogate:
    """Return the process given rows as in `fit_scales`; rows far from what all others predict count less."""
    center = y.mean()
    surrogate = _conditioned(scales, x, y, extra, center)
    far = np.maximum((surrogate.errors / FAR) ** 2 - 1, 0)
    if not far.any():
        return surrogate
    return _conditioned(scales, x, y, extra + far * scales.noise_sd(x) ** 2, center)


def _conditioned(
    scales: Scales, x: Floats, y: Floats, extra: Floats, center: float
) -> Surrogate:
    noise = scales.noise_sd(x) ** 2 + extra + _JITTER
    covariance = _covariance(scales, x, x) + np.diag(noise)
    lower = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    weights = _divided(lower, y - center)
    return Surrogate(scales, x, y, extra, center, lower, weights)


def _covariance(scales: Scales, one: Floats, other: Floats) -> Floats:
    columns = scales.columns
    length = np.exp(scales.length)
    a, b = one / length, other / length
    squared = np.maximum((a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T, 0)
    root = np.sqrt(5 * squared)
    departure = math.exp(2 * scales.departure) * ((1 + root + root**2 / 3) * np.exp(-root))
    response = math.exp(2 * scales.response) * columns.response(one) @ columns.response(other).T
    return np.asarray(columns.trend(one) @ columns.trend(other).T + response + departure)


def _priors(columns: Columns) -> tuple[Floats, Floats]:
    """The centers and standard deviations of the hyperparameters' priors, in the order of `Scales`."""
    # Length scales grow with the number of searched values (Hvarfner, Hellsten and Nardi 2024).
    wider = math.log(max(columns.is_searched.sum(), 1)) / 2
    searched = (_SEARCHED_SCALE[0] + wider, _SEARCHED_SCALE[1])
    priors = [searched if is_searched else _SIZE_SCALE for is_searched in columns.is_searched]
    priors += [_DEPARTURE, _RESPONSE, _NOISE, *[_NOISE_SLOPE] * len(columns.numbers)]
    center, sd = np.array(priors).T
    return center, sd


def _divided(lower: Floats, right: Floats) -> Floats:
    """Return `right` divided by the matrix whose Cholesky factor is `lower`."""
    from scipy.linalg import cho_solve

    return cho_solve((lower, True), right, check_finite=False)
