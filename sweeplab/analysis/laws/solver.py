"""Many fits at once: Levenberg-Marquardt on a sum of Huber losses of log residuals, within bounds.

Legend: S parameter vectors at once, p parameters, n rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.laws.forms import Array, Law

MAX_STEPS = 300
_EXACT = 1e-14  # log residuals of this size are rounding
STILL = 1e-13
Measure = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Rows:
    """What is fitted: centred logs of the columns, logs of the losses [n], weights [n] or [S, n], and delta.

    delta is where the Huber loss turns from a square into a line; infinite is least squares.
    """

    logs: dict[str, Array]
    log_loss: Array
    weights: Array
    delta: float

    def objective(self, law: Law, theta: Array) -> Array:
        """Return the sum of weighted Huber losses: [S]."""
        return _huber(self.log_loss - law.log_loss(theta, self.logs), self.delta, self.weights)

    def of(self, chosen: NDArray[np.intp]) -> Rows:
        """Return the rows as the chosen vectors see them."""
        return self if self.weights.ndim == 1 else replace(self, weights=self.weights[chosen])


class Pull(NamedTuple):
    """A spring between a quantity and a target, 0.5 * strength * (quantity - target)^2, for every vector.

    Where such a sum is lowest, the objective is lowest among all vectors with the same value of the quantity:
    every solution is a point of its profile, however strong the spring is.
    """

    measure: Measure  # vectors [S, p] to values [S] and gradients [S, p]
    targets: Array  # [S]
    strengths: Array  # [S]


class Solution(NamedTuple):
    """Vectors [S, p], their objectives [S] without any spring, and which of them came to rest."""

    theta: Array
    objective: Array
    converged: Array


def solve(law: Law, theta: Array, rows: Rows, pull: Pull | None = None, still: float = STILL) -> Solution:
    """Return the vectors of lowest objective that are reached from `theta`, [S, p], each on its own.

    A step that promises less than the share `still` of the objective is the last.
    """
    low, high = law.bounds(rows.log_loss)
    theta = np.clip(theta, low, high)
    value = _sum(law, theta, rows, pull)
    damping = np.full(len(theta), 1e-3)
    converged = np.zeros(len(theta), bool)
    rounding = _EXACT**2 * rows.weights.sum(-1) / 2
    live = np.arange(len(theta))
    for _ in range(MAX_STEPS):
        here, own = theta[live], rows.of(live)
        spring = pull and Pull(pull.measure, pull.targets[live], pull.strengths[live])
        gradient, hessian = _slopes(law, here, own, spring)
        # A parameter at its bound that would go beyond it stays where it is in this step.
        held = ((here <= low) & (gradient > 0)) | ((here >= high) & (gradient < 0))
        gradient = np.where(held, 0.0, gradient)
        diagonal = np.arange(theta.shape[1])
        curvature = hessian[:, diagonal, diagonal]
        hessian = np.where(held[:, :, None] | held[:, None, :], 0.0, hessian)
        floor = 1e-12 * curvature.max(1, keepdims=True) + 1e-300
        hessian[:, diagonal, diagonal] = np.maximum(curvature, floor) * (1 + damping[live, None])
        step = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        there = np.clip(here + step, low, high)
        new = _sum(law, there, own, spring)
        old = value[live]
        better = new <= old
        theta[live] = np.where(better[:, None], there, here)
        value[live] = np.where(better, new, old)
        promised = -0.5 * (gradient * step).sum(1)
        least = np.broadcast_to(rounding, value.shape)[live]
        ended = (promised <= still * old) | (old <= least) | ((there == here).all(1) & better)
        ended |= ~better & (damping[live] > 1e12)
        damping[live] = np.where(better, np.maximum(damping[live] * 0.2, 1e-12), damping[live] * 4)
        converged[live] = ended
        live = live[~ended]
        if not live.size:
            break
    return Solution(theta, rows.objective(law, theta), converged)


def _slopes(law: Law, theta: Array, rows: Rows, pull: Pull | None) -> tuple[Array, Array]:
    fitted, jacobian = law.derivatives(theta, rows.logs)
    residual = rows.log_loss - fitted
    size = np.maximum(np.abs(residual), 1e-300)
    weights = rows.weights * np.minimum(1.0, rows.delta / size)
    gradient = -(jacobian @ (weights * residual)[:, :, None])[:, :, 0]
    hessian = (jacobian * weights[:, None, :]) @ jacobian.transpose(0, 2, 1)
    if pull:
        at, slope = pull.measure(theta)
        gradient += (pull.strengths * (at - pull.targets))[:, None] * slope
        hessian += pull.strengths[:, None, None] * slope[:, :, None] * slope[:, None, :]
    return gradient, hessian


def _sum(law: Law, theta: Array, rows: Rows, pull: Pull | None) -> Array:
    value = rows.objective(law, theta)
    if pull:
        value = value + 0.5 * pull.strengths * (pull.measure(theta)[0] - pull.targets) ** 2
    return value


def _huber(residual: Array, delta: float, weights: Array) -> Array:
    size = np.abs(residual)
    inside = np.minimum(size, delta)
    loss = inside * (size - 0.5 * inside)
    return np.asarray((weights * loss).sum(1))
