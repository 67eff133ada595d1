"""A side of a model: embeddings, then blocks of sub-layers, each added to the residual stream.

Legend: K runs, B sequences, T positions, C n_embd, V vocab_size, N = B*T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.model.attention import Sight
from sweeplab.model.families import Side
from sweeplab.model.feed_forward import experts, feed_forward
from sweeplab.model.heads import cross_attention, self_attention
from sweeplab.model.passes import Normed, Pass
from sweeplab.model.positions import POSITIONS

SubLayer = Callable[[Normed], Tensor]


def through(p: Pass, side: Side, tokens: Tensor, sight: Sight, source: tuple[Tensor, Sight] | None) -> Normed:
    """Take tokens [K, B, T] through a side: [K, N, C], with a last norm where norms come first.

    `source` is what the encoder made of the source, and what is seen of it.
    """
    x = _embedded(p, side, tokens)
    for layer in range(p.shape.layers(side)):
        x = _block(p, f"{side.prefix}blocks.{layer}", x, sight, source)
    return p.normed(f"{side.prefix}final_norm", x) if p.shape.norm_position == "pre" else Normed(x)


def _embedded(p: Pass, side: Side, tokens: Tensor) -> Tensor:
    shape = p.shape
    n_runs, n_sequences, length = tokens.shape
    c, v = shape.n_embd, shape.vocab_size
    own = shape.has_source_embedding and not side.crosses
    table = p.w["source_embedding" if own else "token_embedding"]
    row = torch.arange(0, n_runs * v, v, device=tokens.device).view(n_runs, 1, 1)
    x = F.embedding(tokens + row, table.reshape(n_runs * v, c))
    if shape.scale_embedding:
        x = x * math.sqrt(c)
    if add := POSITIONS[shape.positions].add:
        x = x + add(p.w, shape, side.prefix, p.places(length), x)
    if shape.n_token_types:
        x = x + p.w[f"{side.prefix}token_type_embedding"][:, None, :1]  # all tokens are of the first type
    x = x.view(n_runs, n_sequences * length, c)
    if shape.embedding_norm:
        x = p.normed(f"{side.prefix}embedding_norm", x).whole()
    return p.drop(x, f"{side.prefix}embedding")


def _block(p: Pass, name: str, x: Tensor, sight: Sight, source: tuple[Tensor, Sight] | None) -> Tensor:
    """Take the residual stream x [K, N, C] through one block."""
    parts: dict[str, SubLayer] = {"attention": partial(self_attention, p, f"{name}.attention", sight)}
    if source:
        parts["cross"] = partial(cross_attention, p, f"{name}.cross", *source)
    if p.shape.n_expert > 1:
        parts["feed_forward"] = partial(experts, p, f"{name}.feed_forward", sight.present)
    else:
        parts["feed_forward"] = partial(feed_forward, p, f"{name}.feed_forward")
    read = p.normed(f"{name}.attention_norm", x) if p.shape.parallel_block else None
    for part, compute in parts.items():
        branch, norm = f"{name}.{part}", f"{name}.{part}_norm"
        if p.shape.norm_position == "post":
            x = p.normed(norm, p.added(x, compute(Normed(x)), branch)).whole()
        else:
            x = p.added(x, compute(read or p.normed(norm, x)), branch)
    return x
