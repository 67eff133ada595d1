"""Positional encodings: a row of POSITIONS each.

An encoding may add to the embeddings, rotate queries and keys, or shift attention's scores.

learned: an embedding for each position of the context, as GPT-2 and BERT have them.
sinusoidal (Vaswani et al., 2017): sines in even columns, cosines in odd ones; nothing is learned.
relative (Raffel et al., "T5", 2020): a learned shift of each head's scores by bucket of the distance. Half of the
buckets count single steps, the others grow with the logarithm up to relative_max_distance; an encoder has half of them
for each direction. A side's layers share one table.
rotary (Su et al., "RoFormer", 2021): queries and keys are rotated by angles that grow with the position. Pairs are a
column of a head's first half and the same one of its second half, as in Llama.
alibi (Press et al., "Train short, test long", 2022): each head subtracts its own slope times the distance.

Legend: n K runs or 1, H n_head, C n_embd, D head_dim, T positions. Distances are of a query's position over a key's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeplab.model.shape import ModelShape, Requirement, requirement

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    Weights = Mapping[str, Tensor]
    Added = Float[Tensor, "n 1 T C"]
    Distances = Int[Tensor, "*distances"]
    Shift = Float[Tensor, "n H *distances"]

SINUSOIDAL_BASE = 10_000.0


@dataclass(frozen=True)
class PositionalEncoding:
    """An encoding: its weights for each side of a model, and which of the three it does.

    table: a side's own weights: their component, and the hyperparameters that say how many rows and columns they have.
    add(w, shape, prefix, positions, like): what is added to embeddings like `like`, [n, 1, T, C].
    rotation(shape, positions, like): the function that rotates queries and keys [..., T, D] like `like`.
    bias(w, shape, prefix, causal, distances): what is added to scores, [n, H, ...] for distances [...].
    is_bounded: positions beyond block_size have no encoding.
    requires: what holds of every model's shape, whatever its encoding is.
    """

    table: tuple[str, str, str] | None = None
    add: Callable[[Weights, ModelShape, str, range, Tensor], Added] | None = None
    rotation: Callable[[ModelShape, range, Tensor], Callable[[Tensor], Tensor]] | None = None
    bias: Callable[[Weights, ModelShape, str, bool, Distances], Shift] | None = None
    is_bounded: bool = False
    requires: tuple[Requirement, ...] = ()


def _learned(w: Weights, shape: ModelShape, prefix: str, positions: range, like: Tensor) -> Added:
    return w[f"{prefix}position_embedding"][:, None, positions.start : positions.stop]


def _sinusoidal(w: Weights, shape: ModelShape, prefix: str, positions: range, like: Tensor) -> Added:
    import torch

    column = torch.arange(shape.n_embd, device=like.device)
    position = torch.arange(positions.start, positions.stop, device=like.device, dtype=torch.float64)
    angles = position[:, None] * SINUSOIDAL_BASE ** (-(column - column % 2).double() / shape.n_embd)
    return torch.where(column % 2 == 0, angles.sin(), angles.cos()).to(like.dtype)[None, None]


def _rotation(shape: ModelShape, positions: range, like: Tensor) -> Callable[[Tensor], Tensor]:
    import torch

    half = shape.head_dim // 2
    position = torch.arange(positions.start, positions.stop, device=like.device, dtype=torch.float64)
    pair = torch.arange(half, device=like.device, dtype=torch.float64)
    angles = position[:, None] * shape.rotary_base ** (-pair / half)
    cos, sin = angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    def rotate(x: Float[Tensor, "... T D"]) -> Float[Tensor, "... T D"]:
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    return rotate


def slopes(n_head: int) -> list[float]:
    """Return each head's slope as published: a geometric row for a power of two, else filled from the next one's."""
    power = 2 ** math.floor(math.log2(n_head))
    row = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    finer = [2.0 ** (-4.0 * (head + 1) / power) for head in range(2 * power)]
    return row + finer[::2][: n_head - power]


def _alibi(w: Weights, shape: ModelShape, prefix: str, causal: bool, distances: Distances) -> Shift:
    like = w["token_embedding"]
    steep = like.new_tensor(slopes(shape.n_head)).view(-1, *[1] * distances.ndim)
    return (-steep * distances.abs())[None]


def buckets(distances: Int[Tensor, "*n"], shape: ModelShape, causal: bool) -> Int[Tensor, "*n"]:
    """Return the bucket of each distance."""
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


def _relative(w: Weights, shape: ModelShape, prefix: str, causal: bool, distances: Distances) -> Shift:
    found = buckets(distances, shape, causal)
    table = w[f"{prefix}relative_bias"]
    return table[:, found.flatten()].transpose(1, 2).reshape(len(table), shape.n_head, *distances.shape)


_BUCKETS = requirement(
    "relative positions need relative_max_distance beyond half of an even number of relative_buckets",
    "positions relative_buckets relative_max_distance",
    lambda shape: (
        shape.positions != "relative"
        or (shape.relative_buckets % 2 == 0 and shape.relative_max_distance > shape.relative_buckets // 2)
    ),
)
_EVEN_HEADS = requirement(
    "rotary positions turn pairs of a head's columns: head_dim must be even",
    "positions head_dim n_embd n_head",
    lambda shape: shape.positions != "rotary" or shape.head_dim % 2 == 0,
)
POSITIONS: dict[str, PositionalEncoding] = {
    "learned": PositionalEncoding(
        table=("position_embedding", "block_size", "n_embd"), add=_learned, is_bounded=True
    ),
    "sinusoidal": PositionalEncoding(add=_sinusoidal),
    "relative": PositionalEncoding(
        table=("relative_bias", "relative_buckets", "n_head"), bias=_relative, requires=(_BUCKETS,)
    ),
    "rotary": PositionalEncoding(rotation=_rotation, requires=(_EVEN_HEADS,)),
    "alibi": PositionalEncoding(bias=_alibi),
    "none": PositionalEncoding(),
}
