"""Many fits at once: Levenberg-Marquardt on a sum of Huber losses of log residuals, within bounds.

Legend: S parameter vectors at once, p parameters, n rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.fit.forms import Array, Law

MAX_STEPS = 300
_EXACT = 1e-14  # log residuals of this size are rounding
STILL = 1e-13
_LEAST = 1e-12
_FREE = 1e-9  # damping that holds no step back: a damped one promises little along a flat valley
Measure = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Rows:
    """What is fitted: centered logs of the columns, logs of the losses [n], weights [n] or [S, n], and delta.

    delta is where the Huber loss turns from a square into a line; infinite is least squares.
    """

    logs: dict[str, Array]
    log_loss: Array
    weights: Array
    delta: float

    def objective(self, law: Law, theta: Array) -> Array:
        """Return the sum of weighted Huber losses: [S]."""
        return _huber(self.log_loss - law.log_loss(theta, self.logs), self.delta, self.weights)

    def of(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the rows as the chosen vectors see them."""
        return self if self.weights.ndim == 1 else replace(self, weights=self.weights[chosen])


class Pull(NamedTuple):
    """A spring between a quantity and a target, 0.5 * strength * (quantity - target)^2, for every vector.

    Where such a sum is lowest, the objective is lowest among all vectors with the same value of the quantity:
    every solution is a point of its profile, however strong the spring is.
    """

    measures: Sequence[Measure]  # vectors [S, p] to values [S] and gradients [S, p]
    which: NDArray[np.intp]  # [S]: the measure of each vector
    targets: Array  # [S]
    strengths: Array  # [S]

    def measured(self, theta: Array) -> tuple[Array, Array]:
        """Return each vector's own quantity, [S], and its gradient, [S, p]."""
        value, slope = np.empty(len(theta)), np.empty_like(theta)
        for k in np.unique(self.which):
            mine = self.which == k
            value[mine], slope[mine] = self.measures[k](theta[mine])
        return value, slope

    def of(self, chosen: NDArray[np.bool_]) -> Pull:
        """Return the springs of the chosen vectors."""
        return Pull(self.measures, self.which[chosen], self.targets[chosen], self.strengths[chosen])


class Solution(NamedTuple):
    """Vectors [S, p], their objectives [S] without any spring, and which of them came to rest."""

    theta: Array
    objective: Array
    converged: Array


def solve(law: Law, theta: Array, rows: Rows, pull: Pull | None = None, still: float = STILL) -> Solution:
    """Return the vectors of lowest objective that are reached from `theta`, [S, p], each on its own.

    A step that is not held back and promises less than the share `still` of the objective is the last.
    """
    low, high = law.bounds(rows.log_loss)
    theta = np.clip(theta, low, high)
    lowest, converged = np.empty(len(theta)), np.zeros(len(theta), bool)
    damping, beyond = np.full(len(theta), 1e-3), np.ones(len(theta))
    rounding = np.broadcast_to(_EXACT**2 * rows.weights.sum(-1) / 2, len(theta))
    live = np.arange(len(theta))
    own, spring, here = rows, pull, _look(law, theta, rows, beyond, pull)
    for _ in range(MAX_STEPS):
        step, promised = _step(here, theta[live], damping[live], low, high)
        there = np.clip(theta[live] + step, low, high)
        beyond[live] = np.maximum(beyond[live] * 0.2, _LEAST)
        new = _look(law, there, own, beyond[live], spring)
        better = new.value <= here.value
        little = promised <= still * here.value
        ended = (little & (~better | (damping[live] <= _FREE))) | (here.value <= rounding[live])
        ended |= (there == theta[live]).all(1) & better
        ended |= ~better & (damping[live] > 1e12)
        here = here.replaced(better, new)
        theta[live] = np.where(better[:, None], there, theta[live])
        lowest[live] = here.objective
        eased = damping[live] * np.where(little, 1e-3, 0.2)
        damping[live] = np.where(better, np.maximum(eased, _LEAST), damping[live] * 4)
        beyond[live] = np.where(better, beyond[live], 1.0)
        converged[live] = ended
        if ended.all():
            break
        if ended.any():
            going = ~ended
            live, here, own = live[going], _View(*(each[going] for each in here)), own.of(going)
            spring = spring and spring.of(going)
    return Solution(theta, lowest, converged)


class _View(NamedTuple):
    """What is seen from vectors: the objective, with the spring too, its slope, curvature and steps' scale."""

    objective: Array  # [S]
    value: Array  # [S]
    gradient: Array  # [S, p]
    hessian: Array  # [S, p, p]
    scale: Array  # [S, p]: what damping is a share of

    def replaced(self, where: NDArray[np.bool_], other: _View) -> _View:
        if where.all():
            return other
        for mine, new in zip(self, other, strict=True):
            mine[where] = new[where]
        return self


def _look(law: Law, theta: Array, rows: Rows, beyond: Array, pull: Pull | None) -> _View:
    """Return what is seen from `theta`; `beyond` is the share of the curvature of rows beyond delta, [S].

    Beyond delta the Huber loss is a line and has no curvature. With that of the parabola that touches it (share 1)
    no step overshoots, but where many rows lie beyond, steps creep; so the share is let go as steps succeed.
    """
    fitted, jacobian = law.derivatives(theta, rows.logs)
    residual = rows.log_loss - fitted
    size = np.abs(residual)
    inside = np.minimum(size, rows.delta)
    objective = (rows.weights * (inside * (size - 0.5 * inside))).sum(1)
    weights = rows.weights * np.minimum(1.0, rows.delta / np.maximum(size, 1e-300))
    gradient = -(jacobian @ (weights * residual)[:, :, None])[:, :, 0]
    bent = (
        weights if math.isinf(rows.delta) else np.where(size < rows.delta, weights, beyond[:, None] * weights)
    )
    hessian = (jacobian * bent[:, None, :]) @ jacobian.transpose(0, 2, 1)
    scale = hessian[:, np.arange(theta.shape[1]), np.arange(theta.shape[1])]
    if not math.isinf(rows.delta):
        scale = (jacobian**2 @ weights[:, :, None])[:, :, 0]
    if pull is None:
        return _View(objective, objective, gradient, hessian, scale)
    at, slope = pull.measured(theta)
    away = at - pull.targets
    gradient += (pull.strengths * away)[:, None] * slope
    hessian += pull.strengths[:, None, None] * slope[:, :, None] * slope[:, None, :]
    scale += pull.strengths[:, None] * slope**2
    return _View(objective, objective + 0.5 * pull.strengths * away**2, gradient, hessian, scale)


def _step(view: _View, theta: Array, damping: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return a damped step of each vector, [S, p], and how much lower it promises to be, [S]."""
    # A parameter at its bound that would go beyond it stays where it is in this step.
    held = ((theta <= low) & (view.gradient > 0)) | ((theta >= high) & (view.gradient < 0))
    gradient = np.where(held, 0.0, view.gradient)
    diagonal = np.arange(theta.shape[1])
    curvature = view.hessian[:, diagonal, diagonal]
    hessian = np.where(held[:, :, None] | held[:, None, :], 0.0, view.hessian)
    floor = 1e-12 * view.scale.max(1, keepdims=True) + 1e-300
    hessian[:, diagonal, diagonal] = np.maximum(curvature, floor) + damping[:, None] * np.maximum(
        view.scale, floor
    )
    step = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
    return step, np.asarray(-0.5 * (gradient * step).sum(1))


def _huber(residual: Array, delta: float, weights: Array) -> Array:
    size = np.abs(residual)
    inside = np.minimum(size, delta)
    loss = inside * (size - 0.5 * inside)
    return np.asarray((weights * loss).sum(1))
