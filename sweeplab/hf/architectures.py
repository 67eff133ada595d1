"""The classes of `transformers` to which runs can be exported, and from which they can be imported, with their weights.

Weights that a run lacks, such as a bias or a token type, are written as zeros; sinusoidal positions, or none, are
written as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from sweeplab.errors import BadInput, Problem
from sweeplab.hf.encoder_decoders import BART, MT5, T5
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
    SIZES,
    Architecture,
    Field,
    Links,
    Values,
    nothing,
    only,
)
from sweeplab.model.shape import ModelShape, Requirement

# ------------------------------------------------------------------ GPT-2


def _link_gpt2(links: Links, config: Values) -> None:
    """Link the weights; as in ours, matrices are [in, out], and query, key and value are joined."""
    links.embeddings(("final_norm", "transformer.ln_f"))
    links.places("transformer.wpe.weight")
    for layer in range(links.shape.n_layer):
        ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        links.norm(f"{ours}.attention_norm", f"{theirs}.ln_1")
        links.linear(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", columns=links.heads())
        links.linear(f"{ours}.attention.out", f"{theirs}.attn.c_proj")
        links.norm(f"{ours}.feed_forward_norm", f"{theirs}.ln_2")
        links.linear(f"{ours}.feed_forward.up", f"{theirs}.mlp.c_fc")
        links.linear(f"{ours}.feed_forward.down", f"{theirs}.mlp.c_proj")


GPT2 = Architecture(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    embedding="transformer.wte.weight",
    transposed=False,
    fixed={"family": "decoder", "positions": "learned", "norm": "layernorm"},
    fields=(
        Field("vocab_size", "vocab_size"),
        Field("n_positions", "block_size"),
        Field("n_embd", "n_embd"),
        Field("n_layer", "n_layer"),
        Field("n_head", "n_head"),
        Field("n_inner", "d_ff", optional=True),
        Field("activation_function", "activation", "gelu_new", PLAIN),
        Field("layer_norm_epsilon", "norm_eps", 1e-5),
        Field("tie_word_embeddings", "tie_weights", True),
        Field("embd_pdrop", "embedding_dropout", 0.1),
        Field("attn_pdrop", "attention_dropout", 0.1),
        Field("resid_pdrop", "residual_dropout", 0.1),
    ),
    constants={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    requires=(
        *(PLACES, LAYERNORM, PRE_NORM, NO_GATE),
        *(HEADS_FILL, ALL_KEYS, NO_TYPES, NO_EMBEDDING_NORM),
    ),
    beside=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
    link=_link_gpt2,
)

# ------------------------------------------------------------------ Llama


def _rotary(shape: ModelShape) -> dict[str, Any]:
    return {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape.rotary_base,
            "partial_rotary_factor": shape.rotary_share,
        },
        "rope_theta": shape.rotary_base,  # read by releases before 5
    }


def _computed_for_llama(shape: ModelShape, config: Values) -> dict[str, Any]:
    attention_bias = shape.has_qkv_bias or shape.has_out_bias
    return _rotary(shape) | {"attention_bias": attention_bias, "mlp_bias": shape.has_ff_bias}


def _inferred_rotary(config: Values) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise BadInput(
            Problem(f"config.json has rotary positions of the type {kind!r}", "default")
        )
    return {
        "rotary_base": rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
        "rotary_share": rope.get("partial_rotary_factor", 1.0),
    }


def _inferred_for_llama(config: Values) -> dict[str, Any]:
    attention, feed_forward = config.get("attention_bias", False), config.get("mlp_bias", False)
    return {
        **_inferred_rotary(config),
        "bias": attention or feed_forward,
        "qkv_bias": attention,
        "out_bias": attention,
        "ff_bias": feed_forward,
        "embedding_dropout": 0.0,
        "residual_dropout": 0.0,
    }


def _link_llama(links: Links, config: Values) -> None:
    links.embeddings(("final_norm", "model.norm"))
    attention, feed_forward = config.get("attention_bias", False), config.get("mlp_bias", False)
    for layer in range(links.shape.n_layer):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        heads = (f"{theirs}.self_attn.{part}_proj" for part in "qkv")
        has_bias = attention or links.shape.has_qkv_bias
        links.norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm")
        links.linear(f"{ours}.attention.qkv", *heads, columns=links.heads(), biased=has_bias)
        links.linear(f"{ours}.attention.out", f"{theirs}.self_attn.o_proj", biased=attention)
        if links.shape.qk_norm:
            links.head_norms(f"{ours}.attention", f"{theirs}.self_attn")
        links.norm(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm")
        if links.shape.n_expert > 1:
            _link_experts(links, f"{ours}.feed_forward", f"{theirs}.block_sparse_moe")
            continue
        for part in ("up", "gate", "down"):
            links.linear(
                f"{ours}.feed_forward.{part}", f"{theirs}.mlp.{part}_proj", biased=feed_forward
            )


def _link_experts(links: Links, ours: str, theirs: str) -> None:
    """Link Mixtral's router and experts, whose tensors are named in its files as they were published."""
    links.linear(f"{ours}.router", f"{theirs}.gate")
    for part, number in (("gate", 1), ("up", 3), ("down", 2)):
        names = (
            f"{theirs}.experts.{expert}.w{number}" for expert in range(links.shape.n_expert)
        )
        links.linear(f"{ours}.{part}", *names, experts=True)


LLAMA = Architecture(
    model_type="llama",
    class_name="LlamaForCausalLM",
    embedding="model.embed_tokens.weight",
    biased=False,
    fixed={"family": "decoder", "positions": "rotary", "norm": "rmsnorm"},
    fields=(
        *SIZES,
        Field("num_key_value_heads", "n_kv_head", optional=True),
        Field("head_dim", "head_dim", optional=True),
        Field("hidden_act", "activation", "silu", GATES),
        Field("rms_norm_eps", "norm_eps", 1e-6),
        Field("tie_word_embeddings", "tie_weights", False),
        Field("attention_dropout", "attention_dropout", 0.0),
    ),
    requires=(
        only("positions", "rotary", "because it rotates queries and keys"),
        *(RMSNORM, PRE_NORM),
        only(
            "activation",
            " ".join(dict.fromkeys(GATES.values())),
            "because its feed-forward is gated",
        ),
        Requirement(
            "n_head that divides n_embd, as the class requires",
            "n_head",
            lambda shape: shape.n_embd % shape.n_head == 0,
        ),
        *(NO_TYPES, NO_EMBEDDING_NORM),
    ),
    beside=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    link=_link_llama,
    computed=_computed_for_llama,
    inferred=_inferred_for_llama,
)

# ------------------------------------------------------------------ Mistral


def _computed_for_mistral(shape: ModelShape, config: Values) -> dict[str, Any]:
    return _rotary(shape) | {
        "sliding_window": shape.attention_window if shape.attention == "local" else None
    }


def _inferred_for_mistral(config: Values) -> dict[str, Any]:
    window = config.get("sliding_window", 4096)
    local = {} if window is None else {"attention": "local", "attention_window": window}
    return {**_inferred_for_llama(config), **local, "bias": False}


MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    class_name="MistralForCausalLM",
    requires=(
        *LLAMA.requires,
        only("bias", "false", "because its linear layers have no biases"),
    ),
    attention="full local",
    computed=_computed_for_mistral,
    inferred=_inferred_for_mistral,
)

# ------------------------------------------------------------------ Mixtral


MIXTRAL = replace(
    MISTRAL,
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    fields=[
        *MISTRAL.fields,
        Field("num_local_experts", "n_expert"),
        Field("num_experts_per_tok", "n_expert_active"),
    ],
    requires=(
        *MISTRAL.requires,
        Requirement(
            "n_expert_active at least 2, because it scales the shares of the chosen experts to sum to one",
            "n_expert_active",
            lambda shape: shape.n_expert_active > 1,
        ),
    ),
    allow=("n_expert",),
    inferred=lambda config: _inferred_for_mistral(
        {"sliding_window": None, "rope_theta": 1e6, **config}
    ),
)

# ------------------------------------------------------------------ Qwen

QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    class_name="Qwen2ForCausalLM",
    constants={"use_sliding_window": False},
    requires=(
        *LLAMA.requires,
        Requirement(
            "biases of queries, keys and values alone, because it has no others",
            "qkv_bias out_bias ff_bias bias",
            lambda shape: shape.has_qkv_bias and not (shape.has_out_bias or shape.has_ff_bias),
        ),
    ),
    computed=lambda shape, config: _rotary(shape),
    inferred=lambda config: {
        **_inferred_for_llama(config),
        "bias": True,
        "qkv_bias": True,
        "out_bias": False,
        "ff_bias": False,
    },
)
QWEN3 = replace(
    LLAMA,
    model_type="qwen3",
    class_name="Qwen3ForCausalLM",
    fixed={**LLAMA.fixed, "qk_norm": True},
    constants={"use_sliding_window": False},
    requires=(
        *LLAMA.requires,
        only("qk_norm", "true", "because it normalizes queries and keys"),
        Requirement(
            "ff_bias false, because its feed-forward layers have no biases",
            "ff_bias bias",
            lambda shape: not shape.has_ff_bias,
        ),
    ),
    allow=("qk_norm",),
)

# ------------------------------------------------------------------ GPT-NeoX


def _computed_for_neox(shape: ModelShape, config: Values) -> dict[str, Any]:
    return {
        **_rotary(shape),
        "rotary_emb_base": shape.rotary_base,  # read, as is rotary_pct, by releases before 5
        "rotary_pct": shape.rotary_share,
        "attention_bias": shape.has_qkv_bias or shape.has_out_bias,
    }


def _inferred_for_neox(config: Values) -> dict[str, Any]:
    older = {
        "rope_theta": config.get("rotary_emb_base", 10_000.0),
        "partial_rotary_factor": config.get("rotary_pct", 0.25),
    }
    attention = config.get("attention_bias", True)
    return {
        **_inferred_rotary({"rope_parameters": older | (config.get("rope_parameters") or {})}),
        "qkv_bias": attention,
        "out_bias": attention,
    }


def _link_neox(links: Links, config: Values) -> None:
    """Link the weights; queries, keys and values are joined head by head."""
    links.embeddings(("final_norm", "gpt_neox.final_layer_norm"))
    attention = config.get("attention_bias", True)
    for layer in range(links.shape.n_layer):
        ours, theirs = f"blocks.{layer}", f"gpt_neox.layers.{layer}"
        links.norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm")
        joined = f"{theirs}.attention.query_key_value"
        links.linear(
            f"{ours}.attention.qkv",
            joined,
            columns=links.heads(),
            biased=attention,
            by_head=True,
        )
        links.linear(f"{ours}.attention.out", f"{theirs}.attention.dense", biased=attention)
        second = "attention_norm" if links.shape.shares_norm else "feed_forward_norm"
        links.norm(f"{ours}.{second}", f"{theirs}.post_attention_layernorm")
        links.linear(f"{ours}.feed_forward.up", f"{theirs}.mlp.dense_h_to_4h")
        links.linear(f"{ours}.feed_forward.down", f"{theirs}.mlp.dense_4h_to_h")


NEOX = Architecture(
    model_type="gpt_neox",
    class_name="GPTNeoXForCausalLM",
    embedding="gpt_neox.embed_in.weight",
    head="embed_out.weight",
    fixed={
        "family": "decoder",
        "positions": "rotary",
        "norm": "layernorm",
        "shared_norm": False,
    },
    fields=(
        *SIZES,
        Field("hidden_act", "activation", "gelu", PLAIN),
        Field("use_parallel_residual", "parallel_block", True),
        Field("layer_norm_eps", "norm_eps", 1e-5),
        Field("tie_word_embeddings", "tie_weights", False),
        Field("hidden_dropout", "embedding_dropout", 0.0),
        Field("hidden_dropout", "residual_dropout", 0.0),
        Field("attention_dropout", "attention_dropout", 0.0),
    ),
    requires=(
        only("positions", "rotary", "because it rotates queries and keys"),
        *(LAYERNORM, PRE_NORM, NO_GATE),
        *(HEADS_FILL, ALL_KEYS, NO_TYPES, NO_EMBEDDING_NORM),
    ),
    beside=(r"gpt_neox\.layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",),
    link=_link_neox,
    allow=("parallel_block", "rotary_share"),
    computed=_computed_for_neox,
    inferred=_inferred_for_neox,
)

# ------------------------------------------------------------------ BERT


def _computed_for_bert(shape: ModelShape, config: Values) -> dict[str, Any]:
    return {"type_vocab_size": max(shape.n_token_types, 1)}


def _places_before(config: Values) -> int:
    """Return the rows before that of the first position: those up to the padding token's number."""
    pad = config.get("pad_token_id", 1)
    if pad is None:
        return 0
    return int(pad) + 1


@dataclass(frozen=True)
class _Encoder:
    """The names of an encoder's tensors, those of a block after `block`; `offset`: rows before the first position."""

    embeddings: str
    block: str
    heads: Sequence[str]
    attention_out: str
    attention_norm: str
    up: str
    down: str
    feed_forward_norm: str
    transform: str
    head_norm: str
    bias: str
    decoder_bias: str = ""
    offset: Callable[[Values], int] = lambda _: 0
    has_types: bool = True

    def link(self, links: Links, config: Values) -> None:
        """Link the weights."""
        shape = links.shape
        links.embeddings(("head.norm", self.head_norm))
        links.places(f"{self.embeddings}.position_embeddings.weight", self.offset(config))
        types = f"{self.embeddings}.token_type_embeddings.weight"
        if shape.n_token_types:
            links.table("token_type_embedding", types)
        elif self.has_types:
            links.constant[types] = torch.zeros(1, shape.n_embd)
        links.norm("embedding_norm", f"{self.embeddings}.LayerNorm")
        for layer in range(shape.n_layer):
            ours, theirs = f"blocks.{layer}", f"{self.block}.{layer}"
            heads = (f"{theirs}.{head}" for head in self.heads)
            links.linear(f"{ours}.attention.qkv", *heads, columns=links.heads())
            links.linear(f"{ours}.attention.out", f"{theirs}.{self.attention_out}")
            links.norm(f"{ours}.attention_norm", f"{theirs}.{self.attention_norm}")
            links.linear(f"{ours}.feed_forward.up", f"{theirs}.{self.up}")
            links.linear(f"{ours}.feed_forward.down", f"{theirs}.{self.down}")
            links.norm(f"{ours}.feed_forward_norm", f"{theirs}.{self.feed_forward_norm}")
        links.linear("head.transform", self.transform)
        # An untied decoder has its own bias; the other one is unused.
        copies = () if shape.tie_weights or not self.decoder_bias else (self.decoder_bias,)
        links.bias("head.bias", self.bias, *copies)


_BERT = _Encoder(
    embeddings="bert.embeddings",
    block="bert.encoder.layer",
    transform="cls.predictions.transform.dense",
    head_norm="cls.predictions.transform.LayerNorm",
    bias="cls.predictions.bias",
    decoder_bias="cls.predictions.decoder.bias",
    heads=[f"attention.self.{part}" for part in ("query", "key", "value")],
    attention_out="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    feed_forward_norm="output.LayerNorm",
)
_ROBERTA = replace(
    _BERT,
    embeddings="roberta.embeddings",
    block="roberta.encoder.layer",
    transform="lm_head.dense",
    head_norm="lm_head.layer_norm",
    bias="lm_head.bias",
    decoder_bias="lm_head.decoder.bias",
    offset=_places_before,
)
_DISTILBERT = _Encoder(
    embeddings="distilbert.embeddings",
    block="distilbert.transformer.layer",
    heads=[f"attention.{part}_lin" for part in "qkv"],
    attention_out="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    feed_forward_norm="output_layer_norm",
    transform="vocab_transform",
    head_norm="vocab_layer_norm",
    bias="vocab_projector.bias",
    has_types=False,
)


BERT = Architecture(
    model_type="bert",
    class_name="BertForMaskedLM",
    embedding="bert.embeddings.word_embeddings.weight",
    head="cls.predictions.decoder.weight",
    fixed={
        "family": "encoder",
        "positions": "learned",
        "norm": "layernorm",
        "norm_position": "post",
        "embedding_norm": True,
    },
    fields=(
        *SIZES,
        Field("hidden_act", "activation", "gelu", PLAIN),
        Field("layer_norm_eps", "norm_eps", 1e-12),
        Field("tie_word_embeddings", "tie_weights", True),
        Field("type_vocab_size", "n_token_types", 2),
        Field("hidden_dropout_prob", "embedding_dropout", 0.1),
        Field("hidden_dropout_prob", "residual_dropout", 0.1),
        Field("attention_probs_dropout_prob", "attention_dropout", 0.1),
    ),
    constants={
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    },
    requires=(
        *(PLACES, LAYERNORM),
        *(POST_NORM, HAS_EMBEDDING_NORM),
        *(NO_GATE, HEADS_FILL, ALL_KEYS),
    ),
    beside=(
        r"bert\.pooler\..*",
        r"cls\.seq_relationship\..*",
        r"bert\.embeddings\.position_ids",
        r"cls\.predictions\.decoder\.bias",
    ),
    link=_BERT.link,
    computed=_computed_for_bert,
)

ROBERTA = replace(
    BERT,
    model_type="roberta",
    class_name="RobertaForMaskedLM",
    embedding="roberta.embeddings.word_embeddings.weight",
    head="lm_head.decoder.weight",
    # The head has a GELU, whatever the blocks have; max_position_embeddings counts the rows before the first position.
    fields=[
        replace(row, words=row.words and {"gelu": "gelu"})
        for row in BERT.fields
        if row.key != "max_position_embeddings"
    ],
    requires=(*BERT.requires, only("activation", "gelu", "because its head has a GELU")),
    beside=(
        r"roberta\.pooler\..*",
        r"roberta\.embeddings\.position_ids",
        r"lm_head\.decoder\.bias",
    ),
    link=_ROBERTA.link,
    computed=lambda shape, config: {
        **_computed_for_bert(shape, config),
        "max_position_embeddings": shape.block_size + _places_before(config),
    },
    inferred=lambda config: {
        "block_size": config["max_position_embeddings"] - _places_before(config),
    },
)
DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    class_name="DistilBertForMaskedLM",
    embedding="distilbert.embeddings.word_embeddings.weight",
    head="vocab_projector.weight",
    fixed={**BERT.fixed, "norm_eps": 1e-12, "n_token_types": 0},
    fields=(
        Field("vocab_size", "vocab_size"),
        Field("max_position_embeddings", "block_size"),
        Field("dim", "n_embd"),
        Field("n_layers", "n_layer"),
        Field("n_heads", "n_head"),
        Field("hidden_dim", "d_ff"),
        Field("activation", "activation", "gelu", PLAIN),
        Field("tie_word_embeddings", "tie_weights", True),
        Field("dropout", "embedding_dropout", 0.1),
        Field("dropout", "residual_dropout", 0.1),
        Field("attention_dropout", "attention_dropout", 0.1),
    ),
    constants={},
    requires=(
        *(*BERT.requires, NO_TYPES),
        only("norm_eps", "1e-12", "because its norms have no other epsilon"),
    ),
    beside=(r"distilbert\.embeddings\.position_ids",),
    link=_DISTILBERT.link,
    computed=nothing,
)

ARCHITECTURES: dict[str, Architecture] = {
    kind.model_type: kind
    for kind in (
        *(GPT2, QWEN2, LLAMA, MISTRAL, MIXTRAL, QWEN3, NEOX),
        *(BERT, ROBERTA, DISTILBERT, T5, MT5, BART),
    )
}
# Fields that no row of the table can hold, by model_type; and what they do.
WITHOUT_ROW = {
    "gemma2": ("attn_logit_softcapping", "caps attention scores"),
    "albert": ("num_hidden_groups", "makes blocks share their weights"),
    "marian": ("static_position_embeddings", "puts all sines of a position before its cosines"),
}
