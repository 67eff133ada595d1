"""Numbers and states, written for people."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from pandas import Series

from sweeplab.study.template import scalar

# The state of a trial is that of its seed which stands first here.
STATES = ("failed", "diverged", "pruned", "running", "waiting", "stopped", "complete")


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
