"""Full attention: every position of the sequence, by the device's own kernel where it can.

FLOPs over the whole square although a causal side masks half of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeplab.model.attention.base import Kind, Sight, between, products, scores, weights
from sweeplab.model.attention.recall import recalling

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shape: ModelShape,
    sight: Sight,
    drop: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Attend to all that is in sight: also what cross-attention does."""
    import torch

    kernel = torch.nn.functional.scaled_dot_product_attention
    if drop is None and sight.bias is None:
        seen = None if sight.visible is None else sight.visible[:, None, None]
        return kernel(q, k, v, attn_mask=seen, is_causal=sight.causal)
    distances = between(q, k)
    hidden = distances < 0 if sight.causal else None
    if sight.bias:
        mask = sight.mask(len(q), distances, hidden)
        # The kernel is no faster where the mask has a gradient.
        if drop is None and not mask.requires_grad:
            return kernel(q, k, v, attn_mask=mask)
        found = (scores(q, k) + mask).softmax(dim=-1)
    else:
        if sight.visible is not None:
            hidden = ~sight.visible[:, None, None]
        found = scores(q, k)
        found = found.softmax(dim=-1) if hidden is None else weights(found, hidden)
    # With our own masks on the weights: the kernel would draw its own from one generator.
    return torch.matmul(drop(found) if drop else found, v)


def _n_weights(shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
    return n_queries * n_keys


FULL = Kind(attend, recalling(attend), products(_n_weights), _n_weights, crosses=True)
