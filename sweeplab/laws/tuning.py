"""How a table's points were tuned, and what it does to the numbers of a law.

A point's loss lies above the one that its best tuning would reach: by the tuning excess. If the excess grows with size,
as where one learning rate serves all sizes, every exponent is wrong, and nothing in a table of N, D and loss shows it.

- Where the trials of the cells are known, draws of the excess of all points follow from them (`Points.record`), and of
  how far they are too low because they are the lowest of several. The law is fitted to the losses without the expected
  part of both, and intervals contain the draws, to first order. A drift of the excess with log N and log D that would
  move a number out of its interval makes it weak at best; one that may be larger than _DRIFT makes every number so.
- Where one setting served all sizes, or it is not known how points were tuned, numbers are compared with those of a
  table without a mistuning that grows from nothing at the smallest size to MISTUNED of the loss at the largest, with
  the square of the distance in log size: as the loss does around a best value that follows a power of the size.

Legend: n rows, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from sweeplab.formatting import listed, several
from sweeplab.laws.doubts import Otherwise
from sweeplab.laws.fitting import Fit, fit
from sweeplab.laws.forms import Array, Law, Quantity
from sweeplab.laws.intervals import LEVEL, Interval, Noise
from sweeplab.laws.points import EACH, SAID, SHARED, UNKNOWN, Points, TuningRecord

# Of the loss at the largest size. A best learning rate that falls as N^-0.7 (arXiv 2503.04715) costs about the second
# over two decades of N if it is kept.
MISTUNED = {UNKNOWN: 0.01, SHARED: 0.03}
_DRIFT = 0.005  # of the loss between two points: what trials must rule out
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
            return known + "; their tuning excess is not known" * (self.how == EACH)
        low, mean, high = (np.expm1(each) for each in self.ends)
        return (
            f"{known}; the tuning excess of a point is {mean:.2%} of the loss ({low:.2%} to {high:.2%}), and as the "
            f"lowest of several it is {self.record.luck.mean():.2%} too low by luck: the fit leaves both out, and the "
            "intervals contain their uncertainty"
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
        losses = self.points.columns["loss"] * np.exp(change)
        changed = replace(self.points, columns=self.points.columns | {"loss": losses})
        return WhatIf(fit(changed, law, delta), self)

    def widened(self, fit: Fit, noise: Noise, quantity: Quantity, interval: Interval) -> Interval:
        """Return a quantity's interval with the uncertainty of the excess added in quadrature on each side."""
        slopes = quantity.measure(fit.theta[None])[1]
        if self.record is None or not np.isfinite(slopes).all():
            return interval
        draws = self.record.above
        moved = -(draws - draws.mean(0)) @ noise.modelled(slopes)[1][0]
        below, above = np.quantile(moved, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        low, high = min(float(below), 0.0), max(float(above), 0.0)
        return replace(
            interval,
            low=interval.value - math.hypot(interval.value - interval.low, low),
            high=interval.value + math.hypot(interval.high - interval.value, high),
        )


@dataclass(frozen=True)
class WhatIf(Otherwise):
    """The law if the points were tuned otherwise."""

    tuning: Tuning

    def doubt(self, quantity: Quantity, interval: Interval) -> str:
        """Say why a quantity is weak at best; empty if nothing speaks against it.

        Of points that were not tuned each by itself every number is, as a mistuning may be larger than MISTUNED.
        """
        moved = self.moves(quantity, interval)
        if self.tuning.how != EACH:
            effect = "leaves it inside of its interval, but more may not"
            if moved:
                effect = "moves it out of its interval"
            return f"{self.tuning.doubt}: {MISTUNED[self.tuning.how]:.0%} of the loss too much at large sizes {effect}"
        if self.tuning.doubt or not moved:
            return self.tuning.doubt
        at = f"{quantity.shown(self.value(quantity)):.4g}, outside of its interval"
        return f"the tuning excess drifts with size: with its drift it would be {at}"

    def warnings(self, numbers: Sequence[tuple[Quantity, Interval]]) -> list[str]:
        """Say what the other tuning does to numbers, in one line, and what would tell."""
        tuning = self.tuning
        if tuning.how == EACH:
            low, _, high = (math.expm1(end) for end in tuning.ends)
            moved, span = self.moved(numbers), f"{low:.2%} to {high:.2%} of the loss"
            if tuning.doubt:
                return tuning.warnings(f"every number is weak at best (expected: {span})")
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
    losses = points.columns["loss"] * np.exp(-record.above.mean(0))
    return Tuning(points, replace(points, columns=points.columns | {"loss": losses}), record)
