"""What speaks against a fit of any form: large residuals, columns that they correlate with, and rows far from the law.

A fit whose residuals are large, or correlate with a column that the law does not use, identifies no number: what moves
the losses may drift with the size. Rows beyond FAR robust sigmas are named, with what each number would be without
them; one that they move out of its interval is weak at best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sweeplab.formatting import listed, several
from sweeplab.laws.columns import COUNTS, first_of
from sweeplab.laws.fitting import EFFICIENT, Fit, fit, robust_sigma
from sweeplab.laws.forms import Array, Quantity
from sweeplab.laws.intervals import Interval, noise_of
from sweeplab.laws.points import Points

_PATTERN_ALARM = 0.05  # over all columns together
LARGE = 0.03  # of the loss: tuned runs of one recipe on one text are within 1 or 2% of their law
_FEWEST, _MOST_NAMED = 3, 6
_ROUNDS = 20
_NOTHING = 1e-6  # the share of a direction left after projection below which the law contains it
FAR = 6.0  # robust sigmas of a row
_EXACT = 1e-6  # log residuals of this size are nobody's error


@dataclass(frozen=True)
class Pattern:
    """The pattern of residuals over a column: rank correlation, and the swing and bend of a fitted parabola.

    `swing` is the difference of the residual between the column's high and low end, as a share of the loss; `bend` is
    that between both ends and the middle. `p_value` is the chance of such a parabola under noise alone; None if the
    column has too few values, or the law already contains such a parabola.
    """

    column: str
    rank: float
    swing: float
    bend: float | None
    p_value: float | None


class Doubts(NamedTuple):
    """What speaks against a fit of any form, and `why` every number is weak at best; empty if nothing is."""

    sentences: tuple[str, ...]
    why: str


def doubts(points: Points, fit: Fit) -> Doubts:
    """Return the doubts: residuals above LARGE, and the columns that they correlate with significantly."""
    others = unused_columns(points)
    tried = _patterns({name: others[name] for name in others if name not in fit.law.columns}, fit)
    sure, names = significant(tried), [pattern.column for pattern in tried]
    sentences, why = points.pooled_in_words(), ""
    if sure:
        with_them = f"the residuals correlate with {listed([each.column for each in sure])}"
        why = f"{with_them}, which the law does not use"
    if fit.sigma > LARGE:
        why = f"residuals of {fit.sigma:.1%} put every number in doubt"
        tested = "the table has no other column that could explain it"
        if names:
            columns = f"{several(len(names), 'other column')} ({first_of(names, _MOST_NAMED)})"
            tested = f"{len(sure)} of {columns} can be seen to correlate with it"
        sentences.append(
            f"residuals of {fit.sigma:.1%}: runs of one recipe rarely leave over {LARGE:.0%}, so more than "
            f"{' and '.join(fit.law.columns)} affects the loss or the form is wrong: every number is in doubt; {tested}"
        )
    for pattern in sure:
        tested = f"(p {pattern.p_value:.2g}, {several(len(names), 'column')} tested)"
        swing = f"{pattern.swing:+.1%} of the loss from its low end to its high end {tested}"
        sentences.append(
            f"the residuals correlate with {pattern.column}, which the law does not use: {swing}"
        )
    return Doubts(tuple(sentences), why)


def unused_columns(points: Points) -> dict[str, Array]:
    """Return the columns that may be causes: the shape, the aspect ratio, other columns of the file."""
    columns = {name: column for name, column in points.shape.items() if np.isfinite(column).all()}
    if {"n_layer", "n_embd"} <= columns.keys():
        columns["n_embd / n_layer"] = columns["n_embd"] / columns["n_layer"]
    return columns | points.extra_columns


def patterns(points: Points, fit: Fit) -> list[Pattern]:
    """Return the pattern over each column that varies: params, tokens, flops, and all that the law does not use."""
    columns = {name: points.columns[name] for name in COUNTS if name in points.columns}
    return _patterns(columns | unused_columns(points), fit)


def _patterns(columns: Mapping[str, Array], fit: Fit) -> list[Pattern]:
    tried = [_pattern(name, column, fit) for name, column in columns.items()]
    return [pattern for pattern in tried if pattern]


def significant(tried: Sequence[Pattern]) -> list[Pattern]:
    """Return the significant patterns, corrected for the number of columns tested (Holm 1979)."""
    tested = [(each.p_value, each) for each in tried if each.p_value is not None]
    tested.sort(key=lambda one: one[0])
    too_large = (at for at, (p, _) in enumerate(tested) if p > _PATTERN_ALARM / (len(tested) - at))
    return [each for _, each in tested[: next(too_large, len(tested))]]


def robust_line(columns: Array, values: Array) -> Array:
    """Return the coefficients [k] of columns [n, k], by Huber's loss with a delta of the values' own scatter.

    Sizes of patterns must depend neither on the delta of the fit nor on a few outliers.
    """
    kept: Array = np.ones(len(values))
    for _ in range(_ROUNDS):
        line = np.linalg.lstsq(columns * kept[:, None], values * kept, rcond=None)[0]
        sizes = np.abs(values - columns @ line)
        kept = np.sqrt(
            np.minimum(1.0, EFFICIENT * robust_sigma(sizes, len(line)) / np.maximum(sizes, 1e-300))
        )
    return np.asarray(line)


def _pattern(name: str, column: Array, fit: Fit) -> Pattern | None:
    """The pattern over a column, for the rows that have it; over its log if all values are positive."""
    from pandas import Series
    from scipy.special import fdtrc

    there = np.isfinite(column)
    if there.sum() <= len(fit.theta) + _FEWEST:
        return None
    scale = column[there]
    scale = np.log(scale) if (scale > 0).all() else scale
    span = float(np.ptp(scale))
    if span < 1e-9 * max(1.0, float(np.abs(scale).max())):
        return None
    residual, delta, jacobian = fit.residuals()[there], fit.rows.delta, fit.jacobian[:, there]
    u = 2 * (scale - scale.min()) / span - 1
    has_bend = len(np.unique(scale.round(9))) >= _FEWEST
    root = np.sqrt(fit.rows.weights[there])[:, None]
    curves = root * np.stack([u, u**2][: 1 + has_bend], 1)
    clipped = root * np.clip(residual, -delta, delta)[:, None]
    # The law's own gradient is projected out of both, so that what it could fit is no pattern.
    gradient = np.linalg.qr(root * jacobian.T)[0]
    raw = root[:, 0] * residual
    line = robust_line(np.column_stack([root, curves]), raw - gradient @ (gradient.T @ raw))
    left = curves - gradient @ (gradient.T @ curves)
    base, lengths, _ = np.linalg.svd(left, full_matrices=False)
    base = base[:, lengths > _NOTHING * np.linalg.norm(curves)]
    rest = (clipped - gradient @ (gradient.T @ clipped))[:, 0]
    freedom = len(rest) - gradient.shape[1] - base.shape[1]
    squares, inside = float(rest @ rest), float(((rest @ base) ** 2).sum())
    p_value = None
    if base.shape[1] and freedom > 0 and squares > 1e-24:
        ratio = inside / base.shape[1] / max((squares - inside) / freedom, 1e-300)
        p_value = float(fdtrc(base.shape[1], freedom, ratio))
    # Spearman's correlation; equal values of a product, such as 6ND, may differ in their last bits.
    ranks = [Series(each).rank() for each in (scale.round(9), residual.round(12))]
    rank = ranks[0].corr(ranks[1]) if np.ptp(residual) else 0.0
    bend = float(line[2]) if has_bend else None
    return Pattern(name, rank, float(2 * line[1]), bend, p_value)


@dataclass(frozen=True)
class Otherwise:
    """A law fitted to other losses, or to fewer rows: what its numbers would be."""

    fit: Fit

    def value(self, quantity: Quantity) -> float:
        """Return what a quantity would be, in the units of `measure`."""
        return float(quantity.measure(self.fit.theta[None])[0][0])

    def moves(self, quantity: Quantity, interval: Interval) -> bool:
        """Return whether a quantity would lie outside of its interval."""
        return not interval.low <= self.value(quantity) <= interval.high

    def moved(self, numbers: Sequence[tuple[Quantity, Interval]]) -> list[str]:
        """Return the names of the numbers that would lie outside of their intervals."""
        return [quantity.name for quantity, interval in numbers if self.moves(quantity, interval)]

    def in_words(self, numbers: Sequence[tuple[Quantity, Interval]]) -> str:
        """List what numbers would be, and which would lie outside of their intervals."""
        values = [f"{quantity.name} {quantity.shown(self.value(quantity)):.4g}" for quantity, _ in numbers]
        moved = self.moved(numbers)
        outside = f"outside of its interval: {listed(moved)}" if moved else "all inside of their intervals"
        return f"the numbers would be {', '.join(values)} ({outside})"


@dataclass(frozen=True)
class Outliers(Otherwise):
    """The rows far from a law, by their `names` and in `words`, and the law without them."""

    names: tuple[str, ...]
    words: str

    @property
    def without(self) -> str:
        """Return the rows as in "without row 7"."""
        return f"without {first_of(self.names, _MOST_NAMED)}"

    def doubt(self, quantity: Quantity, interval: Interval) -> str:
        """Say why a quantity is weak at best; empty if it stays inside of its interval without the rows."""
        if not self.moves(quantity, interval):
            return ""
        at = f"{quantity.shown(self.value(quantity)):.4g}, outside of its interval"
        return f"{self.without} it would be {at}"

    def warnings(self, numbers: Sequence[tuple[Quantity, Interval]]) -> list[str]:
        """Name the rows, and say what the numbers would be without them."""
        effect = f"; {self.without} {self.in_words(numbers)}" if numbers else ""
        return [f"beyond {FAR:g} sigma of the law: {self.words}{effect}"]


def outliers_of(points: Points, fitted: Fit) -> Outliers | None:
    """Return the rows beyond FAR robust sigmas, of the noise as it depends on the size; None if there are none."""
    residuals = fitted.residuals()
    scaled = residuals * np.sqrt(fitted.rows.weights) / noise_of(fitted).relative
    sigmas = np.abs(scaled) / max(robust_sigma(scaled, len(fitted.theta)), 1e-300)
    far = np.flatnonzero((sigmas > FAR) & (np.abs(residuals) > _EXACT))
    if not far.size:
        return None
    far = far[np.argsort(-sigmas[far])]
    names = tuple(points.names[at] if points.names else f"row {at + 1}" for at in far)
    losses = points.columns["loss"][far]
    words = [
        f"{name} (loss {loss:.4g}, {np.expm1(away):+.1%}, {size:.0f} sigma)"
        for name, loss, away, size in zip(names, losses, residuals[far], sigmas[far], strict=True)
    ]
    # Rows without weight leave the center of the table, to which the numbers refer, where it is.
    weights = points.weights.copy()
    weights[far] = 0.0
    return Outliers(
        fit(replace(points, weights=weights), fitted.law, fitted.rows.delta),
        names,
        first_of(words, _MOST_NAMED),
    )
