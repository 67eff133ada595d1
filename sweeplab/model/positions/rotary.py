"""Rotary positions (Su et al., "RoFormer", 2021): queries and keys are turned by angles that grow with the place.

Pairs are a column of a head's first half and the one of its second half, as in Llama.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeplab.model.positions.base import Positions
from sweeplab.model.requirement import requirement

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape


def _turning(shape: ModelShape, places: range, like: Tensor) -> Callable[[Tensor], Tensor]:
    import torch

    half = shape.head_dim // 2
    place = torch.arange(places.start, places.stop, device=like.device, dtype=torch.float64)
    pair = torch.arange(half, device=like.device, dtype=torch.float64)
    angles = place[:, None] * shape.rotary_base ** (-pair / half)
    cos, sin = angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    def turn(x: Tensor) -> Tensor:
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    return turn


ROTARY = Positions(
    turning=_turning,
    requires=(
        requirement(
            "rotary positions turn pairs of a head's columns: head_dim must be even",
            "positions head_dim n_embd n_head",
            lambda shape: shape.head_dim % 2 == 0,
        ),
    ),
)
