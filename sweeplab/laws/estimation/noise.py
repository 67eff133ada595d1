"""The size of the rows' errors: a variance function of the law's columns, and its effect on a number's error.

Errors in published tables are not equal: they fall with D, and have heavy tails. So the log of their sd is modelled as
linear in the logs of the columns, and fitted to the residuals by the likelihood of Student's t, on which outliers have
little influence (Lange, Little and Taylor 1989). The slopes are shrunk by what chance would give, as by James and
Stein: without evidence the noise is equal.

The error of a number is that of an M-estimator, the sandwich A^-1 B A^-1 (Huber 1967), with A the curvature and B the
sum of squares of the rows' scores (the residuals clipped at delta). It is computed twice. The modelled error takes
both from the variance function; it is stable, but wrong if the noise varies in another way. The robust error takes the
observed scores, corrected for leverage (HC2, MacKinnon and White 1985), with the degrees of freedom of Bell and
McCaffrey 2002. The wider interval of the two counts.

Legend: n rows, p parameters, q quantities, s the quantities' slopes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sweeplab.laws.estimation.fitting import Fit, robust_sigma
from sweeplab.laws.estimation.forms import Array

OBSERVED = 0.75  # weight of a row's observed curvature; the rest is expected, as few rows may have none
_TAILS = 5.0  # degrees of freedom of the t likelihood
_FEWEST = 4  # rows beyond the parameters, for each slope
_EXACT = 1e-14
_STEPS = 60
_TOLERANCE = 1e-6
_MOST_LEVERAGE = 0.95


@dataclass(frozen=True)
class Noise:
    """The errors of a fit's rows; `slopes` are those of the log of their sd, by column, 0 if the noise is equal."""

    fit: Fit
    slopes: Mapping[str, float]

    @cached_property
    def relative(self) -> Array:
        """Return each row's sd at weight 1 over the root of the mean variance, [n]."""
        return np.asarray(np.exp(self._log_sd(self.fit.rows.logs) - self._middle))

    def at(self, logs: Mapping[str, Array]) -> Array:
        """Return the same at other points; beyond the table's range the value at its end."""
        ends = {name: np.clip(logs[name], own.min(), own.max()) for name, own in self.fit.rows.logs.items()}
        return np.asarray(np.exp(self._log_sd(ends) - self._middle))

    def _log_sd(self, logs: Mapping[str, Array]) -> Array:
        return np.asarray(sum(slope * logs[name] for name, slope in self.slopes.items()))

    @cached_property
    def _middle(self) -> float:
        variances, left = np.exp(2 * self._log_sd(self.fit.rows.logs)), 1 - self.leverage
        return 0.5 * math.log(float(left @ variances) / float(left.sum()))

    @cached_property
    def leverage(self) -> Array:
        """Return the leverage of each row: the share of its error that the fit absorbs, [n]."""
        return np.asarray((self._base**2).sum(1))

    @cached_property
    def _base(self) -> Array:
        return np.asarray(np.linalg.qr((self.fit.jacobian * np.sqrt(self.fit.rows.weights)).T)[0])

    @cached_property
    def _expected(self) -> tuple[Array, Array]:
        """Return each row's expected curvature and squared score, E[psi'] and E[psi^2] of a normal error, [n].

        Both are scaled to agree with the residuals over all rows.
        """
        from scipy.special import ndtr

        fit, root = self.fit, np.sqrt(self.fit.rows.weights)
        raw, delta = fit.residuals(), fit.rows.delta
        sd = self.relative / root
        sd = sd * max(robust_sigma(raw / sd, len(fit.theta)), _EXACT)
        bound = np.minimum(delta / sd, 1e3)
        curvature = 2 * ndtr(bound) - 1
        density = np.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi)
        squares = sd**2 * (curvature - 2 * bound * density + bound**2 * (1 - curvature))
        weighted = fit.rows.weights * squares
        inside = max(
            float(fit.rows.weights @ (np.abs(raw) < delta)) / float(fit.rows.weights.sum()), 1 / len(raw)
        )
        curvature *= inside * fit.rows.weights.sum() / (fit.rows.weights @ curvature)
        return curvature, squares * self.squares * fit.freedom / (weighted @ (1 - self.leverage))

    @cached_property
    def squares(self) -> float:
        """Return the mean squared score of a row of weight 1, with the residual degrees of freedom."""
        return float(self.fit.rows.weights @ self._scores**2) / self.fit.freedom

    @cached_property
    def _scores(self) -> Array:
        return np.clip(self.fit.residuals(), -self.fit.rows.delta, self.fit.rows.delta)

    def modelled(self, slopes: Array) -> tuple[Array, Array]:
        """Return E[psi^2] / E[psi'] of quantities with gradients [q, p] by the variance function: [q].

        The second result are their influences [q, n]: the derivative of a quantity by each row's score.
        """
        influences, spread = self._influences(slopes, self._expected[0])
        return np.asarray(influences**2 @ self._expected[1] / spread), influences

    def robust(self, slopes: Array) -> tuple[Array, Array]:
        """Return the same by the observed residuals, [q], and its degrees of freedom, [q]."""
        weights, inside = self.fit.rows.weights, np.abs(self.fit.residuals()) < self.fit.rows.delta
        influences, spread = self._influences(slopes, OBSERVED * inside + (1 - OBSERVED) * self._expected[0])
        each = influences**2 / weights  # the effect of an error of variance 1 / weight
        over = each / (1 - np.minimum(self.leverage, _MOST_LEVERAGE))
        crossed = np.einsum("np,qn,nr->qpr", self._base, over, self._base, optimize=True)
        known = (over**2 * (1 - 2 * self.leverage)).sum(1) + (crossed**2).sum((1, 2))
        freedom = each.sum(1) ** 2 / np.maximum(known, 1e-300)
        return over @ (weights * self._scores**2) / spread, np.clip(freedom, 1.0, self.fit.freedom)

    def _influences(self, slopes: Array, curvatures: Array) -> tuple[Array, Array]:
        jacobian, weights = self.fit.jacobian, self.fit.rows.weights
        curvature = (jacobian * weights * curvatures) @ jacobian.T
        moved = slopes @ np.linalg.pinv(curvature, rcond=1e-13, hermitian=True)
        return moved @ jacobian * weights, np.maximum((moved * slopes).sum(1), 1e-300)


def noise_of(fit: Fit) -> Noise:
    """Return the variance function of a fit's residuals; equal noise if they are too few."""
    logs, weights = fit.rows.logs, fit.rows.weights
    names = list(logs)
    equal = Noise(fit, dict.fromkeys(names, 0.0))
    raw = fit.residuals() * np.sqrt(weights)
    if fit.freedom < _FEWEST * len(names) - 1 or np.median(np.abs(raw)) < _EXACT:
        return equal
    left = raw / np.sqrt(1 - np.minimum(equal.leverage, _MOST_LEVERAGE))
    columns = np.column_stack([np.ones(len(left)), *(logs[name] for name in names)])
    information = columns.T @ columns * (2 * _TAILS / (_TAILS + 3))
    found = np.zeros(len(names) + 1)
    found[0] = math.log(1.4826 * float(np.median(np.abs(left))))
    for _ in range(_STEPS):
        squares = (left / np.exp(columns @ found)) ** 2
        score = (_TAILS + 1) * squares / (_TAILS + squares) - 1
        step = np.clip(np.linalg.lstsq(information, columns.T @ score, rcond=None)[0], -1, 1)
        found = found + step
        if np.abs(step).max() < _TOLERANCE:
            break
    slopes = found[1:]
    among = np.linalg.pinv(np.linalg.pinv(information)[1:, 1:])
    # Under equal noise this is chi-squared with one degree of freedom per slope.
    evidence = float(slopes @ among @ slopes)
    kept = max(0.0, 1 - len(names) / evidence) if evidence > 0 else 0.0
    return Noise(fit, dict(zip(names, map(float, kept * slopes), strict=True)))
