"""What evaluations say about a run: its best, when to lower the rate, when to stop, when it is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["running", "complete", "stopped", "diverged"]

# A run whose loss rises this far above where it started learns nothing any more.
DIVERGED_ABOVE_START = 3.0


@dataclass
class Progress:
    """A run's evaluations in brief; small enough to travel with every checkpoint.

    `reference` is the last loss that was an improvement by min_delta; `n_bad` counts evaluations since.
    """

    first: float = math.nan
    best: float = math.inf
    best_iteration: int = 0
    reference: float = math.inf
    n_bad: int = 0
    n_bad_at_rate: int = 0
    n_halvings: int = 0

    def evaluated(self, val_loss: float, iteration: int, values: Mapping[str, Any]) -> State:
        """Take in an evaluation and return the run's state after it."""
        if iteration == 0:
            self.first = val_loss
        if not math.isfinite(val_loss) or val_loss > DIVERGED_ABOVE_START * self.first:
            return "diverged"
        if val_loss < self.best:
            self.best, self.best_iteration = val_loss, iteration
        if val_loss < self.reference - values["min_delta"]:
            self.reference = val_loss
            self.n_bad = self.n_bad_at_rate = 0
        else:
            self.n_bad += 1
            self.n_bad_at_rate += 1
        if iteration >= values["max_iters"]:
            return "complete"
        if values["patience"] is not None and self.n_bad >= values["patience"]:
            return "stopped"
        plateau = values["lr_decay"] and values["scheduler_type"] == "plateau"
        if plateau and self.n_bad_at_rate >= values["patience_lr"]:
            self.n_halvings += 1
            self.n_bad_at_rate = 0
        return "running"
