"""Attention: which keys a query sees, how alike they are, and the mean of their values weighed by that.

Legend: B sequences, T queries, S keys, C n_embd, H query heads, G key heads (n_kv_head), D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from references.numpy_model.functions import (
    Array,
    Function,
    Indices,
    Mask,
    Step,
    chain,
    same,
    scaled,
    softmax,
)
from references.numpy_model.passes import Pass
from references.numpy_model.positions import alibi_slopes, relative_buckets, rotate

from sweeplab.model.attention import query_factor
from sweeplab.model.shape import ModelShape

# Which distances (query less key) each kind of attention sees; a causal one further none below zero.
VISIBLE: dict[str, Callable[[Indices, ModelShape], Mask]] = {
    "full": lambda distance, _: np.full(distance.shape, True),
    "local": lambda distance, shape: np.abs(distance) < shape.attention_window,
}
ENCODED = "encoded"


@dataclass(frozen=True)
class Sight:
    """What a stack's queries see of its own keys.

    present: which keys are no padding, [B or 1, 1, 1, T];
    visible: which of those the kind of attention sees, [B or 1, 1, T, T]; whole: which full attention sees;
    bias: what positions add to the scores, [H or 1, T, T], and where its gradient goes. All layers share it.
    """

    present: Mask
    visible: Mask
    whole: Mask
    bias: Step


@dataclass(frozen=True)
class Memory:
    """What a decoder's queries see: the encoder's output [B, S, C], and which of it is no padding."""

    encoded: Array
    visible: Mask


def sight(p: Pass, prefix: str, tokens: Any, lengths: Any, causal: bool) -> Sight:
    """Work out what tokens [B, T] of these lengths [B] (None: all of T) see of each other."""
    places = np.arange(tokens.shape[1])
    distance = places[:, None] - places
    ends = np.array([len(places)]) if lengths is None else np.asarray(lengths)
    present = places < ends[:, None, None, None]
    ahead = causal & (distance < 0)
    visible, whole = (
        VISIBLE[kind](distance, p.shape) & present & ~ahead for kind in (p.shape.attention, "full")
    )
    return Sight(present, visible, whole, position_bias(p, prefix, distance, causal))


def position_bias(p: Pass, prefix: str, distance: Indices, causal: bool) -> Step:
    """Return what positions add to the scores, [H or 1, T, T]; only T5's table learns from their gradient."""
    shape = p.shape
    if shape.positions == "alibi":
        return same(-alibi_slopes(shape.n_head)[:, None, None] * np.abs(distance))
    if shape.positions == "relative":
        bucket = relative_buckets(distance, causal, shape.relative_buckets, shape.relative_max_distance)
        y, back = p.rows(f"{prefix}relative_bias", bucket)
        return p.note(f"{prefix}relative_bias", y.transpose(2, 0, 1)), lambda dy: back(dy.transpose(1, 2, 0))
    return same(np.zeros((1, 1, 1)))


def split_heads(x: Array, width: int) -> Step:
    """Cut [B, T, n*D] into heads [B, n, T, D]; the derivative puts them together again."""
    batch, length, _ = x.shape
    y = x.reshape(batch, length, -1, width).transpose(0, 2, 1, 3)
    return y, lambda dy: dy.transpose(0, 2, 1, 3).reshape(batch, length, -1)


def merge_heads(x: Array) -> Step:
    """Put heads [B, n, T, D] together as [B, T, n*D]; the derivative cuts them."""
    batch, n_head, length, width = x.shape
    y = x.transpose(0, 2, 1, 3).reshape(batch, length, n_head * width)
    return y, lambda dy: dy.reshape(batch, length, n_head, width).transpose(0, 2, 1, 3)


def share_heads(x: Array, n_head: int) -> Step:
    """Give each key head [B, G, S, D] to H/G query heads in a row; its gradient is the sum of theirs."""
    batch, n_kv_head, length, width = x.shape
    y = np.repeat(x, n_head // n_kv_head, axis=1)
    return y, lambda dy: dy.reshape(batch, n_kv_head, -1, length, width).sum(2)


def heads(p: Pass, name: str, role: str, kind: str, x: Array, turned: bool = False) -> Step:
    """Cut q, k or v into heads; norm, turn and map those of q and k as the model's parts say."""
    shape = p.shape
    functions: list[Function] = [partial(split_heads, width=shape.head_dim)]
    if role in "qk" and shape.qk_norm:
        functions.append(lambda x: p.norm(f"{name}.{role}_norm", x, "rmsnorm"))
    if role in "qk" and turned:
        functions.append(partial(rotate, base=shape.rotary_base, share=shape.rotary_share))
    if role == "q":  # under muP scores are divided by D, not by its root; or by that of C
        functions.append(partial(scaled, factor=query_factor(shape)))
    if role in "kv":
        functions.append(partial(share_heads, n_head=shape.n_head))
    y, back = chain(x, *functions)
    return p.note(f"{name}.{role}.heads", y), back


Mix = Callable[[Array], tuple[Array, Array, Array, Array]]


def attend(
    p: Pass, name: str, kind: str, q: Array, k: Array, v: Array, bias: Array, visible: Mask
) -> tuple[Array, Mix]:
    """Return each query's mean of the visible values, weighed by softmax(q kᵀ / √D + bias).

    y = weights v, so the gradient by the weights is dy vᵀ and by v it is weightsᵀ dy; with the product q kᵀ likewise.
    """
    scale = 1.0 / math.sqrt(q.shape[-1])
    scores = np.where(visible, scale * (q @ k.swapaxes(2, 3)) + bias, -np.inf)
    weights, back_weights = softmax(scores)

    def back(dy: Array) -> tuple[Array, Array, Array, Array]:
        d_scores = np.where(visible, back_weights(dy @ v.swapaxes(2, 3)), 0.0)
        dq, dk = scale * (d_scores @ k), scale * (d_scores.swapaxes(2, 3) @ q)
        return dq, dk, weights.swapaxes(2, 3) @ dy, d_scores.sum(0)

    p.note(f"{name}.scores", scores)
    return p.note(f"{name}.mixed", p.note(f"{name}.weights", weights) @ v), back


def self_attention(p: Pass, name: str, kind: str, seen: Sight, x: Array) -> Step:
    """Let each token of x [B, T, C] attend to those of its own sequence that it sees."""
    shape = p.shape
    turned = shape.positions == "rotary"
    qkv, back_qkv = p.linear(f"{name}.qkv", x)
    q, k, v = np.split(qkv, np.cumsum([shape.n_head, shape.n_kv_head]) * shape.head_dim, axis=-1)
    q, back_q = heads(p, name, "q", kind, q, turned)
    k, back_k = heads(p, name, "k", kind, k, turned)
    v, back_v = heads(p, name, "v", kind, v)
    bias, back_bias = seen.bias
    visible = seen.whole if kind == "full" else seen.visible
    mixed, back_mixed = attend(p, name, kind, q, k, v, bias, visible)
    y, back_out = chain(mixed, merge_heads, partial(p.linear, f"{name}.out"))

    def back(dy: Array) -> Array:
        dq, dk, dv, dbias = back_mixed(back_out(dy))
        back_bias(dbias)
        return back_qkv(np.concatenate([back_q(dq), back_k(dk), back_v(dv)], axis=-1))

    return y, back


def cross_attention(p: Pass, name: str, kind: str, memory: Memory, x: Array) -> Step:
    """Let each token of x [B, T, C] attend to what the encoder makes of its source, wherever that stands.

    To a decoder the encoder's output is what a weight is: every layer reads it, and its gradient is their sum.
    """
    q, back_q = chain(x, partial(p.linear, f"{name}.q"), partial(heads, p, name, "q", kind))
    kv, back_kv = p.linear(f"{name}.kv", memory.encoded)
    k, v = np.split(kv, 2, axis=-1)
    k, back_k = heads(p, name, "k", kind, k)
    v, back_v = heads(p, name, "v", kind, v)
    mixed, back_mixed = attend(p, name, kind, q, k, v, np.zeros((1, 1, 1)), memory.visible)
    y, back_out = chain(mixed, merge_heads, partial(p.linear, f"{name}.out"))

    def back(dy: Array) -> Array:
        dq, dk, dv, _ = back_mixed(back_out(dy))
        p.learn(ENCODED, back_kv(np.concatenate([back_k(dk), back_v(dv)], axis=-1)))
        return back_q(dq)

    return y, back
