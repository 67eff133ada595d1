"""The one posterior behind every number of a law: draws by adaptive importance sampling.

Legend: n rows; p scales, which enter linearly; q shape parameters, which do not (exponents); S draws.

A law is f = X b with the columns X [n, p] = 1, x_k^-a_k, the exponents a_k, and scales b > 0. The residual of a row
is 1 - f/y. The covariance of the residuals is

    s^2 T [(1 - r) I + r J] T,   T = diag(exp(c z) / sqrt(weight)),   J = 1 inside a group, 0 elsewhere,

so that errors may grow or fall along z (the centered log of tokens) and be shared inside a group (a size). The priors:
each a_k as its own says, c ~ N(0, 0.2^2), r ~ U(0, 0.7), log s flat. Scales and s are integrated in closed form: with
V = T[...]T, M = X'V^-1 X and RSS the weighted residual square at the best scales, the log density of the rest is

    -(n - p)/2 log RSS - 1/2 log|V| - 1/2 log|M| + 1/2 log|X'X| + log priors.

|X'X|^(1/2) is the volume that the scales span in units of the losses: without it a law prefers exponents whose
columns are nearly parallel. It is unweighted, since a prior does not know V.
The density of a, c and r is sampled as by Cappe et al. 2008, Adaptive importance sampling in general mixture
classes, with one Student t proposal a stage in place of a mixture, over targets that go from the prior to the
posterior (Neal 2001, Annealed importance sampling); then s and the scales are drawn given the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput

Array = NDArray[np.float64]
Design = Callable[[Array], Array]  # shape parameters [S, q] to columns [S, n, p]
# Shares, in 0 to 1, to the values below which a prior has them.
Prior = Callable[[Array], Array]

LEVEL = 0.9  # of every interval
N_DRAWS = 4000  # a 5% quantile of so many has an error of 0.02 standard deviations
TILT_SD = 0.2  # published tables have c of about -0.25; wider spoils small tables
MOST_SHARED = 0.7  # beyond it the rows of a size say little more than one
_ENOUGH = 1000  # draws that the weighted ones must be worth, and those of an adaptation
_AT_ONCE = 1e6  # rows times draws in memory
_MOST_DRAWN = 20_000  # a stage
_FREEDOM = 5.0  # of the proposals: their tails are heavier than those of the target
_SPREAD = 0.3  # the share of a stage's draws that must count at the next target
DIGITS = 1e-5  # relative: losses are not known better, and a residual of 0 has no logarithm
RIDGE = 1e-12  # relative: keeps columns that are alike from a singular matrix


def uniform(low: float, high: float) -> Prior:
    """Return the prior of a parameter that lies between two ends."""
    return lambda share: low + (high - low) * share


def logistic(sd: float) -> Prior:
    """Return the prior of a parameter that is about 0: its tails are heavier than a normal's."""

    def at(share: Array) -> Array:
        inside = np.clip(share, 1e-12, 1 - 1e-12)
        return sd * math.sqrt(3) / math.pi * np.log(inside / (1 - inside))

    return at


class RowErrors(NamedTuple):
    """What the errors of rows may do: `tilt` is z, [n], of mean 0; `groups` share an error, [n]; `weights`, [n].

    Without groups none is shared.
    """

    tilt: Array
    groups: NDArray[np.int64] | None
    weights: Array


class Draws(NamedTuple):
    """Draws of all unknowns: `shapes` [S, q], `scales` [S, p], `sigma`, `tilt` and `shared` [S].

    `effective` is how many independent draws they are worth.
    """

    shapes: Array
    scales: Array
    sigma: Array
    tilt: Array
    shared: Array
    effective: float

    def error(
        self, random: np.random.Generator, tilt: float = 0.0, weight: float = 1.0
    ) -> Array:
        """Return draws of the error of one new row of a new group, [S]; `tilt` is its z."""
        scale = self.sigma * np.exp(self.tilt * tilt) / np.sqrt(weight)
        return np.asarray(scale * random.standard_normal(len(self.sigma)))


def interval(draws: Array) -> tuple[float, float, float]:
    """Return the median of draws and the ends of their central interval."""
    low, middle, high = np.quantile(draws, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    return float(middle), float(low), float(high)


def fit_law(loss: Array, design: Design, priors: Sequence[Prior], noise: RowErrors) -> Draws:
    """Return the posterior of a law of `loss`, [n], whose columns are `design` of the shape parameters.

    There must be more rows than scales.
    """
    return _Problem(loss, design, priors, noise).sample()


class _Marginal(NamedTuple):
    """What follows from the other unknowns: log density, RSS, the best scales [S, p], and M = L L'."""

    log_density: Array
    rss: Array
    scales: Array
    root: Array


class _Problem:
    """One table and its model. A place u, a row each, holds a logit a bounded unknown, r the last, and c / TILT_SD."""

    def __init__(
        self, y: Array, design: Design, priors: Sequence[Prior], noise: RowErrors
    ) -> None:
        self.y = y
        self.design = design
        self.priors = priors
        self.n = len(y)
        self.z = noise.tilt
        self.base = np.sqrt(noise.weights)
        self.order: NDArray[np.intp] | None = None  # of the rows by group, where some share one
        self.n_bounded = len(priors)
        if noise.groups is not None and len(np.unique(noise.groups)) < self.n:
            self.order = np.argsort(noise.groups, kind="stable")
            self.sizes = np.unique(noise.groups, return_counts=True)[1]
            self.begins = np.cumsum(self.sizes) - self.sizes
            self.n_bounded += 1

    def unknowns(self, u: Array) -> tuple[Array, Array, Array]:
        """Return the shape parameters [S, q], c and r, [S], at places u."""
        share = 1 / (1 + np.exp(-u[:, : self.n_bounded]))
        shapes = np.stack([prior(share[:, k]) for k, prior in enumerate(self.priors)], 1)
        r = np.zeros(len(u))
        if self.order is not None:
            r = MOST_SHARED * share[:, -1]
        return shapes, TILT_SD * u[:, -1], r

    def log_prior(self, u: Array) -> Array:
        """Return the log density of places under the priors, up to a constant."""
        logits = np.abs(u[:, : self.n_bounded])
        density = -(logits + 2 * np.log1p(np.exp(-logits))).sum(1)
        return np.asarray(density - u[:, -1] ** 2 / 2)

    def marginal(self, u: Array) -> _Marginal:
        """Return the density of places without the priors, and what the scales' draws need."""
        step = int(np.clip(_AT_ONCE / self.n, 1, _ENOUGH))
        parts = [self._given(u[at : at + step]) for at in range(0, len(u), step)]
        return _Marginal(*map(np.concatenate, zip(*parts, strict=True)))

    def _given(self, u: Array) -> _Marginal:
        shapes, c, r = self.unknowns(u)
        columns = self.design(shapes) / self.y[:, None]
        root_weight = self.base * np.exp(-c[:, None] * self.z)
        whole = np.concatenate([columns, np.ones((len(u), self.n, 1))], 2)
        whole *= root_weight[:, :, None]
        gram = whole.transpose(0, 2, 1) @ whole
        log_v = -2 * np.log(root_weight).sum(1)
        if self.order is not None:
            sums = np.add.reduceat(whole[:, self.order], self.begins, axis=1)
            sizes = self.sizes
            between = r[:, None] / (1 - r[:, None] + r[:, None] * sizes)
            gram = (gram - sums.transpose(0, 2, 1) @ (between[:, :, None] * sums)) / (1 - r)[
                :, None, None
            ]
            log_v += (
                (sizes - 1) * np.log1p(-r)[:, None] + np.log1p(r[:, None] * (sizes - 1))
            ).sum(1)
        root = _cholesky(gram)
        rss = root[:, -1, -1] ** 2 + self.n * DIGITS**2
        inner = root[:, :-1, :-1]
        beside = root[:, -1, :-1]
        scales = np.linalg.solve(inner.transpose(0, 2, 1), beside[:, :, None])[:, :, 0]
        density = (
            -(self.n - inner.shape[1]) / 2 * np.log(rss) - log_v / 2 - _half_log_det(inner)
        )
        plain = columns.transpose(0, 2, 1) @ columns
        density += _half_log_det(_cholesky(plain))
        return _Marginal(density, rss, np.asarray(scales), inner)

    def sample(self) -> Draws:
        """Return draws of the posterior.

        Raises:
            BadInput: none has scales above 0.
        """
        random = np.random.default_rng(0)
        u, weights, marginal = self._importance(random)
        p = marginal.scales.shape[1]
        order = _resampled(weights, random)
        sigma = np.sqrt(marginal.rss[order] / random.chisquare(self.n - p, N_DRAWS))
        step = random.standard_normal((N_DRAWS, p, 1))
        lower = marginal.root[order].transpose(0, 2, 1)
        scales = marginal.scales[order] + sigma[:, None] * np.linalg.solve(lower, step)[:, :, 0]
        shapes, c, r = (part[order] for part in self.unknowns(u))
        positive = np.flatnonzero((scales > 0).all(1))
        if not len(positive):
            raise BadInput("the losses do not fall with the size, towards an E above 0")
        kept = np.resize(positive, N_DRAWS)
        effective = 1 / (weights**2).sum()
        return Draws(shapes[kept], scales[kept], sigma[kept], c[kept], r[kept], effective)

    def _importance(self, random: np.random.Generator) -> tuple[Array, Array, _Marginal]:
        """Return places with their weights, worth at least `_ENOUGH` draws where the stages suffice."""
        # Of a large table few draws are enough to adapt: its posterior is nearly normal.
        count = int(np.clip(_AT_ONCE / self.n, _SPREAD * _ENOUGH, _ENOUGH))
        u = random.logistic(size=(2 * count, self.n_bounded + 1))  # the priors
        u[:, -1] = random.standard_normal(2 * count)
        base = np.zeros(len(u))
        marginal = self.marginal(u)
        temperature = 0.0
        for stage in range(60):  # tables of exact losses take about 30
            likelihood = marginal.log_density
            is_positive = (marginal.scales > 0).all(1)
            if np.isfinite(likelihood[is_positive]).any():
                likelihood = np.where(is_positive, likelihood, -np.inf)
            temperature = _next_temperature(base, likelihood, temperature)
            weights = _weights(base, likelihood, temperature)
            effective = 1 / (weights**2).sum()
            if stage == 59 or (temperature == 1.0 and effective >= _ENOUGH):
                break
            if temperature == 1.0:
                wanted = 1.3 * _ENOUGH * len(u) / effective
                count = int(np.clip(wanted, count, _MOST_DRAWN))
            mean = weights @ u
            spread = (weights[:, None] * (u - mean)).T @ (u - mean) + 1e-9 * np.eye(len(mean))
            u, log_q = _student(mean, spread, count, random)
            base = self.log_prior(u) - log_q
            marginal = self.marginal(u)
        return u, weights, marginal


def _cholesky(gram: Array) -> Array:
    diagonal = np.einsum("sii->si", gram)  # a view: the matrices themselves
    for ridge in RIDGE * 100.0 ** np.arange(6):
        diagonal *= 1 + ridge
        try:
            return np.asarray(np.linalg.cholesky(gram), float)
        except np.linalg.LinAlgError:  # of columns that are alike
            continue
    raise np.linalg.LinAlgError("the columns of a law are all alike")


def _half_log_det(root: Array) -> Array:
    return np.asarray(np.log(np.einsum("sii->si", root)).sum(1), float)


def _weights(base: Array, likelihood: Array, temperature: float) -> Array:
    log_weights = np.full(len(base), -np.inf)
    counts = np.isfinite(likelihood)
    log_weights[counts] = base[counts] + temperature * likelihood[counts]
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def _next_temperature(base: Array, likelihood: Array, least: float) -> float:
    """Return the highest temperature above `least` at which enough of the draws still count."""

    def effective(temperature: float) -> float:
        return float(1 / (_weights(base, likelihood, temperature) ** 2).sum())

    wanted = min(_SPREAD * len(base), _SPREAD * 2 * effective(least))
    if effective(1.0) >= wanted:
        return 1.0
    low, high = least, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        if effective(middle) >= wanted:
            low = middle
        else:
            high = middle
    return low


def _student(
    mean: Array, spread: Array, count: int, random: np.random.Generator
) -> tuple[Array, Array]:
    """Return places of a Student t with that mean and about that spread, and their log densities."""
    root = np.linalg.cholesky(spread)
    stretch = np.sqrt(_FREEDOM / random.chisquare(_FREEDOM, count))
    step = random.standard_normal((count, len(mean))) * stretch[:, None]
    log_q = -(_FREEDOM + len(mean)) / 2 * np.log1p((step**2).sum(1) / _FREEDOM)
    return mean + step @ root.T, log_q


def _resampled(weights: Array, random: np.random.Generator) -> NDArray[np.int64]:
    """Return the rows of N_DRAWS draws in proportion to their weights, with the least variance, in random order."""
    places = (np.arange(N_DRAWS) + random.random()) / N_DRAWS
    rows = np.searchsorted(np.cumsum(weights / weights.sum()), places)
    return random.permutation(np.minimum(rows, len(weights) - 1))
