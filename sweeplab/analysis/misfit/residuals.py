"""Which part of the residuals lies in each of many directions, against what errors alone would give.

A right law leaves errors in all directions alike. A wrong one leaves a part of its departure: what remains of the
departure's direction z once the law's own slopes J are projected off it. The score of a direction is the share of
the residuals that lies in it, cos^2 = (z'r)^2 / (z'z r'r): F(1, n - p - 1) in another coat (Rao's score test). The
test takes the largest over all directions, as where a bend is, is not known before (Davies 1987), and holds it
against errors drawn many times, as unequal as they are, through the same projection, bending and maximum. So the
chance of a false alarm is that of the whole test, however many directions there are and however alike they are.

The power is the share of such draws that are flagged when a departure is there: the noncentral F at the projected
norm, and the same for a maximum, for which there is no formula.

Departures from the textbook: residuals are bent at Huber's delta as the fit has them; errors that rows of a group
share are drawn as shared; a parameter at its bound takes no direction away.

Legend: n rows, p parameters free to move, k directions, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeplab.analysis.fit.fitting import Fit
from sweeplab.analysis.fit.forms import Array
from sweeplab.analysis.fit.intervals import shared_of
from sweeplab.analysis.fit.noise import noise_of
from sweeplab.analysis.points import Points

N_DRAWS = 2000
_BATCH = 250
_SEVERAL = 5  # sizes
_NOTHING = 1e-6  # what is left of a direction, as a share: the law has it already
EXACT = 1e-9  # residuals of this size are rounding


@dataclass(frozen=True)
class Space:
    """What is left once the law is projected off, in rows that weigh alike.

    `taken` [n, p] is an orthonormal base of the law's slopes; `directions` [n, k] have length 1, or 0 where nothing is
    left; `gains` [k] say what a length of 1 of a direction does to the forecast; `noise` is the errors' size.
    `color` [n, n] makes independent errors those of the rows; None where they are. `root` are the roots of weights.
    """

    taken: Array
    residual: Array
    directions: Array
    gains: Array
    noise: float
    bent: float
    root: Array
    color: Array | None

    @property
    def freedom(self) -> int:
        """Return how many directions the law leaves."""
        return len(self.residual) - int(self.taken.shape[1])

    def lengths(self) -> Array:
        """Return how far the residuals go in each direction, [k], with sign."""
        return np.asarray(self.residual @ self.directions)

    def shares(self) -> Array:
        """Return the share of the residuals that lies in each direction, [k]."""
        return np.asarray(self.lengths() ** 2 / max(float(self.residual @ self.residual), 1e-300))

    def left(self, rows: Array) -> Array:
        """Return what the law leaves of rows, [..., n]."""
        return np.asarray(rows - (rows @ self.taken) @ self.taken.T)


def space_of(
    points: Points, fit: Fit, rows: Array, beyond: Array, slopes: Array, bend: Array | None = None
) -> Space:
    """Return the space of changes `rows` [n, k], which are `beyond` [k] at a target where the law has `slopes` [p].

    `bend` [n] is that of them which errors of a size look like.
    """
    bound = fit.at_bound()
    free = [at for at, name in enumerate(fit.law.parameters) if name not in bound]
    root = np.sqrt(fit.rows.weights)  # a row that weighs w has 1/w of the variance
    jacobian = fit.jacobian.T[:, free] * root[:, None]
    changes = rows * root[:, None]
    taken, triangle = np.linalg.qr(jacobian)
    absorbed = np.linalg.lstsq(triangle, taken.T @ changes, rcond=1e-12)[0]
    left = changes - taken @ (taken.T @ changes)
    lengths = np.linalg.norm(left, axis=0)
    lengths[lengths <= _NOTHING * np.linalg.norm(changes, axis=0)] = math.inf
    raw = fit.residuals()
    bent = root * np.clip(raw, -fit.rows.delta, fit.rows.delta)
    residual = bent - taken @ (taken.T @ bent)
    inside = max(float((np.abs(raw) < fit.rows.delta).mean()), 1 / fit.n_points)
    return Space(
        taken=taken,
        residual=residual,
        directions=left / lengths,
        gains=(beyond - slopes[free] @ absorbed) / lengths,
        noise=float(np.linalg.norm(residual)) / math.sqrt(max(fit.n_points - len(free), 1)) / inside,
        bent=fit.rows.delta / max(fit.sigma, 1e-300),
        root=root,
        color=_color(points, fit, bend),
    )


@dataclass(frozen=True)
class Draws:
    """Errors that a right law leaves: how far they go in each direction [S, k], and their squared lengths [S]."""

    lengths: Array
    squares: Array

    def bar(self, chosen: Sequence[int], alarm: float) -> float:
        """Return the share of the residuals that the strongest of some directions passes by chance in `alarm`."""
        return float(np.quantile(self._largest(chosen), 1 - alarm))

    def p_value(self, chosen: Sequence[int], share: float) -> float:
        """Return how often errors alone have a share this large in the strongest of some directions."""
        return float((1 + (self._largest(chosen) >= share).sum()) / (1 + len(self.squares)))

    def _largest(self, chosen: Sequence[int]) -> Array:
        return np.asarray((self.lengths[:, list(chosen)] ** 2).max(1) / self.squares)


def draw(space: Space, seed: int = 0) -> Draws:
    """Return what errors alone leave: normal, projected and bent as the residuals were."""
    random = np.random.default_rng(seed)
    n, n_params = space.taken.shape
    lengths, squares = [], []
    for _ in range(0, N_DRAWS, _BATCH):
        errors = random.standard_normal((_BATCH, n))
        left = space.left(errors if space.color is None else errors @ space.color.T)
        if math.isfinite(space.bent):
            raw = left / space.root
            scale = 1.4826 * np.median(np.sort(np.abs(raw), axis=1)[:, n_params:], axis=1)
            limit = space.bent * scale[:, None]
            left = space.left(space.root * np.clip(raw, -limit, limit))
        lengths.append(left @ space.directions)
        squares.append((left**2).sum(1))
    both = np.concatenate(lengths), np.concatenate(squares)
    unit = math.sqrt(space.freedom / max(float(both[1].mean()), 1e-300))
    return Draws(both[0] * unit, both[1] * unit**2)


def power(space: Space, draws: Draws, at: int, effect: float, chosen: Sequence[int], bar: float) -> float:
    """Return how often some of the chosen directions pass the bar if direction `at` moves the forecast by `effect`."""
    if not space.directions[:, at].any():
        return 0.0
    size = abs(effect) / max(abs(float(space.gains[at])), 1e-12) / max(space.noise, EXACT)
    alike = space.directions.T @ space.directions[:, at]
    lengths = draws.lengths[:, list(chosen)] + size * alike[list(chosen)]
    squares = draws.squares + 2 * size * draws.lengths[:, at] + size**2
    return float(((lengths**2).max(1) > bar * squares).mean())


def _color(points: Points, fit: Fit, bend: Array | None) -> Array | None:
    """Return what makes independent errors those of the rows [n, n], up to a factor; None where they are alike.

    Without groups in the table, rows of one size may share an error. A bend in the size looks like that: what they
    share is what is left without it. Of few sizes nothing is, and the two cannot be told apart.
    """
    shared = shared_of(points, fit, None if points.groups else bend)
    relative = noise_of(fit).relative
    if shared is None or shared.shared == 0 or not (points.groups or shared.n_groups >= _SEVERAL):
        return np.diag(relative) if np.ptp(relative) else None
    root = np.sqrt(fit.rows.weights)
    together = (shared.place[:, None] == shared.place) * np.outer(root, root)
    covariance = (1 - shared.share) * np.eye(fit.n_points) + shared.share * together
    return relative[:, None] * np.linalg.cholesky(covariance + 1e-12 * np.eye(fit.n_points))
