"""The share of the residuals in each of many directions, compared with noise alone.

A law of the right form leaves noise in all directions alike. A wrong form leaves a part of its departure: the
departure's direction z after projecting out the law's gradient J. The score of a direction is the share of the squared
residuals that lies in it, cos^2 = (z'r)^2 / (z'z r'r), a transform of F(1, n - p - 1) (Rao's score test). The test
takes the largest score over all directions, because the place of a bend is unknown beforehand (Davies 1987), and
compares it with simulated errors of the same unequal size, through the same projection, clipping and maximum. So the
false-alarm rate holds for the whole test, however many directions there are and however correlated they are.

The power is the share of simulations that are flagged when a departure is present: the noncentral F at the projected
norm, and the same for a maximum, for which there is no formula.

Departures from the textbook: residuals are clipped at Huber's delta as in the fit; errors that rows of a group share
are simulated as shared; a parameter at its bound takes no direction away.

Legend: n rows, p parameters free to move, k directions, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeplab.laws.estimation.fitting import Fit
from sweeplab.laws.estimation.forms import Array
from sweeplab.laws.estimation.intervals import shared_of
from sweeplab.laws.estimation.noise import noise_of
from sweeplab.laws.points import Points

N_DRAWS = 2000
_BATCH = 250
_SEVERAL = 5  # sizes
_NOTHING = 1e-6  # the share of a direction left after projection below which the law contains it
EXACT = 1e-9  # residuals of this size are rounding errors


@dataclass(frozen=True)
class Space:
    """Residuals and directions after projecting out the law, in rows of equal weight.

    `gradient` [n, p] is an orthonormal basis of the law's gradient; `directions` [n, k] have length 1, or 0 if nothing
    is left; `gains` [k] are the changes of the forecast per unit length of a direction; `noise` is the errors' size.
    `clip` is Huber's delta over the residuals' scale. `factor` [n, n] turns independent errors into the rows' errors;
    None if these are independent. `root` are the roots of the weights.
    """

    gradient: Array
    residual: Array
    directions: Array
    gains: Array
    noise: float
    clip: float
    root: Array
    factor: Array | None

    @property
    def freedom(self) -> int:
        """Return the residual degrees of freedom."""
        return len(self.residual) - int(self.gradient.shape[1])

    def lengths(self) -> Array:
        """Return the signed length of the residuals in each direction, [k]."""
        return np.asarray(self.residual @ self.directions)

    def shares(self) -> Array:
        """Return the share of the squared residuals in each direction, [k]."""
        return np.asarray(self.lengths() ** 2 / max(float(self.residual @ self.residual), 1e-300))

    def left(self, rows: Array) -> Array:
        """Project the law out of rows, [..., n]."""
        return np.asarray(rows - (rows @ self.gradient) @ self.gradient.T)


def space_of(
    points: Points, fit: Fit, rows: Array, beyond: Array, slopes: Array, bend: Array | None = None
) -> Space:
    """Return the space of changes `rows` [n, k], which are `beyond` [k] at a target where the law has `slopes` [p].

    `bend` [n] is the one among them that errors shared by a size resemble.
    """
    bound = fit.at_bound()
    free = [at for at, name in enumerate(fit.law.parameters) if name not in bound]
    root = np.sqrt(fit.rows.weights)  # a row of weight w has 1/w of the variance
    jacobian = fit.jacobian.T[:, free] * root[:, None]
    changes = rows * root[:, None]
    gradient, triangle = np.linalg.qr(jacobian)
    absorbed = np.linalg.lstsq(triangle, gradient.T @ changes, rcond=1e-12)[0]
    left = changes - gradient @ (gradient.T @ changes)
    lengths = np.linalg.norm(left, axis=0)
    lengths[lengths <= _NOTHING * np.linalg.norm(changes, axis=0)] = math.inf
    raw = fit.residuals()
    clipped = root * np.clip(raw, -fit.rows.delta, fit.rows.delta)
    residual = clipped - gradient @ (gradient.T @ clipped)
    inside = max(float((np.abs(raw) < fit.rows.delta).mean()), 1 / fit.n_points)
    return Space(
        gradient=gradient,
        residual=residual,
        directions=left / lengths,
        gains=(beyond - slopes[free] @ absorbed) / lengths,
        noise=float(np.linalg.norm(residual)) / math.sqrt(max(fit.n_points - len(free), 1)) / inside,
        clip=fit.rows.delta / max(fit.sigma, 1e-300),
        root=root,
        factor=_error_factor(points, fit, bend),
    )


@dataclass(frozen=True)
class Draws:
    """Residuals simulated under the right form: their lengths in each direction [S, k], and squared norms [S]."""

    lengths: Array
    squares: Array

    def threshold(self, chosen: Sequence[int], alarm: float) -> float:
        """Return the share of the residuals that the strongest of some directions exceeds with chance `alarm`."""
        return float(np.quantile(self._largest(chosen), 1 - alarm))

    def p_value(self, chosen: Sequence[int], share: float) -> float:
        """Return how often noise alone has a share this large in the strongest of some directions."""
        return float((1 + (self._largest(chosen) >= share).sum()) / (1 + len(self.squares)))

    def _largest(self, chosen: Sequence[int]) -> Array:
        return np.asarray((self.lengths[:, list(chosen)] ** 2).max(1) / self.squares)


def draw(space: Space, seed: int = 0) -> Draws:
    """Simulate residuals under noise alone: normal, projected and clipped like the real ones."""
    random = np.random.default_rng(seed)
    n, n_params = space.gradient.shape
    lengths, squares = [], []
    for _ in range(0, N_DRAWS, _BATCH):
        errors = random.standard_normal((_BATCH, n))
        left = space.left(errors if space.factor is None else errors @ space.factor.T)
        if math.isfinite(space.clip):
            raw = left / space.root
            scale = 1.4826 * np.median(np.sort(np.abs(raw), axis=1)[:, n_params:], axis=1)
            limit = space.clip * scale[:, None]
            left = space.left(space.root * np.clip(raw, -limit, limit))
        lengths.append(left @ space.directions)
        squares.append((left**2).sum(1))
    both = np.concatenate(lengths), np.concatenate(squares)
    unit = math.sqrt(space.freedom / max(float(both[1].mean()), 1e-300))
    return Draws(both[0] * unit, both[1] * unit**2)


def power(space: Space, draws: Draws, at: int, effect: float, chosen: Sequence[int], limit: float) -> float:
    """Return how often a chosen direction exceeds the limit if direction `at` changes the forecast by `effect`."""
    if not space.directions[:, at].any():
        return 0.0
    size = abs(effect) / max(abs(float(space.gains[at])), 1e-12) / max(space.noise, EXACT)
    alike = space.directions.T @ space.directions[:, at]
    lengths = draws.lengths[:, list(chosen)] + size * alike[list(chosen)]
    squares = draws.squares + 2 * size * draws.lengths[:, at] + size**2
    return float(((lengths**2).max(1) > limit * squares).mean())


def _error_factor(points: Points, fit: Fit, bend: Array | None) -> Array | None:
    """Return the matrix that turns independent errors into the rows' errors [n, n], up to a factor; None if not needed.

    Without groups in the table, rows of one size may share an error. A bend in the size resembles that, so the shared
    error is estimated without the bend. With few sizes the two cannot be separated.
    """
    shared = shared_of(points, fit, None if points.groups else bend)
    relative = noise_of(fit).relative
    if shared is None or shared.shared == 0 or not (points.groups or shared.n_groups >= _SEVERAL):
        return np.diag(relative) if np.ptp(relative) else None
    root = np.sqrt(fit.rows.weights)
    together = (shared.place[:, None] == shared.place) * np.outer(root, root)
    covariance = (1 - shared.share) * np.eye(fit.n_points) + shared.share * together
    return relative[:, None] * np.linalg.cholesky(covariance + 1e-12 * np.eye(fit.n_points))
