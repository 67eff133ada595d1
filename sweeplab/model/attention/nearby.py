"""Attention to what is near, by blocks: local, and strided, which sees a column of what is far besides.

local: positions less than attention_window away. A block of queries, as wide as the window, meets its own keys and
those of the block before it (and after it, where it sees both ways): O(T) in all. Sliding windows: Beltagy et al.,
"Longformer" (2020).
strided (Child et al., "Sparse transformers", 2019): positions less than attention_stride away, and every one a whole
number of strides away: O(T (s + T/s)) in all. Both parts share one softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeplab.model.attention.base import AttentionKind, AttentionMask, Drop, in_blocks, scores, weights
from sweeplab.model.shape import ModelShape

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from sweeplab.model.attention.base import Key, Mixed, Query, Value

    Blocks = Float[Tensor, "KB H n width D"]


@dataclass(frozen=True)
class _Nearby(AttentionKind):
    """Attention within a width, and with a column to every position whole widths away."""

    width: Callable[[ModelShape], int]
    has_column: bool = False

    def attend(self, q: Query, k: Key, v: Value, shape: ModelShape, mask: AttentionMask, drop: Drop) -> Mixed:
        import torch

        length = q.shape[2]
        width = min(self.width(shape), length)
        q, k, v = (in_blocks(each, width) for each in (q, k, v))
        found, hidden = _near(q, k, length, width, mask)
        n_near, has_column = found.shape[-1], self.has_column and length > width
        if has_column:
            far, too = _column(q, k, length, width, mask)
            found = torch.cat([found, far.transpose(-2, -3)], dim=-1)
            hidden = torch.cat([hidden, too.transpose(-2, -3)], dim=-1)
        found = weights(found, hidden)
        found = drop(found) if drop else found
        mixed = found[..., :n_near].matmul(_with_neighbors(v, mask.causal))
        if has_column:
            column = found[..., n_near:].transpose(-2, -3).matmul(v.transpose(-2, -3))
            mixed = mixed + column.transpose(-2, -3)
        return mixed.flatten(2, 3)[:, :, :length]

    def n_weights(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        width = min(self.width(shape), n_queries)
        n = -(-n_queries // width)
        n_near = width if n == 1 else (2 if causal else 3) * width
        return n * width * (n_near + (n if self.has_column and n > 1 else 0))

    def reach(self, shape: ModelShape) -> int | None:
        return None if self.has_column else self.width(shape)

    def sees(self, shape: ModelShape, distances: Int[Tensor, "T S"]) -> Bool[Tensor, "T S"] | None:
        if not self.has_column:
            return None
        return (distances < self.width(shape)) | (distances % self.width(shape) == 0)


def _with_neighbors(x: Blocks, causal: bool) -> Float[Tensor, "KB H n near D"]:
    """Return blocks with the one before (and after) each; `near` is 2 or 3 times their width, or 1 of a lone one."""
    import torch
    from torch.nn import functional as F

    if x.shape[-3] == 1:
        return x
    before = F.pad(x, (0, 0, 0, 0, 1, -1))
    return torch.cat([before, x] if causal else [before, x, F.pad(x, (0, 0, 0, 0, -1, 1))], dim=-2)


def _near(
    q: Blocks, k: Blocks, n_keys: int, width: int, mask: AttentionMask
) -> tuple[Float[Tensor, "KB H n {width} near"], Bool[Tensor, "..."]]:
    """Return scores of query blocks with the keys near them, and which of these are hidden."""
    import torch

    n = q.shape[-3]
    found = scores(q, _with_neighbors(k, mask.causal))
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


def _column(
    q: Blocks, k: Blocks, n_keys: int, stride: int, mask: AttentionMask
) -> tuple[Float[Tensor, "KB H {stride} n n"], Bool[Tensor, "..."]]:
    """Return scores within each column of blocks, and which are hidden.

    A position's own is: it is among the near ones.
    """
    import torch

    found = scores(q.transpose(-2, -3), k.transpose(-2, -3))
    rows = torch.arange(q.shape[-3], device=q.device)
    steps = rows[:, None] - rows
    found = mask.shifted(found, "far", steps * stride)
    positions = torch.arange(stride, device=q.device)[:, None] + stride * rows
    hidden = (steps <= 0 if mask.causal else steps == 0) | (positions >= n_keys)[:, None]
    if mask.visible is not None:
        there = mask.visible[:, positions.clamp(max=n_keys - 1)]
        hidden = hidden | ~there[:, None, :, None]
    return found, hidden


LOCAL = _Nearby(lambda shape: shape.attention_window)
STRIDED = _Nearby(lambda shape: shape.attention_stride, has_column=True)
