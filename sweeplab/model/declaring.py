"""Every weight of a model, in the order in which it is computed (no torch)."""

from __future__ import annotations

from sweeplab.model.families import Side
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape
from sweeplab.model.weights import Declarations, Weight


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
