"""Count a model's parameters and floating-point operations (FLOPs) in closed form, without torch: a plan imports it.

The tests compare the parameters with the tensors of every model.

FLOPs are counted as torch.utils.flop_counter counts them: only matrix products, 2mnk each. Attention counts what its
kind computes: full attention counts the whole T x T square, although the causal mask hides half of it. Kaplan et al.
2020 (appendix of "Scaling laws for neural language models") count 2N + 2LTC per token for the forward pass. Our count
adds the output head's 2VC (they leave the embeddings out). Our attention term is twice theirs, because we assume no
kernel that skips the masked half. The backward pass counts twice the forward pass: every product has two gradients,
also in the first layer, because the embeddings are trained. One product is not counted, because a step computes it
once and not per token: a norm's bias times the next weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from sweeplab.model.attention import POSITION_TABLES, n_weights, windows
from sweeplab.model.shape import ModelShape, Side, cost, module_parameters

EMBEDDINGS = (
    "token_embedding",
    "source_embedding",
    "position_embedding",
    "token_type_embedding",
)
# Rows of activations, and elements of a weight, from which bfloat16 is faster on a CPU with matrix units.
HALF_FROM_ROWS, HALF_FROM_WEIGHTS = 256, 6_144


@dataclass(frozen=True)
class Term:
    """A component's parameters: its count in one layer, and its number of layers.

    `place` is `encoder` or `decoder`; it is empty for a component that the whole model has once.
    """

    component: str
    place: str
    each: int
    layers: int = 1

    @property
    def count(self) -> int:
        """Return the number of parameters in all layers."""
        return self.each * self.layers


@lru_cache(maxsize=4096)
def terms(shape: ModelShape) -> tuple[Term, ...]:
    """Return the terms of a model's parameter count; cached, because a plan needs the same shape many times."""
    return tuple(term for term in _terms(shape) if term.each)


def _terms(shape: ModelShape) -> Iterator[Term]:
    if shape.is_plugin:
        for parameter in module_parameters(shape):
            component = "token_embedding" if parameter.is_embedding else "module"
            yield Term(component, "", math.prod(parameter.shape))
        return
    c, norm = shape.n_embd, shape.n_embd
    if shape.has_norm_bias:
        norm *= 2
    table = shape.vocab_size * c
    yield Term("token_embedding", "", table)
    if shape.has_source_embedding:
        yield Term("source_embedding", "", table)
    attention, feed_forward = _attention(shape), _feed_forward(shape)
    for side in shape.of_family.sides:
        place, layers = side.name, shape.layers(side)
        if shape.positions in POSITION_TABLES:
            component, rows, columns = POSITION_TABLES[shape.positions]
            yield Term(component, place, getattr(shape, rows) * getattr(shape, columns))
        yield Term("token_type_embedding", place, shape.n_token_types * c)
        yield Term("attention", place, attention, layers)
        if side.has_cross:
            yield Term("cross_attention", place, attention, layers)
        yield Term("feed_forward", place, feed_forward, layers)
        of_block = len(side.sub_layers) * norm
        if shape.shares_norm:
            of_block -= norm
        if shape.qk_norm:
            of_block += 2 * shape.head_dim * (len(side.sub_layers) - 1)
        yield Term("norms", place, of_block, layers)
        for has_norm in (shape.final_norm, shape.embedding_norm):
            if has_norm:
                yield Term("norms", place, norm)
    if shape.of_family.transforms:
        transform = c * c + norm
        if shape.bias:
            transform += c
        yield Term("head", "", transform)
    if not shape.tie_weights:
        yield Term("head", "", table)
    if shape.has_head_bias:
        yield Term("head", "", shape.vocab_size)


def _attention(shape: ModelShape) -> int:
    """Return the number of parameters of an attention layer, without its norms."""
    c, queries = shape.n_embd, shape.n_head * shape.head_dim
    heads = queries + 2 * shape.n_kv_head * shape.head_dim
    count = c * heads + queries * c
    if shape.has_qkv_bias:
        count += heads
    if shape.has_out_bias:
        count += c
    return count


def _feed_forward(shape: ModelShape) -> int:
    """Return the number of parameters of a feed-forward layer: of all its experts and their router."""
    c, hidden = shape.n_embd, shape.d_ff
    if shape.is_gated:
        hidden *= 2
    count = c * hidden + shape.d_ff * c
    if shape.n_expert > 1:
        return shape.n_expert * (count + c)
    if shape.has_ff_bias:
        count += hidden + c
    return count


def n_params(shape: ModelShape) -> int:
    """Return the total number of parameters; tied weights count once."""
    return sum(term.count for term in terms(shape))


def n_params_active(shape: ModelShape) -> int:
    """Return the number of parameters that one token uses: all except the experts that it is not routed to."""
    n_layer = sum(shape.layers(side) for side in shape.of_family.sides)
    expert = (2 + shape.is_gated) * shape.n_embd * shape.d_ff
    idle = shape.n_expert - shape.n_expert_active
    return n_params(shape) - n_layer * idle * expert


def n_params_non_embedding(shape: ModelShape) -> int:
    """Return the number of parameters without the embedding tables; a tied head is one of them."""
    return sum(term.count for term in terms(shape) if term.component not in EMBEDDINGS)


def _blocks(
    shape: ModelShape, length: int, source_length: int
) -> Iterator[tuple[Side, int, int]]:
    """Yield each block's side, the tokens that it reads, and its attention weights per sequence and head."""
    for side in shape.of_family.sides:
        n = source_length if shape.of_family.reads_source and not side.has_cross else length
        for window in windows(shape, side):
            weights = n_weights(n, n, side.causal, window)
            if side.has_cross:
                weights += n_weights(n, source_length, False)
            yield side, n, weights


def forward_flops(shape: ModelShape, length: int, source_length: int = 0) -> int:
    """Return the forward FLOPs of one sequence of `length` tokens, with a source of `source_length` tokens."""
    if shape.is_plugin:
        return cost(shape, length).flops
    c, query_width = shape.n_embd, shape.n_head * shape.head_dim
    key_width = shape.n_kv_head * shape.head_dim
    feed_forward = shape.n_expert_active * (2 + shape.is_gated) * 2 * c * shape.d_ff
    if shape.n_expert > 1:
        feed_forward += 2 * c * shape.n_expert
    total = 2 * length * c * (shape.vocab_size + c * shape.of_family.transforms)
    for side, n, weights in _blocks(shape, length, source_length):
        total += n * (
            2 * c * (query_width + 2 * key_width) + 2 * query_width * c + feed_forward
        )
        total += 4 * weights * query_width
        if side.has_cross:
            total += 2 * n * 2 * c * query_width + 2 * source_length * c * 2 * key_width
    return total


def activation_bytes(
    shape: ModelShape, length: int, source_length: int = 0, value_bytes: int = 4
) -> int:
    """Estimate the bytes that the forward pass of one sequence saves for the backward pass, value_bytes per number."""
    if shape.is_plugin:
        return cost(shape, length).saved * value_bytes
    c = shape.n_embd
    hidden = (2 + shape.is_gated) * shape.d_ff * shape.n_expert_active
    saved = 3 * shape.vocab_size * length
    for side, n, weights in _blocks(shape, length, source_length):
        saved += n * ((16 + 8 * side.has_cross) * c + hidden) + 2 * shape.n_head * weights
    return saved * value_bytes


def is_large_product(n_rows: int, size: int) -> bool:
    """Return whether bfloat16 is faster for n_rows rows times a weight of this size on a CPU with matrix units.

    Measured on one thread of a Xeon with AMX, in microseconds without the conversions to bfloat16. By rows x in x out:
    512x64x256 takes 86 in float32 and 33 in bfloat16, 512x64x103 46 and 27, 512x64x64 24 and 22, 64x32x128 3 and 3.
    """
    return n_rows >= HALF_FROM_ROWS and size >= HALF_FROM_WEIGHTS


def has_large_product(shape: ModelShape, n_rows: int) -> bool:
    """Return whether a feed-forward layer, an attention projection or the head is a large product."""
    widths = (shape.d_ff, 3 * shape.head_dim * shape.n_head, shape.vocab_size)
    return is_large_product(n_rows, shape.n_embd * max(widths))
