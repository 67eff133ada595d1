"""Linear attention (Katharopoulos et al., "Transformers are RNNs", 2020): elu + 1 in place of the softmax.

Keys and values are summed once, for a causal side as running sums over chunks with the square inside of each:
O(T) in all. There are no weights to drop from; a column of ones beside the values gives the denominator.

Legend: K runs, B sequences, H heads, G heads of keys, D head_dim, T queries, S keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.model.activations import by_run
from sweeplab.model.attention.base import AttentionKind, AttentionMask, Cached, Drop, blocks, for_queries
from sweeplab.model.attention.local import in_blocks
from sweeplab.model.shape import ModelShape, requirement

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

CHUNK = 64


def _attend(
    q: Float[Tensor, "KB H T D"],
    k: Float[Tensor, "KB H S D"],
    v: Float[Tensor, "KB H S W"],
    shape: ModelShape,
    mask: AttentionMask,
    drop: Drop = None,
) -> Float[Tensor, "KB H T W"]:
    q, k, v = _features(q, k, v, mask)
    if mask.visible is not None:
        k = k * mask.visible[:, None, :, None]
    summed = _running(q, k, v) if mask.causal else q.matmul(k.transpose(2, 3).matmul(v))
    return summed[..., :-1] / summed[..., -1:]


def _attend_cached(
    q: Tensor, k: Tensor, v: Tensor, shape: ModelShape, mask: AttentionMask, cached: Cached | None
) -> tuple[Tensor, Cached]:
    """Add to the sums over the keys before: all that has to be cached of them."""
    q, k, v = _features(q, k, v, mask)
    summed = _running(q, for_queries(k, shape), for_queries(v, shape))
    sums = k.transpose(2, 3).matmul(v)
    if cached is not None:
        summed = summed + q.matmul(for_queries(cached[0], shape))
        sums = sums + cached[0]
    return summed[..., :-1] / summed[..., -1:], (sums,)


def _features(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys under elu + 1, and values with their column of ones."""
    from torch.nn import functional as F

    q, k = (by_run(feature, each, mask.n_runs) for each in (q, k))
    return q, k, F.pad(v, (0, 1), value=1.0)


def feature(x: Tensor) -> Tensor:
    """Return elu + 1 as exp below zero: exp - 1 + 1 is nothing in single precision below -17, and then 0 / 0."""
    positive = x.relu()
    return (x - positive).exp() + positive


def _running(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the sums over the keys up to each query's own position, weighed by it."""
    from torch.nn import functional as F

    length = q.shape[2]
    width = min(CHUNK, length)
    q, k, v = (in_blocks(each, blocks(length, width), width) for each in (q, k, v))
    mixed = q.matmul(k.transpose(3, 4)).tril().matmul(v)
    if q.shape[2] > 1:
        sums = k.transpose(3, 4).matmul(v).cumsum(dim=2)
        mixed = mixed + q.matmul(F.pad(sums, (0, 0, 0, 0, 1, -1)))
    return mixed.flatten(2, 3)[:, :, :length]


def _flops(shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
    width = shape.head_dim
    chunk = min(CHUNK, n_queries)
    n = blocks(n_queries, chunk)
    if not causal:
        return 2 * (n_queries + n_keys) * shape.n_head * width * (width + 1)
    inside = 2 * n * chunk * chunk * (2 * width + 1)
    return shape.n_head * (inside + (4 * n * chunk * width * (width + 1) if n > 1 else 0))


def _n_weights(shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
    chunk = min(CHUNK, n_queries)
    return blocks(n_queries, chunk) * chunk * chunk if causal else 0


_NO_BIAS = requirement(
    "linear attention has no scores that relative or alibi positions could shift",
    "attention positions",
    lambda shape: shape.positions not in ("relative", "alibi"),
)
LINEAR = AttentionKind(
    _attend, _attend_cached, _flops, _n_weights, crosses=True, has_scores=False, requires=(_NO_BIAS,)
)
