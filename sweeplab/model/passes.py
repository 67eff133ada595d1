"""One forward pass of a stack, and the products that its parts are made of.

Legend: K runs, B sequences, T positions, C n_embd, N = B*T. Every weight has a leading K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from sweeplab.model.dropout import Dropout
from sweeplab.model.memory import Memory
from sweeplab.model.norms import NORMS
from sweeplab.model.shape import ModelShape

Weights = Mapping[str, Tensor]


class Normed(NamedTuple):
    """What a product reads: x [K, N, C], and the gain and bias [K, C] of the norm before it, not yet applied."""

    x: Tensor
    gain: Tensor | None = None
    bias: Tensor | None = None

    def whole(self) -> Tensor:
        """Return x with gain and bias applied."""
        x = self.x if self.gain is None else self.x * self.gain[:, None]
        return x if self.bias is None else x + self.bias[:, None]


class Routing(NamedTuple):
    """How a layer's router chose in each run: its two losses [K], and the share of choices of each expert [K, E]."""

    balance: Tensor
    z: Tensor
    use: Tensor


@dataclass
class Pass:
    """The weights of a pass over K runs of B sequences, what it drops, and how its routers chose, layer by layer.

    With a memory the tokens of a causal side come after those that it has, and are taken in. The layers share what
    turns queries and keys of a length.
    """

    shape: ModelShape
    w: Weights
    n_runs: int
    n_sequences: int
    dropout: Dropout | None = None
    memory: Memory | None = None
    routings: list[Routing] = field(default_factory=list)
    turns: dict[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def places(self, length: int) -> range:
        """Return the places of the next tokens."""
        start = self.memory.length if self.memory else 0
        return range(start, start + length)

    def normed(self, name: str, x: Tensor) -> Normed:
        """Normalize x [K, N, C]; the gain and bias wait for the product.

        With a memory they do not: a token that comes alone is smaller than any weight.
        """
        normed = NORMS[self.shape.norm].apply(x, self.shape.norm_eps)
        found = Normed(normed, self.w[f"{name}.gain"], self.w.get(f"{name}.bias"))
        return Normed(found.whole()) if self.memory else found

    def linear(self, name: str, read: Normed) -> Tensor:
        """Multiply by a matrix [K, C, O] and add its bias, if it has one."""
        return product(read, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def drop(self, x: Tensor, site: str) -> Tensor:
        """Drop elements of x [K, …] at a site."""
        return self.dropout(x, site) if self.dropout else x

    def added(self, x: Tensor, update: Tensor, branch: str) -> Tensor:
        """Add what a sub-layer computed to the residual stream x [K, N, C], dropping elements and whole sequences."""
        if self.dropout is None:
            return x + update
        update = self.dropout(update, f"{branch}.residual")
        if self.dropout.drops(site := f"{branch}.depth"):
            kept = self.dropout.mask(self.n_sequences, site)[:, :, None]
            update = (update.view(self.n_runs, self.n_sequences, -1) * kept).view(x.shape)
        return x + update


def product(read: Normed, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply what a norm left [K, N, C] by weight [K, C, O] and add bias [K, O].

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
