"""Trace the steps of a forward pass by name: the values that a model computes of a text, and its attention weights.

The model computes them in float64, in a pass that records its steps. The attention kernel does not return its weights,
so it is called again with an identity matrix as the values. Scores are the scaled products before the softmax, -inf for
hidden keys. While tracing, all experts process every token.

Legend: T positions, S keys, H n_head, C n_embd, N tokens, A n_expert_active.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sweeplab.data.batches import Batch, changed
from sweeplab.model.attention import (
    AttentionMask,
    attend,
    distance_matrix,
    query_factor,
    repeat_kv,
    scores,
)
from sweeplab.model.blocks import Normed, Pass, feed_forward
from sweeplab.model.shape import ModelShape, check_transformer
from sweeplab.model.transformer import Transformer

if TYPE_CHECKING:
    from sweeplab.model.blocks import Chosen, Heads, Out, Shares, Stream, Value

Step = tuple[str, Tensor]


@dataclass
class _RecordingPass(Pass):
    """A pass with one run's weights that records the value of every step."""

    steps: list[Step] = field(default_factory=list)

    def note(self, name: str, value: Value) -> Value:
        self.steps.append((name, value))
        return value

    def normalize(self, name: str, x: Stream) -> Normed:
        normed = super().normalize(name, x)
        self.note(name, normed.affine())
        return normed

    def attend(
        self, name: str, heads: Heads, mask: AttentionMask, window: int | None = None
    ) -> Out:
        """Attend, and record the queries, keys, values, scores, attention weights and output of all heads."""
        q, *keys = heads
        q, k, v = (
            q * query_factor(self.shape),
            *(repeat_kv(part, self.shape.n_head) for part in keys),
        )
        for role, head in zip("qkv", (q, k, v), strict=True):
            self.note(f"{name}.{role}.heads", head)
        identity = torch.eye(k.shape[2], dtype=k.dtype).repeat(*k.shape[:2], 1, 1)
        weights = attend(q, k, identity, mask, window)
        products = scores(q, k)
        if mask.bias:
            products = products + mask.bias(distance_matrix(q, k))
        self.note(f"{name}.scores", products.masked_fill(weights == 0.0, -torch.inf))
        self.note(f"{name}.weights", weights)
        return self.note(f"{name}.mixed", super().attend(name, heads, mask, window))

    def note_routing(self, name: str, x: Stream, shares: Shares, chosen: Chosen) -> None:
        """Record each token's shares of all experts [1, N, E], and every expert's output for it."""
        n_expert = self.shape.n_expert
        of_all = shares.new_zeros(*x.shape[:2], n_expert).scatter(2, chosen, shares)
        self.note(f"{name}.router.shares", of_all)
        # Compute the experts of one run like the feed-forward layers of n_expert runs.
        weights = {
            key: weight[0] for key, weight in self.w.items() if key.startswith(f"{name}.")
        }
        as_runs = _RecordingPass(
            self.shape, weights, n_expert, self.n_sequences, steps=self.steps
        )
        feed_forward(as_runs, name, Normed(x.expand(n_expert, -1, -1)))


@torch.no_grad()
def trace(shape: ModelShape, weights: Mapping[str, Any], batch: Batch) -> list[Step]:
    """Return the steps of a forward pass over a batch, in order: names and values."""
    check_transformer(shape, "a trace")
    doubles = {name: torch.as_tensor(weight).double()[None] for name, weight in weights.items()}
    p = _RecordingPass(shape, doubles, 1, len(batch.inputs))
    Transformer(shape).forward(p, changed(batch, lambda part: torch.as_tensor(part)[None]))
    steps: list[Step] = []
    for name, value in p.steps:
        steps.append(
            (name, value[0] if name.endswith("embedding") or ".router" in name else value)
        )
        if name == "logits":
            steps.append(("probabilities", value.softmax(dim=-1)))
    return steps


def trace_batch(
    shape: ModelShape, weights: Mapping[str, Any], batch: Batch, position: int, n_values: int
) -> list[dict[str, Any]]:
    """Return the steps of a forward pass over a batch of one sequence: their names, and the shapes of their values.

    `values` are the first n_values elements at `position`, of the first head or expert.
    """
    # The last dimension but one of every step has positions: of tokens, of queries, or of a source's keys.
    return [
        {
            "name": name,
            "shape": tuple(value.shape),
            "values": value[(0,) * (value.ndim - 2)][position, :n_values].tolist(),
        }
        for name, value in trace(shape, weights, batch)
        if position < value.shape[-2]  # a source may be shorter
    ]


def attention_weights(
    shape: ModelShape, weights: Mapping[str, Any], batch: Batch
) -> dict[str, Any]:
    """Return the weights [H, T, S] of every attention layer on a batch of one sequence, by the layer's name."""
    return {
        name.removesuffix(".weights"): value[0].numpy()
        for name, value in trace(shape, weights, batch)
        if name.endswith(".weights")
    }
