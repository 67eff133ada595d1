"""Loss scaling for float16, in which small gradients would become zero.

Each run of a stack has its own scale, as in torch.amp.GradScaler (Micikevicius et al., "Mixed precision training",
2018). The loss is multiplied by the scale, and the gradient is divided by it. If a gradient is not finite, the step is
skipped and the scale is halved. After GROWTH_INTERVAL finite steps in a row the scale is doubled.

Departure: a skipped step counts as an iteration, for schedules and for Adam's bias correction.

Legend: K runs, P the row size. A run's row of the scale has two numbers: the scale, and the steps since it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    Scale = Float[Tensor, "K 2"]

# The defaults of GradScaler.
INITIAL_SCALE, GROWTH_INTERVAL, GROWTH, BACKOFF = 2.0**16, 2000, 2.0, 0.5


def initial_scale() -> Float[Tensor, "2"]:
    """Return the initial scale of a run."""
    return torch.tensor([INITIAL_SCALE, 0.0])


def unscale_(gradient: Float[Tensor, "K P"], scale: Scale) -> Bool[Tensor, "K"]:
    """Divide each row of a gradient by its scale; return for each run whether its whole gradient is finite."""
    gradient.div_(scale[:, :1])
    return gradient.isfinite().all(dim=1)


def update_scale_(scale: Scale, finite: Bool[Tensor, "K"]) -> None:
    """Update each run's scale after a step with a finite or non-finite gradient."""
    steps = torch.where(finite, scale[:, 1] + 1, 0.0)
    grows = steps >= GROWTH_INTERVAL
    scale[:, 0] *= torch.where(finite, torch.where(grows, GROWTH, 1.0), BACKOFF)
    scale[:, 1] = torch.where(grows, 0.0, steps)


def update_finite(
    finite: Bool[Tensor, "K"],
    rows: Mapping[str, Tensor],
    update: Callable[[Mapping[str, Tensor], Sequence[int]], None],
) -> None:
    """Update the rows of runs with a finite gradient, with the same bits as in a stack without the other runs."""
    kept = finite.nonzero()[:, 0]
    if len(kept) == len(finite):
        update(rows, range(len(finite)))
        return
    if not len(kept):
        return
    own = {name: each[kept] for name, each in rows.items()}
    update(own, kept.tolist())
    for name, each in own.items():
        rows[name].index_copy_(0, kept, each)
