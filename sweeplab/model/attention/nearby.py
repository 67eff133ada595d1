"""Attention to nearby positions, computed in blocks: local, and strided, which also attends to distant positions.

local: positions less than attention_window away (sliding windows: Beltagy et al., "Longformer", 2020). A block is as
wide as the window. Its queries attend to the keys of their own block and of the block before it (and after it, without
a causal mask). The cost is O(T).
strided (Child et al., "Sparse transformers", 2019): positions less than attention_stride away, and those at any
multiple of the stride. The cost is O(T (s + T/s)) with the stride s. Both parts share one softmax.
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

    from sweeplab.model.attention.base import Key, Out, Query, Value

    Blocks = Float[Tensor, "KB H n width D"]


@dataclass(frozen=True)
class _Nearby(AttentionKind):
    """Attention to positions less than a width away; with `has_column`, also to those at multiples of the width."""

    width: Callable[[ModelShape], int]
    has_column: bool = False

    def attend(self, q: Query, k: Key, v: Value, shape: ModelShape, mask: AttentionMask, drop: Drop) -> Out:
        import torch

        length = q.shape[2]
        width = min(self.width(shape), length)
        q, k, v = (in_blocks(each, width) for each in (q, k, v))
        found, hidden = _near_scores(q, k, length, width, mask)
        n_near, has_column = found.shape[-1], self.has_column and length > width
        if has_column:
            far, far_hidden = _column_scores(q, k, length, width, mask)
            found = torch.cat([found, far.transpose(-2, -3)], dim=-1)
            hidden = torch.cat([hidden, far_hidden.transpose(-2, -3)], dim=-1)
        found = weights(found, hidden)
        found = drop(found) if drop else found
        output = found[..., :n_near].matmul(_with_neighbors(v, mask.causal))
        if has_column:
            column = found[..., n_near:].transpose(-2, -3).matmul(v.transpose(-2, -3))
            output = output + column.transpose(-2, -3)
        return output.flatten(2, 3)[:, :, :length]

    def n_weights(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        width = min(self.width(shape), n_queries)
        n = -(-n_queries // width)
        n_near = width if n == 1 else (2 if causal else 3) * width
        return n * width * (n_near + (n if self.has_column and n > 1 else 0))

    def window(self, shape: ModelShape) -> int | None:
        return None if self.has_column else self.width(shape)

    def attends_at(self, shape: ModelShape, distances: Int[Tensor, "T S"]) -> Bool[Tensor, "T S"] | None:
        if not self.has_column:
            return None
        return (distances < self.width(shape)) | (distances % self.width(shape) == 0)


def _with_neighbors(x: Blocks, causal: bool) -> Float[Tensor, "KB H n near D"]:
    """Join each block with the one before (and after) it: `near` is 2 or 3 times the width, or 1 time for one block."""
    import torch
    from torch.nn import functional as F

    if x.shape[-3] == 1:
        return x
    before = F.pad(x, (0, 0, 0, 0, 1, -1))
    return torch.cat([before, x] if causal else [before, x, F.pad(x, (0, 0, 0, 0, -1, 1))], dim=-2)


def _near_scores(
    q: Blocks, k: Blocks, n_keys: int, width: int, mask: AttentionMask
) -> tuple[Float[Tensor, "KB H n {width} near"], Bool[Tensor, "..."]]:
    """Return the scores of query blocks and the keys near them, and which scores are hidden."""
    import torch

    n = q.shape[-3]
    found = scores(q, _with_neighbors(k, mask.causal))
    own = torch.arange(width, device=q.device)
    keys = torch.arange(found.shape[-1], device=q.device) - (width if n > 1 else 0)
    distances = own[:, None] - keys
    found = mask.add_bias(found, "near", distances)
    positions = width * torch.arange(n, device=q.device)[:, None] + keys
    absent = (positions < 0) | (positions >= n_keys)
    hidden = (distances.abs() >= width) | absent[:, None]
    if mask.causal:
        hidden = hidden | (distances < 0)
    if mask.visible is not None:
        present = mask.visible[:, positions.clamp(0, n_keys - 1)]
        hidden = hidden | ~present[:, None, :, None]
    return found, hidden


def _column_scores(
    q: Blocks, k: Blocks, n_keys: int, stride: int, mask: AttentionMask
) -> tuple[Float[Tensor, "KB H {stride} n n"], Bool[Tensor, "..."]]:
    """Return the scores of positions at multiples of the stride, and which scores are hidden.

    A position's own key is hidden, because the near scores have it.
    """
    import torch

    found = scores(q.transpose(-2, -3), k.transpose(-2, -3))
    rows = torch.arange(q.shape[-3], device=q.device)
    steps = rows[:, None] - rows
    found = mask.add_bias(found, "far", steps * stride)
    positions = torch.arange(stride, device=q.device)[:, None] + stride * rows
    hidden = (steps <= 0 if mask.causal else steps == 0) | (positions >= n_keys)[:, None]
    if mask.visible is not None:
        present = mask.visible[:, positions.clamp(max=n_keys - 1)]
        hidden = hidden | ~present[:, None, :, None]
    return found, hidden


LOCAL = _Nearby(lambda shape: shape.attention_window)
STRIDED = _Nearby(lambda shape: shape.attention_stride, has_column=True)
