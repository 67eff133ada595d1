"""Rows that share an error: all runs of one size, or all points of one curve.

The errors are taken as e_i + s_group(i), each independent. Their two variances come from two moments of the
residuals r = M (e + s): E[r'r] and E[r'Z Z'r], with M what the fit leaves of an error and Z the groups' columns
(Henderson's method). What a shared error does to a number then follows from how the number leans on the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.fit.fitting import Fit
from sweeplab.analysis.fit.forms import Array


@dataclass(frozen=True)
class Shared:
    """The variances of the rows' own errors and of the shared ones, and which group each row is in, [n].

    A row that weighs w has 1/w of the variance of its own error, and all of the shared one. `seeming` is the own
    variance as it seems when all errors are taken as independent.
    """

    own: float
    shared: float
    seeming: float
    place: NDArray[np.intp]
    weights: Array

    @property
    def n_groups(self) -> int:
        """Return the number of groups."""
        return int(self.place.max()) + 1

    @property
    def belongs(self) -> Array:
        """Return the groups' columns Z, [n, groups]: a large matrix for a large table."""
        return np.eye(self.n_groups)[self.place]

    @property
    def share(self) -> float:
        """Return the part of the errors' variance that is shared within a group, 0 to 1."""
        total = self.own + self.shared
        return self.shared / total if total > 0 else 0.0

    def inflation(self, lean: Array) -> float:
        """Return how much larger the variance of a number is than it seems with independent errors; 1 or more.

        `lean` is how the number moves with each row's error, [n].
        """
        each, together = self._moved(lean)
        if self.shared == 0 or each == 0:
            return 1.0
        return max(1.0, (self.own + self.shared * together / each) / self.seeming)

    def freedom(self, lean: Array, spare: int) -> float:
        """Return the degrees of freedom that a number's variance is known to; `spare` if nothing is shared.

        The own variance is known to `spare`, the shared one to one less than there are groups (Satterthwaite).
        """
        each, together = self._moved(lean)
        own, shared = self.own * each, self.shared * together
        if shared == 0:
            return spare
        grouped = max(1, min(self.n_groups - 1, spare))
        return (own + shared) ** 2 / (own**2 / spare + shared**2 / grouped)

    def _moved(self, lean: Array) -> tuple[float, float]:
        """Return a number's variance by own errors of variance 1, and by shared ones."""
        return float(lean @ (lean / self.weights)), float((np.bincount(self.place, lean) ** 2).sum())


def shared_errors(fit: Fit, groups: Sequence[str]) -> Shared:
    """Return the two variances; nothing is shared where a group has one row or the moments say so."""
    names, place = np.unique(np.asarray(groups, object).astype(str), return_inverse=True)
    weights, root = fit.rows.weights, np.sqrt(fit.rows.weights)
    jacobian = fit.law.derivatives(fit.theta[None], fit.rows.logs)[1][0]
    base = np.linalg.qr((jacobian * root).T)[0]  # M = I - base base'
    leaning = np.stack([np.bincount(place, root * column) for column in base.T])  # Z'base: [p, groups]
    counts = np.bincount(place, weights)
    residual = root * np.clip(fit.residuals(), -3 * fit.rows.delta, 3 * fit.rows.delta)
    moments = np.array([residual @ residual, (np.bincount(place, root * residual) ** 2).sum()])
    inside = counts - (leaning**2).sum(0)  # the diagonal of Z'MZ
    whole = float((counts * (2 * inside - counts)).sum() + ((leaning @ leaning.T) ** 2).sum())
    design = np.array([[fit.spare, inside.sum()], [inside.sum(), whole]])
    seeming = float(moments[0] / fit.spare)
    independent = Shared(seeming, 0.0, seeming, place, weights)
    if len(names) in (1, fit.n_points) or np.linalg.cond(design) > 1e8:
        return independent
    own, shared = map(float, np.linalg.solve(design, moments))
    return Shared(own, shared, seeming, place, weights) if shared > 0 and own >= 0 else independent


def sizes_as_groups(params: Array) -> tuple[str, ...] | None:
    """Return each row's size as its group; None where hardly any size has two rows, or there are only two."""
    names = tuple(f"{size:.6g}" for size in params)
    return names if 3 <= len(set(names)) <= 0.75 * len(names) else None
