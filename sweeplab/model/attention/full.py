"""Full attention over the whole sequence, with torch's kernel where possible.

FLOPs count the whole square, although a causal mask hides half of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.model.attention.base import AttentionKind, AttentionMask, Drop, distance_matrix, scores, weights
from sweeplab.model.shape import ModelShape

if TYPE_CHECKING:
    from sweeplab.model.attention.base import Key, Out, Query, Value


class _Full(AttentionKind):
    allows_cross = True

    def attend(self, q: Query, k: Key, v: Value, shape: ModelShape, mask: AttentionMask, drop: Drop) -> Out:
        import torch

        kernel = torch.nn.functional.scaled_dot_product_attention
        if drop is None and mask.bias is None:
            seen = None if mask.visible is None else mask.visible[:, None, None]
            return kernel(q, k, v, attn_mask=seen, is_causal=mask.causal)
        distances = distance_matrix(q, k)
        hidden = distances < 0 if mask.causal else None
        if mask.bias:
            additive = mask.additive_mask(len(q), distances, hidden)
            # The kernel is not faster with a mask that needs a gradient.
            if drop is None and not additive.requires_grad:
                return kernel(q, k, v, attn_mask=additive)
            found = (scores(q, k) + additive).softmax(dim=-1)
        else:
            if mask.visible is not None:
                hidden = ~mask.visible[:, None, None]
            found = scores(q, k)
            found = found.softmax(dim=-1) if hidden is None else weights(found, hidden)
        # The kernel cannot apply our dropout masks: it draws its own from one generator.
        return torch.matmul(drop(found) if drop else found, v)

    def n_weights(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        return n_queries * n_keys


FULL = _Full()
