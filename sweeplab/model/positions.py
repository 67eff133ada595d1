"""Positional encodings. Each is a row of POSITIONS.

An encoding adds to the embeddings, rotates queries and keys, or adds a bias to attention scores.

learned: an embedding for each position of the context, as in GPT-2 and BERT.
sinusoidal (Vaswani et al., 2017): sines in even columns, cosines in odd ones; nothing is learned.
relative (Raffel et al., "T5", 2020): each head learns a bias for each bucket of distances. Half of the buckets hold one
distance each. The others grow logarithmically up to relative_max_distance. An encoder has half of all buckets for each
direction. The layers of a side share one table.
rotary (Su et al., "RoFormer", 2021): rotates queries and keys by angles proportional to the position. A pair is a
column in the first half of a head and the same column in its second half, as in Llama.
alibi (Press et al., "Train short, test long", 2022): each head subtracts its own slope times the distance.

Legend: n K runs or 1, H n_head, C n_embd, D head_dim, T positions. A distance is query position minus key position.
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
    Bias = Float[Tensor, "n H *distances"]

SINUSOIDAL_BASE = 10_000.0


@dataclass(frozen=True)
class PositionalEncoding:
    """A positional encoding: its weights, and the functions that apply it.

    table: each side's own weights: their component, and the hyperparameters with their numbers of rows and columns.
    add(w, shape, prefix, positions, like): returns the vectors to add to embeddings like `like`, [n, 1, T, C].
    rotation(shape, positions, like): returns a function that rotates queries or keys [..., T, D] like `like`.
    bias(w, shape, prefix, causal, distances): returns the bias of scores [n, H, ...] for distances [...].
    is_bounded: positions from block_size on have no encoding.
    requires: conditions on the shape of every model, also of models with another encoding.
    """

    table: tuple[str, str, str] | None = None
    add: Callable[[Weights, ModelShape, str, range, Tensor], Added] | None = None
    rotation: Callable[[ModelShape, range, Tensor], Callable[[Tensor], Tensor]] | None = None
    bias: Callable[[Weights, ModelShape, str, bool, Distances], Bias] | None = None
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
    """Return each head's slope as published: a geometric sequence, or parts of two if n_head is no power of two."""
    power = 2 ** math.floor(math.log2(n_head))
    of_power = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    of_next_power = [2.0 ** (-4.0 * (head + 1) / power) for head in range(2 * power)]
    return of_power + of_next_power[::2][: n_head - power]


def _alibi(w: Weights, shape: ModelShape, prefix: str, causal: bool, distances: Distances) -> Bias:
    like = w["token_embedding"]
    slope = like.new_tensor(slopes(shape.n_head)).view(-1, *[1] * distances.ndim)
    return (-slope * distances.abs())[None]


def buckets(distances: Int[Tensor, "*n"], shape: ModelShape, causal: bool) -> Int[Tensor, "*n"]:
    """Return T5's bucket of each distance."""
    import torch

    count, first = shape.relative_buckets, torch.zeros_like(distances)
    if causal:
        steps = distances.clamp(min=0)
    else:
        count //= 2
        first, steps = count * (distances < 0), distances.abs()
    exact = count // 2
    # In float32 as in T5, because the boundaries of the buckets depend on the precision.
    share = (steps.clamp(min=1).float() / exact).log() / math.log(shape.relative_max_distance / exact)
    far = (exact + (share * (count - exact)).long()).clamp(max=count - 1)
    return first + torch.where(steps < exact, steps, far)


def _relative(w: Weights, shape: ModelShape, prefix: str, causal: bool, distances: Distances) -> Bias:
    found = buckets(distances, shape, causal)
    table = w[f"{prefix}relative_bias"]
    return table[:, found.flatten()].transpose(1, 2).reshape(len(table), shape.n_head, *distances.shape)


_BUCKETS = requirement(
    "relative positions need an even relative_buckets, and relative_max_distance above half of it",
    "positions relative_buckets relative_max_distance",
    lambda shape: (
        shape.positions != "relative"
        or (shape.relative_buckets % 2 == 0 and shape.relative_max_distance > shape.relative_buckets // 2)
    ),
)
_EVEN_HEADS = requirement(
    "rotary positions rotate pairs of a head's columns: head_dim must be even",
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
