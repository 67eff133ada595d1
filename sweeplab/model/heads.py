"""Attention's sub-layers: projections to heads, what norms and positions do to these, and back.

Legend: K runs, B sequences, T positions, S positions of the source, C n_embd, H n_head, G n_kv_head, D head_dim,
N = B*T.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from sweeplab.model.attention import ATTENTION, Kind, Sight, across
from sweeplab.model.norms import NORMS
from sweeplab.model.passes import Normed, Pass
from sweeplab.model.positions import POSITIONS

Heads = tuple[Tensor, Tensor, Tensor]


def self_attention(p: Pass, name: str, sight: Sight, read: Normed) -> Tensor:
    """Let the positions of each sequence attend to each other: [K, N, C] from what a norm left of [K, N, C]."""
    shape = p.shape
    widths = (shape.n_head, shape.n_kv_head, shape.n_kv_head)
    q, k, v = _heads(p, p.linear(f"{name}.qkv", read), sum(widths)).split_with_sizes(widths, dim=1)
    q, k = _normed(p, name, q, k)
    if turn := POSITIONS[shape.positions].turn:
        places = range(q.shape[2])
        q, k = turn(q, shape, places), turn(k, shape, places)
    return _attend(p, name, ATTENTION[shape.attention], (q, k, v), sight)


def cross_attention(p: Pass, name: str, source: Tensor, sight: Sight, read: Normed) -> Tensor:
    """Let the positions of each sequence attend to its source [K, B*S, C], wherever that stands: [K, N, C]."""
    shape = p.shape
    q = _heads(p, p.linear(f"{name}.q", read), shape.n_head)
    k, v = _heads(p, p.linear(f"{name}.kv", Normed(source)), 2 * shape.n_kv_head).chunk(2, dim=1)
    q, k = _normed(p, name, q, k)
    return _attend(p, name, across(shape.attention), (q, k, v), sight)


def _heads(p: Pass, x: Tensor, count: int) -> Tensor:
    """Cut [K, N, n*D] into n heads [K*B, n, T, D]."""
    return x.view(p.n_runs * p.n_sequences, -1, count, p.shape.head_dim).transpose(1, 2)


def _normed(p: Pass, name: str, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys normed by head, where the model does that."""
    if not p.shape.qk_norm:
        return q, k

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        by_run = NORMS["rmsnorm"].apply(x, p.shape.norm_eps).view(p.n_runs, -1, *x.shape[1:])
        return (by_run * gain[:, None, None, None]).view(x.shape)

    return norm(q, p.w[f"{name}.q_norm.gain"]), norm(k, p.w[f"{name}.k_norm.gain"])


def _attend(p: Pass, name: str, kind: Kind, heads: Heads, sight: Sight) -> Tensor:
    shape, (q, k, v) = p.shape, heads
    if shape.query_factor != 1.0:
        q = q * shape.query_factor
    if shape.n_head > shape.n_kv_head:
        k, v = (each.repeat_interleave(shape.n_head // shape.n_kv_head, dim=1) for each in (k, v))
    drop: Callable[[Tensor], Tensor] | None = None
    if p.dropout is not None and p.dropout.drops(name):
        drop = partial(p.dropout, site=name)
    mixed = kind.attend(q, k, v, shape, sight, drop)
    joined = mixed.transpose(1, 2).reshape(p.n_runs, -1, shape.n_head * shape.head_dim)
    return p.linear(f"{name}.out", Normed(joined))
