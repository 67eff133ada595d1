"""What an evaluation is worth: its loss, or a number that a plugin makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

# Of the mean validation loss over a trial's seeds (nats a token), the iteration and the trial's hyperparameters.
Metric = Callable[[float, int, Mapping[str, Any]], float]

METRICS: dict[str, Metric] = {"val_loss": lambda loss, iteration, values: loss}


def worth(metric: str, loss: float, iteration: int, values: Mapping[str, Any]) -> float:
    """Return an evaluation's worth; lower is better.

    Raises:
        ValueError: it is no finite number where the loss is one.
    """
    found = METRICS[metric](loss, iteration, values)
    if math.isfinite(loss) and not math.isfinite(found):
        raise ValueError(f"metric {metric} is {found} at iteration {iteration}, where the loss is {loss}")
    return found
