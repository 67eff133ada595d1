"""Rows that share an error: all runs of one size, or all points of one curve.

The errors are taken as e_i + s_group(i), each independent. Their two variances come from two moments of the
residuals r = M (e + s): E[r'r] and E[r'Z Z'r], with M what the fit leaves of an error and Z the groups
(Henderson's method). What a shared error does to a number then follows from how the number leans on the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeplab.analysis.laws.fitting import Fit
from sweeplab.analysis.laws.forms import Array


@dataclass(frozen=True)
class Shared:
    """The variances of the rows' own errors and of the shared ones, and the groups' matrix Z, [n, groups].

    `seeming` is the variance of an error as it seems when all are taken as independent.
    """

    own: float
    shared: float
    seeming: float
    belongs: Array

    @property
    def n_groups(self) -> int:
        """Return the number of groups."""
        return int(self.belongs.shape[1])

    @property
    def share(self) -> float:
        """Return the part of the errors' variance that is shared within a group, 0 to 1."""
        total = self.own + self.shared
        return self.shared / total if total > 0 else 0.0

    def inflation(self, lean: Array) -> float:
        """Return how much larger the variance of a number is than it seems with independent errors; 1 or more.

        `lean` is how the number moves with each row's error, [n].
        """
        each = float(lean @ lean)
        if self.shared == 0 or each == 0:
            return 1.0
        together = float(((lean @ self.belongs) ** 2).sum())
        return max(1.0, (self.own + self.shared * together / each) / self.seeming)


def shared_errors(fit: Fit, groups: Sequence[str]) -> Shared:
    """Return the two variances; nothing is shared where a group has one row or the moments say so."""
    names, place = np.unique(np.asarray(groups, object).astype(str), return_inverse=True)
    belongs = np.eye(len(names))[place]
    jacobian = fit.law.derivatives(fit.theta[None], fit.rows.logs)[1][0].T
    base = np.linalg.qr(jacobian)[0]
    left = np.eye(fit.n_points) - base @ base.T
    residual = np.clip(fit.residuals(), -3 * fit.rows.delta, 3 * fit.rows.delta)
    groupwise = belongs.T @ left @ belongs
    moments = np.array([residual @ residual, ((residual @ belongs) ** 2).sum()])
    design = np.array([[np.trace(left), np.trace(groupwise)], [np.trace(groupwise), (groupwise**2).sum()]])
    seeming = float(moments[0] / fit.spare)
    independent = Shared(seeming, 0.0, seeming, belongs)
    if len(names) in (1, fit.n_points) or np.linalg.cond(design) > 1e8:
        return independent
    own, shared = map(float, np.linalg.solve(design, moments))
    return Shared(own, shared, seeming, belongs) if shared > 0 and own >= 0 else independent


def sizes_as_groups(params: Array) -> tuple[str, ...] | None:
    """Return each row's size as its group; None where hardly any size has two rows, or there are only two."""
    names = tuple(f"{size:.6g}" for size in params)
    return names if 3 <= len(set(names)) <= 0.75 * len(names) else None
