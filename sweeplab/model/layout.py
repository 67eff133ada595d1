"""Every weight of a model, and where each lies in a run's row of the stack's one flat buffer.

A stack holds its weights as one tensor [K, P]: a run is a row, a weight is a view. Matrices come first, so
that the ones that decay are a prefix; the row is padded to whole blocks, over which norms are taken.

Legend: K runs, P row_size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sweeplab.model.accounting import n_params
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape, Side
from sweeplab.model.weights import Declarations, Weight, std_factor

if TYPE_CHECKING:
    from jaxtyping import Float

BLOCK = 1024


class Layout:
    """The order of a model's weights in a row, and the ways in and out of it."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.weights: Sequence[Weight] = sorted(declared(shape), key=lambda weight: not weight.decays)
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

    def views(self, flat: Float[Tensor, "K P"]) -> dict[str, Tensor]:
        """Split rows into weights [K, *shape] by name, without copying."""
        n_runs = flat.shape[0]
        pieces = torch.split(flat, self._sizes, dim=1)
        return {
            weight.name: piece.view(n_runs, *weight.shape)
            for weight, piece in zip(self.weights, pieces, strict=False)
        }

    def gather(self, pieces: Sequence[Tensor], out: Float[Tensor, "K P"]) -> None:
        """Copy one tensor [K, *shape] per weight, in their order, into rows with padding of zeros.

        Into a buffer that is there, and not by differentiating with respect to the rows themselves: autograd
        would put them together in fresh memory each time, which costs several times as much.
        """
        n_runs = out.shape[0]
        torch.cat([piece.reshape(n_runs, -1) for piece in pieces], dim=1, out=out[:, : self.n_params])
        out[:, self.n_params :].zero_()  # a run that diverged here may have left a NaN behind

    def row_of(self, weights: Mapping[str, Tensor]) -> Float[Tensor, "P"]:
        """Return a run's weights by name as its row."""
        row = torch.zeros(1, self.row_size)
        for name, view in self.views(row).items():
            view.copy_(weights[name])
        return row[0]

    def initial_row(self, seed: int) -> Float[Tensor, "P"]:
        """Draw a run's initial weights from a generator of its own, on the CPU on any machine."""
        generator = torch.Generator().manual_seed(seed)
        row = torch.zeros(1, self.row_size)
        for weight, view in zip(self.weights, self.views(row).values(), strict=True):
            if weight.std is None:
                view.fill_(weight.fill)
            elif weight.uniform:
                bound = weight.std * math.sqrt(3.0)
                view.uniform_(-bound, bound, generator=generator)
            else:
                factor = std_factor(weight.name, len(weight.shape), self.shape.width_ratio)
                view.normal_(0.0, weight.std * factor, generator=generator)
        return row[0]


def declared(shape: ModelShape) -> list[Weight]:
    """Return a model's weights."""
    found = Declarations(shape)
    found.table("token_embedding", shape.vocab_size, shape.n_embd, "token_embedding")
    if shape.has_source_embedding:
        found.table("source_embedding", shape.vocab_size, shape.n_embd, "source_embedding")
    for side in shape.of_family.sides:
        _embeddings(found, side)
        for layer in range(shape.layers(side)):
            _block(found, side, f"{side.prefix}blocks.{layer}")
        if shape.norm_position == "pre":
            found.norm(f"{side.prefix}final_norm")
    _head(found)
    return found.weights


def _embeddings(found: Declarations, side: Side) -> None:
    shape = found.shape
    if declare := POSITIONS[shape.positions].declare:
        declare(found, side.prefix)
    if shape.n_token_types:
        name = f"{side.prefix}token_type_embedding"
        found.table(name, shape.n_token_types, shape.n_embd, "token_type_embedding")
    if shape.embedding_norm:
        found.norm(f"{side.prefix}embedding_norm")


def _block(found: Declarations, side: Side, block: str) -> None:
    shape = found.shape
    c, mixed, keys = shape.n_embd, shape.n_head * shape.head_dim, shape.n_kv_head * shape.head_dim
    found.norm(f"{block}.attention_norm")
    name, bias = f"{block}.attention", shape.has_qkv_bias
    found.matrix(f"{name}.qkv", (c, shape.qkv_width), "attention", bias, fan_out=mixed)
    _qk_norm(found, name)
    found.matrix(f"{name}.out", (mixed, c), "attention", shape.has_out_bias, residual=True)
    if side.crosses:
        name = f"{block}.cross"
        found.norm(f"{block}.cross_norm")
        found.matrix(f"{name}.q", (c, mixed), "cross_attention", bias)
        found.matrix(f"{name}.kv", (c, 2 * keys), "cross_attention", bias, fan_out=mixed)
        _qk_norm(found, name)
        found.matrix(f"{name}.out", (mixed, c), "cross_attention", shape.has_out_bias, residual=True)
    if not shape.parallel_block:
        found.norm(f"{block}.feed_forward_norm")
    _feed_forward(found, f"{block}.feed_forward")


def _qk_norm(found: Declarations, name: str) -> None:
    if found.shape.qk_norm:
        found.gain(f"{name}.q_norm", found.shape.head_dim)
        found.gain(f"{name}.k_norm", found.shape.head_dim)


def _feed_forward(found: Declarations, name: str) -> None:
    shape = found.shape
    c, hidden, routed = shape.n_embd, shape.d_ff, shape.n_expert > 1
    lead = (shape.n_expert,) if routed else ()
    bias = shape.bias and not routed
    if routed:
        found.matrix(f"{name}.router", (c, shape.n_expert), "feed_forward")
    found.matrix(f"{name}.up", (*lead, c, hidden), "feed_forward", bias)
    if shape.is_gated:
        found.matrix(f"{name}.gate", (*lead, c, hidden), "feed_forward", bias)
    found.matrix(f"{name}.down", (*lead, hidden, c), "feed_forward", bias, residual=True)


def _head(found: Declarations) -> None:
    shape = found.shape
    if shape.of_family.transforms:
        found.matrix("head.transform", (shape.n_embd, shape.n_embd), "head", shape.bias)
        found.norm("head.norm", "head")
    if not shape.tie_weights:
        found.table("head.weight", shape.vocab_size, shape.n_embd, "head")
    if shape.has_head_bias:
        found.bias("head", shape.vocab_size, "head")
