"""Relative positions (Raffel et al., "T5", 2020): a learned shift of each head's scores by bucket of the distance.

Half of the buckets count single steps, the others grow with the logarithm up to relative_max_distance; an
encoder has half of them for each direction. A side's layers share one table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sweeplab.model.positions.base import Positions
from sweeplab.model.requirement import requirement
from sweeplab.model.weights import Declarations

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape

COMPONENT = "relative_bias"


def _declare(declarations: Declarations, prefix: str) -> None:
    shape = declarations.shape
    declarations.table(f"{prefix}relative_bias", shape.relative_buckets, shape.n_head, COMPONENT)


def buckets(distances: Tensor, shape: ModelShape, causal: bool) -> Tensor:
    """Return the bucket of each distance of a query's place over a key's."""
    import torch

    count, side = shape.relative_buckets, torch.zeros_like(distances)
    if causal:
        steps = distances.clamp(min=0)
    else:
        count //= 2
        side, steps = count * (distances < 0), distances.abs()
    exact = count // 2
    # In single precision, as T5 computes it: the edges of the buckets depend on it.
    share = (steps.clamp(min=1).float() / exact).log() / math.log(shape.relative_max_distance / exact)
    far = (exact + (share * (count - exact)).long()).clamp(max=count - 1)
    return side + torch.where(steps < exact, steps, far)


def _bias(w: Mapping[str, Tensor], shape: ModelShape, prefix: str, distances: Tensor, causal: bool) -> Tensor:
    found = buckets(distances, shape, causal)
    table = w[f"{prefix}relative_bias"]
    return table[:, found.flatten()].transpose(1, 2).reshape(len(table), shape.n_head, *distances.shape)


RELATIVE = Positions(
    COMPONENT,
    "R*H",
    declare=_declare,
    bias=_bias,
    requires=(
        requirement(
            "relative positions need relative_max_distance beyond half of an even number of relative_buckets",
            "positions relative_buckets relative_max_distance",
            lambda shape: (
                shape.relative_buckets % 2 == 0 and shape.relative_max_distance > shape.relative_buckets // 2
            ),
        ),
    ),
)
