"""Sinusoidal positions (Vaswani et al., 2017): sines in even columns, cosines in odd ones; nothing is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sweeplab.model.positions.base import Positions

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape

BASE = 10_000.0


def _add(w: Mapping[str, Tensor], shape: ModelShape, prefix: str, places: range, like: Tensor) -> Tensor:
    import torch

    column = torch.arange(shape.n_embd, device=like.device)
    place = torch.arange(places.start, places.stop, device=like.device, dtype=torch.float64)
    angles = place[:, None] * BASE ** (-(column - column % 2).double() / shape.n_embd)
    return torch.where(column % 2 == 0, angles.sin(), angles.cos()).to(like.dtype)[None, None]


SINUSOIDAL = Positions(add=_add)
