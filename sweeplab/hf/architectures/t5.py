"""T5: an encoder and a decoder with relative positions and rmsnorms, and without a bias anywhere.

Its attention does not divide scores by the root of head_dim: that goes into the queries' weights. Where the head has
the embeddings' weights its logits are multiplied by n_embd^-0.5, unless its config says that they are not.
"""

from __future__ import annotations

from typing import Any

import torch

from sweeplab.hf.architectures.base import (
    ALL_KEYS,
    GATES,
    NO_EMBEDDING_NORM,
    NO_TYPES,
    PLAIN,
    Architecture,
    Field,
    Links,
    Values,
    only,
)
from sweeplab.model.shape import ModelShape, Side

EMBEDDING, HEAD = "shared.weight", "lm_head.weight"

# A gated gelu is read as the approximation there: the exact one has to be called by its other name.
ACTS = PLAIN | {f"gated-{name}": ours for name, ours in GATES.items()} | {"gated-gelu": "geglu_tanh"}


def _told(shape: ModelShape) -> dict[str, Any]:
    found: dict[str, Any] = {
        "num_decoder_layers": shape.n_decoder_layer,
        "tie_word_embeddings": shape.tie_weights,
        "scale_decoder_outputs": shape.tie_weights,
    }
    if shape.positions == "none":  # of its table of zeros
        found |= {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
    return found


def _heard(config: Values) -> dict[str, Any]:
    n_layer, dropout = config.get("num_layers", 6), config.get("dropout_rate", 0.1)
    return {
        "n_layer": n_layer,
        "n_decoder_layer": config.get("num_decoder_layers") or n_layer,
        "embedding_dropout": dropout,
        "attention_dropout": dropout,
        "tie_scale": _scales(config),  # a head of its own tells by being there
    }


def _links(shape: ModelShape, config: Values) -> Links:
    found = Links(shape, biased=False)
    scale = shape.n_embd**-0.5 if _scales(config) else 1.0
    found.embeddings(EMBEDDING, HEAD, ("final_norm", "decoder.final_layer_norm"), scale)
    found.norm("encoder.final_norm", "encoder.final_layer_norm")
    for side, theirs in zip(shape.of_family.sides, ("encoder", "decoder"), strict=True):
        bias = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        if shape.positions == "relative":
            found.table(f"{side.prefix}relative_bias", bias)
        else:
            found.constant[bias] = torch.zeros(32, shape.n_head)
        for layer in range(shape.layers(side)):
            _block(found, side, f"{side.prefix}blocks.{layer}", f"{theirs}.block.{layer}.layer")
    return found


def _scales(config: Values) -> bool:
    """Say whether logits are multiplied by n_embd^-0.5: without a word of its own, where embeddings are tied."""
    return bool(config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False))


def _block(found: Links, side: Side, ours: str, theirs: str) -> None:
    """Link the sub-layers of a block, which theirs numbers."""
    queries, *keys = found.heads(found.shape.head_dim**-0.5)
    for index, part in enumerate(side.sub_layers):
        found.norm(f"{ours}.{part}_norm", f"{theirs}.{index}.layer_norm")
        if part == "attention":
            name = f"{theirs}.{index}.SelfAttention"
            heads = (f"{name}.{each}" for each in "qkv")
            found.linear(f"{ours}.attention.qkv", *heads, columns=[queries, *keys])
            found.linear(f"{ours}.attention.out", f"{name}.o")
        elif part == "cross":
            name = f"{theirs}.{index}.EncDecAttention"
            found.linear(f"{ours}.cross.q", f"{name}.q", columns=[queries])
            found.linear(f"{ours}.cross.kv", f"{name}.k", f"{name}.v", columns=keys)
            found.linear(f"{ours}.cross.out", f"{name}.o")
        else:
            name = f"{theirs}.{index}.DenseReluDense"
            if found.shape.is_gated:
                found.linear(f"{ours}.feed_forward.gate", f"{name}.wi_0")
                found.linear(f"{ours}.feed_forward.up", f"{name}.wi_1")
            else:
                found.linear(f"{ours}.feed_forward.up", f"{name}.wi")
            found.linear(f"{ours}.feed_forward.down", f"{name}.wo")


T5 = Architecture(
    model_type="t5",
    class_name="T5ForConditionalGeneration",
    embedding=EMBEDDING,
    head=HEAD,
    fixed={"family": "encoder_decoder", "positions": "relative", "norm": "rmsnorm", "bias": False},
    fields=(
        Field("vocab_size", "vocab_size", 32128),
        Field("n_positions", "block_size", 512),  # no limit there, and how long its texts were
        Field("d_model", "n_embd", 512),
        Field("d_kv", "head_dim", 64),
        Field("d_ff", "d_ff", 2048),
        Field("num_layers", "n_encoder_layer", 6),
        Field("num_heads", "n_head", 8),
        Field("relative_attention_num_buckets", "relative_buckets", 32),
        Field("relative_attention_max_distance", "relative_max_distance", 128),
        Field("feed_forward_proj", "activation", "relu", ACTS),
        Field("layer_norm_epsilon", "norm_eps", 1e-6),
        Field("dropout_rate", "residual_dropout", 0.1),
    ),
    constants={"is_encoder_decoder": True},
    requires=(
        only("family", "encoder_decoder", "for it finds one text from another"),
        only("positions", "relative none", "for it shifts scores by the distance"),
        only("norm", "rmsnorm", "for it has no other"),
        only("norm_position", "pre", "for norms come before its sub-layers"),
        only("bias", "false", "for it has none"),
        only("share_embeddings", "true", "for source and target share theirs"),
        ALL_KEYS,
        NO_TYPES,
        NO_EMBEDDING_NORM,
    ),
    beside=(
        r"(en|de)coder\.embed_tokens\.weight",
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
    links=_links,
    told=_told,
    heard=_heard,
)
