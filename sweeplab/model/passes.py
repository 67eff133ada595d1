"""One forward pass of a stack: its weights, its products, its KV cache.

Legend: K runs, B sequences, T positions, C and O widths, N = B*T. Every weight has a leading K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sweeplab.model.attention import query_factor
from sweeplab.model.attention.base import AttentionKind, AttentionMask, Cached, Drop, for_queries
from sweeplab.model.dropout import Dropout
from sweeplab.model.norms import NORMS
from sweeplab.model.shape import ModelShape

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Weights = Mapping[str, Tensor]
Heads = tuple[Tensor, Tensor, Tensor]


@dataclass
class KVCache:
    """What a decoder keeps of the positions that it has read, so that no token is read twice.

    cached: by the name of a sub-layer, tensors [K*B, …]; of cross-attention the source's keys and values.
    source: what the encoder made of a source, and its mask.
    """

    length: int = 0
    cached: dict[str, Cached] = field(default_factory=dict)
    source: tuple[Tensor, AttentionMask] | None = None

    def choose(self, rows: Int[Tensor, "B"]) -> None:
        """Go on with these of a lone run's sequences, each as often as it is named."""
        self.cached = {name: tuple(each[rows] for each in cached) for name, cached in self.cached.items()}


class Normed(NamedTuple):
    """What a product reads: x, and the gain and bias of the norm before it, not yet applied."""

    x: Float[Tensor, "K N C"]
    gain: Float[Tensor, "K C"] | None = None
    bias: Float[Tensor, "K C"] | None = None

    def whole(self) -> Float[Tensor, "K N C"]:
        """Return x with gain and bias applied."""
        x = self.x if self.gain is None else self.x * self.gain[:, None]
        return x if self.bias is None else x + self.bias[:, None]


class Routing(NamedTuple):
    """How a layer's router chose in each run: its two losses, and the share of choices of each of E experts."""

    balance: Float[Tensor, "K"]
    z: Float[Tensor, "K"]
    use: Float[Tensor, "K E"]


@dataclass
class Pass:
    """The weights of a pass over K runs of B sequences, what it drops, and how its routers chose, layer by layer.

    With a cache the tokens of a causal side come after those that it has, and are added to it. The layers share what
    rotates queries and keys of a length.
    """

    shape: ModelShape
    w: Weights
    n_runs: int
    n_sequences: int
    dropout: Dropout | None = None
    cache: KVCache | None = None
    routings: list[Routing] = field(default_factory=list)
    rotations: dict[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def note(self, name: str, value: Tensor) -> Tensor:
        """Return the value of a named step, which a pass that records its steps keeps."""
        return value

    def routed(self, name: str, x: Tensor, shares: Tensor, chosen: Tensor) -> None:
        """Hear which experts [K, N, A] tokens x are given to, and their shares; a pass that records keeps them."""

    def positions(self, length: int) -> range:
        """Return the positions of the next tokens."""
        start = self.cache.length if self.cache else 0
        return range(start, start + length)

    def normed(self, name: str, x: Float[Tensor, "K N C"]) -> Normed:
        """Normalize x; the gain and bias wait for the product.

        With a cache they do not: a token that comes alone is smaller than any weight.
        """
        normed = NORMS[self.shape.norm].apply(x, self.shape.norm_eps)
        found = Normed(normed, self.w[f"{name}.gain"], self.w.get(f"{name}.bias"))
        return Normed(found.whole()) if self.cache else found

    def linear(self, name: str, read: Normed) -> Float[Tensor, "K N O"]:
        """Multiply by a matrix [K, C, O] and add its bias, if it has one."""
        return product(read, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def attend(self, name: str, kind: AttentionKind, heads: Heads, mask: AttentionMask) -> Tensor:
        """Return the weighted values [K*B, H, T, D] of heads of queries, keys and values."""
        shape, (q, k, v) = self.shape, heads
        if (factor := query_factor(shape)) != 1.0:
            q = q * factor
        if self.cache and mask.causal:
            cached = self.cache.cached.get(name)
            mixed, self.cache.cached[name] = kind.attend_cached(q, k, v, shape, mask, cached)
            return mixed
        drop: Drop = None
        if self.dropout is not None and self.dropout.drops(name):
            drop = partial(self.dropout, site=name)
        return kind.attend(q, for_queries(k, shape), for_queries(v, shape), shape, mask, drop)

    def drop(self, x: Tensor, site: str) -> Tensor:
        """Drop elements of x [K, …] at a site."""
        return self.dropout(x, site) if self.dropout else x

    def added(
        self, x: Float[Tensor, "K N C"], update: Float[Tensor, "K N C"], branch: str
    ) -> Float[Tensor, "K N C"]:
        """Add what a sub-layer computed to the residual stream x, dropping elements and whole sequences."""
        if self.dropout is None:
            return x + update
        update = self.dropout(update, f"{branch}.residual")
        if self.dropout.drops(site := f"{branch}.depth"):
            kept = self.dropout.mask(self.n_sequences, site)[:, :, None]
            update = (update.view(self.n_runs, self.n_sequences, -1) * kept).view(x.shape)
        return x + update


def product(
    read: Normed, weight: Float[Tensor, "K C O"], bias: Float[Tensor, "K O"] | None
) -> Float[Tensor, "K N O"]:
    """Multiply what a norm left [K, N, C] by a weight and add a bias.

    The norm's gain and bias are moved into the product, (x g + b) W = x (g W) + b W: there are fewer weights than
    activations, and a step spends less on them.
    """
    bias = None if bias is None else bias[:, None]
    if read.bias is not None:
        shift = read.bias[:, None]
        bias = torch.bmm(shift, weight) if bias is None else torch.baddbmm(bias, shift, weight)
    if read.gain is not None:
        weight = read.gain[:, :, None] * weight
    return torch.bmm(read.x, weight) if bias is None else torch.baddbmm(bias, read.x, weight)
