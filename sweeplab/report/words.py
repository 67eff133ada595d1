"""Numbers and states, written for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pandas import Series

from sweeplab.study.template import scalar

# The state of a trial is that of its seed which stands first here.
STATES = ("failed", "diverged", "pruned", "running", "waiting", "stopped", "complete")

# What stands before a verdict, and the colour it has: neither says more than the word does.
MARKS = {
    "identified": ("✓", "good"),
    "weak": ("≈", "fair"),
    "not identified": ("✕", "poor"),
    "found": ("!", "fair"),
    "clear": ("✓", "good"),
    "cannot be told": ("?", ""),
    "held": ("✓", "good"),
    "missed": ("✕", "poor"),
}


def written(value: Any) -> str:
    """Write a value for reading: three digits, 27,008 with a comma, 3.17e-4, lists as they are."""
    if isinstance(value, bool | np.bool | str) or value is None:
        return str(value)
    if isinstance(value, Iterable):
        return f"({', '.join(written(each) for each in value)})"
    number = float(value)
    if number.is_integer() and abs(number) < 1e9:
        return f"{int(number):,}"
    return scalar(float(f"{number:.3g}"))


def counted(states: Series) -> str:
    """Say how many there are of each state: "24 complete, 3 pruned"."""
    counts = states.value_counts()
    return ", ".join(f"{counts[state]:,} {state}" for state in reversed(STATES) if state in counts)


def several(count: int, what: str) -> str:
    """Say how many there are of something: "1 run", "1,200 runs"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Say several names: "a", "a and b", "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def span(low: float | None, high: float | None) -> str:
    """Say the ends of an interval; None is an end that is open."""
    if low is None and high is None:
        return "no limits"
    if low is None or high is None:
        return f"up to {written(high)}" if low is None else f"from {written(low)}, no upper limit"
    return f"{written(low)} to {written(high)}"
