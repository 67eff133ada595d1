"""Attention of new places to themselves and to what is kept of those before them: their keys and values.

With the keys of all that it sees a query needs no other one: what is computed is what `attend` computes for the
last rows of the whole sequence. Heads of keys are kept once, however many heads of queries share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeplab.model.attention.base import Attend, Kept, Recall, Sight, between, for_queries

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape


def recalling(
    attend: Attend,
    reach: Callable[[ModelShape], int] | None = None,
    sees: Callable[[ModelShape, Tensor], Tensor] | None = None,
) -> Recall:
    """Return how a causal kind goes on that takes a softmax over scores.

    `reach` says from how far back no key is seen any more: none is kept then. `sees` says at which distances of a
    query's place over a key's one is seen, of those within reach. Without them all are.
    """

    def recall(
        q: Tensor, k: Tensor, v: Tensor, shape: ModelShape, sight: Sight, kept: Kept | None
    ) -> tuple[Tensor, Kept]:
        import torch

        width = reach(shape) if reach else None
        if kept is None:
            mixed = attend(q, for_queries(k, shape), for_queries(v, shape), shape, sight, None)
        else:
            k, v = (torch.cat(each, dim=2) for each in zip(kept, (k, v), strict=True))
            mixed = _mixed(q, k, v, shape, sight, width, sees)
        if width is not None:
            k, v = (each[:, :, max(0, each.shape[2] - width + 1) :] for each in (k, v))
        return mixed, (k, v)

    return recall


def _mixed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shape: ModelShape,
    sight: Sight,
    width: int | None,
    sees: Callable[[ModelShape, Tensor], Tensor] | None,
) -> Tensor:
    """Return what the last places [K*B, H, T, D] mix of all keys and values [K*B, G, S, D]."""
    from torch.nn import functional as F

    k, v = for_queries(k, shape), for_queries(v, shape)
    distances = between(q, k)
    mask: Tensor | None = None
    if q.shape[2] > 1 or sees:  # else it sees all that is kept
        mask = (distances >= 0) & (distances < (width or k.shape[2]))
        mask = mask & sees(shape, distances) if sees else mask
    if sight.bias:
        mask = sight.mask(len(q), distances, None if mask is None else ~mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
