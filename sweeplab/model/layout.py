"""Where each weight of a run lies in its row of the stack's one flat buffer.

A stack holds its weights as one tensor [K, P]: a run is a row, a weight is a view. Matrices come first, so
that the ones that decay are a prefix; the row is padded to whole blocks, over which norms are taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sweeplab.model.accounting import FEED_FORWARD_RATIO, n_params
from sweeplab.model.parametrization import std_factor
from sweeplab.model.shape import ModelShape

BLOCK = 1024
INIT_STD = 0.02


@dataclass(frozen=True)
class Weight:
    """One weight of a run: its name, its shape without the run dimension, and how it starts.

    A `std` of None means a constant start at `fill`. Matrices are [in, out], embeddings [rows, n_embd].
    """

    name: str
    shape: tuple[int, ...]
    std: float | None = None
    fill: float = 0.0

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def decays(self) -> bool:
        """Say whether weight decay applies: to matrices and embeddings, not to gains and biases."""
        return len(self.shape) > 1


def _weights(shape: ModelShape) -> list[Weight]:
    c, hidden = shape.n_embd, FEED_FORWARD_RATIO * shape.n_embd
    # GPT-2: projections back into the residual stream start smaller, by the number of them.
    residual_std = INIT_STD / math.sqrt(2 * shape.n_layer)
    found = [
        Weight("token_embedding", (shape.vocab_size, c), INIT_STD),
        Weight("position_embedding", (shape.block_size, c), INIT_STD),
    ]

    def norm(name: str) -> None:
        found.append(Weight(f"{name}.gain", (c,), fill=1.0))
        if shape.bias:
            found.append(Weight(f"{name}.bias", (c,)))

    def linear(name: str, n_in: int, n_out: int, std: float, bias: bool) -> None:
        found.append(Weight(f"{name}.weight", (n_in, n_out), std))
        if bias:
            found.append(Weight(f"{name}.bias", (n_out,)))

    for layer in range(shape.n_layer):
        block = f"blocks.{layer}"
        norm(f"{block}.attention_norm")
        linear(f"{block}.attention.qkv", c, 3 * c, INIT_STD, shape.has_qkv_bias)
        linear(f"{block}.attention.out", c, c, residual_std, shape.bias)
        norm(f"{block}.feed_forward_norm")
        linear(f"{block}.feed_forward.up", c, hidden, INIT_STD, shape.bias)
        linear(f"{block}.feed_forward.down", hidden, c, residual_std, shape.bias)
    norm("final_norm")
    if not shape.tie_weights:
        found.append(Weight("head.weight", (shape.vocab_size, c), INIT_STD))
    if shape.has_head_bias:
        found.append(Weight("head.bias", (shape.vocab_size,)))
    return sorted(found, key=lambda weight: not weight.decays)


class Layout:
    """The order of a model's weights in a row, and the ways in and out of it."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.weights: Sequence[Weight] = _weights(shape)
        self.n_params = sum(weight.size for weight in self.weights)
        self.n_decayed = sum(weight.size for weight in self.weights if weight.decays)
        if self.n_params != n_params(shape):
            raise AssertionError(f"{self.n_params} weights, but accounting says {n_params(shape)}")

    @cached_property
    def row_size(self) -> int:
        """Return the length of a row: the parameters, padded to whole blocks."""
        return -(-self.n_params // BLOCK) * BLOCK

    @cached_property
    def _sizes(self) -> list[int]:
        return [*(weight.size for weight in self.weights), self.row_size - self.n_params]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Split rows [K, row_size] into weights [K, *shape] by name, without copying."""
        n_runs = flat.shape[0]
        pieces = torch.split(flat, self._sizes, dim=1)
        return {
            weight.name: piece.view(n_runs, *weight.shape)
            for weight, piece in zip(self.weights, pieces, strict=False)
        }

    def gather(self, pieces: Sequence[Tensor], out: Tensor) -> None:
        """Copy one tensor [K, *shape] a weight, in their order, into rows [K, row_size] with padding of zeros.

        Into a buffer that is there, and not by differentiating with respect to the rows themselves: autograd
        would put them together in fresh memory each time, which costs several times as much.
        """
        torch.cat([piece.reshape(len(out), -1) for piece in pieces], dim=1, out=out[:, : self.n_params])
        out[:, self.n_params :].zero_()  # a run that diverged here may have left a NaN behind

    def initial_row(self, seed: int) -> Tensor:
        """Draw a run's initial weights [row_size] from a generator of its own, on the CPU on any machine."""
        generator = torch.Generator().manual_seed(seed)
        row = torch.zeros(1, self.row_size)
        for weight, view in zip(self.weights, self.views(row).values(), strict=True):
            if weight.std is None:
                view.fill_(weight.fill)
            else:
                factor = std_factor(weight.name, len(weight.shape), self.shape.width_ratio)
                view.normal_(0.0, weight.std * factor, generator=generator)
        return row[0]
