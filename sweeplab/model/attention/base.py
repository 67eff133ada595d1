"""What every kind of attention is given, and what they share: the mask, and attention with a KV cache.

Legend: K runs, B sequences, H heads, G heads of keys, D head_dim, T queries, S keys, W the width of what is weighed.
K is folded into the batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sweeplab.model.shape import ModelShape, Requirement

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    Query = Float[Tensor, "KB H T D"]
    Key = Float[Tensor, "KB H S D"]
    Value = Float[Tensor, "KB H S W"]
    New = Float[Tensor, "KB G T D"]  # a key or value that is not cached yet
    Mixed = Float[Tensor, "KB H T W"]

# What a kind caches of the positions that a causal side has read, and what drops from attention's weights.
Cached = tuple["Tensor", ...]
Drop = Callable[["Tensor"], "Tensor"] | None


@dataclass
class AttentionMask:
    """Which keys the queries of one side see, in every layer of each of n_runs runs.

    present: [K*B, S], False on padding; None where there is none.
    bias: from distances of a query's position over a key's [...], shifts of the scores [K or 1, H, ...].
    """

    causal: bool
    n_runs: int
    present: Bool[Tensor, "KB S"] | None = None
    bias: Callable[[Tensor], Tensor] | None = None
    _shifts: dict[str, Tensor] = field(default_factory=dict)
    _additive: Tensor | None = None

    @property
    def visible(self) -> Bool[Tensor, "KB S"] | None:
        """Return `present` where it hides anything: what a causal side sees ends before the padding."""
        return None if self.causal else self.present

    def additive(
        self, n: int, distances: Int[Tensor, "T S"], hidden: Bool[Tensor, "T S"] | None
    ) -> Float[Tensor, "n H T S"]:
        """Return what positions add to all scores [n, H, T, S], with -inf on hidden ones and on padding.

        The layers share it.
        """
        if self._additive is None:
            assert self.bias is not None
            shift = self.bias(distances)
            shift = shift if hidden is None else shift.masked_fill(hidden, -math.inf)
            found = shift[:, None].expand(-1, n // len(shift), -1, -1, -1).flatten(0, 1)
            if self.visible is not None:
                found = found.masked_fill(~self.visible[:, None, None], -math.inf)
            self._additive = found
        return self._additive

    def shifted(
        self, scores: Float[Tensor, "KB H *blocks T S"], part: str, distances: Int[Tensor, "T S"]
    ) -> Float[Tensor, "KB H *blocks T S"]:
        """Add what positions shift, [K or 1, H, T, S], to scores of these distances.

        The layers share what is computed for one part of a kind's scores.
        """
        if self.bias is None:
            return scores
        if part not in self._shifts:
            self._shifts[part] = self.bias(distances)
        shift = self._shifts[part]
        by_run = scores.view(len(shift), -1, *scores.shape[1:])
        if scores.ndim > distances.ndim + 2:
            shift = shift.unsqueeze(2)
        return (by_run + shift[:, None]).flatten(0, 1)


class AttentionKind(ABC):
    """A kind of self-attention.

    crosses: an encoder_decoder's cross-attention is of this kind too; else it is full.
    has_scores: weights are a softmax of scaled scores, which muP scales otherwise, and of which dropout drops.
    requires: what holds of every model's shape, whatever its attention is.
    """

    crosses = False
    has_scores = True
    requires: tuple[Requirement, ...] = ()

    @abstractmethod
    def attend(self, q: Query, k: Key, v: Value, shape: ModelShape, mask: AttentionMask, drop: Drop) -> Mixed:
        """Return the weighted values; `drop` drops from the weights, and is None where nothing is dropped."""

    @abstractmethod
    def n_weights(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        """Return how many weights of a sequence and head are held at once."""

    def flops(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        """Return the FLOPs of a sequence's products in a layer's forward pass, as they are computed."""
        return 4 * self.n_weights(shape, n_queries, n_keys, causal) * shape.n_head * shape.head_dim

    def reach(self, shape: ModelShape) -> int | None:
        """Return from how far back no key is seen any more, so that none is cached; None where all are seen."""
        return None

    def sees(self, shape: ModelShape, distances: Int[Tensor, "T S"]) -> Bool[Tensor, "T S"] | None:
        """Say at which distances of a query's position over a key's one is seen; None: at all within reach."""
        return None

    def attend_cached(
        self, q: Query, k: New, v: New, shape: ModelShape, mask: AttentionMask, cached: Cached | None
    ) -> tuple[Mixed, Cached]:
        """Attend from new positions of a causal side; return what to cache from here on, too.

        With the keys of all that it sees a query needs no other one: the result is what `attend` computes for the
        last rows of the whole sequence. Heads of keys are cached once, however many heads of queries share them.
        """
        import torch

        if cached is None:
            mixed = self.attend(q, for_queries(k, shape), for_queries(v, shape), shape, mask, None)
        else:
            k, v = (torch.cat(each, dim=2) for each in zip(cached, (k, v), strict=True))
            mixed = self._last_rows(q, for_queries(k, shape), for_queries(v, shape), shape, mask)
        if (width := self.reach(shape)) is not None:
            k, v = (each[:, :, max(0, each.shape[2] - width + 1) :] for each in (k, v))
        return mixed, (k, v)

    def _last_rows(self, q: Query, k: Key, v: Value, shape: ModelShape, mask: AttentionMask) -> Mixed:
        from torch.nn import functional as F

        distances = between(q, k)
        seen, among = None, self.sees(shape, distances)
        if q.shape[2] > 1 or among is not None:  # else it sees all that is cached
            seen = (distances >= 0) & (distances < (self.reach(shape) or k.shape[2]))
            seen = seen if among is None else seen & among
        if mask.bias:
            seen = mask.additive(len(q), distances, None if seen is None else ~seen)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def for_queries(x: Float[Tensor, "KB G *rest"], shape: ModelShape) -> Float[Tensor, "KB H *rest"]:
    """Return heads of keys or values as often as heads of queries share them."""
    n_shared = shape.n_head // shape.n_kv_head
    return x if n_shared == 1 else x.repeat_interleave(n_shared, dim=1)


def between(q: Float[Tensor, "KB H T D"], k: Float[Tensor, "KB H S D"]) -> Int[Tensor, "T S"]:
    """Return the distances of queries' positions over keys', where the last query stands at the last key."""
    import torch

    n_queries, n_keys = q.shape[2], k.shape[2]
    positions = torch.arange(n_keys, device=q.device)
    return positions[n_keys - n_queries :, None] - positions


def scores(q: Float[Tensor, "*n T D"], k: Float[Tensor, "*n S D"]) -> Float[Tensor, "*n T S"]:
    """Return scaled products of queries and keys."""
    return q.matmul(k.transpose(-1, -2)).mul_(1.0 / math.sqrt(q.shape[-1]))


def weights(found: Float[Tensor, "*n T S"], hidden: Bool[Tensor, "..."]) -> Float[Tensor, "*n T S"]:
    """Return softmax over the scores that are not hidden; the scores are overwritten.

    With the least number and not with -inf: where padding hides all, what comes out is of no use but finite.
    """
    import torch

    return found.masked_fill_(hidden, torch.finfo(found.dtype).min).softmax(dim=-1)


def in_blocks(x: Float[Tensor, "*n T D"], width: int) -> Float[Tensor, "*n blocks {width} D"]:
    """Return sequences cut into blocks of a width, with zeros behind the end."""
    from torch.nn import functional as F

    filled = F.pad(x, (0, 0, 0, -x.shape[-2] % width))
    return filled.view(*x.shape[:-2], -1, width, x.shape[-1])
