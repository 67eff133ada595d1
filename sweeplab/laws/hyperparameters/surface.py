"""The best values of searched hyperparameters at every size, and what others cost, by one linear regression.

With x the logs of J searched values and s the centered logs of the sizes of cell c, over the rows near the optimum,

    log loss = level_c + z'Bz / 2 + k'z^3 / 6 - (d_0 + d_1 s + d_2 s^2 + v_c)'Bz + error,    z = x - m(s)

Curvature B and skew k are the same in all cells. m is a law in s, moved by d until d is 0, so that distances are from
the optimum. d_2 bends the law, d_2 ~ N(0, q^2), and v_c ~ N(0, t^2) is how far the optimum of a cell lies from it. All
is linear in levels, B, k, d and v; q and t are summed over a grid. The best values, their exponents and the cost of any
value are functions of the draws.

The window, the largest fitted excess of the rows that count, is the smallest that exceeds the noise four times and
shows the curvature.

Legend: n rows, J searched values, C cells, K sizes, L = 1 + 2K terms of the law, p columns, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.laws.core import Array
from sweeplab.laws.hyperparameters.runs import SHAPE, SearchedRuns

Rows = NDArray[np.bool_]

# Of log loss; the published law of dense tables is best met by 1 to 1.5%.
WINDOWS = (0.0125, 0.025, 0.05, 0.1)
N_DRAWS = 2000
_TIMES_NOISE, _CURVATURE = 4.0, 0.15  # noise against the window, and the error of the curvature over it
_SCATTER = np.array([0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0])  # t
_BENT = np.array([0.003, 0.03, 0.1])  # q: a kink of 0.8 in the middle of a factor 16 has 0.14
_USUAL = 0.1, 0.03  # t and q while the law is moved
_SKEW = 0.7  # sd of a skew over the curvature: a factor e away the curvature is 0.3 to 1.7
_ROUNDS, _FARTHEST = 10, 0.5  # of moving the law, and by how much at once in log units
_LEAST_BEND = 1e-5
_FEWEST_FREE = 6  # rows more than levels and terms
_APART = 0.7  # correlation of log width and log depth: below, the law is in both
ON_PATH = 0.1  # sd of a log size about a line in those before it: below, it says nothing new
_RIDGE = 1e-9


@dataclass(frozen=True, eq=False)
class Surface:
    """The draws of what the cells share, and of each cell's own optimum and level.

    `sizes` are the columns of the law. `bend` [S, J, J], `law` [S, L, J], `scatter` [S] and `bent` [S] (q) are draws;
    `optima` [S, C, J] are those of the cells, and `levels` [S, C] of their log losses there, NaN without a row near it.
    """

    runs: SearchedRuns
    sizes: tuple[str, ...]
    center: Array
    bend: Array
    law: Array
    scatter: Array
    bent: Array
    optima: Array
    levels: Array
    window: float
    noise: float
    used: Rows
    sure: float  # share of the draws in which the loss has a minimum

    def optimum(self, logs: Mapping[str, float], scatters: bool = True) -> Array:
        """Return draws of the logs of the best values [S, J] of a new cell; without its scatter on the law alone."""
        away = np.array([[logs[name] for name in self.sizes]]) - self.center
        best = np.einsum("l,slj->sj", _law_terms(away)[0], self.law)
        if scatters:
            best = best + self.scatter[:, None] * np.random.default_rng(1).standard_normal(best.shape)
        return np.asarray(best)

    @property
    def bend_chance(self) -> float:
        """Return how likely it is that the law bends, a third before the rows are seen."""
        return float((self.bent == _BENT[-1]).mean())

    @property
    def exponents(self) -> Array:
        """Return draws of the exponents of the sizes, [S, K, J]: the law's slopes at the mean size."""
        return self.law[:, 1 : 1 + len(self.sizes)]

    def cost(self, log_values: Array, best: Array) -> Array:
        """Return draws of the excess of log loss of values [J] where the best ones are `best` [S, J]."""
        away = log_values - best
        return np.asarray(np.einsum("sj,sjk,sk->s", away, self.bend, away) / 2)

    def reach(self, j: int, excess: float) -> float:
        """Return how far value j may lie from the best, in log units, for an excess of log loss."""
        return math.sqrt(2 * excess / float(np.median(self.bend[:, j, j])))


def fit_surface(runs: SearchedRuns) -> Surface:
    """Fit the surface over most of the searched values: without those that show no minimum beside the others.

    Raises:
        BadInput: the rows are too few, or show no minimum.
    """
    runs = runs.averaged()
    names = law_sizes(runs)
    for n_values in range(len(runs.names), 0, -1):
        fits = []
        for some in combinations(runs.names, n_values):
            fitted = _in_best_window(runs.over(some), names)
            if fitted is not None:
                fits.append(fitted)
        for regression in sorted(fits, key=lambda each: each.noise):
            surface = regression.surface()
            if surface.sure >= 0.975:
                return surface
    counts = f"{several(len(runs.y), 'trial')} in {several(runs.n_cells, 'cell')}"
    what = f"{counts} show no minimum over {' and '.join(runs.names)}"
    reasons = [reason for j in range(len(runs.names)) if (reason := runs.best_at_end(j))]
    needed = "several values of each in a cell, some on each side of the best"
    raise BadInput(Problem(": ".join([what, *reasons]), needed))


def law_sizes(runs: SearchedRuns) -> tuple[str, ...]:
    """Return the sizes that a law is in: width and depth where they vary apart, else N; and D where it varies too."""
    varying = [name for name in runs.sizes if np.ptp(runs.log_of(name)) > 1e-6]
    shapes = [name for name in varying if name in SHAPE]
    others = [name for name in varying if name not in SHAPE]
    if len(shapes) == 2 and abs(np.corrcoef(runs.log_of(shapes[0]), runs.log_of(shapes[1]))[0, 1]) < _APART:
        others = [*shapes, *(name for name in others if name == "tokens")]
    elif "params" not in varying:
        others = [*shapes, *others]
    kept: list[str] = []
    for name in others:
        terms = np.column_stack([np.ones(runs.n_cells), *map(runs.log_of, kept)])
        wanted = runs.log_of(name)
        left = wanted - terms @ np.linalg.lstsq(terms, wanted, rcond=None)[0]
        if not kept or left.std() >= ON_PATH:
            kept.append(name)
    return tuple(kept or runs.sizes[:1])


def _law_terms(sizes: Array) -> Array:
    return np.hstack([np.ones((len(sizes), 1)), sizes, sizes**2])


def _in_best_window(runs: SearchedRuns, names: tuple[str, ...]) -> _Regression | None:
    """Return the regression in the smallest window that serves, else in the widest; None if none shows a minimum."""
    widest = None
    for window in WINDOWS:
        regression = _Regression(runs, names, window)
        if not regression.converge():
            continue
        widest = regression
        if window >= _TIMES_NOISE * regression.noise and regression.is_sure:
            break
    return widest


class _Regression:
    """The regression in one window: its columns of a cell alone (its level and v), and those that all cells share."""

    def __init__(self, runs: SearchedRuns, names: tuple[str, ...], window: float) -> None:
        self.runs, self.names, self.window = runs, names, window
        logs = np.column_stack([runs.log_of(name) for name in names])
        self.center = logs.mean(0)
        self.terms = _law_terms(logs - self.center)
        self.n_values = int(runs.x.shape[1])
        self.seeds = np.ones(len(runs.y))
        if runs.seeds is not None:
            self.seeds = runs.seeds
        self.noise = window / 4
        self.used = runs.y - runs.lowest[runs.cell] <= 1.5 * window
        self.bend = 2 * window * np.eye(self.n_values)
        self.law = self._start()
        self.triangle = np.triu_indices(self.n_values)
        self.n_squares = len(self.triangle[0])

    @property
    def n_terms(self) -> int:
        """Return how many columns without a prior the cells share."""
        return self.n_squares + (1 + len(self.names)) * self.n_values

    @property
    def n_free(self) -> int:
        """Return how many rows count beyond levels and terms."""
        n_cells = len(np.unique(self.runs.cell[self.used]))
        n_rows = int(self.used.sum())
        return n_rows - n_cells - self.n_terms

    def distances(self) -> Array:
        """Return z, [n, J]."""
        return np.asarray(self.runs.x - (self.terms @ self.law)[self.runs.cell])

    def columns(self) -> tuple[Array, Array]:
        """Return the own columns of each row's cell, [n, 1 + J], and the shared ones [n, p]: B, k, moves of the law."""
        z = self.distances()
        first, second = self.triangle
        squares = z[:, first] * z[:, second]
        squares[:, first == second] /= 2
        slopes = -z @ self.bend
        moves = (self.terms[self.runs.cell][:, :, None] * slopes[:, None, :]).reshape(len(z), -1)
        return np.hstack([np.ones((len(z), 1)), slopes]), np.hstack([squares, z**3 / 6, moves])

    def shared(self, coefficients: Array) -> tuple[Array, Array]:
        """Return B [..., J, J] and the moves of the law [..., L, J]."""
        first, second = self.triangle
        bend = np.empty((*coefficients.shape[:-1], self.n_values, self.n_values))
        bend[..., first, second] = bend[..., second, first] = coefficients[..., : self.n_squares]
        moves = coefficients[..., self.n_squares + self.n_values :]
        return bend, moves.reshape(*moves.shape[:-1], -1, self.n_values)

    def priors(self, scatter: float, bent: float) -> tuple[Array, Array, Array]:
        """Return the precisions of own [1 + J] and shared [p] coefficients in units of the noise's, and means [p].

        The mean of a move of d_2 leaves none of the law's bend.
        """
        alone = np.array([np.inf, *[scatter] * self.n_values])
        bends = self.law[1 + len(self.names) :].ravel()
        straight = [np.inf] * ((1 + len(self.names)) * self.n_values)
        skew = _SKEW * np.diag(self.bend)
        shared = np.array([*[np.inf] * self.n_squares, *skew, *straight, *[bent] * len(bends)])
        means = np.zeros(len(shared))
        means[len(shared) - len(bends) :] = -bends
        return (self.noise / alone) ** 2 + _RIDGE, (self.noise / shared) ** 2 + _RIDGE, means

    def converge(self) -> bool:
        """Move the law, and choose the rows, until these are near the fitted optima; False if they fail."""
        for _ in range(_ROUNDS):
            if self.n_free < 3:
                return False
            posterior = _Posterior(self, _Products(self), *_USUAL)
            bend, moves = self.shared(posterior.best)
            if np.linalg.eigvalsh(bend)[0] <= _LEAST_BEND:
                return False
            squares = float((self.seeds * posterior.residual**2)[self.used].sum())
            freedom = max(float(self.used.sum()) - posterior.n_effective, 1.0)
            self.noise = max(math.sqrt(squares / freedom), 1e-7)
            diagonal = np.flatnonzero(self.triangle[0] == self.triangle[1])
            error = self.noise * np.sqrt(np.diag(posterior.covariance)[diagonal])
            self.is_sure = bool((error < _CURVATURE * np.diag(bend)).all()) and self.n_free >= _FEWEST_FREE
            self.bend = bend
            self.law = self.law + np.clip(moves, -_FARTHEST, _FARTHEST)
            z = self.distances()
            self.used = np.einsum("nj,jk,nk->n", z, bend, z) / 2 <= self.window
        return self.n_free >= 1

    def surface(self) -> Surface:
        """Return draws of all, given the rows and weights."""
        products, random = _Products(self), np.random.default_rng(0)
        grid = [(scatter, bent) for scatter in _SCATTER for bent in _BENT]
        posteriors = [_Posterior(self, products, *each) for each in grid]
        density = np.array([each.log_density for each in posteriors])
        density += np.repeat(np.log(np.gradient(_SCATTER)), len(_BENT))
        shares = np.exp(density - density.max())
        counts = random.multinomial(N_DRAWS, shares / shares.sum())
        drawn = [each.draws(int(n), random) for each, n in zip(posteriors, counts, strict=True)]
        alone, coefficients = (np.concatenate(each) for each in zip(*drawn, strict=True))
        bend, moves = self.shared(coefficients)
        kept = random.permutation(np.flatnonzero(np.linalg.eigvalsh(bend)[:, 0] > _LEAST_BEND))
        alone, bend, moves = alone[kept], bend[kept], moves[kept]
        away = np.einsum("cl,slj->scj", self.terms, moves) + alone[:, :, 1:]
        levels = alone[:, :, 0] - np.einsum("scj,sjk,sck->sc", away, bend, away) / 2
        has_row = np.bincount(self.runs.cell[self.used], minlength=self.runs.n_cells) > 0
        scatter, bent = np.repeat(np.array(grid), counts, axis=0)[kept].T
        return Surface(
            runs=self.runs,
            sizes=self.names,
            center=self.center,
            bend=bend,
            law=self.law + moves,
            scatter=scatter,
            bent=bent,
            optima=self.terms @ self.law + away,
            levels=np.where(has_row, levels, np.nan),
            window=self.window,
            noise=self.noise,
            used=self.used,
            sure=len(kept) / N_DRAWS,
        )

    def _start(self) -> Array:
        """Return a first guess of the law, through the places of the lowest losses of each cell."""
        runs = self.runs
        weight = np.exp(-np.clip((runs.y - runs.lowest[runs.cell]) / (self.window / 2), 0, 50))
        total = np.bincount(runs.cell, weight)
        lows = np.stack([np.bincount(runs.cell, weight * column) / total for column in runs.x.T], 1)
        ridge = np.full(self.terms.shape[1], 1e6)
        ridge[: 1 + len(self.names)] = 0.1
        ridge[0] = 0.0
        return np.asarray(np.linalg.solve(self.terms.T @ self.terms + np.diag(ridge), self.terms.T @ lows))


class _Products:
    """The products of the columns of the rows that count, by seeds: own [C, b, b], between [C, b, p], shared [p, p]."""

    def __init__(self, of: _Regression) -> None:
        self.own_columns, self.columns = of.columns()
        runs, weights = of.runs, np.where(of.used, of.seeds, 0.0)
        alone = self.own_columns * weights[:, None]

        def by_cell(values: Array) -> Array:
            sums = np.zeros((runs.n_cells, *values.shape[1:]))
            np.add.at(sums, runs.cell, values)
            return sums

        self.alone = by_cell(alone[:, :, None] * self.own_columns[:, None, :])
        self.between = by_cell(alone[:, :, None] * self.columns[:, None, :])
        self.own_y = by_cell(alone * runs.y[:, None])
        weighted = self.columns * weights[:, None]
        self.shared, self.shared_y = weighted.T @ self.columns, weighted.T @ runs.y


class _Posterior:
    """The posterior given t and q: `best` [p] and `covariance` [p, p] of shared coefficients, residuals and density."""

    def __init__(self, of: _Regression, products: _Products, scatter: float, bent: float) -> None:
        own_prior, prior, mean = of.priors(scatter, bent)
        self.n_free = max(of.n_free, 1)
        alone = products.alone + np.diag(own_prior)
        self.own_covariance = np.linalg.inv(alone)
        self.gain = self.own_covariance @ products.between  # of own coefficients by shared ones
        self.own_best = (self.own_covariance @ products.own_y[:, :, None])[
            :, :, 0
        ]  # where the shared ones are 0
        schur = products.shared + np.diag(prior) - np.einsum("cbp,cbq->pq", products.between, self.gain)
        right = products.shared_y + prior * mean - np.einsum("cbp,cb->p", products.between, self.own_best)
        self.root = np.linalg.cholesky(schur)
        self.covariance = np.linalg.inv(schur)
        self.best = self.covariance @ right
        of_cells = self.own_best - self.gain @ self.best
        fitted = products.columns @ self.best + (products.own_columns * of_cells[of.runs.cell]).sum(1)
        self.residual = of.runs.y - fitted
        own_variance = np.einsum("cbp,pq,cbq->cb", self.gain, self.covariance, self.gain)
        own_variance += np.einsum("cbb->cb", self.own_covariance)
        n_known = float((prior * np.diag(self.covariance)).sum() + (own_prior * own_variance).sum())
        self.n_effective = len(prior) + own_variance.size - n_known  # columns, less what their priors say
        self.rss = float((of.seeds * self.residual**2)[of.used].sum())
        self.rss += float(prior @ (self.best - mean) ** 2 + (own_prior * of_cells**2).sum())
        self.log_density = -self.n_free / 2 * math.log(self.rss + 1e-300)
        self.log_density -= float(np.log(np.diag(self.root)).sum()) - float(np.log(prior).sum()) / 2
        self.log_density -= (
            float(np.linalg.slogdet(alone)[1].sum() - len(alone) * np.log(own_prior).sum()) / 2
        )

    def draws(self, n: int, random: np.random.Generator) -> tuple[Array, Array]:
        """Return n draws of own coefficients [n, C, 1 + J] and of shared ones [n, p]."""
        sigma = np.sqrt(self.rss / random.chisquare(self.n_free, n))
        steps = np.linalg.solve(self.root.T, random.standard_normal((len(self.best), n)))
        shared = self.best + sigma[:, None] * steps.T
        alone = self.own_best - np.einsum("cbp,sp->scb", self.gain, shared)
        chance = np.linalg.cholesky(self.own_covariance) @ random.standard_normal(
            (n, *self.own_best.shape, 1)
        )
        return alone + sigma[:, None, None] * chance[..., 0], shared
