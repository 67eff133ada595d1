"""Loss scaling for float16, whose smallest numbers are too large for most gradients.

Each run of a stack has a scale of its own, as torch.amp.GradScaler has it (Micikevicius et al., "Mixed precision
training", 2018): its loss is multiplied by the scale and its gradient divided by it again; a gradient that is not
finite is no step, and halves the scale; so many steps in a row without one double it.

Departure: a step that was none counts as an iteration, for schedules and for Adam's correction of its moments' bias.

Legend: K runs, P the row size. A run's row of the scale has two numbers: the scale, and its steps since it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    Scale = Float[Tensor, "K 2"]

# GradScaler's own.
INITIAL_SCALE, GROWTH_INTERVAL, GROWTH, BACKOFF = 2.0**16, 2000, 2.0, 0.5


def initial_scale() -> Float[Tensor, "2"]:
    """Return the scale of a run that starts."""
    return torch.tensor([INITIAL_SCALE, 0.0])


def unscale_(gradient: Float[Tensor, "K P"], scale: Scale) -> Bool[Tensor, "K"]:
    """Divide each row of a gradient by its scale; say of each run whether all of its gradient is finite."""
    gradient.div_(scale[:, :1])
    return gradient.isfinite().all(dim=1)


def follow_(scale: Scale, finite: Bool[Tensor, "K"]) -> None:
    """Change each run's scale by whether its gradient was finite."""
    steps = torch.where(finite, scale[:, 1] + 1, 0.0)
    grows = steps >= GROWTH_INTERVAL
    scale[:, 0] *= torch.where(finite, torch.where(grows, GROWTH, 1.0), BACKOFF)
    scale[:, 1] = torch.where(grows, 0.0, steps)


def only(
    finite: Bool[Tensor, "K"],
    rows: Mapping[str, Tensor],
    update: Callable[[Mapping[str, Tensor], Sequence[int]], None],
) -> None:
    """Update the rows of those runs alone whose gradient is finite, as they would be in a stack without the others."""
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
