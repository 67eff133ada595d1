"""Strided attention (Child et al., "Sparse transformers", 2019): what is near, and a column of what is far.

A query sees the positions less than attention_stride away, and every one a whole number of strides away:
O(T (s + T/s)) in all. Both parts share one softmax.

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
from sweeplab.model.attention.local import in_blocks, n_near, near, with_neighbors
from sweeplab.model.shape import ModelShape

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def _column(q: Tensor, k: Tensor, n_keys: int, stride: int, mask: AttentionMask) -> tuple[Tensor, Tensor]:
    """Return scores [..., stride, n, n] within each column of blocks, and which are hidden.

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


def _attend(
    q: Float[Tensor, "KB H T D"],
    k: Float[Tensor, "KB H S D"],
    v: Float[Tensor, "KB H S W"],
    shape: ModelShape,
    mask: AttentionMask,
    drop: Drop = None,
) -> Float[Tensor, "KB H T W"]:
    import torch

    length = q.shape[2]
    stride = min(shape.attention_stride, length)
    n = blocks(length, stride)
    q, k, v = (in_blocks(each, n, stride) for each in (q, k, v))
    found, hidden = near(q, k, length, stride, mask)
    if n > 1:
        far, too = _column(q, k, length, stride, mask)
        found = torch.cat([found, far.transpose(-2, -3)], dim=-1)
        hidden = torch.cat([hidden, too.transpose(-2, -3)], dim=-1)
    found = weights(found, hidden)
    found = drop(found) if drop else found
    n_close = n_near(n, stride, mask.causal)
    mixed = found[..., :n_close].matmul(with_neighbors(v, mask.causal))
    if n > 1:
        column = found[..., n_close:].transpose(-2, -3).matmul(v.transpose(-2, -3))
        mixed = mixed + column.transpose(-2, -3)
    return mixed.flatten(2, 3)[:, :, :length]


def _n_weights(shape: ModelShape, length: int, n_keys: int, causal: bool) -> int:
    stride = min(shape.attention_stride, length)
    n = blocks(length, stride)
    return n * stride * (n_near(n, stride, causal) + (n if n > 1 else 0))


def _sees(shape: ModelShape, distances: Tensor) -> Tensor:
    return (distances < shape.attention_stride) | (distances % shape.attention_stride == 0)


STRIDED = AttentionKind(_attend, with_cache(_attend, sees=_sees), weight_flops(_n_weights), _n_weights)
