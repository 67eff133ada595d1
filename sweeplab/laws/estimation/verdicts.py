"""The verdict on a number, by the gate on the design, the width of its interval and the state of the fit.

Gate and width are both needed (see README); condition numbers do not separate bad designs from good ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeplab.laws.estimation.fitting import Fit
from sweeplab.laws.estimation.forms import Array, Quantity
from sweeplab.laws.estimation.intervals import Interval
from sweeplab.laws.points import Points

IDENTIFIED, WEAK, NOT_IDENTIFIED = "identified", "weak", "not identified"


@dataclass(frozen=True)
class Tolerance:
    """The largest distance of a 90% interval's ends from the value for `identified`, and for `weak`.

    A factor where `is_factor`: 3 is a third to three times the value. Otherwise a difference.
    """

    identified: float
    weak: float
    is_factor: bool


TOLERANCES = {
    "exponent": Tolerance(0.12, 0.3, False),
    "power": Tolerance(0.3, 1.0, False),
    "scale": Tolerance(3.0, 10.0, True),
    "ratio": Tolerance(3.0, 10.0, True),
    "irreducible": Tolerance(1.1, 1.3, True),
    "loss": Tolerance(1.03, 1.1, True),
}
DECADES = {"params": 0.8, "tokens": 0.8, "flops": 1.0}  # that a column must span
SPREAD = 0.5  # the least sd of log(D/N), or across any other line of log D against log N
STANDS = 2 / 3  # the share of these that must remain without any one row
DISTINCT = 3  # the fewest values of a column: E, a scale and an exponent need three
NEAR = 3.0  # a row is near the optimum if its tokens per parameter are within this factor


@dataclass(frozen=True)
class Verdict:
    """A verdict and its reason."""

    verdict: str
    reason: str

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict != NOT_IDENTIFIED

    def entry(self, shown: Sequence[float | None], meaning: str) -> dict[str, Any]:
        """Return a number's value, low and high with this verdict; the value is None if it is not identified."""
        value, low, high = shown
        ends = {"value": value if self.identified else None, "low": low, "high": high}
        return ends | {"verdict": self.verdict, "why": self.reason, "meaning": meaning}


def design(points: Points, columns: tuple[str, ...]) -> dict[str, float]:
    """Return the measures of the gate: decades, distinct values, and the spread of the rows across one line.

    "but for one row" is the measure without the row that matters most.
    """
    found = {}
    for name in columns:
        logs = np.sort(np.log10(points.columns[name]))
        found[f"decades of {name}"] = float(logs[-1] - logs[0])
        found[f"decades of {name} but for one row"] = float(min(logs[-1] - logs[1], logs[-2] - logs[0]))
        found[f"distinct {name}"] = float(1 + np.count_nonzero(np.diff(logs) > 1e-9))
    if {"params", "tokens"} <= set(columns):
        found["sd of log(tokens/params)"] = float(_log_ratio(points.columns).std())
        found["sd across the line"], found["sd across the line but for one row"] = _across(points.columns)
    return found


def gate(quantity: Quantity, points: Points, fit: Fit, optimum_ratio: float | None = None) -> list[str]:
    """Return what the design lacks for a quantity; `optimum_ratio` is the log of the best tokens per parameter."""
    seen, failures = design(points, fit.law.columns), []
    for name in quantity.needs:
        decades, without = seen[f"decades of {name}"], seen[f"decades of {name} but for one row"]
        if decades < DECADES[name]:
            failures.append(f"{name} span {decades:.2f} decades and {DECADES[name]} are needed")
        elif without < STANDS * DECADES[name]:
            failures.append(f"{name} span {without:.2f} decades without one row: all depends on that row")
        if seen[f"distinct {name}"] < DISTINCT:
            failures.append(f"{name} have only {seen[f'distinct {name}']:.0f} distinct values")
    if line := _near_one_line(seen):
        failures.append(f"{line}: the effects of the two on the loss cannot be separated")
    if optimum_ratio is not None:
        away = float(np.abs(_log_ratio(points.columns) - optimum_ratio).min())
        if away > math.log(NEAR):
            # A fit of noise can put its optimum at e^900 tokens per parameter, past what a float holds.
            factor = f"a factor {math.exp(away):.1f}" if away < math.log(1e6) else "more than a factor 1e6"
            failures.append(f"no row is near the optimum: the nearest is {factor} off in D/N")
    return failures


def _near_one_line(seen: Mapping[str, float]) -> str:
    for name, line, what in (
        ("sd of log(tokens/params)", "ray of tokens to params", "the sd of log(tokens/params)"),
        ("sd across the line", "line of log tokens against log params", "their sd across it"),
    ):
        if (sd := seen.get(name, math.inf)) < SPREAD:
            return f"all rows lie near one {line} ({what} is {sd:.2f}, {SPREAD} is needed)"
    if seen.get("sd across the line but for one row", math.inf) < STANDS * SPREAD:
        return "all rows but one lie near one line of log tokens against log params"
    return ""


def _across(columns: Mapping[str, Array]) -> tuple[float, float]:
    """Return the spread of rows across the best line of log D against log N, and the least without one row.

    It is sqrt(2) times the sd across the line: on a ray of tokens per parameter, the sd of log(D/N).
    """
    logs = np.stack([np.log(columns["params"]), np.log(columns["tokens"])])
    logs -= logs.mean(1, keepdims=True)
    n = logs.shape[1]
    products = np.stack([logs[0] ** 2, logs[1] ** 2, logs[0] * logs[1]])
    whole = products.sum(1)
    others = (whole[:, None] - products * n / (n - 1)) / (n - 1)  # the moments without each row in turn
    nn, dd, nd = np.column_stack([whole / n, others])
    least = (nn + dd) / 2 - np.sqrt((nn - dd) ** 2 / 4 + nd**2)
    spread = np.sqrt(2 * np.maximum(least, 0.0))
    return float(spread[0]), float(spread[1:].min())


def _log_ratio(columns: Mapping[str, Array]) -> Array:
    return np.asarray(np.log(columns["tokens"] / columns["params"]))


def judge(
    quantity: Quantity, interval: Interval, fit: Fit, lacking: Sequence[str], doubt: str = ""
) -> Verdict:
    """Return the verdict on a quantity, with the most important reason; `lacking` is the result of `gate`.

    With a `doubt` about the whole fit it is weak at best.
    """
    if lacking:
        return Verdict(NOT_IDENTIFIED, "; ".join(lacking))
    if not quantity.derived and quantity.name in fit.at_bound():
        return Verdict(NOT_IDENTIFIED, "the best fit has it at the bound of its range")
    if open_ends := interval.open_ends:
        ends = "bounds" if len(open_ends) == 2 else f"{open_ends[0]} bound"
        return Verdict(NOT_IDENTIFIED, f"the rows give it no {ends}")
    found = by_width(quantity.kind, interval.value, interval.low, interval.high)
    return Verdict(WEAK, doubt) if found.verdict == IDENTIFIED and doubt else found


def by_width(kind: str, value: float, low: float, high: float) -> Verdict:
    """Return the verdict by an interval's width, in logs if the kind has a factor."""
    tolerance = TOLERANCES[kind]
    far = max(high - value, value - low)
    if not math.isfinite(far):
        return Verdict(NOT_IDENTIFIED, "the rows give it no bounds")
    if tolerance.is_factor:
        far = math.exp(min(far, 50))
        width, wanted = f"a factor {far:.3g} from the value", f"a factor {tolerance.identified:g}"
    else:
        width, wanted = f"{far:.2g} from the value", f"{tolerance.identified:g}"
    ends = f"its 90% interval ends {width}"
    if far <= tolerance.identified:
        return Verdict(IDENTIFIED, ends)
    return Verdict(WEAK if far <= tolerance.weak else NOT_IDENTIFIED, f"{ends}; {wanted} or less is needed")


def above_a_loss(fit: Fit) -> bool:
    """Return whether the best fit has E above the smallest loss of the table."""
    return "E" in fit.law.parameters and fit.minimizer()["E"] > math.exp(fit.rows.log_loss.min())
