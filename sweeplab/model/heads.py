"""Attention's sub-layers: projections to heads, what norms and positions do to these, and back.

Legend: K runs, B sequences, T positions, S positions of the source, C n_embd, H n_head, G n_kv_head, D head_dim,
N = B*T.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from sweeplab.model.attention import ATTENTION, Kind, Sight, across, for_queries, query_factor
from sweeplab.model.norms import NORMS
from sweeplab.model.passes import Normed, Pass
from sweeplab.model.positions import POSITIONS

Heads = tuple[Tensor, Tensor, Tensor]


def self_attention(p: Pass, name: str, sight: Sight, read: Normed) -> Tensor:
    """Let the positions of each sequence attend to each other: [K, N, C] from what a norm left of [K, N, C]."""
    shape = p.shape
    widths = (shape.n_head, shape.n_kv_head, shape.n_kv_head)
    q, k, v = _heads(p, p.linear(f"{name}.qkv", read), sum(widths)).split_with_sizes(widths, dim=1)
    q, k = _normed(p, f"{name}.q_norm", q), _normed(p, f"{name}.k_norm", k)
    if turning := POSITIONS[shape.positions].turning:
        length = q.shape[2]
        if length not in p.turns:
            p.turns[length] = turning(shape, p.places(length), q)
        q, k = p.turns[length](q), p.turns[length](k)
    return _attend(p, name, ATTENTION[shape.attention], (q, k, v), sight)


def cross_attention(p: Pass, name: str, source: Tensor, sight: Sight, read: Normed) -> Tensor:
    """Let the positions of each sequence attend to its source [K, B*S, C], wherever that stands: [K, N, C]."""
    q = _normed(p, f"{name}.q_norm", _heads(p, p.linear(f"{name}.q", read), p.shape.n_head))
    k, v = _of_source(p, name, source)
    return _attend(p, name, across(p.shape.attention), (q, k, v), sight)


def _of_source(p: Pass, name: str, source: Tensor) -> tuple[Tensor, Tensor]:
    """Return a source's keys and values, which a memory keeps from the first time on."""
    if p.memory and name in p.memory.kept:
        k, v = p.memory.kept[name]
        return k, v
    k, v = _heads(p, p.linear(f"{name}.kv", Normed(source)), 2 * p.shape.n_kv_head).chunk(2, dim=1)
    k = _normed(p, f"{name}.k_norm", k)
    if p.memory:
        p.memory.kept[name] = k, v
    return k, v


def _heads(p: Pass, x: Tensor, count: int) -> Tensor:
    """Cut [K, N, n*D] into n heads [K*B, n, T, D]."""
    return x.view(p.n_runs * p.n_sequences, -1, count, p.shape.head_dim).transpose(1, 2)


def _normed(p: Pass, name: str, x: Tensor) -> Tensor:
    """Return queries or keys normed by head, where the model does that."""
    if not p.shape.qk_norm:
        return x
    by_run = NORMS["rmsnorm"].apply(x, p.shape.norm_eps).view(p.n_runs, -1, *x.shape[1:])
    return (by_run * p.w[f"{name}.gain"][:, None, None, None]).view(x.shape)


def _attend(p: Pass, name: str, kind: Kind, heads: Heads, sight: Sight) -> Tensor:
    shape, (q, k, v) = p.shape, heads
    if (factor := query_factor(shape)) != 1.0:
        q = q * factor
    if p.memory and sight.causal:
        mixed, p.memory.kept[name] = kind.recall(q, k, v, shape, sight, p.memory.kept.get(name))
    else:
        drop: Callable[[Tensor], Tensor] | None = None
        if p.dropout is not None and p.dropout.drops(name):
            drop = partial(p.dropout, site=name)
        mixed = kind.attend(q, for_queries(k, shape), for_queries(v, shape), shape, sight, drop)
    joined = mixed.transpose(1, 2).reshape(p.n_runs, -1, shape.n_head * shape.head_dim)
    return p.linear(f"{name}.out", Normed(joined))
