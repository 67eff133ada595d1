"""A law on the rows of a table: draws of its parameters, and what follows from them at any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.core import Array, Draws, RowErrors, fit_law
from sweeplab.laws.forms import Law, Values
from sweeplab.laws.points import Index, Points, Sizes

# Sizes, and sizes a row, of a table whose rows share errors by size.
_FEWEST_GROUPS, _MOST_ALONE = 3, 0.75


@dataclass(frozen=True, eq=False)
class Fit:
    """A law fitted to rows: `values` are draws of each parameter, [S], and `log_tokens` the mean of z.

    `rows` are the columns that the law and its noise read, `groups` the size of each row where rows of one share an
    error. The values of a bent form are those at the middle of the table, with its departures and the centers of its
    columns.
    """

    law: Law
    draws: Draws
    values: Values
    rows: Sizes
    weights: Array
    tilted_by: str
    groups: Index | None

    def loss(self, sizes: Sizes) -> Array:
        """Return draws of the law's loss at rows of these columns, [S, n]."""
        return self.law.loss(self.values, sizes)

    @cached_property
    def residuals(self) -> Array:
        """Return the log of each row's loss over the law's median, [n]."""
        return np.log(self.rows["loss"] / np.median(self.loss(self.rows), axis=0))

    @property
    def sigma(self) -> float:
        """Return the noise of a row of weight 1, as a share of the loss."""
        return float(np.median(self.draws.sigma))

    @cached_property
    def best(self) -> Values:
        """Return the one draw that fits the rows best: values [1]."""
        errors = 1 - self.loss(self.rows) / self.rows["loss"]
        at = (self.weights * errors**2).sum(1).argmin()
        return {name: draws[[at]] for name, draws in self.values.items()}

    def gradient(self, sizes: Sizes) -> tuple[Array, Array]:
        """Return the derivatives of the log loss at the best draw: by parameters, [n, p], and departures, [n, k]."""
        law = self.law
        slopes = []
        at = {**self.best, **dict.fromkeys(law.departures_of, np.zeros(1))}
        at |= {
            f"center of {name}": np.log(self.rows[name]).mean(keepdims=True)
            for name in law.columns
        }
        for name in (*law.parameters, *law.departures_of):
            step = 1e-6 * np.maximum(at[name], 1)
            low, high = (
                np.log(law.loss({**at, name: at[name] + side * step}, sizes))[0]
                for side in (-1, 1)
            )
            slopes.append((high - low) / (2 * step))
        n_parameters = len(law.parameters)
        return np.stack(slopes[:n_parameters], 1), np.stack(slopes[n_parameters:], 1)

    def errors(
        self, random: np.random.Generator, at: Mapping[str, float], weight: float
    ) -> Array:
        """Return draws of the log of a new run's loss over the law's, [S], at a point that may name its tokens."""
        z = 0.0
        if self.tilted_by in at:
            z = np.log(at[self.tilted_by]) - np.log(self.rows[self.tilted_by]).mean()
        return self.draws.error(random, z, weight)


def fit(points: Points, law: Law, is_bent: bool = False) -> Fit:
    """Return the fit of a law, or of its bent form.

    Raises:
        BadInput: no more rows than the law has parameters, a column that is missing or does not vary, or losses
            that are all equal or do not fall.
    """
    _check(points, law)
    tilted_by = next(name for name in ("tokens", "flops", "params") if name in points.varied)
    rows = {name: points.columns[name] for name in (*law.columns, tilted_by, "loss")}
    logs = {name: np.log(rows[name]) for name in law.columns}
    center = {name: log.mean() for name, log in logs.items()}
    centered = {name: log - center[name] for name, log in logs.items()}
    tilt = np.log(rows[tilted_by])
    groups = groups_of(points)
    errors = RowErrors(tilt - tilt.mean(), groups, points.weights)
    draws = fit_law(rows["loss"], law.design(centered, is_bent), law.priors(is_bent), errors)
    values = {"E": draws.scales[:, 0]}
    for place, term in enumerate(law.terms, start=1):
        exponent = draws.shapes[:, law.exponents.index(term.exponent)]
        values[term.scale] = draws.scales[:, place] * np.exp(exponent * center[term.column])
        values[term.exponent] = exponent
    if is_bent:
        values |= zip(law.departures_of, draws.shapes[:, len(law.exponents) :].T, strict=True)
        values |= {
            f"center of {name}": np.full(len(draws.sigma), each)
            for name, each in center.items()
        }
    return Fit(law, draws, values, rows, points.weights, tilted_by, groups)


def groups_of(points: Points) -> Index | None:
    """Return which size each row has, [n], as rows of one share an error; None if few sizes have two rows."""
    names = [f"{size:.6g}" for size in points.columns.get("params", ())]
    groups = np.unique(names, return_inverse=True)[1]
    if _FEWEST_GROUPS <= len({*names}) <= _MOST_ALONE * len(names):
        return groups
    return None


def _check(points: Points, law: Law) -> None:
    problems = []
    n_params = len(law.parameters)
    if points.n <= n_params:
        problems.append(
            f"{several(points.n, 'row')} for the {several(n_params, 'parameter')} of {law.name}; it needs "
            f"{n_params + 1} or more"
        )
    for name in law.columns:
        if name not in points.columns:
            problems.append(
                f"{law.name} needs {name!r}, which the table lacks; name its column with --columns"
            )
        elif np.ptp(np.log(points.columns[name])) < 1e-9:
            problems.append(
                f"all rows have {name} {points.columns[name][0]:.4g}; {law.name} needs several"
            )
    if np.ptp(np.log(points.columns["loss"])) < 1e-12:
        problems.append(
            f"all losses are {points.columns['loss'][0]:.4g}; no law can be fitted to that"
        )
    if problems:
        raise BadInput(*problems)
