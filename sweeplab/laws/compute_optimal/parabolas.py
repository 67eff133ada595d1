"""A parabola of the loss in log N through the rows of one compute budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeplab.laws.compute_optimal import lines
from sweeplab.laws.compute_optimal.lines import n_sizes
from sweeplab.laws.estimation.forms import Array
from sweeplab.laws.points import Points

Rows = NDArray[np.intp]
SIZES = 3  # that a parabola needs


@dataclass(frozen=True)
class IsoflopBudget:
    """Rows of one budget: its FLOPs, the rows' indices, and their log N and log loss shifted to the budget."""

    flops: float
    rows: Rows
    log_n: Array
    log_loss: Array


@dataclass(frozen=True)
class Parabola:
    """loss = level * (c_0 + c_1 z + c_2 z^2), z = log N - center, through the used rows of one budget.

    `inverse` [3, 3] is the inverse of the normal matrix; `residuals` [m] are those of the losses divided by the level,
    times the root of the row's weight.
    """

    budget: IsoflopBudget
    used: NDArray[np.bool_]
    center: float
    level: float
    coefficients: Array
    inverse: Array
    residuals: Array

    @property
    def freedom(self) -> int:
        """Return the residual degrees of freedom."""
        return len(self.residuals) - 3

    @property
    def squares(self) -> float:
        """Return the sum of the squares of the residuals."""
        return float(self.residuals @ self.residuals)

    def loss(self, log_n: Array) -> Array:
        """Return the parabola's loss, [m]."""
        return np.asarray(self.level * np.polyval(self.coefficients[::-1], log_n - self.center))

    def vertex(self, sigma: float, quantile: float) -> tuple[float, float, float] | None:
        """Return log N of the minimum and its interval; None if the curvature is not above the noise."""
        _, slope, bend = map(float, self.coefficients)
        found = lines.turning_point(slope, bend, sigma**2 * self.inverse[1:, 1:], quantile)
        return found and (self.center - slope / (2 * bend), self.center + found[0], self.center + found[1])


def parabola(points: Points, budget: IsoflopBudget, factor: float) -> Parabola:
    """Return the parabola of a budget's rows within a factor of the best size, or of its five nearest sizes."""
    away = np.abs(budget.log_n - budget.log_n[budget.log_loss.argmin()])
    used = away <= math.log(factor)
    if n_sizes(budget.log_n[used]) <= SIZES:  # the five sizes that are nearest, or all
        used = away <= np.sort(away)[min(SIZES + 1, len(away) - 1)]
    log_n, loss = budget.log_n[used], np.exp(budget.log_loss[used])
    weights = points.weights[budget.rows[used]]
    center, level = float(log_n.mean()), float(loss.mean())
    powers = np.vander(log_n - center, 3, increasing=True)
    inverse = np.linalg.inv((powers.T * weights) @ powers)
    coefficients = inverse @ (powers.T * weights) @ (loss / level)
    residuals = np.sqrt(weights) * (loss / level - powers @ coefficients)
    return Parabola(budget, used, center, level, coefficients, inverse, residuals)


def tokens_of(points: Points, curve: Parabola) -> tuple[float, float]:
    """Return d log D / d log N among the rows of a budget, and log D at the parabola's center."""
    budget = curve.budget
    away = np.log(points.columns["flops"][budget.rows]) - math.log(budget.flops)
    log_d = (np.log(points.columns["tokens"][budget.rows]) - away / 2)[curve.used]
    slope, at = np.polyfit(budget.log_n[curve.used] - curve.center, log_d, 1)
    return float(slope), float(at)
