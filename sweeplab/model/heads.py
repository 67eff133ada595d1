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


def self_attention(p: Pass, name: str, sight: Sight, n_sequences: int, read: Normed) -> Tensor:
    """Let the positions of each sequence attend to each other: [K, N, C] from what a norm left of [K, N, C]."""
    shape = p.shape
    widths = (shape.n_head, shape.n_kv_head, shape.n_kv_head)
    q, k, v = _heads(p.linear(f"{name}.qkv", read), n_sequences, shape.head_dim).split(widths, dim=1)
    q, k = _normed(p, name, q, k)
    if turn := POSITIONS[shape.positions].turn:
        places = range(q.shape[2])
        q, k = turn(q, shape, places), turn(k, shape, places)
    return _attend(p, name, ATTENTION[shape.attention], (q, k, v), sight)


def cross_attention(
    p: Pass, name: str, source: Tensor, sight: Sight, n_sequences: int, read: Normed
) -> Tensor:
    """Let the positions of each sequence attend to its source [K, B*S, C], wherever that stands: [K, N, C]."""
    shape = p.shape
    q = _heads(p.linear(f"{name}.q", read), n_sequences, shape.head_dim)
    k, v = _heads(p.linear(f"{name}.kv", Normed(source)), n_sequences, shape.head_dim).chunk(2, dim=1)
    q, k = _normed(p, name, q, k)
    return _attend(p, name, across(shape.attention), (q, k, v), sight)


def _heads(x: Tensor, n_sequences: int, width: int) -> Tensor:
    """Cut [K, N, n*D] into heads [K*B, n, T, D]."""
    return x.view(len(x) * n_sequences, -1, x.shape[-1] // width, width).transpose(1, 2)


def _normed(p: Pass, name: str, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys normed by head, where the model does that."""
    if not p.shape.qk_norm:
        return q, k

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        by_run = NORMS["rmsnorm"].apply(x).unflatten(0, (len(gain), -1))
        return (by_run * gain[:, None, None, None]).flatten(0, 1)

    return norm(q, p.w[f"{name}.q_norm.gain"]), norm(k, p.w[f"{name}.k_norm.gain"])


def _attend(p: Pass, name: str, kind: Kind, heads: Heads, sight: Sight) -> Tensor:
    q, k, v = heads
    if p.shape.query_factor != 1.0:
        q = q * p.shape.query_factor
    if q.shape[1] > k.shape[1]:
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
    drop: Callable[[Tensor], Tensor] | None = None
    if p.dropout and p.dropout.drops(name):
        drop = partial(p.dropout, site=name)
    mixed = kind.attend(q, k, v, p.shape, sight, drop)
    n_runs = len(p.w[f"{name}.out.weight"])
    return p.linear(f"{name}.out", Normed(mixed.transpose(1, 2).reshape(n_runs, -1, q.shape[1] * q.shape[3])))
