"""Local attention: positions less than attention_window away, by blocks as wide as the window.

A block of queries meets its own keys and those of the block before it (and after it, where it sees both ways):
O(T) in all. Sliding windows: Beltagy et al., "Longformer" (2020).

Legend: K runs, B sequences, H heads, D head_dim, T queries, S keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.model.attention.base import (
    AttentionKind,
    AttentionMask,
    Drop,
    blocks,
    scores,
    weight_flops,
    weights,
    with_cache,
)
from sweeplab.model.shape import ModelShape

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def in_blocks(x: Tensor, n: int, width: int) -> Tensor:
    """Return [..., T, D] as [..., n, width, D], with zeros behind the end."""
    from torch.nn import functional as F

    return F.pad(x, (0, 0, 0, n * width - x.shape[-2])).view(*x.shape[:-2], n, width, x.shape[-1])


def with_neighbors(x: Tensor, causal: bool) -> Tensor:
    """Return blocks [..., n, width, D] with the one before (and after) each: [..., n, 2 or 3 times width, D]."""
    import torch
    from torch.nn import functional as F

    if x.shape[-3] == 1:
        return x
    before = F.pad(x, (0, 0, 0, 0, 1, -1))
    return torch.cat([before, x] if causal else [before, x, F.pad(x, (0, 0, 0, 0, -1, 1))], dim=-2)


def n_near(n: int, width: int, causal: bool) -> int:
    """Return how many keys each query is scored against."""
    return width if n == 1 else (2 if causal else 3) * width


def near(q: Tensor, k: Tensor, n_keys: int, width: int, mask: AttentionMask) -> tuple[Tensor, Tensor]:
    """Return scores of query blocks with the keys near them, and which of these are hidden."""
    import torch

    n = q.shape[-3]
    found = scores(q, with_neighbors(k, mask.causal))
    own = torch.arange(width, device=q.device)
    keys = torch.arange(found.shape[-1], device=q.device) - (width if n > 1 else 0)
    distances = own[:, None] - keys
    found = mask.shifted(found, "near", distances)
    positions = width * torch.arange(n, device=q.device)[:, None] + keys
    absent = (positions < 0) | (positions >= n_keys)
    hidden = (distances.abs() >= width) | absent[:, None]
    if mask.causal:
        hidden = hidden | (distances < 0)
    if mask.visible is not None:
        there = mask.visible[:, positions.clamp(0, n_keys - 1)]
        hidden = hidden | ~there[:, None, :, None]
    return found, hidden


def _attend(
    q: Float[Tensor, "KB H T D"],
    k: Float[Tensor, "KB H S D"],
    v: Float[Tensor, "KB H S W"],
    shape: ModelShape,
    mask: AttentionMask,
    drop: Drop = None,
) -> Float[Tensor, "KB H T W"]:
    length = q.shape[2]
    width = min(shape.attention_window, length)
    n = blocks(length, width)
    q, k, v = (in_blocks(each, n, width) for each in (q, k, v))
    found = weights(*near(q, k, length, width, mask))
    mixed = (drop(found) if drop else found).matmul(with_neighbors(v, mask.causal))
    return mixed.flatten(2, 3)[:, :, :length]


def _n_weights(shape: ModelShape, length: int, n_keys: int, causal: bool) -> int:
    width = min(shape.attention_window, length)
    n = blocks(length, width)
    return n * width * n_near(n, width, causal)


LOCAL = AttentionKind(
    _attend, with_cache(_attend, lambda shape: shape.attention_window), weight_flops(_n_weights), _n_weights
)
