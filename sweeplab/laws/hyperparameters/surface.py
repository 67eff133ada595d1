"""The best values of searched hyperparameters at every size, and what others cost, by one linear regression.

With x the logs of J searched values and s the centered logs of the sizes of cell c, over the rows near the optimum,

    log loss = level_c + z'Bz / 2 + k'z^3 / 6 + (b_0 + b s + u_c)'z + error,    z = x - m(s)

Curvature B and skew k are the same in all cells. m is a line in s, moved until b_0 and b are 0, so that the terms are
of distances from the optimum; u_c are the cells' own slopes, u_c ~ N(0, t^2 B^2), as their optima scatter about the
line by t. Rows far from the fit count less (t errors of 4 degrees of freedom, Lange et al. 1989). The levels are
eliminated, t is summed over a grid, and given t the rest is a line of `core.py`. The best values at s are
m(s) - B^-1 (b_0 + b s): they, their exponents and the cost of any value are functions of the draws.

The window, the largest fitted excess of the rows that count, is the smallest that exceeds the noise four times and
shows the curvature.

Legend: n rows, J searched values, C cells, K sizes, q terms, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.laws.core import fit_line
from sweeplab.laws.hyperparameters.runs import SHAPE, Array, SearchedRuns

Rows = NDArray[np.bool_]

WINDOWS = (
    0.0125,
    0.025,
    0.05,
    0.1,
)  # of log loss; the published law of dense tables is best met by 1 to 1.5%
N_DRAWS = 2000
_TIMES_NOISE, _CURVATURE = 4.0, 0.15  # noise against the window, and the error of the curvature over it
_FREEDOM = 4.0  # of the errors
_SCATTER = np.array(
    [0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0]
)  # log units
_SKEW = 0.7  # sd of a skew over the curvature, before the rows are seen: a factor e away the curvature is 0.3 to 1.7
_ROUNDS, _FARTHEST = 10, 0.5  # of moving the line, and by how much at once in log units
_LEAST_BEND = 1e-5
_FEWEST_FREE = 6  # rows more than levels and terms
_APART = 0.7  # correlation of log width and log depth: below, the law is in both
ON_PATH = 0.1  # sd of a log size about a line in those before it: below, it says nothing new


@dataclass(frozen=True)
class _Regression:
    """The rows that count, their weights, and the line about which the terms are taken."""

    used: Rows
    weights: Array
    line: Array  # [1 + K, J]
    coefficients: Array
    noise: float
    freedom: int
    wider: float  # of the variance of coefficients, as the weights follow the residuals

    def rows(
        self, runs: SearchedRuns, sizes: Array, squares: Sequence[int] = ()
    ) -> list[tuple[Array, Array]]:
        """Return the terms [n - 1, q] and losses [n - 1] of each cell without its level, weighted."""
        terms = _terms(runs.x - _at(self.line, sizes)[runs.cell], sizes[runs.cell], squares)
        cells = _without_levels(terms, runs, self.used, self.weights)
        bend = _bend(self.coefficients, runs.x.shape[1])
        return _with_prior(cells, self.noise / np.diag(bend))


@dataclass(frozen=True, eq=False)
class Surface:
    """The draws of what the cells share, and of each cell's own optimum and level.

    `sizes` are the columns of the law. `bend` [S, J, J], `slopes` [S, 1 + K, J] and `scatter` [S] are draws; `optima`
    [S, C, J] are those of the cells, and `levels` [S, C] of their log losses there, NaN without a row near it.
    """

    runs: SearchedRuns
    sizes: tuple[str, ...]
    center: Array
    line: Array
    bend: Array
    slopes: Array
    scatter: Array
    optima: Array
    levels: Array
    window: float
    noise: float
    used: Rows
    sure: float  # share of the draws in which the loss has a minimum
    bent: Mapping[str, Mapping[str, float]]  # p-values of a square of each log size

    def optimum(self, logs: Mapping[str, float], scatters: bool = True) -> Array:
        """Return draws of the logs of the best values [S, J] of a new cell; without its scatter on the law alone."""
        away = np.array([logs[name] for name in self.sizes]) - self.center
        terms = np.array([1.0, *away])
        best = terms @ self.line - _solved(self.bend, terms @ self.slopes)
        if scatters:
            best = best + self.scatter[:, None] * np.random.default_rng(1).standard_normal(best.shape)
        return np.asarray(best)

    @cached_property
    def exponents(self) -> Array:
        """Return draws of the exponents of the sizes, [S, K, J]."""
        moved = -np.linalg.solve(self.bend, self.slopes[:, 1:].transpose(0, 2, 1))
        return np.asarray(self.line[1:] + moved.transpose(0, 2, 1))

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
    logs = np.column_stack([runs.log_of(name) for name in names])
    for n_values in range(len(runs.names), 0, -1):
        fits = []
        for some in combinations(runs.names, n_values):
            part = runs.over(some)
            fitted = _regression(part, logs - logs.mean(0))
            if fitted is not None:
                fits.append((part, *fitted))
        for part, regression, window in sorted(fits, key=lambda each: each[1].noise):
            surface = _surface(part, names, logs, regression, window)
            if surface.sure >= 0.975:
                return surface
    counts = f"{several(len(runs.y), 'trial')} in {several(runs.n_cells, 'cell')}"
    what = f"{counts} show no minimum over {' and '.join(runs.names)}"
    reasons = [reason for j in range(len(runs.names)) if (reason := runs.best_at_end(j))]
    raise BadInput(
        Problem(
            ": ".join([what, *reasons]), "several values of each in a cell, some on each side of the best"
        )
    )


def law_sizes(runs: SearchedRuns) -> tuple[str, ...]:
    """Return the sizes that a law is in: width and depth where they vary apart, else N; and D where it varies too."""
    varying = [name for name in runs.sizes if np.ptp(runs.log_of(name)) > 1e-6]
    shapes = [name for name in varying if name in SHAPE]
    others = [name for name in varying if name not in SHAPE]
    if len(shapes) == 2 and abs(_correlation(runs, *shapes)) < _APART:
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


def _correlation(runs: SearchedRuns, one: str, other: str) -> float:
    return float(np.corrcoef(runs.log_of(one), runs.log_of(other))[0, 1])


def _terms(z: Array, sizes: Array, squares: Sequence[int] = ()) -> Array:
    """Return the terms at distances z [n, J]: B's upper triangle, the skews, and J slopes for 1 and each size."""
    first, second = np.triu_indices(z.shape[1])
    halved = np.where(first == second, 0.5, 1.0)
    parts = [z[:, first] * z[:, second] * halved, z**3 / 6, z, *(z * column[:, None] for column in sizes.T)]
    parts += [z * sizes[:, [k]] ** 2 for k in squares]
    return np.hstack(parts)


def _at(line: Array, sizes: Array) -> Array:
    return np.asarray(line[0] + sizes @ line[1:])


def _bend(coefficients: Array, n_values: int) -> Array:
    first, second = np.triu_indices(n_values)
    bend = np.empty((*coefficients.shape[:-1], n_values, n_values))
    bend[..., first, second] = bend[..., second, first] = coefficients[..., : len(first)]
    return bend


def _slopes(coefficients: Array, n_values: int, n_sizes: int) -> Array:
    """Return the slopes of 1 and of each size, [..., 1 + K, J]."""
    begin = n_values * (n_values + 3) // 2
    part = coefficients[..., begin : begin + n_values * (1 + n_sizes)]
    return np.asarray(part.reshape(*coefficients.shape[:-1], 1 + n_sizes, n_values))


def _solved(bend: Array, slopes: Array) -> Array:
    return np.asarray(np.linalg.solve(bend, slopes[..., None])[..., 0])


def _without_levels(
    terms: Array, runs: SearchedRuns, used: Rows, weights: Array
) -> list[tuple[Array, Array]]:
    cells = []
    for c in range(runs.n_cells):
        rows = np.flatnonzero(used & (runs.cell == c))
        root = np.sqrt(weights[rows])
        # Rows of the directions that a level does not change.
        across = (
            np.linalg.qr(root[:, None], mode="complete")[0][:, 1:].T
            if len(rows) > 1
            else np.empty((0, len(rows)))
        )
        cells.append((across @ (terms[rows] * root[:, None]), across @ (runs.y[rows] * root)))
    return cells


def _with_prior(cells: list[tuple[Array, Array]], scale: Array) -> list[tuple[Array, Array]]:
    """Return the rows with one for the prior of each skew, in the first cell; `scale` [J] is the noise over B."""
    terms, losses = cells[0]
    prior = np.zeros((len(scale), terms.shape[1]))
    begin = len(scale) * (len(scale) + 1) // 2
    prior[:, begin : begin + len(scale)] = np.diag(scale / _SKEW)
    return [(np.vstack([terms, prior]), np.concatenate([losses, np.zeros(len(scale))])), *cells[1:]]


def _levels(values: Array, runs: SearchedRuns, used: Rows, weights: Array) -> Array:
    """Return the weighted mean of the used rows of each cell, NaN without one."""
    total = np.bincount(runs.cell[used], weights[used], runs.n_cells)
    sums = np.bincount(runs.cell[used], (weights * values)[used], runs.n_cells)
    return np.asarray(np.divide(sums, total, out=np.full(runs.n_cells, np.nan), where=total > 0))


def _regression(runs: SearchedRuns, sizes: Array) -> tuple[_Regression, float] | None:
    """Return the regression in the smallest window that serves, else in the widest; None if none shows a minimum."""
    widest = None
    for window in WINDOWS:
        regression = _converged(runs, sizes, window)
        if regression is None:
            continue
        widest = regression, window
        terms = np.vstack([each for each, _ in regression.rows(runs, sizes)])
        variance = np.diag(np.linalg.inv(terms.T @ terms)) * regression.noise**2 * regression.wider
        n_values = runs.x.shape[1]
        squares = [at for at, (j, k) in enumerate(zip(*np.triu_indices(n_values), strict=True)) if j == k]
        unsure = np.sqrt(variance[squares]) / regression.coefficients[squares]
        if (
            window >= _TIMES_NOISE * regression.noise
            and (unsure < _CURVATURE).all()
            and regression.freedom >= _FEWEST_FREE
        ):
            break
    return widest


def _converged(runs: SearchedRuns, sizes: Array, window: float) -> _Regression | None:
    """Move the line, and choose and weight the rows, until the rows are those near the fitted optima."""
    n_values, n_sizes = runs.x.shape[1], sizes.shape[1]
    used = runs.y - runs.lowest[runs.cell] <= 1.5 * window
    seeds = np.ones(len(runs.y)) if runs.seeds is None else runs.seeds
    weights, line = seeds, _start(runs, sizes, window)
    noise, bend = window / 4, 2 * window * np.eye(n_values)
    for _ in range(_ROUNDS):
        terms = _terms(runs.x - _at(line, sizes)[runs.cell], sizes[runs.cell])
        freedom = int(used.sum()) - len(np.unique(runs.cell[used])) - terms.shape[1]
        if freedom < 3:
            return None
        cells = _with_prior(_without_levels(terms, runs, used, weights), noise / np.diag(bend))
        columns, losses = np.vstack([each for each, _ in cells]), np.concatenate([each for _, each in cells])
        coefficients, _, rank, _ = np.linalg.lstsq(columns, losses, rcond=1e-9)
        bend = _bend(coefficients, n_values)
        if rank < len(coefficients) or np.linalg.eigvalsh(bend)[0] <= _LEAST_BEND:
            return None
        residual = runs.y - terms @ coefficients
        residual = residual - _levels(residual, runs, used, weights)[runs.cell]
        noise = max(math.sqrt(float((weights * residual**2)[used].sum()) / freedom), 1e-7)
        ratio = np.where(used, np.sqrt(seeds) * residual / noise, 0.0)
        last = _Regression(used, weights, line, coefficients, noise, freedom, _wider(ratio[used]))
        weights = seeds * (_FREEDOM + 1) / (_FREEDOM + ratio**2)
        step = -_solved(bend, _slopes(coefficients, n_values, n_sizes))
        line = line + np.clip(step, -_FARTHEST, _FARTHEST)
        z = runs.x - _at(line, sizes)[runs.cell]
        used = np.einsum("nj,jk,nk->n", z, bend, z) / 2 <= window
    return last


def _start(runs: SearchedRuns, sizes: Array, window: float) -> Array:
    """Return a first guess of the line, through the places of the lowest losses of each cell."""
    weight = np.exp(-np.clip((runs.y - runs.lowest[runs.cell]) / (window / 2), 0, 50))
    total = np.bincount(runs.cell, weight, runs.n_cells)
    lows = np.stack([np.bincount(runs.cell, weight * column, runs.n_cells) / total for column in runs.x.T], 1)
    terms = np.column_stack([np.ones(runs.n_cells), sizes])
    ridge = np.diag([0.0, *[0.1] * sizes.shape[1]])
    return np.asarray(np.linalg.solve(terms.T @ terms + ridge, terms.T @ lows))


def _wider(ratio: Array) -> float:
    """Return by how much the variance of a coefficient exceeds that of least squares with the same fixed weights."""
    weights = (_FREEDOM + 1) / (_FREEDOM + ratio**2)
    slope = float(np.mean((_FREEDOM + 1) * (_FREEDOM - ratio**2) / (_FREEDOM + ratio**2) ** 2))
    if slope <= 0.2:
        return 1.0
    robust = float(np.mean((weights * ratio) ** 2)) / slope**2
    return max(1.0, robust * float(weights.mean() / np.mean(weights * ratio**2)))


def _surface(
    runs: SearchedRuns, names: tuple[str, ...], logs: Array, regression: _Regression, window: float
) -> Surface:
    n_values, center = runs.x.shape[1], logs.mean(0)
    sizes = logs - center
    cells = regression.rows(runs, sizes)
    bend = _bend(regression.coefficients, n_values)
    scatters = [_Scatter.of(cells, bend, float(scatter), regression) for scatter in _SCATTER]
    log_shares = np.array([each.log_density for each in scatters]) + np.log(np.gradient(_SCATTER))
    shares = np.exp(log_shares - log_shares.max())
    random = np.random.default_rng(0)
    counts = random.multinomial(N_DRAWS, shares / shares.sum())
    parts = [each.draws(int(n), random) for each, n in zip(scatters, counts, strict=True) if n]
    coefficients, departures, sigma = (np.concatenate(each) for each in zip(*parts, strict=True))
    scatter = np.repeat(_SCATTER, counts)
    bends, slopes = _bend(coefficients, n_values), _slopes(coefficients, n_values, sizes.shape[1])
    has_minimum = np.linalg.eigvalsh(bends)[:, 0] > _LEAST_BEND
    kept = random.permutation(np.flatnonzero(has_minimum))
    slope_of = np.einsum("ck,skj->scj", np.column_stack([np.ones(len(sizes)), sizes]), slopes) + departures
    moved = -_solved(bends[kept][:, None], slope_of[kept])
    return Surface(
        runs=runs,
        sizes=names,
        center=center,
        line=regression.line,
        bend=bends[kept],
        slopes=slopes[kept],
        scatter=scatter[kept],
        optima=_at(regression.line, sizes) + moved,
        levels=_drawn_levels(runs, sizes, regression, coefficients, departures, sigma)[kept]
        + np.einsum("scj,scj->sc", slope_of[kept], moved) / 2,
        window=window,
        noise=regression.noise * math.sqrt(regression.wider),
        used=regression.used,
        sure=float(has_minimum.mean()),
        bent=_bent(runs, names, sizes, regression, bend, float(_SCATTER[shares.argmax()])),
    )


@dataclass(frozen=True, eq=False)
class _Scatter:
    """The regression given a scatter of the cells: rows [m, q] and losses [m] whitened, and the cells' own part.

    `gains` are of a cell's slopes by its residuals, and `rests` the roots of their covariance that remains.
    """

    cells: Sequence[tuple[Array, Array]]
    rows: Array
    losses: Array
    gains: Sequence[Array]
    rests: Sequence[Array]
    log_density: float
    wider: float

    @classmethod
    def of(
        cls, cells: Sequence[tuple[Array, Array]], bend: Array, scatter: float, regression: _Regression
    ) -> _Scatter:
        """Whiten the rows of cells whose optima scatter."""
        n_values = len(bend)
        begin = n_values * (n_values + 3) // 2
        # In units of the variance of a row.
        slopes = scatter**2 * bend @ bend / (regression.noise**2 * regression.wider)
        rows, losses, gains, rests, log_determinant = [], [], [], [], 0.0
        for terms, loss in cells:
            z = terms[:, begin : begin + n_values]
            covariance = np.eye(len(z)) + z @ slopes @ z.T
            root = np.linalg.cholesky(covariance)
            rows.append(np.linalg.solve(root, terms))
            losses.append(np.linalg.solve(root, loss))
            gains.append(np.asarray(np.linalg.solve(covariance, z @ slopes).T, np.float64))
            rest = slopes - gains[-1] @ z @ slopes
            rests.append(np.asarray(np.linalg.cholesky(rest + 1e-12 * np.eye(n_values)), np.float64))
            log_determinant += 2 * float(np.log(np.diag(root)).sum())
        columns, values = np.vstack(rows), np.concatenate(losses)
        residual = values - columns @ np.linalg.lstsq(columns, values, rcond=None)[0]
        triangle = np.abs(np.diag(np.linalg.qr(columns, mode="r")))
        free = len(values) - columns.shape[1]
        density = -free / 2 * math.log(float(residual @ residual) + 1e-300) - log_determinant / 2
        density -= float(np.log(np.maximum(triangle, 1e-300)).sum())
        return cls(cells, columns, values, gains, rests, density, regression.wider)

    def draws(self, n: int, random: np.random.Generator) -> tuple[Array, Array, Array]:
        """Return draws of the coefficients [n, q], of the cells' own slopes [n, C, J], and of the noise [n]."""
        line = fit_line(self.losses, self.rows, seed=int(random.integers(2**31)), n_draws=n)
        best, *_ = np.linalg.lstsq(self.rows, self.losses, rcond=None)
        coefficients = best + (line.scales - best) * math.sqrt(self.wider)
        noise = line.sigma * math.sqrt(self.wider)
        departures = []
        for (terms, loss), gain, rest in zip(self.cells, self.gains, self.rests, strict=True):
            residual = loss - coefficients @ terms.T
            chance = noise[:, None] * random.standard_normal((n, len(rest)))
            departures.append(residual @ gain.T + chance @ rest.T)
        return coefficients, np.stack(departures, 1), noise


def _drawn_levels(
    runs: SearchedRuns,
    sizes: Array,
    regression: _Regression,
    coefficients: Array,
    departures: Array,
    noise: Array,
) -> Array:
    """Return draws of the log loss of each cell on the line m, [S, C]."""
    used, weights = regression.used, regression.weights
    z = runs.x - _at(regression.line, sizes)[runs.cell]
    terms = _terms(z, sizes[runs.cell])
    means = np.stack([_levels(column, runs, used, weights) for column in terms.T], 1)
    away = np.stack([_levels(column, runs, used, weights) for column in z.T], 1)
    levels = (
        _levels(runs.y, runs, used, weights)
        - coefficients @ means.T
        - np.einsum("scj,cj->sc", departures, away)
    )
    total = np.bincount(runs.cell[used], weights[used], runs.n_cells)
    chance = np.random.default_rng(2).standard_normal(levels.shape)
    return np.asarray(levels + noise[:, None] * chance / np.sqrt(np.maximum(total, 1e-9)))


def _bent(
    runs: SearchedRuns,
    names: Sequence[str],
    sizes: Array,
    regression: _Regression,
    bend: Array,
    scatter: float,
) -> dict[str, dict[str, float]]:
    """Return the p-values of added squares of the log sizes that have three values, by searched value and size."""
    from scipy.special import stdtr

    three = [k for k in range(len(names)) if len(np.unique(sizes[:, k].round(3))) > 2]
    if not three:
        return {name: {} for name in runs.names}
    cells = regression.rows(runs, sizes, three)
    wider = _Scatter.of(cells, bend, scatter, regression)
    columns, n_values = wider.rows, len(runs.names)
    free = len(columns) - columns.shape[1]
    if free < 1 or np.linalg.matrix_rank(columns) < columns.shape[1]:
        return {name: {} for name in runs.names}
    inverse = np.linalg.inv(columns.T @ columns)
    best = inverse @ columns.T @ wider.losses
    residual = wider.losses - columns @ best
    errors = np.sqrt(np.diag(inverse) * float(residual @ residual) / free * regression.wider)
    ratios = (best / errors)[-n_values * len(three) :].reshape(len(three), n_values)
    return {
        name: {names[k]: 2 * float(stdtr(free, -abs(ratios[at, j]))) for at, k in enumerate(three)}
        for j, name in enumerate(runs.names)
    }
