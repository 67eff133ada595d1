"""Learning rate by iteration: a linear warm-up, then one of a few shapes down to min_lr."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

# Each maps progress after the warm-up, from 0 to 1, to the share of the way from min_lr to the peak.
SHAPES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1.0 - progress,
    "constant": lambda progress: 1.0,
    "plateau": lambda progress: 1.0,
}
PLATEAU_FACTOR = 0.5


def learning_rate(values: Mapping[str, Any], iteration: int, n_halvings: int = 0) -> float:
    """Return the learning rate of the step from `iteration` to the next.

    As nanoGPT: (i + 1) / (warmup + 1) of the peak during the warm-up, min_lr at max_iters. Departure: a peak
    below min_lr stays as it is instead of rising to it. `n_halvings` counts the plateau schedule's cuts.
    """
    peak, warmup = values["learning_rate"], values["warmup_iters"]
    if iteration < warmup:
        return float(peak * (iteration + 1) / (warmup + 1))
    if not values["lr_decay"]:
        return float(peak)
    floor = min(values["min_lr"], peak)
    if n_halvings:
        return float(max(floor, peak * PLATEAU_FACTOR**n_halvings))
    progress = min(1.0, (iteration - warmup) / max(1, values["max_iters"] - warmup))
    return float(floor + (peak - floor) * SHAPES[values["scheduler_type"]](progress))
