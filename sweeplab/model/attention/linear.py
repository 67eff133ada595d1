"""Linear attention (Katharopoulos et al., "Transformers are RNNs", 2020): elu + 1 replaces the softmax.

The products of keys and values are summed once, so the cost is O(T). With a causal mask they are running sums over
chunks, and the square is computed only inside each chunk. There are no weights to drop. A column of ones beside the
values gives the denominator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.model.activations import by_run
from sweeplab.model.attention.base import AttentionKind, AttentionMask, Cached, Drop, in_blocks, repeat_kv
from sweeplab.model.shape import ModelShape, requirement

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from sweeplab.model.attention.base import Key, New, Out, Query, Value

CHUNK = 64


class _Linear(AttentionKind):
    allows_cross = True
    has_scores = False
    requires = (
        requirement(
            "relative and alibi positions add to attention scores, which linear attention does not have",
            "attention positions",
            lambda shape: shape.attention != "linear" or shape.positions not in ("relative", "alibi"),
        ),
    )

    def attend(self, q: Query, k: Key, v: Value, shape: ModelShape, mask: AttentionMask, drop: Drop) -> Out:
        q, k, v = _feature_maps(q, k, v, mask)
        if mask.visible is not None:
            k = k * mask.visible[:, None, :, None]
        summed = _causal_sums(q, k, v) if mask.causal else q.matmul(k.transpose(2, 3).matmul(v))
        return summed[..., :-1] / summed[..., -1:]

    def attend_cached(
        self, q: Query, k: New, v: New, shape: ModelShape, mask: AttentionMask, cached: Cached | None
    ) -> tuple[Out, Cached]:
        q, k, v = _feature_maps(q, k, v, mask)
        summed = _causal_sums(q, repeat_kv(k, shape), repeat_kv(v, shape))
        sums = k.transpose(2, 3).matmul(v)  # the cache needs only the sums over earlier keys
        if cached is not None:
            summed = summed + q.matmul(repeat_kv(cached[0], shape))
            sums = sums + cached[0]
        return summed[..., :-1] / summed[..., -1:], (sums,)

    def n_weights(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        chunk = min(CHUNK, n_queries)
        return -(-n_queries // chunk) * chunk * chunk if causal else 0

    def flops(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        width = shape.head_dim
        sums = 2 * width * (width + 1)  # one key times its value, or one query times the sums
        if not causal:
            return (n_queries + n_keys) * shape.n_head * sums
        inside = self.n_weights(shape, n_queries, n_keys, causal) * 2 * (2 * width + 1)
        n_padded = -(-n_queries // CHUNK) * CHUNK
        return shape.n_head * (inside + (2 * n_padded * sums if n_queries > CHUNK else 0))


def _feature_maps(
    q: Query, k: Float[Tensor, "KB G S D"], v: Float[Tensor, "KB G S W"], mask: AttentionMask
) -> tuple[Query, Float[Tensor, "KB G S D"], Float[Tensor, "KB G S W+1"]]:
    """Return the feature maps of queries and keys, and the values with a column of ones."""
    from torch.nn import functional as F

    q, k = (by_run(feature_map, each, mask.n_runs) for each in (q, k))
    return q, k, F.pad(v, (0, 1), value=1.0)


def feature_map(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return elu(x) + 1, as exp(x) below zero: in float32, exp(x) - 1 + 1 is 0 below -17, which would give 0 / 0."""
    positive = x.relu()
    return (x - positive).exp() + positive


def _causal_sums(q: Query, k: Query, v: Out) -> Out:
    """Return, for each query, the sum of (q · k) v over the keys up to its own position."""
    from torch.nn import functional as F

    length = q.shape[2]
    q, k, v = (in_blocks(each, min(CHUNK, length)) for each in (q, k, v))
    output = q.matmul(k.transpose(3, 4)).tril().matmul(v)
    if q.shape[2] > 1:
        sums = k.transpose(3, 4).matmul(v).cumsum(dim=2)
        output = output + q.matmul(F.pad(sums, (0, 0, 0, 0, 1, -1)))
    return output.flatten(2, 3)[:, :, :length]


LINEAR = _Linear()
