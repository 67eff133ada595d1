"""The results of fresh seeds and the test split: a study's cells, their differences, and the search's optimism.

The losses used here did not choose the winner of a cell, so means, intervals and differences are those of a sample,
with Student's t, and valid after the selection. Differences are paired by seed, from the cell that was best in the
search. `compare` decides which of them are significant, with one false-alarm rate for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sweeplab.laws.comparing import Array, CellTrials, compare
from sweeplab.laws.estimation.intervals import student
from sweeplab.laws.evidence import Evidence
from sweeplab.records.confirmed import Confirmed


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, in its objective's unit, and its interval; NaN if there is only one seed."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Array) -> Interval:
        """Return the mean of some values with its interval at LEVEL."""
        n, mean = len(values), float(np.mean(values))
        if n < 2:
            return cls(mean, np.nan, np.nan)
        reach = float(student(n - 1) * values.std(ddof=1) / np.sqrt(n))
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class CellConfirmed:
    """One cell: its winner's test loss, and the optimism of the search.

    `optimism` is the test loss minus the loss that the search found; `selection_bias` is the part of it that appears
    with fresh seeds on the same split. `apart` is the difference from the reference's test loss, with its `evidence`;
    both are None for the reference. There is no test loss if a seed diverged.
    """

    cell: str
    trial: int
    n_raced: int
    searched: float
    validation: float
    test: Interval | None
    apart: Interval | None = None
    evidence: Evidence | None = None

    @property
    def optimism(self) -> float | None:
        """Return how much lower the search's loss was than the test loss."""
        return self.test.value - self.searched if self.test else None

    @property
    def selection_bias(self) -> float | None:
        """Return how much lower the search's loss was than that of fresh seeds."""
        return self.validation - self.searched if self.test else None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "optimism": self.optimism, "selection_bias": self.selection_bias}


def confirmed_cells(found: Sequence[Confirmed]) -> list[CellConfirmed]:
    """Return each cell's winner, the lowest test loss first, cells without one last."""
    winners = [each for each in found if each.won]
    raced = [sum(other.cell == each.cell for other in found) for each in winners]
    rows = [
        CellConfirmed(
            each.cell,
            each.trial,
            n_raced,
            each.searched,
            float(np.mean(list(each.validation.values()))) if each.validation else np.nan,
            Interval.of(np.array(list(each.test.values()))) if each.test else None,
        )
        for each, n_raced in zip(winners, raced, strict=True)
    ]
    scored = [at for at, each in enumerate(winners) if each.test]
    if len(scored) > 1:
        reference = min(scored, key=lambda at: winners[at].searched)
        others = [at for at in scored if at != reference]
        tried = [CellTrials([winners[at].test], 1) for at in (reference, *others)]
        compared = compare(tried, [(0, place) for place in range(1, len(tried))])
        for place, at in enumerate(others):
            many = raced[at] > 1
            chosen = f"the winner of a race of {raced[at]}" if many else "each cell's best trial"
            tested_on = "fresh seeds and the test split"
            evidence = replace(compared.evidence_of(place), selection=chosen, tested_on=tested_on)
            one, other = winners[at].test, winners[reference].test
            apart = Interval.of(np.array([one[seed] - other[seed] for seed in one.keys() & other.keys()]))
            rows[at] = replace(rows[at], apart=apart, evidence=evidence)
    return sorted(rows, key=lambda row: row.test.value if row.test else np.inf)
