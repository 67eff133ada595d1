"""The shapes of a table, a row each, and regressions of their log losses.

Legend: G shapes, N parameters, D tokens, a = log(n_embd / n_layer).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.columns import Array
from sweeplab.analysis.fit.intervals import LEVEL
from sweeplab.analysis.points import SHAPE, Points


@dataclass(frozen=True)
class Rows:
    """One row a shape: logs of n_layer, n_embd and N, the log loss with the tokens' effect taken out; weights."""

    layer: Array
    embd: Array
    n: Array
    y: Array
    d: Array
    weights: Array
    place: NDArray[np.intp]
    correction: Array

    @property
    def aspect(self) -> Array:
        """Return a, [G]."""
        return np.asarray(self.embd - self.layer)


@dataclass(frozen=True)
class Regression:
    """Weighted least squares: coefficients by the name of their column, their covariance, and the t quantile."""

    names: tuple[str, ...]
    at: Array
    covariance: Array
    sigma: float
    spare: int

    @property
    def reach(self) -> float:
        """Return how many standard deviations an interval ends from its value."""
        from scipy.stats import t

        return float(t.ppf((1 + LEVEL) / 2, self.spare))

    def along(self, **parts: float) -> tuple[float, float, float]:
        """Return a sum of coefficients times numbers, with its interval."""
        lean = np.array([parts.get(name, 0.0) for name in self.names])
        value, half = float(lean @ self.at), self.reach * math.sqrt(float(lean @ self.covariance @ lean))
        return value, value - half, value + half


def rows_of(points: Points) -> Rows:
    """Return a row a shape; what tokens do, seen within the shapes that have several lengths, is taken out."""
    shapes = np.stack([points.shape[name] for name in SHAPE], axis=1)
    unique, place = np.unique(shapes, axis=0, return_inverse=True)
    place = place.ravel()
    weights = np.asarray(np.bincount(place, points.weights), np.float64)

    def mean(column: Array) -> Array:
        return np.asarray(np.bincount(place, points.weights * column) / weights)

    y = np.log(points.columns["loss"])
    log_d = np.log(points.columns["tokens"]) if "tokens" in points.columns else np.zeros(points.n)
    correction = np.zeros(points.n)
    inside = log_d - mean(log_d)[place]
    if np.ptp(inside) > 1e-9:  # a shape with several lengths: what tokens do is seen within it
        z = log_d - log_d.mean()
        powers = np.stack([z, z**2], axis=1)[:, : 2 if len(np.unique(log_d.round(6))) > 2 else 1]
        within = powers - np.stack([mean(each) for each in powers.T], axis=1)[place]
        root = np.sqrt(points.weights)[:, None]
        slope = np.linalg.lstsq(within * root, (y - mean(y)[place]) * root[:, 0], rcond=None)[0]
        correction = powers @ slope
        log_d = np.full(points.n, log_d.mean())
    log_n = mean(np.log(points.columns["params"]))
    layer, embd = np.log(unique).T
    return Rows(layer, embd, log_n, mean(y - correction), mean(log_d), weights, place, correction)


def regress(rows: Rows, columns: dict[str, Array]) -> Regression | None:
    """Return the regression of the log losses; None where the shapes are too few, or do not tell columns apart."""
    if np.ptp(rows.d) > 1e-9:
        columns = columns | {"d": rows.d - rows.d.mean()}
    design = np.stack([np.ones_like(rows.y), *columns.values()], axis=1)
    spare = len(rows.y) - design.shape[1]
    if spare < 1 or np.linalg.cond(design / np.maximum(np.abs(design).max(0), 1e-12)) > 1e6:
        return None
    inverse = np.linalg.inv((design.T * rows.weights) @ design)
    at = inverse @ (design.T * rows.weights) @ rows.y
    variance = float(rows.weights @ (rows.y - design @ at) ** 2) / spare
    return Regression(("one", *columns), at, inverse * variance, math.sqrt(variance), spare)


def growth(rows: Rows) -> tuple[float, float] | None:
    """Return p and q of N ~ n_layer^p n_embd^q; None where the shapes do not tell."""
    design = np.stack([np.ones_like(rows.n), rows.layer, rows.embd], axis=1)
    if np.linalg.matrix_rank(design, tol=1e-6) < 3:
        return None
    _, p, q = map(float, np.linalg.lstsq(design, rows.n, rcond=None)[0])
    return (p, q) if p > 0 and q > 0 else None
