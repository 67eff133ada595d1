"""Strided attention (Child et al., "Sparse transformers", 2019): what is near, and a column of what is far.

A query sees the positions less than attention_stride away, and every one a whole number of strides away:
O(T (s + T/s)) in all. Both parts share one softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeplab.model.attention.base import Kind, Sight, blocks, products, scores, weights
from sweeplab.model.attention.local import in_blocks, n_near, near, with_neighbors
from sweeplab.model.attention.recall import recalling

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape


def _column(q: Tensor, k: Tensor, n_keys: int, stride: int, sight: Sight) -> tuple[Tensor, Tensor]:
    """Return scores [..., stride, n, n] within each column of blocks, and which are hidden.

    A position's own is: it is among the near ones.
    """
    import torch

    found = scores(q.transpose(-2, -3), k.transpose(-2, -3))
    rows = torch.arange(q.shape[-3], device=q.device)
    steps = rows[:, None] - rows
    found = sight.shifted(found, "far", steps * stride)
    places = torch.arange(stride, device=q.device)[:, None] + stride * rows
    hidden = (steps <= 0 if sight.causal else steps == 0) | (places >= n_keys)[:, None]
    if sight.visible is not None:
        there = sight.visible[:, places.clamp(max=n_keys - 1)]
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
    import torch

    length = q.shape[2]
    stride = min(shape.attention_stride, length)
    n = blocks(length, stride)
    q, k, v = (in_blocks(each, n, stride) for each in (q, k, v))
    found, hidden = near(q, k, length, stride, sight)
    if n > 1:
        far, too = _column(q, k, length, stride, sight)
        found = torch.cat([found, far.transpose(-2, -3)], dim=-1)
        hidden = torch.cat([hidden, too.transpose(-2, -3)], dim=-1)
    found = weights(found, hidden)
    found = drop(found) if drop else found
    n_close = n_near(n, stride, sight.causal)
    mixed = found[..., :n_close].matmul(with_neighbors(v, sight.causal))
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


STRIDED = Kind(_attend, recalling(_attend, sees=_sees), products(_n_weights), _n_weights)
