"""N, D and C of runs and of points, and when two are the same point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.columns import read_columns
from sweeplab.analysis.conventions import Conventions, counted
from sweeplab.analysis.points import Points

SIZES = ("params", "tokens", "flops")
SAME = 1e-6  # two numbers within this share are one


@dataclass(frozen=True)
class Counting:
    """How a table counts: its conventions, and the columns that were named instead of theirs."""

    conventions: Conventions = field(default_factory=Conventions)
    columns: Mapping[str, str] = field(default_factory=dict)


def sizes_of(runs: Sequence[Mapping[str, Any]], counting: Counting) -> list[dict[str, float]]:
    """Return N, D and C of runs from their hyperparameters and facts, counted as a study's points are.

    Raises:
        BadInput: a column that is not known of a run before it has ended.
    """
    import pandas as pd

    if not runs:
        return []
    frame = pd.DataFrame([{**run, "best_val_loss": math.nan, "final_val_loss": math.nan} for run in runs])
    table, _ = counted(frame, replace(counting.conventions, loss=""), None)
    named = {role: role for role in SIZES if role in table} | {
        role: name for role, name in counting.columns.items() if role in SIZES
    }
    found = {role: column.values for role, column in read_columns(table, named, "a run to come").items()}
    if "flops" not in found:
        found["flops"] = 6 * found["params"] * found["tokens"]
    return [{role: float(found[role][at]) for role in SIZES} for at in range(len(runs))]


def same_point(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether two points agree in N and D, as far as both say them; in C where neither does."""
    both = [role for role in SIZES if role in one and role in other]
    decisive = [role for role in both if role != "flops"] or both
    return bool(both) and all(math.isclose(one[role], other[role], rel_tol=SAME) for role in decisive)


def rows_at(points: Points, at: Mapping[str, float]) -> NDArray[np.intp]:
    """Return which rows of a table are at a point."""
    table = {role: points.columns[role] for role in SIZES if role in points.columns}
    rows = ({role: float(column[k]) for role, column in table.items()} for k in range(points.n))
    return np.flatnonzero([same_point(row, at) for row in rows])
