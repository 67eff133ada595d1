"""A side of a model: embeddings, then blocks of sub-layers, each added to the residual stream.

Legend: K runs, B sequences, T positions, S positions of a source, C n_embd, H n_head, G n_kv_head, D head_dim,
V vocab_size, N = B*T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.model.attention import ATTENTION, cross_kind
from sweeplab.model.attention.base import AttentionMask
from sweeplab.model.feed_forward import experts, feed_forward
from sweeplab.model.norms import NORMS
from sweeplab.model.passes import Normed, Pass
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import Side

if TYPE_CHECKING:
    from jaxtyping import Float, Int

SubLayer = Callable[[Normed], Tensor]
# What the encoder made of a source [K, B*S, C], and its mask.
Source = tuple[Tensor, AttentionMask]


def through(
    p: Pass, side: Side, tokens: Int[Tensor, "K B T"], mask: AttentionMask, source: Source | None
) -> Normed:
    """Take tokens through a side: [K, N, C], with a last norm where norms come first."""
    x = _embedded(p, side, tokens)
    for layer in range(p.shape.layers(side)):
        x = _block(p, f"{side.prefix}blocks.{layer}", x, mask, source)
    return p.normed(f"{side.prefix}final_norm", x) if p.shape.norm_position == "pre" else Normed(x)


def _embedded(p: Pass, side: Side, tokens: Int[Tensor, "K B T"]) -> Float[Tensor, "K N C"]:
    shape, prefix = p.shape, side.prefix
    n_runs, n_sequences, length = tokens.shape
    c, v = shape.n_embd, shape.vocab_size
    own = shape.has_source_embedding and not side.crosses
    table = p.w["source_embedding" if own else "token_embedding"]
    row = torch.arange(0, n_runs * v, v, device=tokens.device).view(n_runs, 1, 1)
    x = F.embedding(tokens + row, table.reshape(n_runs * v, c))
    if shape.scale_embedding:
        x = x * math.sqrt(c)
    p.note(f"{prefix}token_embedding", x)
    if add := POSITIONS[shape.positions].add:
        x = x + p.note(f"{prefix}position_embedding", add(p.w, shape, prefix, p.positions(length), x))
    if shape.n_token_types:
        name = f"{prefix}token_type_embedding"
        x = x + p.note(name, p.w[name][:, None, :1])  # all tokens are of the first type
    x = p.note(f"{prefix}embedding", x).view(n_runs, n_sequences * length, c)
    if shape.embedding_norm:
        x = p.normed(f"{prefix}embedding_norm", x).whole()
    return p.drop(x, f"{prefix}embedding")


def _block(
    p: Pass, name: str, x: Float[Tensor, "K N C"], mask: AttentionMask, source: Source | None
) -> Float[Tensor, "K N C"]:
    """Take the residual stream through one block."""
    parts: dict[str, SubLayer] = {"attention": partial(self_attention, p, f"{name}.attention", mask)}
    if source:
        parts["cross"] = partial(cross_attention, p, f"{name}.cross", *source)
    if p.shape.n_expert > 1:
        parts["feed_forward"] = partial(experts, p, f"{name}.feed_forward", mask.present)
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


def self_attention(p: Pass, name: str, mask: AttentionMask, read: Normed) -> Float[Tensor, "K N C"]:
    """Let the positions of each sequence attend to each other."""
    shape = p.shape
    widths = (shape.n_head, shape.n_kv_head, shape.n_kv_head)
    q, k, v = _heads(p, p.linear(f"{name}.qkv", read), sum(widths)).split_with_sizes(widths, dim=1)
    q, k = _head_normed(p, f"{name}.q_norm", q), _head_normed(p, f"{name}.k_norm", k)
    if rotation := POSITIONS[shape.positions].rotation:
        length = q.shape[2]
        if length not in p.rotations:
            p.rotations[length] = rotation(shape, p.positions(length), q)
        q, k = p.rotations[length](q), p.rotations[length](k)
    return _projected(p, name, p.attend(name, ATTENTION[shape.attention], (q, k, v), mask))


def cross_attention(
    p: Pass, name: str, source: Float[Tensor, "K BS C"], mask: AttentionMask, read: Normed
) -> Float[Tensor, "K N C"]:
    """Let the positions of each sequence attend to its source, wherever that stands."""
    q = _head_normed(p, f"{name}.q_norm", _heads(p, p.linear(f"{name}.q", read), p.shape.n_head))
    k, v = _source_heads(p, name, source)
    return _projected(p, name, p.attend(name, cross_kind(p.shape.attention), (q, k, v), mask))


def _source_heads(p: Pass, name: str, source: Float[Tensor, "K BS C"]) -> tuple[Tensor, Tensor]:
    """Return a source's keys and values [K*B, G, S, D], which a cache keeps from the first time on."""
    if p.cache and name in p.cache.cached:
        k, v = p.cache.cached[name]
        return k, v
    k, v = _heads(p, p.linear(f"{name}.kv", Normed(source)), 2 * p.shape.n_kv_head).chunk(2, dim=1)
    k = _head_normed(p, f"{name}.k_norm", k)
    if p.cache:
        p.cache.cached[name] = k, v
    return k, v


def _heads(p: Pass, x: Float[Tensor, "K N nD"], count: int) -> Float[Tensor, "KB n T D"]:
    """Cut x into n heads."""
    return x.view(p.n_runs * p.n_sequences, -1, count, p.shape.head_dim).transpose(1, 2)


def _head_normed(p: Pass, name: str, x: Float[Tensor, "KB n T D"]) -> Float[Tensor, "KB n T D"]:
    """Return queries or keys normed by head, where the model does that."""
    if not p.shape.qk_norm:
        return x
    by_run = NORMS["rmsnorm"].apply(x, p.shape.norm_eps).view(p.n_runs, -1, *x.shape[1:])
    return p.note(name, (by_run * p.w[f"{name}.gain"][:, None, None, None]).view(x.shape))


def _projected(p: Pass, name: str, mixed: Float[Tensor, "KB H T D"]) -> Float[Tensor, "K N C"]:
    joined = mixed.transpose(1, 2).reshape(p.n_runs, -1, p.shape.n_head * p.shape.head_dim)
    return p.linear(f"{name}.out", Normed(joined))
