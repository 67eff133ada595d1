"""The law of optima over the logs of sizes: a line, how its slopes turn, and the scatter of cells about it.

    m_c = a'x_c + sum_k f_k(x_ck) + u_c + e_c,  u ~ N(0, s^2) between cells,  e ~ N(0, V) from the rows

f_k is an integrated Brownian motion from the cells' center on: along a log unit of size k its slope, by which the
exponent departs from a_k, changes by a normal number of sd t. With t = 0 the law is a line; else it may bend, what lies
beyond the largest cell follows the exponent there, and its error grows with the distance. A cell whose optimum lies at
an end of its values tells only that it lies there or beyond (a censored observation). s and t are integrated out over a
grid: every number is a mixture of normal distributions.

Legend: C cells, p terms of the line, S pairs of s and t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.9
_SCATTER = 2.0 * np.linspace(0, 1, 41) ** 2  # of an optimum, in log units
_TURNS = {0.0: 0.5, 0.05: 0.2, 0.15: 0.2, 0.45: 0.1}  # of an exponent along a log unit: their prior shares
_STRAIGHT = {0.0: 1.0}
_LEAST_SHARE = 1e-4
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


def average(mixtures: Sequence[Mixture], log_weights: Sequence[float]) -> Mixture:
    """Return the mixture of mixtures."""
    weights = np.exp(np.array(log_weights) - max(log_weights))
    shares = [weight * mixture.shares for weight, mixture in zip(weights, mixtures, strict=True)]
    return Mixture(
        np.concatenate(shares) / weights.sum(),
        np.concatenate([mixture.means for mixture in mixtures]),
        np.concatenate([mixture.sds for mixture in mixtures]),
    )


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
    """A fitted law: what it is for every pair of scatter and turn, and their shares [S].

    `places` [C, p - 1] are the logs of the cells' sizes, and `center` their mean. `score` is the log density of each
    interior cell given all others (leave-one-out), summed.
    """

    places: Array
    center: Array
    shares: Array
    fits: Sequence[_Given]
    score: float
    n_interior: int

    def coefficient(self, k: int) -> Mixture:
        """Return a coefficient of the line."""
        return self._mixture([(fit.at[k], fit.covariance[k, k]) for fit in self.fits])

    def sum(self, factors: Array, places: Array) -> Mixture:
        """Return the sum of factors [m] times the law at the logs of sizes [m, p - 1], without the scatter."""
        return self._mixture([fit.sum(factors, places - self.center) for fit in self.fits])

    def optimum(self, logs: Array) -> Mixture:
        """Return the optimum of a new cell at the logs of its sizes [p - 1]."""
        law = self.sum(np.ones(1), logs[None])
        return Mixture(law.shares, law.means, np.hypot(law.sds, [fit.scatter for fit in self.fits]))

    def exponents(self) -> list[Mixture]:
        """Return the exponents of the sizes [p - 1], from the smallest to the largest of the cells."""
        exponents = []
        for k in range(len(self.center)):
            ends = np.stack([self.center, self.center])
            ends[:, k] = self.places[:, k].max(), self.places[:, k].min()
            exponents.append(self.sum(np.array([1.0, -1.0]) / np.ptp(ends[:, k]), ends))
        return exponents

    def cell(self, c: int) -> Mixture:
        """Return the optimum of a cell of the table, which its rows and the law tell."""
        return self._mixture([(fit.means[c], fit.variances[c]) for fit in self.fits])

    @property
    def expected(self) -> Array:
        """Return the law at the cells of the table, [C]."""
        return np.asarray(self.shares @ np.stack([fit.law for fit in self.fits]))

    def _mixture(self, numbers: Sequence[tuple[float, float]]) -> Mixture:
        means, variances = np.array(numbers).T
        return Mixture(self.shares, means, np.sqrt(np.maximum(variances, 0)))


def fit_line(optima: Optima, logs: Array, turns: Mapping[float, float] = _TURNS) -> Line | None:
    """Fit the law to optima over the logs of sizes [C, p - 1]; None with fewer than p + 1 interior cells."""
    center = logs.mean(axis=0)
    terms = np.column_stack([np.ones(len(logs)), logs - center])
    interior = optima.side == 0
    n_interior, p = int(interior.sum()), terms.shape[1]
    if n_interior <= p or np.linalg.matrix_rank(terms[interior]) < p:
        return None
    typical = float(np.sqrt(np.median(np.diag(optima.covariance)[interior])))
    # Uniform where the rows' noise hides the scatter, and in its log beyond.
    prior = np.log(np.gradient(_SCATTER)) - np.log(_SCATTER + typical + 1e-3)
    fits, log_shares = [], []
    for turn, share in turns.items():
        for scatter, log_share in zip(_SCATTER, prior, strict=True):
            fits.append(_given(optima, terms, interior, float(scatter), turn))
            log_shares.append(fits[-1].log_density + log_share + math.log(share))
    shares = np.exp(np.array(log_shares) - max(log_shares))
    kept = np.flatnonzero(shares > _LEAST_SHARE * shares.sum())
    return Line(
        places=logs,
        center=center,
        shares=shares[kept] / shares[kept].sum(),
        fits=tuple(fits[at] for at in kept),
        score=float(np.max([fit.score for fit in fits])),
        n_interior=n_interior,
    )


@dataclass(frozen=True)
class _Given:
    """The law given a scatter and a turn; `means` and `variances` [C] are of the cells' optima."""

    terms: Array
    scatter: float
    turn: float
    at: Array
    covariance: Array
    precision: Array
    residual: Array
    log_density: float
    score: float
    means: Array
    variances: Array

    @property
    def law(self) -> Array:
        departures = _departures(self.terms[:, 1:], self.terms[:, 1:], self.turn)
        return np.asarray(self.terms @ self.at + departures @ self.precision @ self.residual)

    def sum(self, factors: Array, away: Array) -> tuple[float, float]:
        """Return the mean and variance of a sum of the law at places [m, p - 1] relative to the center."""
        terms = factors @ np.column_stack([np.ones(len(away)), away])
        departures = factors @ _departures(away, self.terms[:, 1:], self.turn)
        between = departures @ self.precision
        left = terms - between @ self.terms
        variance = float(factors @ _departures(away, away, self.turn) @ factors - between @ departures)
        variance += float(left @ self.covariance @ left)
        return float(terms @ self.at + between @ self.residual), variance


def _departures(one: Array, other: Array, turn: float) -> Array:
    """Return the covariance of departures from the line at places [m, k] and [n, k] relative to the center."""
    if turn == 0:
        return np.zeros((len(one), len(other)))
    a, b = one[:, None], other[None]
    least, most = np.minimum(np.abs(a), np.abs(b)), np.maximum(np.abs(a), np.abs(b))
    same = np.sign(a) == np.sign(b)
    return np.asarray(turn**2 * (same * least**2 * (3 * most - least) / 6).sum(axis=2))


def _given(optima: Optima, terms: Array, interior: NDArray[np.bool_], scatter: float, turn: float) -> _Given:
    """Fit the law for one scatter and turn: least squares, with censored cells by scoring."""
    from scipy.special import log_ndtr

    n = len(terms)
    prior = _departures(terms[:, 1:], terms[:, 1:], turn) + (scatter**2 + 1e-8) * np.eye(n)
    total = optima.covariance + prior
    inside, outside = np.ix_(interior, interior), np.flatnonzero(~interior)
    weights = np.asarray(np.linalg.inv(total[inside]), np.float64)
    precision = np.zeros((n, n))
    precision[inside] = weights
    values = np.where(interior, optima.values, 0.0)
    at, covariance = _least_squares(terms, values, precision)
    # What the interior cells say of the others.
    between = total[np.ix_(~interior, interior)] @ weights
    sds = np.sqrt(np.diag(total)[outside] - (between * total[np.ix_(~interior, interior)]).sum(axis=1))
    beyond = 0.0
    for _ in range(_ROUNDS if len(outside) else 0):
        sign = optima.side[outside]
        expected = terms[outside] @ at + between @ (values - terms @ at)[interior]
        # A cell at its lowest value has a probability of Phi((bound - expected) / sd).
        z = np.clip(sign * (expected - optima.bound[outside]) / sds, -8, 8)
        ratio = np.exp(-(z**2) / 2 - math.log(math.sqrt(2 * math.pi)) - log_ndtr(z))
        information = np.maximum(ratio * (ratio + z), 1e-6) / sds**2
        values[outside] = expected + sign * ratio / sds / information
        lean = np.eye(n)[outside]
        lean[:, interior] = -between
        precision[inside] = weights
        precision[outside], precision[:, outside] = 0.0, 0.0
        precision = precision + (lean * information[:, None]).T @ lean
        at, covariance = _least_squares(terms, values, precision)
        beyond = float(log_ndtr(z).sum())
    residual = (values - terms @ at)[interior]
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
    # Each cell's optimum: the line, and its part of the distance from it.
    left, part = values - terms @ at, prior @ precision
    kept = terms - part @ terms
    variances = (
        np.diag(prior) - np.einsum("cd,cd->c", part, prior) + np.einsum("ci,ij,cj->c", kept, covariance, kept)
    )
    return _Given(
        *(terms, scatter, turn, at, covariance, precision, left, float(log_density) + beyond, score),
        means=terms @ at + part @ left,
        variances=variances,
    )


def _least_squares(terms: Array, values: Array, precision: Array) -> tuple[Array, Array]:
    covariance: Array = np.asarray(np.linalg.inv(terms.T @ precision @ terms), np.float64)
    return covariance @ terms.T @ precision @ values, covariance


def bends(optima: Optima, logs: Array, names: Sequence[str]) -> dict[str, float]:
    """Return the p-value of a square of each log size, where the cells allow a test."""
    from scipy.special import stdtr

    p_values, interior = {}, optima.side == 0
    for at, name in enumerate(names):
        if len(np.unique(logs[interior, at].round(3))) < 3:
            continue
        squared = (logs[:, at] - logs[:, at].mean()) ** 2
        bent = fit_line(optima, np.column_stack([logs, squared]), _STRAIGHT)
        if bent is None:
            continue
        number = bent.coefficient(-1)
        freedom = max(bent.n_interior - logs.shape[1] - 2, 1)
        p_values[name] = 2 * float(
            stdtr(freedom, -abs(number.mean) / math.sqrt(max(number.variance, 1e-300)))
        )
    return p_values
