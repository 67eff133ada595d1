"""The best values of searched hyperparameters at every size, and what others cost, by one linear regression.

With x the logs of J searched values and s the centered logs of the sizes of cell c, over the rows near the optimum,

    log loss = level_c + z'Bz / 2 + s'Gz^2 / 2 + k'z^3 / 6 - (d_0 + d_1 s + d_2 s^2 + v_c)'Bz + error,    z = x - m(s)

Curvature B, its growth G with the sizes and skew k are the same in all cells. m is a law in s, moved by d until d is 0,
so that distances are from the optimum. d_2 bends the law, d_2 ~ N(0, q^2), and v_c ~ N(0, t^2) is how far the optimum
of a cell lies from it. All is linear in levels, B, G, k, d and v; q and t are summed over a grid. The best values,
their exponents and the cost of any value are functions of the draws.

The window, the largest fitted excess of the rows that count, is the smallest that exceeds the noise four times and
shows the curvature.

Legend: n rows, J searched values, C cells, K sizes, L = 1 + 2K terms of the law, p columns, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.laws.columns import SHAPE
from sweeplab.laws.core import DIGITS, RIDGE, Array
from sweeplab.laws.hyperparameters.runs import SearchedRuns
from sweeplab.laws.points import ON_PATH, Rows

# Of log loss; the published law of dense tables is best met by 1 to 1.5%.
WINDOWS = (0.0125, 0.025, 0.05, 0.1)
N_DRAWS = 2000
# Noise against the window, and the error of the curvature over it.
_TIMES_NOISE, _CURVATURE = 4.0, 0.15
# T.
_SCATTER = np.array(
    [0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0]
)
_BENT = np.array([0.003, 0.03, 0.1])  # q: a kink of 0.8 in the middle of a factor 16 has 0.14
_SKEW = 0.7  # sd of a skew over the curvature: a factor e away the curvature is 0.3 to 1.7
_GROWTH = 0.1  # sd of the growth of the curvature with a log size, as a share of it
_APART = 0.7  # correlation of log width and log depth: below, the law is in both
_SURE = 0.975  # the least share of the draws in which the loss has a minimum
MOST_CELLS = 300  # the fit takes the cube of their number


class Surface(NamedTuple):
    """The draws of what the cells share, and of each cell's own optimum and level.

    `sizes` are the columns of the law. `bend` [S, J, J], `law` [S, L, J], `scatter` [S] and `bent` [S] (q) are draws;
    `optima` [S, C, J] are those of the cells.
    """

    runs: SearchedRuns
    sizes: tuple[str, ...]
    center: Array
    bend: Array
    law: Array
    scatter: Array
    bent: Array
    optima: Array
    noise: float
    used: Rows
    sure: float  # share of the draws in which the loss has a minimum

    def optimum(self, logs: Mapping[str, float], scatters: bool = True) -> Array:
        """Return draws of the logs of the best values [S, J] of a new cell; without its scatter on the law alone."""
        away = np.array([[logs[name] for name in self.sizes]]) - self.center
        best = np.einsum("l,slj->sj", _law_terms(away)[0], self.law)
        if scatters:
            best = best + self.scatter[:, None] * np.random.default_rng(1).standard_normal(
                best.shape
            )
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


def fit_surface(runs: SearchedRuns, most_scatter: float = math.inf) -> Surface:
    """Fit the surface over most of the searched values: without those that show no minimum beside the others.

    `most_scatter` bounds t.

    Raises:
        BadInput: the rows are too few, or show no minimum.
    """
    if runs.n_cells > MOST_CELLS:
        raise BadInput(
            f"{several(runs.n_cells, 'cell')} are too many for one fit: at most {MOST_CELLS}"
        )
    runs = runs.averaged()
    names = law_sizes(runs)
    for n_values in range(len(runs.names), 0, -1):
        fits = []
        for some in combinations(runs.names, n_values):
            fitted = _in_best_window(runs.over(some), names, most_scatter)
            if fitted is not None:
                fits.append(fitted)
        if fits:
            return min(fits, key=lambda each: each.noise)
    counts = f"{several(len(runs.y), 'trial')} in {several(runs.n_cells, 'cell')}"
    what = f"{counts} show no minimum over {' and '.join(runs.names)}"
    reasons = filter(None, map(runs.best_at_end, range(len(runs.names))))
    needed = "several values of each in a cell, some on each side of the best"
    raise BadInput(Problem(": ".join([what, *reasons]), needed))


def law_sizes(runs: SearchedRuns) -> tuple[str, ...]:
    """Return the sizes that a law is in: width and depth where they vary apart, else N; and D where it varies too."""
    varying = [name for name in runs.sizes if np.ptp(runs.log_of(name)) > 1e-6]
    shapes = [name for name in varying if name in SHAPE]
    others = [name for name in varying if name not in SHAPE]
    if len(shapes) == 2 and abs(np.corrcoef([*map(runs.log_of, shapes)])[0, 1]) < _APART:
        others = [*shapes, *(name for name in others if name == "tokens")]
    elif "params" not in varying:
        others = [*shapes, *others]
    kept: list[str] = []
    for name in others:
        terms = np.column_stack([np.ones(runs.n_cells), *map(runs.log_of, kept)])
        wanted = runs.log_of(name)
        left = wanted - terms @ np.linalg.lstsq(terms, wanted, rcond=None)[0]
        # A size on a line through those before it says nothing new.
        if not kept or left.std() >= ON_PATH:
            kept.append(name)
    return tuple(kept or runs.sizes[:1])


def _law_terms(sizes: Array) -> Array:
    return np.hstack([np.ones((len(sizes), 1)), sizes, sizes**2])


def _in_best_window(
    runs: SearchedRuns, names: tuple[str, ...], most_scatter: float
) -> Surface | None:
    """Return the surface in the smallest window that serves, else in the widest; None if none shows a minimum."""
    widest = None
    for window in WINDOWS:
        regression = _Regression(runs, names, window)
        if not regression.converge():
            continue
        surface = regression.surface(most_scatter)
        if surface.sure < _SURE:
            continue
        widest = surface
        if window >= _TIMES_NOISE * regression.noise and regression.is_sure:
            break
    return widest


class _Regression:
    """The regression in one window. Its columns: a level and J moves v of each cell, then B, k, G and moves."""

    def __init__(self, runs: SearchedRuns, names: tuple[str, ...], window: float) -> None:
        self.runs = runs
        self.names = names
        self.window = window
        logs = np.column_stack([runs.log_of(name) for name in names])
        self.center = logs.mean(0)
        self.terms = _law_terms(logs - self.center)
        self.n_values = int(runs.x.shape[1])
        self.first, self.second = np.triu_indices(self.n_values)
        self.noise = window / 4
        self.is_sure = False
        above = runs.y - runs.of_cells(runs.y, "min")[runs.cell]
        self.used = above <= 1.5 * window
        self.bend = 2 * window * np.eye(self.n_values)
        # A first guess of the law, through the places of the lowest losses of each cell.
        weight = np.exp(-np.clip(above / (window / 2), 0, 50))
        total = np.bincount(runs.cell, weight)
        lows = np.stack(
            [np.bincount(runs.cell, weight * column) / total for column in runs.x.T], 1
        )
        ridge = np.repeat([0.0, 0.1, 1e6], [1, len(names), len(names)])
        self.law = np.linalg.solve(
            self.terms.T @ self.terms + np.diag(ridge), self.terms.T @ lows
        )

    @property
    def n_free(self) -> int:
        """Return how many rows count beyond levels and the terms without a prior that cells share."""
        n_cells = len(np.unique(self.runs.cell[self.used]))
        n_terms = len(self.first) + (1 + len(self.names)) * self.n_values
        return int(self.used.sum()) - n_cells - n_terms

    def distances(self) -> Array:
        """Return z, [n, J]."""
        return self.runs.x - (self.terms @ self.law)[self.runs.cell]

    def products(self) -> tuple[Array, Array, Array]:
        """Return the columns of the rows that count, [n, p], and by their seeds X'WX and X'Wy."""
        z = self.distances()
        cell = self.runs.cell
        is_in = np.eye(self.runs.n_cells)[cell]
        slopes = -z @ self.bend
        squares = z[:, self.first] * z[:, self.second]
        squares[:, self.first == self.second] /= 2
        alone, moves = (
            (of_row[:, :, None] * slopes[:, None, :]).reshape(len(z), -1)
            for of_row in (is_in, self.terms[cell])
        )
        grown = self.terms[cell, None, 1 : 1 + len(self.names)] * z[:, :, None] ** 2 / 2
        rows = np.hstack([is_in, alone, squares, z**3 / 6, grown.reshape(len(z), -1), moves])[
            self.used
        ]
        weighted = rows * self.runs.seeds[self.used, None]
        return rows, weighted.T @ rows, weighted.T @ self.runs.y[self.used]

    def parts(self, coefficients: Array) -> tuple[Array, Array, Array]:
        """Return v [..., C, J], B [..., J, J] and the moves of the law [..., L, J]."""
        before = coefficients.shape[:-1]
        count = self.n_values
        n_cells = self.runs.n_cells
        ends = np.cumsum(
            [n_cells, n_cells * count, len(self.first), count * (1 + len(self.names))]
        )
        _, alone, squares, _, moves = np.split(coefficients, ends, axis=-1)
        bend = np.empty((*before, count, count))
        bend[..., self.first, self.second] = bend[..., self.second, self.first] = squares
        return alone.reshape(*before, -1, count), bend, moves.reshape(*before, -1, count)

    def posterior(
        self, products: tuple[Array, Array, Array], scatter: float, bent: float
    ) -> _Posterior:
        """Return the posterior given t and q; the prior mean of a move of d_2 leaves none of the law's bend."""
        rows, gram, right = products
        n_cells = self.runs.n_cells
        curvature = np.diag(self.bend)
        lines, bends = np.split(self.law, [1 + len(self.names)])
        sds = np.concatenate(
            [
                np.full(n_cells, np.inf),
                np.full(n_cells * self.n_values, scatter),
                np.full(len(self.first), np.inf),
                _SKEW * curvature,
                np.repeat(_GROWTH * curvature, len(self.names)),
                np.full(lines.size, np.inf),
                np.full(bends.size, bent),
            ]
        )
        mean = np.zeros(len(sds))
        mean[-bends.size :] = -bends.ravel()
        precision = (self.noise / sds) ** 2 + RIDGE
        inverse = np.linalg.inv(np.linalg.cholesky(gram + np.diag(precision)))
        best = inverse.T @ (inverse @ (right + precision * mean))
        squares = float(
            self.runs.seeds[self.used] @ (self.runs.y[self.used] - rows @ best) ** 2
        )
        n_free = max(self.n_free, 1)
        rss = squares + float(precision @ (best - mean) ** 2)
        log_density = -n_free / 2 * math.log(rss + 1e-300)
        log_density += np.log(np.diag(inverse)).sum() + np.log(precision).sum() / 2
        variance = (inverse**2).sum(0)
        n_effective = len(mean) - precision @ variance
        return _Posterior(
            best, inverse, variance, squares, n_effective, rss, n_free, log_density
        )

    def converge(self) -> bool:
        """Move the law, and choose the rows, until these are near the fitted optima; False if they fail."""
        for _ in range(10):
            if self.n_free < 3:
                return False
            posterior = self.posterior(self.products(), scatter=0.1, bent=0.03)
            _, bend, moves = self.parts(posterior.best)
            if np.linalg.eigvalsh(bend)[0] <= DIGITS:
                return False
            freedom = max(self.used.sum() - posterior.n_effective, 1.0)
            self.noise = max(math.sqrt(posterior.squares / freedom), 1e-7)
            curvature_error = np.diag(self.parts(self.noise * np.sqrt(posterior.variance))[1])
            is_known = bool((curvature_error < _CURVATURE * np.diag(bend)).all())
            self.bend = bend
            self.law = self.law + np.clip(moves, -0.5, 0.5)  # in log units
            z = self.distances()
            self.used = np.einsum("nj,jk,nk->n", z, bend, z) / 2 <= self.window
            self.is_sure = is_known and self.n_free >= 6
        return self.n_free >= 1

    def surface(self, most_scatter: float) -> Surface:
        """Return draws of all, given the rows and weights."""
        products = self.products()
        random = np.random.default_rng(0)
        scatters = _SCATTER[most_scatter >= _SCATTER]
        grid = [(scatter, bent) for scatter in scatters for bent in _BENT]
        posteriors = [self.posterior(products, *each) for each in grid]
        density = np.array([each.log_density for each in posteriors])
        density += np.repeat(np.log(np.gradient(scatters)), len(_BENT))
        shares = np.exp(density - density.max())
        counts = random.multinomial(N_DRAWS, shares / shares.sum())
        drawn = [each.draws(n, random) for each, n in zip(posteriors, counts, strict=True)]
        alone, bend, moves = self.parts(np.concatenate(drawn))
        kept = random.permutation(np.flatnonzero(np.linalg.eigvalsh(bend)[:, 0] > DIGITS))
        alone, bend, moves = alone[kept], bend[kept], moves[kept]
        away = np.einsum("cl,slj->scj", self.terms, moves) + alone
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
            noise=self.noise,
            used=self.used,
            sure=len(kept) / N_DRAWS,
        )


class _Posterior(NamedTuple):
    """The posterior of p coefficients given t and q: `best` and `variance` [p] in units of the noise's."""

    best: Array
    inverse: Array
    variance: Array
    squares: float  # of the residuals
    n_effective: float  # columns, less what their priors say
    rss: float  # with those of the prior
    n_free: int
    log_density: float

    def draws(self, n: int, random: np.random.Generator) -> Array:
        """Return n draws of the coefficients, [n, p]."""
        sigma = np.sqrt(self.rss / random.chisquare(self.n_free, n))
        return self.best + sigma[:, None] * (
            random.standard_normal((n, len(self.best))) @ self.inverse
        )
