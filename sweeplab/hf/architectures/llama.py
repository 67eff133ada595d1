"""Llama: a decoder with rotary positions (by halves, as ours), rmsnorms, a gate, and keys that heads may share."""

from __future__ import annotations

from typing import Any

from sweeplab.errors import BadInput, Problem
from sweeplab.hf.architectures.base import (
    GATES,
    HEADS_DIVIDE,
    NO_EMBEDDING_NORM,
    NO_TYPES,
    Architecture,
    Field,
    Links,
    Values,
    only,
)
from sweeplab.model.shape import ModelShape

BASE = 10_000.0

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def _told(shape: ModelShape) -> dict[str, Any]:
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rotary_base},
        "rope_theta": shape.rotary_base,  # where releases before 5 look for it
        "attention_bias": shape.has_qkv_bias or shape.has_out_bias,
        "mlp_bias": shape.bias,
    }


def _heard(config: Values) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise BadInput(Problem(f"config.json has rotary positions of the type {kind!r}", "default"))
    attention = bool(config.get("attention_bias", False))
    return {
        "rotary_base": rope.get("rope_theta", config.get("rope_theta", BASE)),
        "bias": attention or bool(config.get("mlp_bias", False)),
        "qkv_bias": attention,
        "out_bias": attention,
        "embedding_dropout": 0.0,
        "residual_dropout": 0.0,
    }


def _links(shape: ModelShape, config: Values) -> Links:
    found = Links(shape, biased=False)
    found.embeddings(EMBEDDING, HEAD, ("final_norm", "model.norm"))
    attention, feed_forward = config.get("attention_bias", False), config.get("mlp_bias", False)
    for layer in range(shape.n_layer):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        heads = (f"{theirs}.self_attn.{part}_proj" for part in "qkv")
        found.norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm")
        found.linear(f"{ours}.attention.qkv", *heads, columns=found.heads(), biased=attention)
        found.linear(f"{ours}.attention.out", f"{theirs}.self_attn.o_proj", biased=attention)
        found.norm(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm")
        for part in ("up", "gate", "down"):
            found.linear(f"{ours}.feed_forward.{part}", f"{theirs}.mlp.{part}_proj", biased=feed_forward)
    return found


LLAMA = Architecture(
    model_type="llama",
    class_name="LlamaForCausalLM",
    embedding=EMBEDDING,
    head=HEAD,
    prefix="model.",
    fixed={"family": "decoder", "positions": "rotary", "norm": "rmsnorm"},
    fields=(
        Field("vocab_size", "vocab_size", 32000),
        Field("max_position_embeddings", "block_size", 2048),
        Field("hidden_size", "n_embd", 4096),
        Field("num_hidden_layers", "n_layer", 32),
        Field("num_attention_heads", "n_head", 32),
        Field("num_key_value_heads", "n_kv_head"),
        Field("head_dim", "head_dim"),
        Field("intermediate_size", "d_ff", 11008),
        Field("hidden_act", "activation", "silu", GATES),
        Field("rms_norm_eps", "norm_eps", 1e-6),
        Field("tie_word_embeddings", "tie_weights", False),
        Field("attention_dropout", "attention_dropout", 0.0),
    ),
    requires=(
        only("family", "decoder", "for it finds what follows"),
        only("positions", "rotary", "for it turns queries and keys"),
        only("norm", "rmsnorm", "for it has no other"),
        only("norm_position", "pre", "for norms come before its sub-layers"),
        only("activation", " ".join(dict.fromkeys(GATES.values())), "for its feed-forward has a gate"),
        HEADS_DIVIDE,
        NO_TYPES,
        NO_EMBEDDING_NORM,
    ),
    beside=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    links=_links,
    told=_told,
    heard=_heard,
)
