"""Full attention: every position of the sequence, by the device's own kernel where it can.

FLOPs over the whole square although a causal side masks half of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeplab.model.attention.base import Kind, Sight, products, scores, weights
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

    if drop is None and sight.bias is None:
        seen = None if sight.visible is None else sight.visible[:, None, None]
        kernel = torch.nn.functional.scaled_dot_product_attention
        return kernel(q, k, v, attn_mask=seen, is_causal=sight.causal)
    # As the kernel would, with our own masks on the weights: it draws its own from one generator.
    n_queries, n_keys = q.shape[2], k.shape[2]
    found = scores(q, k)
    if sight.bias:
        # The last query stands at the last key.
        places = torch.arange(n_keys, device=q.device)
        found = sight.shifted(found, "all", places[n_keys - n_queries :, None] - places)
    if sight.causal:
        hidden = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device).triu_(
            1 + n_keys - n_queries
        )
        found = weights(found, hidden)
    elif sight.visible is not None:
        found = weights(found, ~sight.visible[:, None, None])
    else:
        found = found.softmax(dim=-1)
    return torch.matmul(drop(found) if drop else found, v)


def _n_weights(shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
    return n_queries * n_keys


FULL = Kind(attend, recalling(attend), products(_n_weights), _n_weights, crosses=True)
