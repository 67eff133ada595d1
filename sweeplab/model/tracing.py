"""Trace the steps of a forward pass by name: the values that a model computes for one token, and its attention weights.

The model itself computes them, in float64, with a pass that records its steps. The attention kernel does not return
weights: they are computed by calling it with an identity matrix in place of the values. Scores are the scaled products
before the softmax, -inf for hidden keys. While tracing, all experts process every token.

Legend: T positions, S keys, H n_head, C n_embd, N tokens, A n_expert_active.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sweeplab.data.batches import Batch, changed
from sweeplab.errors import BadInput, Problem
from sweeplab.model.attention import query_factor
from sweeplab.model.attention.base import AttentionKind, AttentionMask, between, for_queries, scores
from sweeplab.model.attention.linear import feature
from sweeplab.model.blocks import Normed, Pass, feed_forward
from sweeplab.model.layout import Layout
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer

if TYPE_CHECKING:
    from sweeplab.model.blocks import Chosen, Heads, Mixed, Product, Shares, Stream, Value

# The default length of sources; longer if the token's position is further back.
SOURCE_LENGTH = 10
# The steps of a sub-layer in the order in which they are listed: the model computes some of them together.
ORDER = (
    *("qkv", "q", "q_norm", "q.heads", "kv", "k_norm", "k.heads", "v.heads"),
    *("scores", "weights", "mixed", "out"),
    *("router", "router.shares", "up", "gate", "hidden", "down", "added"),
)
_SUB_LAYER = re.compile(r"(.*blocks\.\d+\.\w+)\.(.+)")
Step = tuple[str, Tensor]


class TracedStep(NamedTuple):
    """A step of a forward pass: its name, the shape of its value, and the first numbers of the token's own row."""

    name: str
    shape: tuple[int, ...]
    values: list[float]


@dataclass
class _RecordingPass(Pass):
    """A pass over one sequence with one run's weights that keeps the value of every step."""

    steps: list[Step] = field(default_factory=list)

    def note(self, name: str, value: Value) -> Value:
        self.steps.append((name, value))
        return value

    def normed(self, name: str, x: Stream) -> Normed:
        found = super().normed(name, x)
        self.note(name, found.whole())
        return found

    def linear(self, name: str, read: Normed) -> Product:
        return self.note(name, super().linear(name, read))

    def attend(self, name: str, kind: AttentionKind, heads: Heads, mask: AttentionMask) -> Mixed:
        """Attend, and record the heads as they are multiplied, the weights and the result."""
        q, k, v = heads[0] * query_factor(self.shape), *(for_queries(each, self.shape) for each in heads[1:])
        shown = (q, k, v) if kind.has_scores else (feature(q), feature(k), v)
        for role, head in zip("qkv", shown, strict=True):
            self.note(f"{name}.{role}.heads", head)
        identity = torch.eye(k.shape[2], dtype=k.dtype).repeat(*k.shape[:2], 1, 1)
        weights = kind.attend(q, k, identity, self.shape, mask, None)
        if kind.has_scores:
            found = mask.shifted(scores(q, k), name, between(q, k))
            self.note(f"{name}.scores", found.masked_fill(weights == 0.0, -torch.inf))
        self.note(f"{name}.weights", weights)
        return self.note(f"{name}.mixed", super().attend(name, kind, heads, mask))

    def routed(self, name: str, x: Stream, shares: Shares, chosen: Chosen) -> None:
        """Record each token's shares of all experts [1, N, E], and every expert's output for it."""
        n_expert = self.shape.n_expert
        of_all = shares.new_zeros(*x.shape[:2], n_expert).scatter(2, chosen, shares)
        self.note(f"{name}.router.shares", of_all)
        # Compute the experts of one run like the dense layers of many runs.
        weights = {key: weight[0] for key, weight in self.w.items() if key.startswith(f"{name}.")}
        beside = _RecordingPass(self.shape, weights, n_expert, self.n_sequences, steps=self.steps)
        feed_forward(beside, name, Normed(x.expand(n_expert, -1, -1)))

    def added(self, x: Stream, update: Stream, branch: str) -> Stream:
        """Add to the residual stream, and record the sum; for a parallel block, the sum with both sub-layers."""
        found = super().added(x, update, branch)
        block, _, part = branch.rpartition(".")
        if not self.shape.parallel_block:
            self.note(f"{branch}.added", found)
        elif part == "feed_forward":
            self.note(f"{block}.attention.added", found)
        return found


@torch.no_grad()
def trace(shape: ModelShape, weights: Mapping[str, Any], batch: Batch) -> list[Step]:
    """Return the steps of a forward pass over a batch of one sequence, in order, each with its name and value."""
    doubles = {name: torch.as_tensor(weight).double()[None] for name, weight in weights.items()}
    p = _RecordingPass(shape, doubles, 1, 1)
    Transformer(shape).computed(p, changed(batch, lambda each: torch.as_tensor(each)[None]))
    return [step for each in _ordered(p.steps) for step in _shown(p, *each)]


def _ordered(steps: list[Step]) -> Iterator[Step]:
    def sub_layer(step: Step) -> str:
        found = _SUB_LAYER.fullmatch(step[0])
        return found[1] if found else step[0]

    for name, group in groupby(steps, sub_layer):
        yield from sorted(group, key=lambda step: ORDER.index(step[0][len(name) + 1 :] or ORDER[0]))


def _shown(p: _RecordingPass, name: str, value: Tensor) -> Iterator[Step]:
    """Yield a step without the dimensions of runs and sequences that the model keeps for itself."""
    shape, kind = p.shape, name.rpartition(".")[2]
    if kind == "token_embedding" and shape.positions == "relative":
        side = next(each for each in shape.of_family.sides if name == f"{each.prefix}token_embedding")
        distances = torch.arange(value.shape[2])[:, None] - torch.arange(value.shape[2])
        bias = POSITIONS["relative"].bias
        assert bias is not None
        yield f"{side.prefix}relative_bias", bias(p.w, shape, side.prefix, side.causal, distances)[0]
    if kind == "position_embedding" and shape.positions == "sinusoidal":
        value = value[0]  # one table for all sequences
    if kind == "token_type_embedding":
        tokens = dict(p.steps)[name.replace("token_type", "token")]
        value = value.expand_as(tokens)  # all are of the first type
    yield name, value[0] if kind.endswith("embedding") or ".router" in name else value
    if name == "logits":
        yield "probabilities", value.softmax(dim=-1)


def random_weights(shape: ModelShape, seed: int) -> dict[str, Any]:
    """Return the weights that a run of this seed starts from."""
    layout = Layout(shape)
    views = layout.views(layout.initial_row(seed)[None])
    return {name: view[0].numpy() for name, view in views.items()}


def trace_token(
    shape: ModelShape,
    weights: Mapping[str, Any],
    token: int,
    position: int,
    source_length: int | None = None,
    seed: int = 0,
    n_values: int = 5,
) -> list[TracedStep]:
    """Return the steps of a pass over a sequence with the token at a position; a seed draws the others.

    A decoder's sequence ends with the token. For an encoder_decoder it is in the source too, at the same position.
    Steps with heads or experts show the numbers of the first one.

    Raises:
        BadInput: the model has no such token, position or source.
    """
    length = _source_length(shape, position, source_length)
    _check("token", token, shape.vocab_size, "vocab_size")
    _check("position", position, shape.block_size, "block_size")
    drawn = np.random.default_rng(seed)

    def tokens(n: int) -> Any:
        found = drawn.integers(0, shape.vocab_size, (1, n))
        found[0, position] = token
        return found

    inputs = tokens(position + 1 if shape.of_family.sides[-1].causal else length)
    source = tokens(length) if shape.of_family.reads_source else None
    return trace_batch(shape, weights, Batch(inputs, inputs, source), position, n_values)


def trace_batch(
    shape: ModelShape, weights: Mapping[str, Any], batch: Batch, position: int, n_values: int = 5
) -> list[TracedStep]:
    """Return the steps of a pass over a batch of one sequence: the numbers of the token at a position."""
    # A row is a position in every step: of tokens, of queries, or of the keys that a source gives.
    return [
        TracedStep(name, tuple(value.shape), value[(0,) * (value.ndim - 2)][position, :n_values].tolist())
        for name, value in trace(shape, weights, batch)
        if position < value.shape[-2]  # a source may end before the token's own position
    ]


def _source_length(shape: ModelShape, position: int, asked: int | None) -> int:
    if asked is None:
        return min(shape.block_size, max(position + 1, SOURCE_LENGTH))
    if shape.family == "decoder":
        allowed = "a source length only for family encoder or encoder_decoder"
        raise BadInput(Problem("a decoder reads no source", allowed))
    if not position < asked <= shape.block_size:
        what = f"a source of {asked} tokens"
        raise BadInput(Problem(what, f"{position + 1} (it has position {position}) to {shape.block_size}"))
    return asked


def _check(what: str, number: int, end: int, name: str) -> None:
    if not 0 <= number < end:
        raise BadInput(Problem(f"{what} {number}", f"0 to {end - 1}, because {name} is {end}"))


def attention_weights(shape: ModelShape, weights: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
    """Return the weights [H, T, S] of every attention of a batch of one sequence, by its name in the model."""
    steps = trace(shape, weights, batch)
    return {
        name.removesuffix(".weights"): value[0].numpy() for name, value in steps if name.endswith(".weights")
    }
