"""The line through minima whose errors are known from the rows, and the numbers of an approach.

Legend: k minima, n rows. A number's `influence`, [n], is its derivative by the log loss of each row. The influences of
two numbers from the same rows give the correlation of their errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweeplab.laws.assessment import NOT_IDENTIFIED, WEAK, Verdict, by_width
from sweeplab.laws.forms import MEANINGS, Array
from sweeplab.laws.intervals import Shared, student
from sweeplab.laws.points import DECADES

N_AT = "N_opt"
SAME_SIZE = 0.01  # sizes closer than this in log N are one
FEWEST = 3  # minima: any two lie on a line
_UNSAID = Verdict(NOT_IDENTIFIED, "")


@dataclass(frozen=True)
class RowNoise:
    """The error of the rows' log losses: `variance` [n], with `freedom` degrees, and the errors groups share."""

    variance: Array
    freedom: int
    shared: Shared | None = None

    def of(self, influence: Array) -> float:
        """Return the variance of a number with this influence."""
        variance = float(influence**2 @ self.variance)
        if self.shared:
            return variance * self.shared.inflation(influence)
        return variance

    def quantile(self, freedom: int | None = None) -> float:
        """Return the half width of an interval in standard deviations."""
        most = self.freedom
        if self.shared and self.shared.shared > 0:
            most = min(most, self.shared.n_groups - 1)
        return student(max(1, freedom or most))


@dataclass(frozen=True)
class ComputeLine:
    """log y = at + slope (log C - center), by least squares.

    `influences` [2, n] are those of `at` and `slope`. `variance_ratio` is the variance of the minima about the line
    over the variance that their errors explain; 1 if it is no larger. `quantile` is that of Student's t.
    """

    center: float
    at: float
    slope: float
    influences: Array
    noise: RowNoise
    variance_ratio: float
    quantile: float

    def value(self, log_flops: float) -> tuple[float, float, Array]:
        """Return log y at a budget, the half width of its interval, and its influence."""
        influence = self.influences[0] + (log_flops - self.center) * self.influences[1]
        return self.at + (log_flops - self.center) * self.slope, self.half(influence), influence

    def half(self, influence: Array) -> float:
        """Return the half width of the interval of a number with this influence."""
        return self.quantile * math.sqrt(self.noise.of(influence) * self.variance_ratio)

    def as_dict(self, flops: Array, n_drawn: int) -> dict[str, list[float]]:
        """Return y over the range of FLOPs with its band, as plain values."""
        log_c = np.linspace(math.log(flops.min()), math.log(flops.max()), n_drawn)
        values = [self.value(float(each))[:2] for each in log_c]
        return {
            "flops": np.exp(log_c).tolist(),
            "params": [math.exp(value) for value, _ in values],
            "low": [math.exp(max(value - half, -700.0)) for value, half in values],
            "high": [math.exp(min(value + half, 700.0)) for value, half in values],
        }


def turning_point(slope: float, bend: float, covariance: Array, t: float) -> tuple[float, float] | None:
    """Return the interval of the x at which slope x + bend x^2 is minimal; None if it may not be convex.

    Fieller 1954: all x at which 2 bend x + slope may be zero. `covariance` [2, 2] is that of (slope, bend); `t` is the
    quantile of Student's t.
    """
    cov = t**2 * covariance
    a = 4 * (bend**2 - cov[1, 1])
    b = 4 * (slope * bend - cov[0, 1])
    c = slope**2 - cov[0, 0]
    if bend <= 0 or a <= 0:
        return None
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


@dataclass(frozen=True)
class Number:
    """A number of an approach with its interval and verdict; value and ends are logs if `is_log`.

    `influence` is None if the number comes from other rows than the table's. `alone` is its additional variance, which
    no other number shares, as a share of the variance by its influence.
    """

    name: str
    meaning: str
    kind: str = "exponent"
    is_log: bool = False
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    verdict: Verdict = _UNSAID
    influence: Array | None = None
    alone: float = 0.0

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict.identified

    def of(
        self, value: float, low: float, high: float, lacking: Sequence[str] = (), at_most: str = ""
    ) -> Number:
        """Return it with a value and ends, and the verdict by its width.

        `lacking` is what the design lacks for it; `at_most` is why it is weak at best, however narrow it is.
        """
        verdict = by_width(self.kind, value, low, high)
        if lacking:
            verdict = Verdict(NOT_IDENTIFIED, "; ".join(lacking))
        elif at_most and verdict.identified:
            verdict = Verdict(WEAK, at_most)
        return replace(self, value=value, low=low, high=high, verdict=verdict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, named as in `Estimate`; null if there is no number."""
        ends = (self.value, self.low, self.high)
        return self.verdict.entry([_shown(each, self.is_log) for each in ends], self.meaning)


def optimum_at(log_flops: float) -> dict[str, Number]:
    """Return the numbers of an approach without values: the exponents, and N_opt at a budget."""
    at = f"the parameters of lowest loss for {math.exp(log_flops):.3g} FLOPs"
    exponents = {name: Number(name, meaning) for name, meaning in MEANINGS.items()}
    return exponents | {N_AT: Number(N_AT, at, "ratio", is_log=True)}


def no_optimum(why: str, log_flops: float) -> dict[str, Number]:
    """Return the numbers of an approach as not identified, for one reason."""
    none = Verdict(NOT_IDENTIFIED, why)
    return {name: replace(number, verdict=none) for name, number in optimum_at(log_flops).items()}


def short_span(what: str, log_flops: Array) -> list[str]:
    """Say that minima or changes span too little compute; empty if they span enough."""
    decades, needed = float(np.ptp(log_flops)) / math.log(10), DECADES["flops"]
    if decades >= needed:
        return []
    return [f"the {what} span {decades:.2f} decades of FLOPs and {needed} are needed"]


def n_sizes(log_n: Array) -> int:
    """Return the number of sizes; those within 1% of each other count as one."""
    return int((np.diff(np.sort(log_n), prepend=-np.inf) > SAME_SIZE).sum())


def _shown(measured: float, is_log: bool) -> float | None:
    if not math.isfinite(measured):
        return None
    if is_log:
        return math.exp(min(measured, 700.0))
    return measured
