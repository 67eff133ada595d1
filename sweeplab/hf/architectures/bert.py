"""BERT: an encoder with a table of positions, layernorms after its sub-layers, and a head that transforms first.

Biases that a run has not are zeros, and so is the type of its tokens where it has no types; sinusoidal positions, or
none, are a table like any other.
"""

from __future__ import annotations

from typing import Any

import torch

from sweeplab.hf.architectures.base import (
    ALL_KEYS,
    HEADS_FILL,
    PLAIN,
    Architecture,
    Field,
    Links,
    Values,
    only,
)
from sweeplab.model.shape import ModelShape

EMBEDDING, HEAD = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


def _told(shape: ModelShape) -> dict[str, Any]:
    return {"type_vocab_size": max(shape.n_token_types, 1)}


def _heard(config: Values) -> dict[str, Any]:
    return {
        "n_token_types": config.get("type_vocab_size", 2),
        "embedding_dropout": config.get("hidden_dropout_prob", 0.1),
    }


def _links(shape: ModelShape, config: Values) -> Links:
    found = Links(shape)
    embeddings, head = "bert.embeddings", "cls.predictions"
    last_norm = ("head.norm", f"{head}.transform.LayerNorm")
    found.embeddings(EMBEDDING, HEAD, last_norm)
    found.places(f"{embeddings}.position_embeddings.weight")
    types = f"{embeddings}.token_type_embeddings.weight"
    if shape.n_token_types:
        found.table("token_type_embedding", types)
    else:
        found.constant[types] = torch.zeros(1, shape.n_embd)
    found.norm("embedding_norm", f"{embeddings}.LayerNorm")
    for layer in range(shape.n_layer):
        ours, theirs = f"blocks.{layer}", f"bert.encoder.layer.{layer}"
        heads = (f"{theirs}.attention.self.{part}" for part in ("query", "key", "value"))
        found.linear(f"{ours}.attention.qkv", *heads, columns=found.heads())
        found.linear(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
        found.norm(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
        found.linear(f"{ours}.feed_forward.up", f"{theirs}.intermediate.dense")
        found.linear(f"{ours}.feed_forward.down", f"{theirs}.output.dense")
        found.norm(f"{ours}.feed_forward_norm", f"{theirs}.output.LayerNorm")
    found.linear("head.transform", f"{head}.transform.dense")
    # An untied decoder has a bias of its own, and the other one is left over.
    copies = () if shape.tie_weights else (f"{head}.decoder.bias",)
    found.bias("head.bias", f"{head}.bias", *copies)
    return found


BERT = Architecture(
    model_type="bert",
    class_name="BertForMaskedLM",
    embedding=EMBEDDING,
    head=HEAD,
    prefix="bert.",
    fixed={
        "family": "encoder",
        "positions": "learned",
        "norm": "layernorm",
        "norm_position": "post",
        "embedding_norm": True,
    },
    fields=(
        Field("vocab_size", "vocab_size", 30522),
        Field("max_position_embeddings", "block_size", 512),
        Field("hidden_size", "n_embd", 768),
        Field("num_hidden_layers", "n_layer", 12),
        Field("num_attention_heads", "n_head", 12),
        Field("intermediate_size", "d_ff", 3072),
        Field("hidden_act", "activation", "gelu", PLAIN),
        Field("layer_norm_eps", "norm_eps", 1e-12),
        Field("tie_word_embeddings", "tie_weights", True),
        Field("hidden_dropout_prob", "residual_dropout", 0.1),
        Field("attention_probs_dropout_prob", "attention_dropout", 0.1),
    ),
    constants={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
    requires=(
        only("family", "encoder", "for it finds what is masked"),
        only("positions", "learned sinusoidal none", "for it adds a table of positions to the embeddings"),
        only("norm", "layernorm", "for it has no other"),
        only("norm_position", "post", "for norms come after its sub-layers"),
        only("embedding_norm", "true", "for a norm follows its embeddings"),
        only("activation", " ".join(dict.fromkeys(PLAIN.values())), "for its feed-forward has no gate"),
        HEADS_FILL,
        ALL_KEYS,
    ),
    beside=(
        r"bert\.pooler\..*",
        r"cls\.seq_relationship\..*",
        r"bert\.embeddings\.position_ids",
        r"cls\.predictions\.decoder\.bias",
    ),
    links=_links,
    told=_told,
    heard=_heard,
)
