"""Full attention: every position of the sequence, by the device's own kernel where it can.

FLOPs are over the whole square although a causal side masks half of it.

Legend: K runs, B sequences, H heads, D head_dim, T queries, S keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.model.attention.base import (
    AttentionKind,
    AttentionMask,
    Drop,
    between,
    scores,
    weight_flops,
    weights,
    with_cache,
)
from sweeplab.model.shape import ModelShape

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def attend(
    q: Float[Tensor, "KB H T D"],
    k: Float[Tensor, "KB H S D"],
    v: Float[Tensor, "KB H S W"],
    shape: ModelShape,
    mask: AttentionMask,
    drop: Drop = None,
) -> Float[Tensor, "KB H T W"]:
    """Attend to all that the mask shows: also what cross-attention does."""
    import torch

    kernel = torch.nn.functional.scaled_dot_product_attention
    if drop is None and mask.bias is None:
        seen = None if mask.visible is None else mask.visible[:, None, None]
        return kernel(q, k, v, attn_mask=seen, is_causal=mask.causal)
    distances = between(q, k)
    hidden = distances < 0 if mask.causal else None
    if mask.bias:
        additive = mask.additive(len(q), distances, hidden)
        # The kernel is no faster where the mask has a gradient.
        if drop is None and not additive.requires_grad:
            return kernel(q, k, v, attn_mask=additive)
        found = (scores(q, k) + additive).softmax(dim=-1)
    else:
        if mask.visible is not None:
            hidden = ~mask.visible[:, None, None]
        found = scores(q, k)
        found = found.softmax(dim=-1) if hidden is None else weights(found, hidden)
    # With our own masks on the weights: the kernel would draw its own from one generator.
    return torch.matmul(drop(found) if drop else found, v)


def _n_weights(shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
    return n_queries * n_keys


FULL = AttentionKind(attend, with_cache(attend), weight_flops(_n_weights), _n_weights, crosses=True)
