"""What pruning saved, and on trials that were trained to their end after all, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.sweep.trials import Sweep

if TYPE_CHECKING:
    from sweeplab.sweep.work.pruned import Audited

LEVEL = 0.9


@dataclass(frozen=True)
class Saved:
    """What a cell's pruned trials took, and what their rest would have taken at their own pace."""

    study: str
    cell: str
    n_trials: int
    n_pruned: int
    flops_spent: float
    flops_saved: float
    seconds_spent: float
    seconds_saved: float

    @property
    def share(self) -> float:
        """Return the share of the FLOPs that the cell would have taken without pruning."""
        whole = self.flops_spent + self.flops_saved
        return self.flops_saved / whole if whole else 0.0


def saved(sweep: Sweep) -> list[Saved]:
    """Return what pruning saved in each cell where trials were counted, in the order of the cells."""
    trials = sweep.trials[sweep.trials["state"].isin(("complete", "stopped", "pruned", "diverged"))]
    pace = trials["wall_seconds"].sum() / max(float(trials["train_flops"].sum()), 1.0)
    found = []
    for cell in sweep.cells:
        own = trials[trials["cell"] == cell]
        pruned = own[own["state"] == "pruned"]
        flops = (pruned["planned_flops"] - pruned["train_flops"].fillna(0)).clip(lower=0)
        # A trial that was pruned before its first step has no pace of its own.
        paces = (pruned["wall_seconds"] / pruned["train_flops"].replace(0, np.nan)).fillna(pace)
        found.append(
            Saved(
                sweep.name, cell, len(own), len(pruned),
                float(own["train_flops"].sum()), float(flops.sum()),
                float(own["wall_seconds"].sum()), float((flops * paces).sum()),
            )
        )  # fmt: skip
    return [each for each in found if each.n_trials]


@dataclass(frozen=True)
class Cost:
    """What the audit of a study's pruning says.

    `audited` has a row an audited trial: cell, trial, iteration (where it was pruned), value_then, value (at its end;
    missing where it diverged), best (the cell's best value) and `is_better`. `low` and `high` are an interval of the
    share of all pruned trials that would have become the best of their cell (Clopper and Pearson 1934).
    """

    study: str
    audited: DataFrame
    n_pruned: int
    low: float
    high: float

    @property
    def n_better(self) -> int:
        """Return how many of the audited trials would have become the best of their cell."""
        return int(self.audited["is_better"].sum())


def cost(sweep: Sweep, audited: Sequence[Audited]) -> Cost:
    """Return what audited trials say of the study's pruning."""
    from scipy.stats import beta

    best = sweep.ended.groupby("cell")["loss"].min()
    rows = [
        {
            "cell": each.cell,
            "trial": each.trial,
            "iteration": each.iteration,
            "value_then": each.value_then,
            "value": each.value,
            "best": float(best.get(each.cell, np.nan)),
        }
        for each in audited
    ]
    frame = DataFrame(rows, columns=["cell", "trial", "iteration", "value_then", "value", "best"])
    value, bar = frame["value"].astype(float), frame["best"].astype(float)
    frame["is_better"] = (value < bar) | (value.notna() & bar.isna())
    n, k = len(frame), int(frame["is_better"].sum())
    tail = (1 - LEVEL) / 2
    low = float(beta.ppf(tail, k, n - k + 1)) if k else 0.0
    high = float(beta.ppf(1 - tail, k + 1, n - k)) if k < n else 1.0
    return Cost(sweep.name, frame, int((sweep.trials["state"] == "pruned").sum()), low, high)
