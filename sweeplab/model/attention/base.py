"""The interface of all kinds of attention, and their shared code: the mask, attention with a KV cache, the softmax.

Legend: K runs, B sequences, H query heads, G key-value heads, D head_dim, T queries, S keys, W width of the values.
The batch dimension is K*B.
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
    Out = Float[Tensor, "KB H T W"]

# The cache of a causal side's earlier positions, and the dropout of attention weights.
Cached = tuple["Tensor", ...]
Drop = Callable[["Tensor"], "Tensor"] | None


@dataclass
class AttentionMask:
    """The keys that the queries of one side may attend to, in every layer of each of n_runs runs.

    present: [K*B, S], False on padding; None without padding.
    bias: maps distances (query position minus key position) [...] to biases of the scores [K or 1, H, ...].
    """

    causal: bool
    n_runs: int
    present: Bool[Tensor, "KB S"] | None = None
    bias: Callable[[Tensor], Tensor] | None = None
    _biases: dict[str, Tensor] = field(default_factory=dict)
    _additive_mask: Tensor | None = None

    @property
    def visible(self) -> Bool[Tensor, "KB S"] | None:
        """Return `present`, or None for a causal side, where padding comes after all keys that a token attends to."""
        return None if self.causal else self.present

    def additive_mask(
        self, n: int, distances: Int[Tensor, "T S"], hidden: Bool[Tensor, "T S"] | None
    ) -> Float[Tensor, "n H T S"]:
        """Return the biases of all scores [n, H, T, S], with -inf for hidden keys and padding; layers share them."""
        if self._additive_mask is None:
            assert self.bias is not None
            bias = self.bias(distances)
            bias = bias if hidden is None else bias.masked_fill(hidden, -math.inf)
            found = bias[:, None].expand(-1, n // len(bias), -1, -1, -1).flatten(0, 1)
            if self.visible is not None:
                found = found.masked_fill(~self.visible[:, None, None], -math.inf)
            self._additive_mask = found
        return self._additive_mask

    def add_bias(
        self, scores: Float[Tensor, "KB H *blocks T S"], part: str, distances: Int[Tensor, "T S"]
    ) -> Float[Tensor, "KB H *blocks T S"]:
        """Add the bias of these distances, [K or 1, H, T, S], to scores; layers share the bias of each named part."""
        if self.bias is None:
            return scores
        if part not in self._biases:
            self._biases[part] = self.bias(distances)
        bias = self._biases[part]
        by_run = scores.view(len(bias), -1, *scores.shape[1:])
        if scores.ndim > distances.ndim + 2:
            bias = bias.unsqueeze(2)
        return (by_run + bias[:, None]).flatten(0, 1)


class AttentionKind(ABC):
    """A kind of self-attention.

    allows_cross: an encoder_decoder's cross-attention has this kind too; otherwise it is full.
    has_scores: the weights are a softmax of scaled scores; muP changes their scale, and dropout applies to them.
    requires: conditions on the shape of every model, also of models with another kind of attention.
    """

    allows_cross = False
    has_scores = True
    requires: tuple[Requirement, ...] = ()

    @abstractmethod
    def attend(self, q: Query, k: Key, v: Value, shape: ModelShape, mask: AttentionMask, drop: Drop) -> Out:
        """Return the sums of values, weighted by attention; `drop` is the dropout of the weights, or None."""

    @abstractmethod
    def n_weights(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        """Return the number of attention weights per sequence and head that are in memory at once."""

    def flops(self, shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        """Return the forward FLOPs of one layer's attention on one sequence: the products that are really computed."""
        return 4 * self.n_weights(shape, n_queries, n_keys, causal) * shape.n_head * shape.head_dim

    def window(self, shape: ModelShape) -> int | None:
        """Return the distance from which no query attends to a key, so that no key is cached; None for no limit."""
        return None

    def attends_at(self, shape: ModelShape, distances: Int[Tensor, "T S"]) -> Bool[Tensor, "T S"] | None:
        """Return at which distances (query minus key position) queries attend; None for all inside the window."""
        return None

    def attend_cached(
        self, q: Query, k: New, v: New, shape: ModelShape, mask: AttentionMask, cached: Cached | None
    ) -> tuple[Out, Cached]:
        """Attend from new positions of a causal side; return the output and the new cache.

        The output equals the last rows of `attend` on the whole sequence. Keys and values are cached before they are
        repeated for the query heads.
        """
        import torch

        if cached is None:
            output = self.attend(q, repeat_kv(k, shape), repeat_kv(v, shape), shape, mask, None)
        else:
            k, v = (torch.cat(each, dim=2) for each in zip(cached, (k, v), strict=True))
            output = self._last_rows(q, repeat_kv(k, shape), repeat_kv(v, shape), shape, mask)
        if (width := self.window(shape)) is not None:
            k, v = (each[:, :, max(0, each.shape[2] - width + 1) :] for each in (k, v))
        return output, (k, v)

    def _last_rows(self, q: Query, k: Key, v: Value, shape: ModelShape, mask: AttentionMask) -> Out:
        from torch.nn import functional as F

        distances = distance_matrix(q, k)
        seen, allowed = None, self.attends_at(shape, distances)
        if q.shape[2] > 1 or allowed is not None:  # else the query attends to all cached keys
            seen = (distances >= 0) & (distances < (self.window(shape) or k.shape[2]))
            seen = seen if allowed is None else seen & allowed
        if mask.bias:
            seen = mask.additive_mask(len(q), distances, None if seen is None else ~seen)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def repeat_kv(x: Float[Tensor, "KB G *rest"], shape: ModelShape) -> Float[Tensor, "KB H *rest"]:
    """Repeat each key or value head for all query heads that share it."""
    n_shared = shape.n_head // shape.n_kv_head
    return x if n_shared == 1 else x.repeat_interleave(n_shared, dim=1)


def distance_matrix(q: Float[Tensor, "KB H T D"], k: Float[Tensor, "KB H S D"]) -> Int[Tensor, "T S"]:
    """Return each query position minus each key position; the last query has the position of the last key."""
    import torch

    n_queries, n_keys = q.shape[2], k.shape[2]
    positions = torch.arange(n_keys, device=q.device)
    return positions[n_keys - n_queries :, None] - positions


def scores(q: Float[Tensor, "*n T D"], k: Float[Tensor, "*n S D"]) -> Float[Tensor, "*n T S"]:
    """Return the products of queries and keys, divided by sqrt(D)."""
    return q.matmul(k.transpose(-1, -2)).mul_(1.0 / math.sqrt(q.shape[-1]))


def weights(found: Float[Tensor, "*n T S"], hidden: Bool[Tensor, "..."]) -> Float[Tensor, "*n T S"]:
    """Return the softmax over the scores that are not hidden; overwrites the scores.

    Hidden scores become the smallest finite number: with -inf, rows in which padding hides all keys would be NaN.
    """
    import torch

    return found.masked_fill_(hidden, torch.finfo(found.dtype).min).softmax(dim=-1)


def in_blocks(x: Float[Tensor, "*n T D"], width: int) -> Float[Tensor, "*n blocks {width} D"]:
    """Split sequences into blocks of `width` positions, with zeros after the end."""
    from torch.nn import functional as F

    padded = F.pad(x, (0, 0, 0, -x.shape[-2] % width))
    return padded.view(*x.shape[:-2], -1, width, x.shape[-1])
