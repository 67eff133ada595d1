"""What every kind of attention is given, and what they share.

Legend: K runs, B sequences, H heads, G heads of keys, D head_dim, T queries, S keys. K is folded into the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sweeplab.model.requirement import Requirement

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape


Kept = tuple["Tensor", ...]
Attend = Callable[
    ["Tensor", "Tensor", "Tensor", "ModelShape", "Sight", "Callable[[Tensor], Tensor] | None"], "Tensor"
]
Recall = Callable[["Tensor", "Tensor", "Tensor", "ModelShape", "Sight", "Kept | None"], "tuple[Tensor, Kept]"]


@dataclass
class Sight:
    """What the queries of one side see of its keys, in every layer of each of n_runs runs.

    present: [K*B, S], False on padding; None where there is none.
    bias: from distances of a query's place over a key's [...], shifts of the scores [K or 1, H, ...].
    """

    causal: bool
    n_runs: int
    present: Tensor | None = None
    bias: Callable[[Tensor], Tensor] | None = None
    _shifts: dict[str, Tensor] = field(default_factory=dict)
    _mask: Tensor | None = None

    @property
    def visible(self) -> Tensor | None:
        """Return `present` where it hides anything: what a causal side sees ends before the padding."""
        return None if self.causal else self.present

    def mask(self, n: int, distances: Tensor, hidden: Tensor | None) -> Tensor:
        """Return what positions shift of all scores [n, H, T, S], with -inf on hidden ones and on padding.

        The layers share it.
        """
        if self._mask is None:
            assert self.bias is not None
            shift = self.bias(distances)
            shift = shift if hidden is None else shift.masked_fill(hidden, -math.inf)
            found = shift[:, None].expand(-1, n // len(shift), -1, -1, -1).flatten(0, 1)
            if self.visible is not None:
                found = found.masked_fill(~self.visible[:, None, None], -math.inf)
            self._mask = found
        return self._mask

    def shifted(self, scores: Tensor, part: str, distances: Tensor) -> Tensor:
        """Add what positions shift, [K or 1, H, ...], to scores [K*B, H, (blocks,) ...] of these distances.

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


@dataclass(frozen=True)
class Kind:
    """A kind of self-attention.

    attend(q [K*B, H, T, D], k, v [K*B, H, S, D], shape, sight, drop): what is mixed [K*B, H, T, D]; `drop` drops
    from the weights, and is None where nothing is dropped.
    recall(q, k, v [K*B, G, T, D], shape, sight, kept): the same for new places of a causal side, from what was kept of
    those before them, or None, and what is to be kept from here on.
    flops(shape, n_queries, n_keys, causal): of a sequence's products in a layer's forward pass, as they are computed.
    n_weights(shape, n_queries, n_keys, causal): the weights of a sequence and head that are held at once.
    crosses: an encoder_decoder's cross-attention is of this kind too; else it is full.
    has_scores: weights are a softmax of scaled scores, which muP scales otherwise, and of which dropout drops.
    """

    attend: Attend
    recall: Recall
    flops: Callable[[ModelShape, int, int, bool], int]
    n_weights: Callable[[ModelShape, int, int, bool], int]
    crosses: bool = False
    has_scores: bool = True
    requires: tuple[Requirement, ...] = ()


def for_queries(x: Tensor, shape: ModelShape) -> Tensor:
    """Return heads of keys or values [K*B, G, …] as often as heads of queries share them: [K*B, H, …]."""
    n_shared = shape.n_head // shape.n_kv_head
    return x if n_shared == 1 else x.repeat_interleave(n_shared, dim=1)


def between(q: Tensor, k: Tensor) -> Tensor:
    """Return the distances [T, S] of queries' places over keys', where the last query stands at the last key."""
    import torch

    n_queries, n_keys = q.shape[2], k.shape[2]
    places = torch.arange(n_keys, device=q.device)
    return places[n_keys - n_queries :, None] - places


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Return scaled products of queries [..., T, D] and keys [..., S, D]."""
    return q.matmul(k.transpose(-1, -2)).mul_(1.0 / math.sqrt(q.shape[-1]))


def weights(found: Tensor, hidden: Tensor) -> Tensor:
    """Return softmax over the scores that are not hidden; the scores are overwritten.

    With the least number and not with -inf: where padding hides all, what comes out is of no use but finite.
    """
    import torch

    return found.masked_fill_(hidden, torch.finfo(found.dtype).min).softmax(dim=-1)


def products(
    n_weights: Callable[[ModelShape, int, int, bool], int],
) -> Callable[[ModelShape, int, int, bool], int]:
    """Return the FLOPs of computing so many weights and of mixing values by them."""

    def flops(shape: ModelShape, n_queries: int, n_keys: int, causal: bool) -> int:
        return 4 * n_weights(shape, n_queries, n_keys, causal) * shape.n_head * shape.head_dim

    return flops


def blocks(length: int, width: int) -> int:
    """Return how many blocks of a width cover a sequence."""
    return -(-length // width)
