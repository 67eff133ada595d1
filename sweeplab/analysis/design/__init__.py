"""How the next runs are chosen (no NumPy: the command line shows these defaults)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweeplab.errors import BadInput


@dataclass(frozen=True)
class Rules:
    """How runs are chosen: `budget` in FLOPs, runs in all and by candidate, and the law's own error.

    `most_share` is the most of the runs that may be at the corners. `least_share` is the least of the budget that a
    run may cost: smaller ones lean on the law's form more than they tell. By `misfit` the law is taken as wrong from
    one end of the rows and candidates to the other.
    """

    budget: float
    most_runs: int = 40
    most_each: int = 2
    most_share: float = 0.2
    least_share: float = 1e-3
    misfit: float = 0.02

    def __post_init__(self) -> None:
        """Refuse rules that allow nothing.

        Raises:
            BadInput: a budget or a share that is none.
        """
        problems = []
        if not 0 < self.budget < math.inf:
            problems.append(f"--flops {self.budget:g} is no budget; it takes a positive number")
        if not 0 < self.most_share <= 1:
            problems.append(f"--most-share {self.most_share:g}: it takes a share, above 0 and at most 1")
        if problems:
            raise BadInput(*problems)
