"""Split the residual of a law into its causes: what keeps a number from being identified.

The log residuals r of a fit to n rows, in the n - p directions that the law's parameters leave free, are

    r = shape + epochs + bend + tuning + seeds + rest

- shape: log(n_embd / n_layer) and its square. epochs: the logs of repeated tokens that are worth less (Muennighoff et
  al. 2023, Scaling data-constrained language models, equation 5), also with log params. bend: products of the logs of
  the law's columns. Their coefficients are normal around 0, and each of the three is present or not (spike and slab:
  Mitchell and Beauchamp 1988, Bayesian variable selection in linear regression).
- tuning: the excess of each row, known from the trials of all cells, with its covariance.
- seeds: variance spread² / weight, with the spread known from seeds; rest: one variance.

All combinations of what is present, of the slab's and the rest's standard deviation and of the seeds' are weighted by
their likelihood. Draws of each cause's part of r follow (Matheron's rule). A share is a cause's part of the sum of
squares. Departure from a full analysis: the law is linear about its fit.

Legend: n rows, p parameters, m = n - p, M combinations, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.laws.choosing import family_of
from sweeplab.laws.columns import SHAPE as DEPTH_WIDTH
from sweeplab.laws.fitting import Fit
from sweeplab.laws.forms import Array
from sweeplab.laws.points import Points

SEEDS, SHAPE, TUNING, EPOCHS, BEND, REST = CAUSES = (
    "seeds", "shape", "tuning excess", "tokens and epochs", "bend", "what is left",
)  # fmt: skip
NAMED, NOT_SEEN, UNKNOWN = "named", "not seen", "cannot be split"
LEVEL = 0.9
N_DRAWS = 600
# A cause is named if its share is likely (SURE) to be this large, and if that is no trifle of the loss.
LEAST_SHARE, SURE, LEAST_SIZE = 0.05, 0.6, 0.002
_MOST_ROWS = 90  # the combinations take O(M m³)
_SLABS = (0.5, 1.0, 2.0, 4.0)  # of the residual's standard deviation over the root of m
_RESTS = (0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4)  # of the residual's standard deviation
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the seeds' variance
_PRESENT = 0.5  # before the residual is seen
_WORTH = 15.4  # epochs after which repeated tokens are worth nothing: R* of Muennighoff et al.
_EPSILON, _FLAT = 1e-12, 1e-6
_LEAST_LEFT = 0.02  # of a direction's standard deviation, that the law must leave


@dataclass(frozen=True)
class Beside:
    """What is known of a table's rows besides their columns.

    `excess` are draws of the tuning excess [S, n], `passes` how often a row's run read its text [n].
    """

    excess: Array | None = None
    passes: Array | None = None


@dataclass(frozen=True)
class Cause:
    """A cause's share of the residual, with its interval at LEVEL, and its size, in log loss of a row.

    `why` says why it cannot be split. `likely` is how likely its share is at least LEAST_SHARE.
    """

    name: str
    state: str
    share: float = math.nan
    low: float = math.nan
    high: float = math.nan
    size: float = 0.0
    likely: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Split:
    """The causes, the largest first, and what each adds to the log loss of the rows.

    `effects` are those of causes that follow from a row's columns, {name: [n]}: expected values, with the part that the
    law takes for its own. `noise` is the variance of a row without them, {name: [n]}. `of_shape` has the coefficients
    of the log aspect ratio about `middle` and of its square. `sigma` is the standard deviation of the residual, over
    its degrees of freedom.
    """

    causes: tuple[Cause, ...]
    effects: Mapping[str, Array]
    noise: Mapping[str, Array]
    of_shape: Array
    middle: float
    sigma: float

    @property
    def named(self) -> tuple[Cause, ...]:
        """Return the causes that are named, the largest first."""
        return tuple(cause for cause in self.causes if cause.state == NAMED)

    def effect_of_shape(self, layers: Array, widths: Array) -> Array:
        """Return the expected effect of shapes on the log loss, as in `effects`."""
        away = np.log(widths / layers) - self.middle
        return np.asarray(self.of_shape[0] * away + self.of_shape[1] * away**2)


def split(points: Points, fit: Fit, beside: Beside) -> Split:
    """Return the causes of a fit's residuals."""
    if points.n > _MOST_ROWS:  # drawn at random, but the same every time
        kept = np.sort(np.random.default_rng(0).choice(points.n, _MOST_ROWS, replace=False))
        part = split(points.only(kept), replace(fit, rows=fit.rows.at(kept)), _of_rows(beside, kept))
        effects = {name: np.zeros(points.n) for name in part.effects}
        if SHAPE in effects:
            effects[SHAPE] = part.effect_of_shape(*(points.shape[name] for name in DEPTH_WIDTH))
        if beside.excess is not None:
            effects[TUNING] = beside.excess.mean(0)
        noise = {name: np.full(points.n, float(variance.mean())) for name, variance in part.noise.items()}
        return replace(part, effects=effects, noise=noise)
    free = free_directions(fit)
    left = free.T @ fit.residuals()
    sigma = max(float(np.sqrt((left**2).mean())), _EPSILON)
    directions, lacking = _directions(points, fit, beside, free)
    mean: Array = np.zeros(len(left))
    covariance: NDArray[Any] = np.zeros((len(left), len(left)))
    if beside.excess is not None:
        drawn = beside.excess @ free
        mean = np.asarray(drawn.mean(0))
        covariance = np.asarray(np.cov(drawn.T), np.float64).reshape(covariance.shape)
    # The variance of one seed and its degrees of freedom; None without a second seed.
    seeds: tuple[float, float] | None = None
    freedom = float((points.weights - 1).sum())
    if points.seed_spread and freedom >= 1:
        seeds = points.seed_spread**2, freedom
    bases = {name: free.T @ columns for name, columns in directions.items()}
    parts, means = _draws(left, sigma, bases, (mean, covariance), free, (points.weights, seeds))
    effects = {name: directions[name] @ mean for name, mean in means.items()}
    if beside.excess is not None:
        effects[TUNING] = beside.excess.mean(0)
    of_shape: NDArray[Any] = np.zeros(2)
    middle = 0.0
    if SHAPE in means:
        aspect = np.log(points.shape["n_embd"] / points.shape["n_layer"])
        middle = float(aspect.mean())
        away = aspect - middle
        terms = np.stack([away, away**2, np.ones_like(away)], 1)
        of_shape = np.linalg.lstsq(terms, effects[SHAPE], rcond=None)[0][:2]
    if beside.excess is None:
        lacking[TUNING] = "no trials beside the best of each cell"
    if seeds is None:
        lacking[SEEDS] = "no point has a second seed"
    squares = {name: (part**2).sum(1) for name, part in parts.items()}
    total = np.maximum(np.sum(list(squares.values()), axis=0), _EPSILON**2)
    causes = [
        _cause(name, squares[name] / total, squares[name] / len(left), lacking.get(name, ""))
        for name in CAUSES
    ]
    causes.sort(key=lambda cause: (cause.state == UNKNOWN, -cause.share))
    noise = {name: _row_variance(name, parts[name], free, points) for name in (SEEDS, REST)}
    return Split(tuple(causes), effects, noise, of_shape, middle, sigma)


def _cause(name: str, shares: Array, squares: Array, why: str) -> Cause:
    if why:
        return Cause(name, UNKNOWN, why=why)
    low, high = (float(np.quantile(shares, end)) for end in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    likely = float(((shares >= LEAST_SHARE) & (squares >= LEAST_SIZE**2)).mean())
    state = NAMED if likely >= SURE and name != REST else NOT_SEEN
    return Cause(name, state, float(shares.mean()), low, high, math.sqrt(float(squares.mean())), likely)


def _row_variance(name: str, part: Array, free: Array, points: Points) -> Array:
    """The mean square of a cause's part; the part of seeds falls with their number, [n]."""
    mean = float((part**2).sum(1).mean()) / part.shape[1]
    if name != SEEDS:
        return np.full(points.n, mean)
    over = 1 / points.weights
    return np.asarray(over * mean / max(float((free**2).sum(1) @ over) / part.shape[1], _EPSILON))


def free_directions(fit: Fit) -> Array:
    """Return an orthonormal basis of the rows' directions that no parameter of the law moves, [n, m]."""
    full, _ = np.linalg.qr(fit.jacobian.T, mode="complete")
    return np.asarray(full[:, len(fit.jacobian) :])


def _of_rows(beside: Beside, kept: NDArray[np.intp]) -> Beside:
    excess = None if beside.excess is None else beside.excess[:, kept]
    passes = None if beside.passes is None else beside.passes[kept]
    return replace(beside, excess=excess, passes=passes)


def worth(passes: Array) -> Array:
    """Return the log of tokens read over the tokens of new text that are worth as much, [n]."""
    repeats = np.maximum(passes - 1, 0.0)
    return np.asarray(np.log(np.maximum(passes, 1.0) / (1 + _WORTH * -np.expm1(-repeats / _WORTH))))


def _directions(
    points: Points, fit: Fit, beside: Beside, free: Array
) -> tuple[dict[str, Array], dict[str, str]]:
    """The directions of each cause at the rows, {name: [n, k]}, orthogonal and of root mean square 1 where the law
    leaves them.
    """
    logs = {name: np.log(points.sizes[name]) for name in fit.law.columns}
    z = {name: (column - column.mean()) / max(float(column.std()), _EPSILON) for name, column in logs.items()}
    names = list(z)
    by_cause = {BEND: [z[a] * z[b] for at, a in enumerate(names) for b in names[at:]]}
    if len(names) == 1:
        by_cause[BEND].append(z[names[0]] ** 3)
    lacking: dict[str, str] = {}
    shape = [points.shape[name] for name in DEPTH_WIDTH if name in points.shape]
    if len(shape) < 2 or not np.isfinite(np.array(shape)).all():
        lacking[SHAPE] = "no shapes"
    elif family := family_of(*shape):
        # Along one family the shape follows from the size: what it does is a bend.
        lacking[SHAPE] = f"{family} in all rows"
    else:
        aspect = np.log(shape[1] / shape[0])
        aspect = aspect - aspect.mean()
        by_cause[SHAPE] = [aspect, aspect**2]
    if beside.passes is None or not np.isfinite(beside.passes).all():
        lacking[EPOCHS] = "it is not known how often a run read its text"
    else:
        repeated = worth(beside.passes)
        size = z.get("params", np.zeros(points.n))
        by_cause[EPOCHS] = [repeated, repeated * size]
    scaled: dict[str, Array] = {}
    for name, columns in by_cause.items():
        kept = np.zeros((points.n, 0))
        for column in columns:
            column = column - column.mean()
            wide = max(float(column.std()), _EPSILON)
            base, x = free.T @ kept, free.T @ column
            # What the law itself makes of a column, or an earlier one of the cause, is no direction of its own.
            part = np.linalg.lstsq(base, x, rcond=None)[0]
            column, x = column - kept @ part, x - base @ part
            length = math.sqrt(float((x**2).mean()))
            if length > _LEAST_LEFT * wide and length > _FLAT:
                kept = np.column_stack([kept, column / length])
        if kept.shape[1]:
            scaled[name] = kept
    return scaled, lacking


def _draws(
    left: Array,
    sigma: float,
    directions: Mapping[str, Array],
    excess: tuple[Array, Array],
    free: Array,
    seeds: tuple[Array, tuple[float, float] | None],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Draws of every cause's part of the residual, [S, m], that sum to it, and its expected coefficients [k]."""
    from scipy.special import gammaincinv

    m, names = len(left), list(directions)
    squares = np.array([directions[name] @ directions[name].T for name in names]).reshape(-1, m, m)
    weights, known = seeds
    of_seeds = (free.T / weights) @ free
    variances: NDArray[Any] = np.zeros(1)
    if known is not None:
        variance, freedom = known
        variances = variance * freedom / (2 * gammaincinv(freedom / 2, np.array(_QUANTILES)))
    combinations = [
        (present, slab, rest, seed)
        for present in product((0.0, 1.0), repeat=len(names))
        for slab in (_SLABS if any(present) else _SLABS[:1])
        for rest in _RESTS
        for seed in variances
    ]
    present, slab, rest, seed = (np.array(each) for each in zip(*combinations, strict=True))
    prior = (present * math.log(_PRESENT) + (1 - present) * math.log(1 - _PRESENT)).sum(1)
    prior -= np.where(present.any(1), math.log(len(_SLABS)), 0.0)
    slab, rest = (slab * sigma) ** 2, (rest * sigma) ** 2
    of_causes = np.einsum("Mk,kij->Mij", present * slab[:, None], squares)
    covariance = of_causes + excess[1] + seed[:, None, None] * of_seeds + rest[:, None, None] * np.eye(m)
    away = left - excess[0]
    lower = np.linalg.cholesky(covariance)
    scaled = np.linalg.solve(covariance, np.broadcast_to(away[:, None], (len(lower), m, 1)))[:, :, 0]
    log_weight = prior - scaled @ away / 2 - np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(1)
    weight = np.exp(log_weight - log_weight.max())
    random = np.random.default_rng(0)
    drawn = random.choice(len(weight), N_DRAWS, p=weight / weight.sum())
    scale = {name: (present[drawn, at] * np.sqrt(slab[drawn]))[:, None] for at, name in enumerate(names)}
    normal = {
        name: scale[name] * random.standard_normal((N_DRAWS, directions[name].shape[1])) for name in names
    }
    of_rows = random.standard_normal((N_DRAWS, len(weights))) / np.sqrt(weights)
    of_seed, of_rest = seed[drawn][:, None], rest[drawn][:, None]
    values, vectors = np.linalg.eigh(excess[1])
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    begun = {
        **{name: normal[name] @ directions[name].T for name in names},
        TUNING: excess[0] + random.standard_normal((N_DRAWS, m)) @ root.T,
        SEEDS: np.sqrt(of_seed) * (of_rows @ free),
        REST: np.sqrt(of_rest) * random.standard_normal((N_DRAWS, m)),
    }
    missed = left - np.sum(list(begun.values()), axis=0)
    shift = np.linalg.solve(covariance[drawn], missed[:, :, None])[:, :, 0]
    coefficients = {name: normal[name] + scale[name] ** 2 * (shift @ directions[name]) for name in names}
    parts = {
        **{name: coefficients[name] @ directions[name].T for name in names},
        TUNING: begun[TUNING] + shift @ excess[1],
        SEEDS: begun[SEEDS] + of_seed * (shift @ of_seeds),
        REST: begun[REST] + of_rest * shift,
    }
    nothing = np.zeros((N_DRAWS, m))
    return (
        {name: parts.get(name, nothing) for name in CAUSES},
        {name: drawn.mean(0) for name, drawn in coefficients.items()},
    )
