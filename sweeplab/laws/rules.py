"""How the next runs are chosen (no NumPy: the command line shows these defaults)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweeplab.errors import BadInput


@dataclass(frozen=True)
class Rules:
    """The rules for choosing runs: `budget` in FLOPs, the most runs in all and per candidate, and the law's own error.

    `most_share` is the largest share of the runs at the corners. `least_share` is the least share of the budget that a
    run may cost: smaller runs depend on the law's form more than they inform. `misfit` is the assumed error of the law
    between the ends of the rows and candidates, as a share of the loss.
    """

    budget: float
    most_runs: int = 40
    most_each: int = 2
    most_share: float = 0.2
    least_share: float = 1e-3
    misfit: float = 0.02

    def __post_init__(self) -> None:
        """Refuse rules that allow nothing."""
        problems = []
        if not 0 < self.budget < math.inf:
            problems.append(f"--flops {self.budget:g} is not a budget; it must be positive")
        if not 0 < self.most_share <= 1:
            problems.append(f"--most-share {self.most_share:g}: it must be a share above 0 and at most 1")
        if problems:
            raise BadInput(*problems)
