"""The line of the compute-optimal size, fitted to the rows of all budgets at once.

A line through separately fitted minima is biased if the sizes drift from one side of the optimum to the other: a
minimum near the edge counts only if noise moved it inward, and has the largest weight if noise made its parabola
steep; both turn the line towards the middle of the sizes. Nor is the loss a parabola in log N: it is skewed, more so
further from the minimum. So the line is fitted to the rows themselves (nonlinear least squares):

    loss_i / level_b = a_b + k_b (u^2 / 2 + skew u^3 / 6),  u = log N_i - at - slope x_b,  log k_b = bend + growth x_b

with x_b = log C_b - center. All budgets share one skew, as in Hoffmann et al. 2022, equation 2, where it is
beta - alpha at every C; each budget has its own level a_b.

Legend: n rows of the table, m rows that are used, B budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeplab.laws.compute_optimal.lines import Line, RowNoise
from sweeplab.laws.compute_optimal.parabolas import Parabola
from sweeplab.laws.estimation.forms import Array
from sweeplab.laws.estimation.intervals import Shared

_AT, _SLOPE, _BEND, _GROWTH, _SKEW = range(5)
_MOST_SKEW = 1.0  # exponents are smaller
_LACK_OF_FIT = 0.95  # the quantile of F above which a line does not fit
_STEPS = 200
_TOLERANCE = 1e-10  # the share of the squares that a step has to gain


@dataclass(frozen=True)
class _Rows:
    """Rows of all budgets, [m]; `x` is the centered log budget of each row and `place` its budget."""

    log_n: Array
    loss: Array
    level: Array
    x: Array
    place: NDArray[np.intp]
    where: NDArray[np.intp]
    weights: Array

    def centered(self, each: Array) -> Array:
        """Return columns minus their weighted means in each budget, times the roots of the weights: [m] or [m, p]."""
        total = np.bincount(self.place, self.weights)
        columns = each.reshape(len(self.place), -1).T
        means = np.stack([np.bincount(self.place, self.weights * one) / total for one in columns])
        found = (columns - means[:, self.place]) * np.sqrt(self.weights)
        return np.asarray(found.T.reshape(each.shape))

    def model(self, theta: Array) -> tuple[Array, Array]:
        """Return the valley's loss, [m], and its derivatives, [m, 5]."""
        at, slope, bend, growth, skew = theta
        u = self.log_n - at - slope * self.x
        k = np.exp(np.clip(bend + growth * self.x, -30, 10))
        loss = k * (u**2 / 2 + skew * u**3 / 6)
        moved = -k * (u + skew * u**2 / 2)
        return loss, np.stack([moved, moved * self.x, loss, loss * self.x, k * u**3 / 6], 1)


def valley(parabolas: Sequence[Parabola], weights: Array, begin: Array, shared: Shared | None) -> Line | None:
    """Return the line through the minima of some budgets; None if too few rows are left to estimate the noise.

    `begin` [B] are log N of the starting minima; `weights` [n] those of the table's rows. The line's `variance_ratio`
    is from a score test in which each minimum may leave the line.
    """
    log_c = np.array([math.log(each.budget.flops) for each in parabolas])
    center = float(log_c.mean())
    rows = _rows(parabolas, log_c - center, weights)
    freedom = len(rows.log_n) - len(parabolas) - 5
    if freedom < 1:
        return None
    slope, at = np.polyfit(log_c - center, begin, 1)
    bends = [max(2 * float(each.coefficients[2]), 1e-9) for each in parabolas]
    theta, residual, jacobian = _solve(rows, np.array([at, slope, math.log(np.median(bends)), 0.0, 0.0]))
    squares = float(residual @ residual)
    influences = np.zeros((2, len(weights)))
    influences[:, rows.where] = np.linalg.pinv(jacobian)[[_AT, _SLOPE]] * np.sqrt(rows.weights) * rows.level
    noise = RowNoise(squares / freedom / weights, freedom, shared)
    ratio = _variance_ratio(rows, theta, residual, jacobian, freedom)
    quantile = noise.quantile(len(parabolas) - 2 if ratio > 1 else None)
    return Line(center, float(theta[_AT]), float(theta[_SLOPE]), influences, noise, ratio, quantile)


def _rows(parabolas: Sequence[Parabola], x: Array, weights: Array) -> _Rows:
    where = [each.budget.rows[each.used] for each in parabolas]
    place = np.repeat(np.arange(len(where)), [len(each) for each in where])
    loss = np.concatenate([np.exp(each.budget.log_loss[each.used]) / each.level for each in parabolas])
    log_n = np.concatenate([each.budget.log_n[each.used] for each in parabolas])
    rows = np.concatenate(where)
    return _Rows(log_n, loss, loss, x[place], place, rows, weights[rows])


def _solve(rows: _Rows, theta: Array) -> tuple[Array, Array, Array]:
    """Return the least-squares vector by Levenberg-Marquardt, its residuals [m] and their derivatives [m, 5]."""

    def evaluate(at: Array) -> tuple[Array, Array]:
        value, slopes = rows.model(at)
        return rows.centered(rows.loss - value), rows.centered(slopes)

    # scipy.optimize.least_squares, which has the bound too, takes two to three times as long.
    (residual, jacobian), damping = evaluate(theta), 1e-3
    for _ in range(_STEPS):
        curvature, squares = jacobian.T @ jacobian, float(residual @ residual)
        damped = curvature + np.diag(damping * np.diag(curvature) + 1e-14)
        new = theta + np.linalg.solve(damped, jacobian.T @ residual)
        new[_SKEW] = np.clip(new[_SKEW], -_MOST_SKEW, _MOST_SKEW)
        there, slopes = evaluate(new)
        gained = squares - float(there @ there)
        if gained < 0 or not math.isfinite(gained):
            damping *= 5
            if damping > 1e12:
                break
            continue
        theta, residual, jacobian, damping = new, there, slopes, max(damping / 5, 1e-12)
        if gained <= _TOLERANCE * squares:
            break
    return theta, residual, jacobian


def _variance_ratio(rows: _Rows, theta: Array, residual: Array, jacobian: Array, freedom: int) -> float:
    """Return the variance of the minima about the line over that of noise; 1 if the test does not reject."""
    from scipy.special import fdtri

    n_budgets = int(rows.place.max()) + 1
    of_line, of_rest = n_budgets - 2, freedom - (n_budgets - 2)  # degrees of freedom
    if of_line < 1 or of_rest < 1:
        return 1.0
    moved = rows.model(theta)[1][:, _AT]
    each = rows.centered(moved[:, None] * (rows.place[:, None] == np.arange(n_budgets)))
    base = np.linalg.qr(jacobian)[0]
    free, sizes, _ = np.linalg.svd(each - base @ (base.T @ each), full_matrices=False)
    free = free[:, sizes > 1e-9 * max(float(sizes.max()), 1e-300)]
    gained = float(((residual @ free) ** 2).sum())
    ratio = gained / of_line / max((float(residual @ residual) - gained) / of_rest, 1e-300)
    return ratio if ratio > fdtri(of_line, of_rest, _LACK_OF_FIT) else 1.0
