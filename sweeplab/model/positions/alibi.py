"""ALiBi (Press et al., "Train short, test long", 2022): each head takes its own slope times the distance off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sweeplab.model.positions.base import Positions

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape


def slopes(n_head: int) -> list[float]:
    """Return each head's slope as published: a geometric row for a power of two, else filled from the next one's."""
    power = 2 ** math.floor(math.log2(n_head))
    row = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    finer = [2.0 ** (-4.0 * (head + 1) / power) for head in range(2 * power)]
    return row + finer[::2][: n_head - power]


def _bias(w: Mapping[str, Tensor], shape: ModelShape, prefix: str, distances: Tensor, causal: bool) -> Tensor:
    like = w["token_embedding"]
    steep = like.new_tensor(slopes(shape.n_head)).view(-1, *[1] * distances.ndim)
    return (-steep * distances.abs())[None]


ALIBI = Positions(bias=_bias)
