"""Which numbers a table identifies: a gate on its design and a limit on the width, both needed.

Width alone cannot refuse a bad design: on one ray of N and D a fit is precise if the law is exact, and nothing in
the table can show that it is not. Condition numbers do not tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweeplab.analysis.laws.fitting import Fit
from sweeplab.analysis.laws.forms import Array
from sweeplab.analysis.laws.intervals import Interval
from sweeplab.analysis.laws.quantities import Quantity
from sweeplab.analysis.points import Points

IDENTIFIED, WEAK, NOT_IDENTIFIED = "identified", "weak", "not identified"


@dataclass(frozen=True)
class Tolerance:
    """How far the ends of a 90% interval may be from the value to be `identified`, and to be `weak`.

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
DECADES = {"params": 0.8, "tokens": 0.8, "flops": 1.0}  # that a column has to span
SPREAD = 0.5  # of log(D/N): under it the rows lie near one ray
DISTINCT = 3  # values of a column: E, a scale and an exponent
NEAR = 3.0  # a row's tokens a parameter within this factor of the optimum's is near it


@dataclass(frozen=True)
class Verdict:
    """A verdict, and why, in words that follow it."""

    verdict: str
    reason: str


def design(points: Points, columns: tuple[str, ...]) -> dict[str, float]:
    """Return what the gate looks at: the decades of each column and the sd of log(D/N)."""
    found = {f"decades of {name}": float(np.ptp(np.log10(points.columns[name]))) for name in columns}
    found |= {f"distinct {name}": float(len(np.unique(points.columns[name].round(12)))) for name in columns}
    if {"params", "tokens"} <= set(columns):
        found["sd of log(tokens/params)"] = float(_log_ratio(points.columns).std())
    return found


def gate(quantity: Quantity, points: Points, fit: Fit, optimum_ratio: float | None = None) -> list[str]:
    """Return what the design lacks for a quantity; `optimum_ratio` is the log of the best tokens a parameter."""
    seen, failures = design(points, fit.law.columns), []
    for name in quantity.needs:
        if seen[f"decades of {name}"] < DECADES[name]:
            failures.append(
                f"{name} span {seen[f'decades of {name}']:.2f} decades and {DECADES[name]} are needed"
            )
        if seen[f"distinct {name}"] < DISTINCT:
            failures.append(f"{name} have only {seen[f'distinct {name}']:.0f} distinct values")
    spread = seen.get("sd of log(tokens/params)", math.inf)
    if spread < SPREAD:
        failures.append(
            f"all rows lie near one ray of tokens to params (the sd of log(tokens/params) is {spread:.2f}, "
            f"{SPREAD} is needed): which of the two lowers the loss cannot be told"
        )
    if optimum_ratio is not None:
        away = float(np.abs(_log_ratio(points.columns) - optimum_ratio).min())
        if away > math.log(NEAR):
            failures.append(
                f"no row is near the optimum: the nearest is a factor {math.exp(away):.1f} from it"
            )
    return failures


def judge(quantity: Quantity, interval: Interval, fit: Fit, lacking: Sequence[str]) -> Verdict:
    """Return the verdict on a quantity, with the reason that weighs most; `lacking` is what `gate` returned."""
    if lacking:
        return Verdict(NOT_IDENTIFIED, "; ".join(lacking))
    if not quantity.derived and quantity.name in fit.at_bound():
        return Verdict(NOT_IDENTIFIED, "the best fit has it at the end of its range")
    if ends := _OPEN[interval.open_low, interval.open_high]:
        return Verdict(NOT_IDENTIFIED, f"the rows set it no {ends}")
    tolerance = TOLERANCES[quantity.kind]
    far = max(interval.high - interval.value, interval.value - interval.low)
    if tolerance.is_factor:
        far = math.exp(min(far, 50))
        width, wanted = f"a factor {far:.3g} from the value", f"a factor {tolerance.identified:g}"
    else:
        width, wanted = f"{far:.2g} from the value", f"{tolerance.identified:g}"
    ends = f"its 90% interval ends {width}"
    if far <= tolerance.identified:
        return Verdict(IDENTIFIED, ends)
    return Verdict(WEAK if far <= tolerance.weak else NOT_IDENTIFIED, f"{ends}; within {wanted} is wanted")


_OPEN = {
    (False, False): "",
    (True, False): "lower limit",
    (False, True): "upper limit",
    (True, True): "limits",
}


def _log_ratio(columns: Mapping[str, Array]) -> Array:
    return np.asarray(np.log(columns["tokens"] / columns["params"]))
