"""Local attention: positions less than attention_window away, by blocks as wide as the window.

A block of queries meets its own keys and those of the block before it (and after it, where it sees both ways):
O(T) in all. Sliding windows: Beltagy et al., "Longformer" (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeplab.model.attention.base import Kind, Sight, blocks, products, scores, weights
from sweeplab.model.attention.recall import recalling

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape


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
    """Return how many keys a query meets."""
    return width if n == 1 else (2 if causal else 3) * width


def near(q: Tensor, k: Tensor, n_keys: int, width: int, sight: Sight) -> tuple[Tensor, Tensor]:
    """Return scores of query blocks with the keys near them, and which of these are hidden."""
    import torch

    n = q.shape[-3]
    found = scores(q, with_neighbors(k, sight.causal))
    own = torch.arange(width, device=q.device)
    keys = torch.arange(found.shape[-1], device=q.device) - (width if n > 1 else 0)
    distances = own[:, None] - keys
    found = sight.shifted(found, "near", distances)
    places = width * torch.arange(n, device=q.device)[:, None] + keys
    absent = (places < 0) | (places >= n_keys)
    hidden = (distances.abs() >= width) | absent[:, None]
    if sight.causal:
        hidden = hidden | (distances < 0)
    if sight.visible is not None:
        there = sight.visible[:, places.clamp(0, n_keys - 1)]
        hidden = hidden | ~there[:, None, :, None]
    return found, hidden


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shape: ModelShape,
    sight: Sight,
    drop: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    length = q.shape[2]
    width = min(shape.attention_window, length)
    n = blocks(length, width)
    q, k, v = (in_blocks(each, n, width) for each in (q, k, v))
    found = weights(*near(q, k, length, width, sight))
    mixed = (drop(found) if drop else found).matmul(with_neighbors(v, sight.causal))
    return mixed.flatten(2, 3)[:, :, :length]


def _n_weights(shape: ModelShape, length: int, n_keys: int, causal: bool) -> int:
    width = min(shape.attention_window, length)
    n = blocks(length, width)
    return n * width * n_near(n, width, causal)


LOCAL = Kind(
    _attend, recalling(_attend, lambda shape: shape.attention_window), products(_n_weights), _n_weights
)
