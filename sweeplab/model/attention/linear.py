"""Linear attention (Katharopoulos et al., "Transformers are RNNs", 2020): elu + 1 in place of the softmax.

Keys and values are summed once, for a causal side as running sums over chunks with the square inside of each:
O(T) in all. There are no weights to drop from; a column of ones beside the values gives the denominator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.model.activations import by_run
from sweeplab.model.attention.base import AttentionKind, AttentionMask, Cached, Drop, for_queries, in_blocks
from sweeplab.model.shape import ModelShape, requirement

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from sweeplab.model.attention.base import Key, Mixed, New, Query, Value

CHUNK = 64


class _Linear(AttentionKind):
    crosses = True
    has_scores = False
    requires = (
        requirement(
            "relative and alibi positions shift attention scores, which linear attention does not have",
            "attention positions",
            lambda shape: shape.attention != "linear" or shape.positions not in ("relative", "alibi"),
        ),
    )

    def attend(self, q: Query, k: Key, v: Value, shape: ModelShape, mask: AttentionMask, drop: Drop) -> Mixed:
        q, k, v = _features(q, k, v, mask)
        if mask.visible is not None:
            k = k * mask.visible[:, None, :, None]
        summed = _running(q, k, v) if mask.causal else q.matmul(k.transpose(2, 3).matmul(v))
        return summed[..., :-1] / summed[..., -1:]

    def attend_cached(
        self, q: Query, k: New, v: New, shape: ModelShape, mask: AttentionMask, cached: Cached | None
    ) -> tuple[Mixed, Cached]:
        q, k, v = _features(q, k, v, mask)
        summed = _running(q, for_queries(k, shape), for_queries(v, shape))
        sums = k.transpose(2, 3).matmul(v)  # over the keys before: all that has to be cached of them
        if cached is not None:
            summed = summed + q.matmul(for_queries(cached[0], shape))
            sums = sums + cached[0]
        return summed[..., :-1] / summed[..., -1:], (sums,)

    def n_weights(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        chunk = min(CHUNK, n_queries)
        return -(-n_queries // chunk) * chunk * chunk if causal else 0

    def flops(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        width = shape.head_dim
        sums = 2 * width * (width + 1)  # of a position's key and value, or of a query with such sums
        if not causal:
            return (n_queries + n_keys) * shape.n_head * sums
        inside = self.n_weights(shape, n_queries, n_keys, causal) * 2 * (2 * width + 1)
        n_padded = -(-n_queries // CHUNK) * CHUNK
        return shape.n_head * (inside + (2 * n_padded * sums if n_queries > CHUNK else 0))


def _features(
    q: Query, k: Float[Tensor, "KB G S D"], v: Float[Tensor, "KB G S W"], mask: AttentionMask
) -> tuple[Query, Float[Tensor, "KB G S D"], Float[Tensor, "KB G S W+1"]]:
    """Return queries and keys under elu + 1, and values with their column of ones."""
    from torch.nn import functional as F

    q, k = (by_run(feature, each, mask.n_runs) for each in (q, k))
    return q, k, F.pad(v, (0, 1), value=1.0)


def feature(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return elu + 1 as exp below zero: exp - 1 + 1 is nothing in single precision below -17, and then 0 / 0."""
    positive = x.relu()
    return (x - positive).exp() + positive


def _running(q: Query, k: Query, v: Mixed) -> Mixed:
    """Return the sums over the keys up to each query's own position, weighed by it."""
    from torch.nn import functional as F

    length = q.shape[2]
    q, k, v = (in_blocks(each, min(CHUNK, length)) for each in (q, k, v))
    mixed = q.matmul(k.transpose(3, 4)).tril().matmul(v)
    if q.shape[2] > 1:
        sums = k.transpose(3, 4).matmul(v).cumsum(dim=2)
        mixed = mixed + q.matmul(F.pad(sums, (0, 0, 0, 0, 1, -1)))
    return mixed.flatten(2, 3)[:, :, :length]


LINEAR = _Linear()
