"""The line of optima over the logs of sizes, with the scatter of cells about it.

    m_c = a'x_c + u_c + e_c,  u ~ N(0, s^2) between cells,  e ~ N(0, V) from the rows

A cell whose optimum lies at an end of its values tells only that it lies there or beyond (a censored observation). The
scatter s is integrated out over a grid: every number is a mixture of normal distributions, whose variance for a new
cell is s^2 (1 + x'(X'X)^-1 x) where the rows' noise is small.

Legend: C cells, p terms of the line, S values of the scatter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.9
_SCATTER = 2.0 * np.linspace(0, 1, 61) ** 2  # of an optimum, in log units
_ROUNDS = 15


@dataclass(frozen=True)
class Mixture:
    """A mixture of normal distributions: shares [S], means [S], sds [S]."""

    shares: Array
    means: Array
    sds: Array

    @property
    def mean(self) -> float:
        """Return the mean."""
        return float(self.shares @ self.means)

    @property
    def variance(self) -> float:
        """Return the variance."""
        return float(self.shares @ (self.sds**2 + (self.means - self.mean) ** 2))

    def below(self, value: float) -> float:
        """Return the probability of less than a value."""
        from scipy.special import ndtr

        return float(self.shares @ ndtr((value - self.means) / np.maximum(self.sds, 1e-12)))

    def quantile(self, share: float) -> float:
        """Return the value below which a share lies, by bisection."""
        low = float((self.means - 12 * self.sds).min()) - 1e-9
        high = float((self.means + 12 * self.sds).max()) + 1e-9
        for _ in range(60):
            middle = (low + high) / 2
            if self.below(middle) < share:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the ends of the central interval."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def widened(self, sd: float) -> Mixture:
        """Return the sum with an independent normal error."""
        return Mixture(self.shares, self.means, np.hypot(self.sds, sd))

    def times(self, factor: float) -> Mixture:
        """Return the distribution of a multiple."""
        return Mixture(self.shares, self.means * factor, self.sds * abs(factor))


@dataclass(frozen=True)
class Optima:
    """The optima of one searched value: [C], their covariance [C, C], and which lie at an end.

    `side` is -1 where the optimum is at or below the smallest value tried, `bound`; 1 at or above the largest; else 0.
    """

    values: Array
    covariance: Array
    side: Array
    bound: Array

    def only(self, keep: NDArray[np.bool_]) -> Optima:
        """Return the optima of some cells."""
        within = self.covariance[np.ix_(keep, keep)]
        return Optima(self.values[keep], within, self.side[keep], self.bound[keep])


@dataclass(frozen=True)
class Line:
    """A fitted line: the coefficients for every value of the scatter, [S, p] and [S, p, p], and their shares [S].

    `center` [p - 1] is subtracted from the logs of the sizes. `score` is the log density of each interior cell given
    all others (leave-one-out), summed.
    """

    center: Array
    shares: Array
    at: Array
    covariance: Array
    scatter: Array
    score: float
    n_interior: int
    shrunk: tuple[Array, Array]  # means and sds of the cells' own optima, [S, C]

    def number(self, terms: Array) -> Mixture:
        """Return a linear combination of the coefficients."""
        return Mixture(self.shares, self.at @ terms, self._sds(terms))

    def optimum(self, logs: Array) -> Mixture:
        """Return the optimum of a new cell at the logs of its sizes [p - 1]."""
        terms = np.concatenate([[1.0], logs - self.center])
        return Mixture(self.shares, self.at @ terms, np.hypot(self._sds(terms), self.scatter))

    def cell(self, c: int) -> Mixture:
        """Return the optimum of a cell of the table, which its rows and the line tell."""
        return Mixture(self.shares, self.shrunk[0][:, c], self.shrunk[1][:, c])

    def _sds(self, terms: Array) -> Array:
        return np.asarray(np.sqrt(np.maximum(np.einsum("j,sjk,k->s", terms, self.covariance, terms), 0)))


def fit_line(optima: Optima, logs: Array) -> Line | None:
    """Fit a line to optima over the logs of sizes [C, p - 1]; None with fewer than p + 1 interior cells."""
    center = logs.mean(axis=0)
    terms = np.column_stack([np.ones(len(logs)), logs - center])
    interior = optima.side == 0
    n_interior, p = int(interior.sum()), terms.shape[1]
    if n_interior <= p or np.linalg.matrix_rank(terms[interior]) < p:
        return None
    typical = float(np.sqrt(np.median(np.diag(optima.covariance)[interior])))
    fits = [_given(optima, terms, interior, float(s)) for s in _SCATTER]
    log_shares = np.array([fit.log_density for fit in fits])
    # Uniform where the rows' noise hides the scatter, and in its log beyond.
    log_shares += np.log(np.gradient(_SCATTER)) - np.log(_SCATTER + typical + 1e-3)
    shares = np.exp(log_shares - log_shares.max())
    shares /= shares.sum()
    return Line(
        center=center,
        shares=shares,
        at=np.stack([fit.at for fit in fits]),
        covariance=np.stack([fit.covariance for fit in fits]),
        scatter=_SCATTER,
        score=float(np.max([fit.score for fit in fits])),
        n_interior=n_interior,
        shrunk=(np.stack([fit.means for fit in fits]), np.stack([fit.sds for fit in fits])),
    )


@dataclass(frozen=True)
class _Given:
    at: Array
    covariance: Array
    log_density: float
    score: float
    means: Array
    sds: Array


def _given(optima: Optima, terms: Array, interior: NDArray[np.bool_], scatter: float) -> _Given:
    """Fit the line for one value of the scatter: least squares, with censored cells by scoring."""
    from scipy.special import log_ndtr

    n = len(terms)
    total = optima.covariance + (scatter**2 + 1e-8) * np.eye(n)
    inside = np.ix_(interior, interior)
    precision = np.zeros((n, n))
    precision[inside] = np.linalg.inv(total[inside])
    values = np.where(interior, optima.values, 0.0)
    sds = np.sqrt(np.diag(total))
    at, covariance = _least_squares(terms, values, precision)
    outside = np.flatnonzero(~interior)
    beyond = 0.0
    for _ in range(_ROUNDS if len(outside) else 0):
        sign, expected = optima.side[outside], terms[outside] @ at
        # A cell at its lowest value has a probability of Phi((bound - expected) / sd).
        z = np.clip(sign * (expected - optima.bound[outside]) / sds[outside], -8, 8)
        ratio = np.exp(-(z**2) / 2 - math.log(math.sqrt(2 * math.pi)) - log_ndtr(z))
        information = np.maximum(ratio * (ratio + z), 1e-6) / sds[outside] ** 2
        values[outside] = expected + sign * ratio / sds[outside] / information
        precision[outside, outside] = information
        at, covariance = _least_squares(terms, values, precision)
        beyond = float(log_ndtr(z).sum())
    residual = (values - terms @ at)[interior]
    weights = precision[inside]
    inner = terms[interior]
    log_density = -0.5 * (
        np.linalg.slogdet(total[inside])[1]
        + np.linalg.slogdet(inner.T @ weights @ inner)[1]
        + residual @ weights @ residual
    )
    # Of each interior cell given all others: P r / diag P with P the weights less the line.
    projected = weights - weights @ inner @ np.linalg.inv(inner.T @ weights @ inner) @ inner.T @ weights
    left = np.maximum(np.diag(projected), 1e-12)
    away = projected @ (values[interior]) / left
    score = float(0.5 * np.sum(np.log(left) - left * away**2))
    means, sds_of = _shrunk(terms, at, covariance, precision, values, scatter)
    return _Given(at, covariance, float(log_density) + beyond, score, means, sds_of)


def _shrunk(
    terms: Array, at: Array, covariance: Array, precision: Array, values: Array, scatter: float
) -> tuple[Array, Array]:
    """Return the mean and sd of each cell's own optimum: the line, and its part of the distance from it."""
    part = scatter**2 * precision
    means = terms @ at + part @ (values - terms @ at)
    kept = terms - part @ terms
    variance = scatter**2 - np.diag(part) * scatter**2 + np.einsum("ci,ij,cj->c", kept, covariance, kept)
    return means, np.sqrt(np.maximum(variance, 0))


def _least_squares(terms: Array, values: Array, precision: Array) -> tuple[Array, Array]:
    covariance: Array = np.asarray(np.linalg.inv(terms.T @ precision @ terms), np.float64)
    return covariance @ terms.T @ precision @ values, covariance


def form_error(optima: Optima, logs: Array, order: Array) -> float:
    """Return the sd of the line's own error per log unit of `order` [C] beyond the largest cell of its fit.

    Lines fitted to the smaller cells predict the larger ones; what their intervals do not explain is of the form.
    """
    interior = np.flatnonzero(optima.side == 0)
    ranked = interior[np.argsort(order[interior], kind="stable")]
    squares, distances = [], []
    for share in (0.5, 0.67, 0.8):
        n_small = max(math.ceil(share * len(ranked)), logs.shape[1] + 3)
        small, large = ranked[:n_small], ranked[n_small:]
        is_small = np.zeros(len(order), bool)
        is_small[small] = True
        line = fit_line(optima.only(is_small), logs[is_small]) if len(large) else None
        for c in large:
            distance = float(order[c] - order[small].max())
            if line is None or distance <= 0:
                continue
            predicted = line.optimum(logs[c])
            noise = predicted.variance + float(optima.covariance[c, c])
            squares.append((float(optima.values[c]) - predicted.mean) ** 2 - noise)
            distances.append(distance**2)
    if not squares:
        return 0.0
    return math.sqrt(max(sum(squares), 0.0) / sum(distances))


def bends(optima: Optima, logs: Array, names: Sequence[str]) -> dict[str, float]:
    """Return the p-value of a square of each log size, where the cells allow a test."""
    from scipy.special import stdtr

    p_values, interior = {}, optima.side == 0
    line = fit_line(optima, logs)
    for at, name in enumerate(names):
        if line is None or len(np.unique(logs[interior, at].round(3))) < 3:
            continue
        squared = (logs[:, at] - line.center[at]) ** 2
        bent = fit_line(optima, np.column_stack([logs, squared]))
        if bent is None:
            continue
        number = bent.number(np.eye(bent.at.shape[1])[-1])
        freedom = max(bent.n_interior - bent.at.shape[1], 1)
        p_values[name] = 2 * float(
            stdtr(freedom, -abs(number.mean) / math.sqrt(max(number.variance, 1e-300)))
        )
    return p_values
