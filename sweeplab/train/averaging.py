"""A running mean of a run's weights, which evaluations use in place of the weights.

The exponential moving average of Polyak and Juditsky's averaging as the field uses it (Szegedy et al. 2016; Karras
et al. 2024). Its decay rises to `ema` as (1 + t) / (10 + t) does with the step t, as TensorFlow's
ExponentialMovingAverage has it: a plain one would still hold a run's random start when a short run is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def decay_at(ema: float, iteration: int) -> float:
    """Return the share of the mean that the step from `iteration` to the next keeps."""
    return min(ema, (1.0 + iteration) / (10.0 + iteration))


def average_(mean: Tensor, weights: Tensor, decays: Sequence[float]) -> None:
    """Take the weights [K, row_size] into their running mean, each row with its own decay."""
    kept = torch.tensor(decays, device=mean.device)[:, None]
    mean.mul_(kept).add_(weights * (1.0 - kept))
