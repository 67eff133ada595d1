"""What speaks against the numbers of a fit: residuals, rows far from the law, and how the points were tuned.

A fit whose residuals are large, or correlate with a column that the law does not use, identifies no number: what moves
the losses may drift with the size. Rows beyond FAR robust sigmas are named, with what each number would be without
them; one that they move out of its interval is weak at best.

A point's loss lies above the one that its best tuning would reach: by the tuning excess. If the excess grows with size,
as where one learning rate serves all sizes, every exponent is wrong, and nothing in a table of N, D and loss shows it.

- Where the trials of the cells are known, draws of the excess of all points follow from them (`Points.record`), and of
  how far they are too low because they are the lowest of several. The law is fitted to the losses without the expected
  part of both, and intervals contain the draws, to first order. A number is weak at best if the expected drift of the
  excess with log N and log D moves it out of its interval, or if the trials leave a drift of more than _DRIFT open
  that moves it by more than _MOVED of what the rows leave open.
- Where one setting served all sizes, or it is not known how points were tuned, numbers are compared with those of a
  table without a mistuning that grows from nothing at the smallest size to MISTUNED of the loss at the largest, with
  the square of the distance in log size: as the loss does around a best value that follows a power of the size.

Legend: n rows, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from sweeplab.formatting import listed, several
from sweeplab.laws.columns import COUNTS, first_of
from sweeplab.laws.fitting import EFFICIENT, Fit, fit, robust_sigma
from sweeplab.laws.forms import Array, Law, Quantity
from sweeplab.laws.intervals import LEVEL, Interval, Noise, noise_of
from sweeplab.laws.points import EACH, SAID, SHARED, UNKNOWN, Points, TuningRecord

_PATTERN_ALARM = 0.05  # over all columns together
LARGE = 0.03  # of the loss: tuned runs of one recipe on one text are within 1 or 2% of their law
_TRIFLE = 0.001  # of the loss: patterns that move no number
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
    """Return the doubts: residuals above LARGE, and columns that they correlate with by more than chance."""
    others = unused_columns(points)
    tried = _patterns({name: others[name] for name in others if name not in fit.law.columns}, fit)
    sure = [each for each in significant(tried) if max(abs(each.swing), abs(each.bend or 0.0)) >= _TRIFLE]
    names = [pattern.column for pattern in tried]
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
        return quantity.at(self.fit.theta)

    def moves(self, quantity: Quantity, interval: Interval) -> bool:
        """Return whether a quantity would lie outside of its interval."""
        return not interval.low <= self.value(quantity) <= interval.high

    def moved(self, numbers: Sequence[tuple[Quantity, Interval]]) -> list[str]:
        """Return the names of the numbers that would lie outside of their intervals."""
        return [quantity.name for quantity, interval in numbers if self.moves(quantity, interval)]

    def outside(self, quantity: Quantity) -> str:
        """Say what a quantity that lies outside of its interval would be."""
        return f"{quantity.shown(self.value(quantity)):.4g}, outside of its interval"

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
        return f"{self.without} it would be {self.outside(quantity)}"

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


# Of the loss at the largest size. A best learning rate that falls as N^-0.7 (arXiv 2503.04715) costs about the second
# over two decades of N if it is kept.
MISTUNED = {UNKNOWN: 0.01, SHARED: 0.03}
_DRIFT = 0.005  # of the loss between two points: a larger one is to be ruled out by the trials
_MOVED = 1 / 3  # of the distance from a number to the end of the interval of the rows alone
_SIZES = ("params", "tokens", "flops")


@dataclass(frozen=True)
class Tuning:
    """What is known of the tuning of a law's points: `points` less their expected excess, and the `record` of it."""

    raw: Points
    points: Points
    record: TuningRecord | None

    @property
    def how(self) -> str:
        """Return how the points were tuned, one of TUNED."""
        return self.points.tuned

    @property
    def doubt(self) -> str:
        """Return why every number of these points is weak at best; empty if they were tuned well each by itself."""
        known = {SHARED: "one setting served all sizes", UNKNOWN: "how the points were tuned is not known"}
        if self.how == EACH and self.record and self.largest_drift > _DRIFT:
            return f"the tuning excess may drift with size, by up to {self.largest_drift:.2%} of the loss"
        return known.get(self.how, "")

    @property
    def would_tell(self) -> str:
        """Return what would tell how well the points were tuned."""
        cures = {SHARED: "a search at each size would tell", UNKNOWN: "--tuned says how they were tuned"}
        return cures.get(self.how, self.record.cure if self.record else "")

    def warnings(self, effect: str) -> list[str]:
        """Say what a doubt about the tuning does, and what would tell; empty if there is no doubt."""
        if not self.doubt:
            return []
        return [f"{self.doubt}: {effect}; {self.would_tell}"]

    @property
    def says(self) -> str:
        """Say how the points were tuned, and how large their excess is."""
        words = {EACH: "each point by itself", SHARED: "one setting for all sizes", UNKNOWN: "not known"}
        known = ", ".join(filter(None, [words[self.how], self.raw.tuned_why]))
        if self.record is None:
            return known + ("; their tuning excess is not known" if self.how == EACH else "")
        low, mean, high = (np.expm1(each) for each in self.ends)
        excess = f"{known}; the tuning excess of a point is {mean:.2%} of the loss ({low:.2%} to {high:.2%})"
        if not self.record.luck.any():
            return f"{excess}: the fit leaves it out, and the intervals contain its uncertainty"
        return (
            f"{excess}, and as the lowest of several it is {self.record.luck.mean():.2%} too low by luck: the fit "
            "leaves both out, and the intervals contain their uncertainty"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        known = dict.fromkeys(("lowest", "mean", "largest"))
        if self.record:
            known = dict(zip(known, self.ends, strict=True))
        return {"how": self.how, "why": self.raw.tuned_why, "excess": known}

    @property
    def ends(self) -> tuple[float, float, float]:
        """Return the lowest, the mean and the largest expected excess of a point, in log loss."""
        mean = self.record.draws.mean(0) if self.record else np.zeros(self.raw.n)
        return float(mean.min()), float(mean.mean()), float(mean.max())

    @cached_property
    def size(self) -> str:
        """Return the size with which a mistuning grows: the first that varies."""
        varied = self.raw.varied
        return next((name for name in _SIZES if name in varied), "")

    @cached_property
    def _lines(self) -> Array:
        """The line in the log sizes that each draw of the excess follows, 0 at its smallest, [S, n]."""
        draws = self.record.above if self.record else np.zeros((1, self.raw.n))
        logs = [np.log(self.raw.columns[name]) for name in _SIZES[:2] if name in self.raw.varied]
        base = np.linalg.qr(np.stack([np.ones(self.raw.n), *logs], 1))[0]
        lines = (draws @ base) @ base.T
        return np.asarray(lines - lines.min(1, keepdims=True))

    @property
    def drift(self) -> Array:
        """Return the line in the log sizes that the expected excess follows, 0 at its smallest, [n]."""
        mean = self._lines.mean(0)
        return np.asarray(mean - mean.min())

    @property
    def largest_drift(self) -> float:
        """Return how far the excess may drift between two points, in log loss: the end of its one-sided interval."""
        return float(np.quantile(self._lines.max(1), (1 + LEVEL) / 2))

    def what_if(self, law: Law, delta: float | None) -> WhatIf | None:
        """Return the fit to losses that are tuned otherwise; None if nothing speaks for that."""
        size = MISTUNED.get(self.how, 0.0)
        if size and self.size:
            logs = np.log(self.raw.columns[self.size])
            change = -size * ((logs - logs.min()) / np.ptp(logs)) ** 2
        elif self.record is not None:
            change = self.drift
        else:
            return None
        changed = self.points.with_loss(self.points.columns["loss"] * np.exp(change))
        return WhatIf(fit(changed, law, delta), self)

    def spread(self, fit: Fit, noise: Noise | None, quantity: Quantity) -> tuple[float, float]:
        """Return how far below and above its value the uncertainty of the excess may move a quantity, at LEVEL."""
        slopes = quantity.measure(fit.theta[None])[1]
        if self.record is None or noise is None or not np.isfinite(slopes).all():
            return 0.0, 0.0
        draws = self.record.above
        moved = -(draws - draws.mean(0)) @ noise.modelled(slopes)[1][0]
        below, above = np.quantile(moved, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return min(float(below), 0.0), max(float(above), 0.0)

    def widened(self, interval: Interval, spread: tuple[float, float]) -> Interval:
        """Return a quantity's interval with the spread by the excess added in quadrature on each side."""
        low, high = spread
        return replace(
            interval,
            low=interval.value - math.hypot(interval.value - interval.low, low),
            high=interval.value + math.hypot(interval.high - interval.value, high),
        )


@dataclass(frozen=True)
class WhatIf(Otherwise):
    """The law if the points were tuned otherwise."""

    tuning: Tuning

    def doubt(self, quantity: Quantity, interval: Interval, spread: tuple[float, float]) -> str:
        """Say why a quantity, with the interval of the rows alone, is weak at best; empty if nothing speaks against it.

        Of points that were not tuned each by itself every number is, as a mistuning may be larger than MISTUNED.
        """
        moved = self.moves(quantity, interval)
        if self.tuning.how != EACH:
            effect = "leaves it inside of its interval, but more may not"
            if moved:
                effect = "moves it out of its interval"
            return f"{self.tuning.doubt}: {MISTUNED[self.tuning.how]:.0%} of the loss too much at large sizes {effect}"
        below, above = interval.value - interval.low, interval.high - interval.value
        if self.tuning.doubt and (-spread[0] > _MOVED * below or spread[1] > _MOVED * above):
            ends = [f"{quantity.shown(interval.value + end):.4g}" for end in spread]
            return f"{self.tuning.doubt}, which alone leaves {' to '.join(ends)} open"
        if not moved:
            return ""
        return f"the tuning excess drifts with size: with its drift it would be {self.outside(quantity)}"

    def warnings(self, numbers: Sequence[tuple[Quantity, Interval]], doubted: Sequence[str]) -> list[str]:
        """Say in one line what the other tuning does to numbers, which of them it keeps weak, and what would tell."""
        tuning = self.tuning
        if tuning.how == EACH:
            low, _, high = (math.expm1(end) for end in tuning.ends)
            moved, span = self.moved(numbers), f"{low:.2%} to {high:.2%} of the loss"
            if tuning.doubt and doubted:
                return tuning.warnings(f"{listed(doubted)} can be no more than weak (expected: {span})")
            if not moved:
                return []
            drift = f"from {span}, and moves {listed(moved)} out of the interval"
            return [f"the tuning excess drifts with size, {drift}; {tuning.would_tell}"]
        if not numbers:
            return []
        return [
            f"{tuning.doubt}: if that costs {MISTUNED[tuning.how]:.0%} of the loss at the largest {tuning.size} and "
            f"nothing at the smallest, {self.in_words(numbers)}; {tuning.would_tell}"
        ]


@lru_cache(maxsize=16)
def tuning_of(points: Points) -> Tuning:
    """Return what is known of the tuning of points."""
    record = points.record(points) if points.record else None
    if record is None:
        if points.record and points.tuned == EACH and points.tuned_why != SAID:
            why = f"{several(points.n, 'point')} with too few trials to tell their tuning excess"
            points = replace(points, tuned=UNKNOWN, tuned_why=why)
        return Tuning(points, points, None)
    tuned = points.with_loss(points.columns["loss"] * np.exp(-record.above.mean(0)))
    others = {name: points.extra_columns[name] for name in points.extra_columns if name not in record.columns}
    return Tuning(points, replace(tuned, extra_columns=others), record)
