"""The encoder-decoders of `transformers`: T5 and BART."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sweeplab.errors import BadInput, Problem
from sweeplab.hf.mapping import (
    ALL_KEYS,
    GATES,
    HAS_EMBEDDING_NORM,
    HEADS_FILL,
    LAYERNORM,
    NO_EMBEDDING_NORM,
    NO_GATE,
    NO_TYPES,
    PLACES,
    PLAIN,
    POST_NORM,
    PRE_NORM,
    RMSNORM,
    SHARED,
    Architecture,
    Field,
    Links,
    Values,
    only,
)
from sweeplab.model.shape import ModelShape, Side

# ------------------------------------------------------------------ T5

# T5 reads "gated-gelu" as the tanh approximation; the exact one needs another name.
ACTS = {
    **PLAIN,
    **{f"gated-{name}": ours for name, ours in GATES.items()},
    "gated-gelu": "geglu_tanh",
}


def _computed_for_t5(shape: ModelShape, tokens: Values) -> dict[str, Any]:
    return {
        "num_decoder_layers": shape.n_decoder_layer,
        "tie_word_embeddings": shape.tie_weights,
        "scale_decoder_outputs": shape.tie_weights,
    }


def _inferred_for_t5(config: Values) -> dict[str, Any]:
    n_layer = config["num_layers"]
    return {
        "n_layer": n_layer,
        "n_decoder_layer": config.get("num_decoder_layers") or n_layer,
        "tie_scale": _scales(config),  # an untied head is recognized by its tensor
    }


def _link_t5(links: Links, config: Values) -> None:
    """Link the weights; T5 does not divide scores by the root of head_dim, so the queries' weights include the factor.

    If the output head has the embeddings' weights, T5 multiplies its logits by n_embd^-0.5, unless its config says
    otherwise.
    """
    shape = links.shape
    last_norm = ("final_norm", "decoder.final_layer_norm")
    links.embeddings(last_norm, shape.n_embd**-0.5 if _scales(config) else 1.0)
    links.norm("encoder.final_norm", "encoder.final_layer_norm")
    for side, theirs in zip(shape.of_family.sides, ("encoder", "decoder"), strict=True):
        bias = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        links.table(f"{side.prefix}relative_bias", bias)
        for layer in range(shape.layers(side)):
            _link_block(
                links, side, f"{side.prefix}blocks.{layer}", f"{theirs}.block.{layer}.layer"
            )


def _scales(config: Values) -> bool:
    """Return whether logits are multiplied by n_embd^-0.5: by default, if embeddings are tied."""
    return bool(
        config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    )


def _link_block(links: Links, side: Side, ours: str, theirs: str) -> None:
    """Link the sub-layers of a block, which T5 numbers."""
    queries, *keys = links.heads(links.shape.head_dim**-0.5)
    for index, part in enumerate(side.sub_layers):
        links.norm(f"{ours}.{part}_norm", f"{theirs}.{index}.layer_norm")
        if part == "attention":
            name = f"{theirs}.{index}.SelfAttention"
            heads = (f"{name}.{each}" for each in "qkv")
            links.linear(f"{ours}.attention.qkv", *heads, columns=[queries, *keys])
            links.linear(f"{ours}.attention.out", f"{name}.o")
        elif part == "cross":
            name = f"{theirs}.{index}.EncDecAttention"
            links.linear(f"{ours}.cross.q", f"{name}.q", columns=[queries])
            links.linear(f"{ours}.cross.kv", f"{name}.k", f"{name}.v", columns=keys)
            links.linear(f"{ours}.cross.out", f"{name}.o")
        else:
            name = f"{theirs}.{index}.DenseReluDense"
            if links.shape.is_gated:
                links.linear(f"{ours}.feed_forward.gate", f"{name}.wi_0")
                links.linear(f"{ours}.feed_forward.up", f"{name}.wi_1")
            else:
                links.linear(f"{ours}.feed_forward.up", f"{name}.wi")
            links.linear(f"{ours}.feed_forward.down", f"{name}.wo")


T5 = Architecture(
    model_type="t5",
    class_name="T5ForConditionalGeneration",
    embedding="shared.weight",
    biased=False,
    fixed={
        "family": "encoder_decoder",
        "positions": "relative",
        "norm": "rmsnorm",
        "bias": False,
    },
    fields=(
        Field("vocab_size", "vocab_size"),
        # Not a limit in T5, but the length of its training texts.
        Field("n_positions", "block_size", 512),
        Field("d_model", "n_embd"),
        Field("d_kv", "head_dim", 64),
        Field("d_ff", "d_ff"),
        Field("num_layers", "n_encoder_layer"),
        Field("num_heads", "n_head"),
        Field("relative_attention_num_buckets", "relative_buckets", 32),
        Field("relative_attention_max_distance", "relative_max_distance", 128),
        Field("feed_forward_proj", "activation", "relu", ACTS),
        Field("layer_norm_epsilon", "norm_eps", 1e-6),
        Field("dropout_rate", "embedding_dropout", 0.1),
        Field("dropout_rate", "attention_dropout", 0.1),
        Field("dropout_rate", "residual_dropout", 0.1),
    ),
    constants={"is_encoder_decoder": True},
    requires=(
        only("positions", "relative", "because it shifts scores by the distance"),
        *(RMSNORM, PRE_NORM),
        only("bias", "false", "because it has no biases"),
        SHARED,
        *(ALL_KEYS, NO_TYPES, NO_EMBEDDING_NORM),
    ),
    beside=(
        r"(en|de)coder\.embed_tokens\.weight",
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
    link=_link_t5,
    computed=_computed_for_t5,
    inferred=_inferred_for_t5,
)

_UNSCALED = {"scale_decoder_outputs": False}
MT5 = replace(
    T5,
    model_type="mt5",
    class_name="MT5ForConditionalGeneration",
    requires=(
        *T5.requires,
        only("tie_weights", "true", "because its output head has the embedding's weights"),
    ),
    link=lambda links, config: _link_t5(links, {**config, **_UNSCALED}),
    computed=lambda shape, config: {**_computed_for_t5(shape, config), **_UNSCALED},
    inferred=lambda config: _inferred_for_t5({**config, **_UNSCALED}),
)

# ------------------------------------------------------------------ BART

OFFSET = 2  # rows of a position table before that of the first position


def _inferred_for_bart(config: Values) -> dict[str, Any]:
    for key in ("attention_heads", "ffn_dim"):
        ours, theirs = config[f"encoder_{key}"], config.get(f"decoder_{key}")
        if ours != theirs:
            what = f"config.json has decoder_{key} {theirs!r}, which differs from encoder_{key}"
            raise BadInput(Problem(what, str(ours)))
    return {"n_layer": config["encoder_layers"]}


def _link_bart(links: Links, config: Values) -> None:
    shape = links.shape
    links.table("token_embedding", links.to.embedding)
    if shape.has_head_bias:
        links.bias("head.bias", BART.head_bias, is_row=True)
    for side, theirs in zip(
        shape.of_family.sides, ("model.encoder", "model.decoder"), strict=True
    ):
        links.places(f"{theirs}.embed_positions.weight", OFFSET, side.prefix)
        links.norm(f"{side.prefix}embedding_norm", f"{theirs}.layernorm_embedding")
        for layer in range(shape.layers(side)):
            _link_bart_block(
                links, side, f"{side.prefix}blocks.{layer}", f"{theirs}.layers.{layer}"
            )


def _link_bart_block(links: Links, side: Side, ours: str, theirs: str) -> None:
    queries, *keys = links.heads()
    links.linear(
        f"{ours}.attention.qkv",
        *(f"{theirs}.self_attn.{part}_proj" for part in "qkv"),
        columns=[queries, *keys],
    )
    links.linear(f"{ours}.attention.out", f"{theirs}.self_attn.out_proj")
    links.norm(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm")
    if side.has_cross:
        name = f"{theirs}.encoder_attn"
        links.linear(f"{ours}.cross.q", f"{name}.q_proj", columns=[queries])
        links.linear(f"{ours}.cross.kv", f"{name}.k_proj", f"{name}.v_proj", columns=keys)
        links.linear(f"{ours}.cross.out", f"{name}.out_proj")
        links.norm(f"{ours}.cross_norm", f"{name}_layer_norm")
    links.linear(f"{ours}.feed_forward.up", f"{theirs}.fc1")
    links.linear(f"{ours}.feed_forward.down", f"{theirs}.fc2")
    links.norm(f"{ours}.feed_forward_norm", f"{theirs}.final_layer_norm")


BART = Architecture(
    model_type="bart",
    class_name="BartForConditionalGeneration",
    embedding="model.shared.weight",
    fixed={
        "family": "encoder_decoder",
        "positions": "learned",
        "norm": "layernorm",
        "norm_eps": 1e-5,
        "norm_position": "post",
        "embedding_norm": True,
    },
    fields=(
        Field("vocab_size", "vocab_size"),
        Field("max_position_embeddings", "block_size"),
        Field("d_model", "n_embd"),
        Field("encoder_layers", "n_encoder_layer"),
        Field("decoder_layers", "n_decoder_layer"),
        Field("encoder_attention_heads", "n_head"),
        Field("encoder_ffn_dim", "d_ff"),
        Field("activation_function", "activation", "gelu", PLAIN),
        Field("scale_embedding", "scale_embedding", False),
        Field("dropout", "embedding_dropout", 0.1),
        Field("dropout", "residual_dropout", 0.1),
        Field("attention_dropout", "attention_dropout", 0.0),
    ),
    constants={"is_encoder_decoder": True, "tie_word_embeddings": True},
    requires=(
        *(PLACES, LAYERNORM, POST_NORM, HAS_EMBEDDING_NORM),
        only("norm_eps", "1e-05", "because its norms have no other epsilon"),
        only("tie_weights", "true", "because its output head has the embedding's weights"),
        only("tie_scale", "false", "because it does not scale logits"),
        only("parametrization", "standard", "because it does not scale logits"),
        SHARED,
        *(NO_GATE, HEADS_FILL, ALL_KEYS, NO_TYPES),
    ),
    beside=(r"model\.(en|de)coder\.embed_tokens\.weight",),
    link=_link_bart,
    computed=lambda shape, config: {
        "decoder_attention_heads": shape.n_head,
        "decoder_ffn_dim": shape.d_ff,
        "forced_eos_token_id": None,
    },
    inferred=_inferred_for_bart,
    allow=("head_bias",),
    head_bias="final_logits_bias",
)
