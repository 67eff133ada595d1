"""Numbers and states, written for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pandas import Series

from sweeplab.analysis.trials import WORST_FIRST
from sweeplab.study.file.template import scalar

# What stands before a verdict, and the color it has: neither says more than the word does.
MARKS = {
    "identified": ("✓", "good"),
    "weak": ("≈", "fair"),
    "not identified": ("✕", "poor"),
    "flagged": ("✕", "poor"),
    "not seen": ("✓", "good"),
    "cannot be seen": ("?", "fair"),
    "found": ("!", "fair"),
    "clear": ("✓", "good"),
    "cannot be told": ("?", ""),
    "held": ("✓", "good"),
    "missed": ("✕", "poor"),
    "above chance": ("✓", "good"),
    "within chance": ("?", ""),
    "crowds here": ("!", "fair"),
    "spread evenly": ("✓", "good"),
    "different": ("!", "fair"),
    "no difference seen": ("=", ""),
}


_LARGE = 1e5


def written(value: Any) -> str:
    """Write a value for reading: three digits, 27,008 with a comma, 3.17e-4, lists as they are, none."""
    if value is None or value != value:
        return "none"
    if isinstance(value, bool | np.bool | str):
        return str(value)
    if isinstance(value, Iterable):
        return f"({', '.join(written(each) for each in value)})"
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    if not number.is_integer():
        number = float(f"{number:.3g}")
    if number.is_integer() and abs(number) < 1e9:
        return f"{int(number):,}"
    return scalar(float(f"{number:.3g}"))


def short(number: float) -> str:
    """Write a number for an axis or a label: 812k, 1.4M, 2e-05."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(number) < 1e15:
            return f"{number / size:.3g}{letter}"
    return f"{number:.4g}".replace("e+", "e")


def counted(states: Series) -> str:
    """Say how many there are of each state: "24 complete, 3 pruned"."""
    counts = states.value_counts()
    return ", ".join(f"{counts[state]:,} {state}" for state in reversed(WORST_FIRST) if state in counts)


def several(count: int, what: str) -> str:
    """Say how many there are of something: "1 run", "1,200 runs"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Say several names: "a", "a and b", "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def told(number: float) -> str:
    """Write a number of a law: 0.346, 2,180, 294M."""
    return short(float(f"{number:.3g}")) if abs(number) >= _LARGE else written(float(f"{number:.3g}"))


def span(low: float | None, high: float | None) -> str:
    """Say the ends of an interval; None is an end that is open."""
    if low is None and high is None:
        return "no limits"
    if low is None or high is None:
        return f"up to {told(high or 0.0)}" if low is None else f"from {told(low)}, no upper limit"
    return f"{told(low)} to {told(high)}"
