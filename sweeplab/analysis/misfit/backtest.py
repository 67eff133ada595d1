"""Back-testing: a law is fitted to the runs below a compute cut, and has to predict those above it.

A fit to all rows says how well a law follows them; what it is wanted for lies beyond them. So each law predicts every
row from rows of less compute only, for several cuts, and its errors there are what laws are compared by.

Legend: k cuts, h rows above a cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.fit.fitting import Fit, fit
from sweeplab.analysis.fit.forms import Array, Law
from sweeplab.analysis.fit.groups import Shared, shared_errors, sizes_as_groups
from sweeplab.analysis.fit.intervals import LEVEL, inverse_curvature, rise
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput

N_CUTS = 4
SPARE = 2  # more rows below a cut than the largest law has parameters
FEWEST_ABOVE = 2
# Of the rows: a law that saw less says more of its noise than of its form.
SHARE_BELOW, SHARE_ABOVE = 0.35, 0.1
_BY = ("flops", "tokens", "params")


@dataclass(frozen=True)
class Cut:
    """Rows up to `at` of the column and those above it, as places in the table."""

    at: float
    below: NDArray[np.intp]
    above: NDArray[np.intp]


@dataclass(frozen=True)
class Cuts:
    """The cuts of a table by the column that they are made in; none, and `why`, where there can be none."""

    by: str
    cuts: tuple[Cut, ...]
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "by": self.by,
            "cuts": [
                {"at": each.at, "rows_below": len(each.below), "rows_above": len(each.above)}
                for each in self.cuts
            ],
            "why_none": self.why,
        }


@dataclass(frozen=True)
class Errors:
    """A law's errors above one cut, log(predicted / loss) [h], and which losses its intervals hold [h]."""

    cut: Cut
    fit: Fit
    errors: Array
    held: NDArray[np.bool_]


@dataclass(frozen=True)
class Backtest:
    """A law's errors above every cut; none, and `why`, where it cannot be tested."""

    law: Law
    cuts: tuple[Errors, ...]
    why: str = ""

    @property
    def error(self) -> float:
        """Return the mean size of the errors above a cut, the mean over cuts, in log loss."""
        return float(np.mean([np.abs(each.errors).mean() for each in self.cuts]))

    @property
    def bias(self) -> float:
        """Return the mean error, likewise; above zero it predicts too much."""
        return float(np.mean([each.errors.mean() for each in self.cuts]))

    @property
    def coverage(self) -> float:
        """Return the share of losses that the prediction intervals hold, likewise."""
        return float(np.mean([each.held.mean() for each in self.cuts]))

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; nothing but the reason where there are no errors."""
        if self.why:
            return {"why_none": self.why}
        return {
            "error": self.error,
            "bias": self.bias,
            "coverage": self.coverage,
            "level": LEVEL,
            "by_cut": [
                {
                    "at": each.cut.at,
                    "rows": each.cut.above.tolist(),
                    "errors": each.errors.tolist(),
                    "held": each.held.tolist(),
                }
                for each in self.cuts
            ],
            "why_none": "",
        }


def cuts_of(points: Points, laws: Sequence[Law]) -> Cuts:
    """Return up to N_CUTS cuts, even in the log of compute, that leave every law enough rows below them."""
    by = next(name for name in _BY if name in points.columns)
    logs = np.log(points.columns[by])
    values = np.unique(logs.round(6))
    fewest = max(SPARE + max(len(law.parameters) for law in laws), math.ceil(SHARE_BELOW * points.n))
    above = max(FEWEST_ABOVE, math.ceil(SHARE_ABOVE * points.n))
    below = [np.flatnonzero(logs <= value + 1e-6) for value in values]
    enough = [
        (value, rows)
        for value, rows in zip(values, below, strict=True)
        if len(rows) >= fewest
        and points.n - len(rows) >= above
        and all(_varies(points, rows, law) for law in laws)
    ]
    if not enough:
        why = (
            f"no cut in {by} leaves {fewest} rows of several sizes below it and {above} above, of {points.n}"
        )
        return Cuts(by, (), why)
    first, last = enough[0][0], enough[-1][0]
    aims = np.linspace(first, last, N_CUTS)
    chosen = sorted({int(np.argmin([abs(value - aim) for value, _ in enough])) for aim in aims})
    everything = np.arange(points.n)
    return Cuts(
        by,
        tuple(
            Cut(math.exp(value), rows, np.setdiff1d(everything, rows))
            for value, rows in (enough[at] for at in chosen)
        ),
    )


def backtest(points: Points, law: Law, cuts: Cuts) -> Backtest:
    """Return how far a law that saw the rows below each cut is off above it."""
    if not cuts.cuts:
        return Backtest(law, (), cuts.why)
    try:
        return Backtest(law, tuple(_above(points, law, cut) for cut in cuts.cuts))
    except BadInput as problem:
        return Backtest(law, (), "; ".join(map(str, problem.problems)))


def _varies(points: Points, rows: NDArray[np.intp], law: Law) -> bool:
    """Return whether a law's columns take as many values below a cut as a term has parameters."""
    return all(len(np.unique(np.log(points.columns[name][rows]).round(6))) >= 3 for name in law.columns)


def _above(points: Points, law: Law, cut: Cut) -> Errors:
    below = points.only(cut.below)
    found = fit(below, law)
    columns = {name: points.columns[name][cut.above] for name in law.columns}
    errors = np.log(found.predict(columns) / points.columns["loss"][cut.above])
    half = _half_intervals(below, found, columns, points.weights[cut.above])
    return Errors(cut, found, errors, np.abs(errors) <= half)


def _half_intervals(points: Points, found: Fit, columns: dict[str, Array], weights: Array) -> Array:
    """Return half the width of each prediction interval, in log loss: the law's own, to first order, and a run's."""
    logs = {name: np.log(column) - found.center[name] for name, column in columns.items()}
    slopes = found.law.derivatives(found.theta[None], logs)[1][0].T
    inverse = inverse_curvature(found)
    leans = (
        slopes
        @ inverse
        @ found.law.derivatives(found.theta[None], found.rows.logs)[1][0]
        * found.rows.weights
    )
    spread = ((slopes @ inverse) * slopes).sum(1)
    shared, freedom = _shared(points, found), float(found.spare)
    noise = float(found.rows.weights @ found.residuals() ** 2) / found.spare / weights
    widen = np.ones(len(weights))
    if shared and shared.shared > 0:
        freedom = max(1.0, min(shared.n_groups - 1.0, found.spare))
        widen = np.array([shared.inflation(lean) for lean in leans])
        noise = np.maximum(noise, shared.own / weights + shared.shared)
    allowed = rise(found, freedom)
    quantile = _t(freedom)
    return np.asarray(np.sqrt(2 * allowed * spread * widen + quantile**2 * noise))


def _shared(points: Points, found: Fit) -> Shared | None:
    groups = points.groups
    if not groups and "params" in points.columns:
        groups = sizes_as_groups(points.columns["params"])
    return shared_errors(found, groups) if groups else None


def _t(freedom: float) -> float:
    from scipy.stats import t as t_distribution

    return float(t_distribution.ppf((1 + LEVEL) / 2, freedom))
