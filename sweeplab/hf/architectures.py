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
from sweeplab.hf import mapping
from sweeplab.hf.encoder_decoders import BART, T5
from sweeplab.hf.mapping import Architecture, Field, Links, Values, nothing, only
from sweeplab.model.shape import ModelShape, requirement

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
    head="lm_head.weight",
    prefix="transformer.",
    transposed=False,
    fixed={"family": "decoder", "positions": "learned", "norm": "layernorm"},
    fields=(
        Field("vocab_size", "vocab_size", 50257),
        Field("n_positions", "block_size", 1024),
        Field("n_embd", "n_embd", 768),
        Field("n_layer", "n_layer", 12),
        Field("n_head", "n_head", 12),
        Field("n_inner", "d_ff"),
        Field("activation_function", "activation", "gelu_new", mapping.PLAIN),
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
        *(mapping.PLACES, mapping.LAYERNORM, mapping.PRE_NORM, mapping.NO_GATE),
        *(mapping.HEADS_FILL, mapping.ALL_KEYS, mapping.NO_TYPES, mapping.NO_EMBEDDING_NORM),
    ),
    beside=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
    link=_link_gpt2,
)

# ------------------------------------------------------------------ Llama


def _computed_for_llama(shape: ModelShape) -> dict[str, Any]:
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rotary_base},
        "rope_theta": shape.rotary_base,  # read by releases before 5
        "attention_bias": shape.has_qkv_bias or shape.has_out_bias,
        "mlp_bias": shape.bias,
    }


def _inferred_for_llama(config: Values) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise BadInput(Problem(f"config.json has rotary positions of the type {kind!r}", "default"))
    attention = bool(config.get("attention_bias", False))
    return {
        "rotary_base": rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
        "bias": attention or bool(config.get("mlp_bias", False)),
        "qkv_bias": attention,
        "out_bias": attention,
        "embedding_dropout": 0.0,
        "residual_dropout": 0.0,
    }


def _link_llama(links: Links, config: Values) -> None:
    links.embeddings(("final_norm", "model.norm"))
    attention, feed_forward = config.get("attention_bias", False), config.get("mlp_bias", False)
    for layer in range(links.shape.n_layer):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        heads = (f"{theirs}.self_attn.{part}_proj" for part in "qkv")
        links.norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm")
        links.linear(f"{ours}.attention.qkv", *heads, columns=links.heads(), biased=attention)
        links.linear(f"{ours}.attention.out", f"{theirs}.self_attn.o_proj", biased=attention)
        links.norm(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm")
        if links.shape.n_expert > 1:
            _link_experts(links, f"{ours}.feed_forward", f"{theirs}.block_sparse_moe")
            continue
        for part in ("up", "gate", "down"):
            links.linear(f"{ours}.feed_forward.{part}", f"{theirs}.mlp.{part}_proj", biased=feed_forward)


def _link_experts(links: Links, ours: str, theirs: str) -> None:
    """Link Mixtral's router and experts, whose tensors are named in its files as they were published."""
    links.linear(f"{ours}.router", f"{theirs}.gate")
    for part, number in (("gate", 1), ("up", 3), ("down", 2)):
        experts = range(links.shape.n_expert)
        links.experts(f"{ours}.{part}", [f"{theirs}.experts.{expert}.w{number}" for expert in experts])


LLAMA = Architecture(
    model_type="llama",
    class_name="LlamaForCausalLM",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    prefix="model.",
    biased=False,
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
        Field("hidden_act", "activation", "silu", mapping.GATES),
        Field("rms_norm_eps", "norm_eps", 1e-6),
        Field("tie_word_embeddings", "tie_weights", False),
        Field("attention_dropout", "attention_dropout", 0.0),
    ),
    requires=(
        only("positions", "rotary", "because it rotates queries and keys"),
        *(mapping.RMSNORM, mapping.PRE_NORM),
        only(
            "activation", " ".join(dict.fromkeys(mapping.GATES.values())), "because its feed-forward is gated"
        ),
        requirement(
            "n_head that divides n_embd, as the class requires",
            "n_head",
            lambda shape: shape.n_embd % shape.n_head == 0,
        ),
        *(mapping.NO_TYPES, mapping.NO_EMBEDDING_NORM),
    ),
    beside=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    link=_link_llama,
    computed=_computed_for_llama,
    inferred=_inferred_for_llama,
)

# ------------------------------------------------------------------ Mistral


def _computed_for_mistral(shape: ModelShape) -> dict[str, Any]:
    rotary = {key: value for key, value in _computed_for_llama(shape).items() if "rope" in key}
    return rotary | {"sliding_window": shape.attention_window if shape.attention == "local" else None}


def _inferred_for_mistral(config: Values) -> dict[str, Any]:
    window = config.get("sliding_window", 4096)
    local = {} if window is None else {"attention": "local", "attention_window": window}
    return {**_inferred_for_llama(config), **local, "bias": False}


MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    class_name="MistralForCausalLM",
    fields=[
        replace(row, default={"num_key_value_heads": 8, "intermediate_size": 14336}.get(row.key, row.default))
        for row in LLAMA.fields
    ],
    requires=(*LLAMA.requires, only("bias", "false", "because its linear layers have no biases")),
    attention="full local",
    computed=_computed_for_mistral,
    inferred=_inferred_for_mistral,
)

# ------------------------------------------------------------------ Mixtral


_OF_MIXTRAL = {"max_position_embeddings": 2**17, "rms_norm_eps": 1e-5}
MIXTRAL = replace(
    MISTRAL,
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    fields=[
        *(replace(row, default=_OF_MIXTRAL.get(row.key, row.default)) for row in MISTRAL.fields),
        Field("num_local_experts", "n_expert", 8),
        Field("num_experts_per_tok", "n_expert_active", 2),
    ],
    requires=(
        *MISTRAL.requires,
        requirement(
            "n_expert_active at least 2, because it scales the shares of the chosen experts to sum to one",
            "n_expert_active",
            lambda shape: shape.n_expert_active > 1,
        ),
    ),
    allow=("n_expert",),
    inferred=lambda config: _inferred_for_mistral({"sliding_window": None, "rope_theta": 1e6, **config}),
)

# ------------------------------------------------------------------ BERT


def _inferred_for_bert(config: Values) -> dict[str, Any]:
    return {
        "n_token_types": config.get("type_vocab_size", 2),
        "embedding_dropout": config.get("hidden_dropout_prob", 0.1),
    }


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
    decoder_bias: str
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
        copies = () if shape.tie_weights or self.decoder_bias == self.bias else (self.decoder_bias,)
        links.bias("head.bias", self.bias, *copies)


_BERT_BLOCK: dict[str, Any] = {
    "heads": [f"attention.self.{part}" for part in ("query", "key", "value")],
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
_BERT = _Encoder(
    embeddings="bert.embeddings",
    block="bert.encoder.layer",
    transform="cls.predictions.transform.dense",
    head_norm="cls.predictions.transform.LayerNorm",
    bias="cls.predictions.bias",
    decoder_bias="cls.predictions.decoder.bias",
    **_BERT_BLOCK,
)
_ROBERTA = _Encoder(
    embeddings="roberta.embeddings",
    block="roberta.encoder.layer",
    transform="lm_head.dense",
    head_norm="lm_head.layer_norm",
    bias="lm_head.bias",
    decoder_bias="lm_head.decoder.bias",
    offset=lambda config: _places_before(config),
    **_BERT_BLOCK,
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
    decoder_bias="vocab_projector.bias",
    has_types=False,
)


def _places_before(config: Values) -> int:
    """Return the rows before that of the first position: those up to the padding token's number."""
    pad = config.get("pad_token_id", 1)
    if pad is None:
        return 0
    return int(pad) + 1


BERT = Architecture(
    model_type="bert",
    class_name="BertForMaskedLM",
    embedding="bert.embeddings.word_embeddings.weight",
    head="cls.predictions.decoder.weight",
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
        Field("hidden_act", "activation", "gelu", mapping.PLAIN),
        Field("layer_norm_eps", "norm_eps", 1e-12),
        Field("tie_word_embeddings", "tie_weights", True),
        Field("hidden_dropout_prob", "residual_dropout", 0.1),
        Field("attention_probs_dropout_prob", "attention_dropout", 0.1),
    ),
    constants={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
    requires=(
        *(mapping.PLACES, mapping.LAYERNORM),
        *(mapping.POST_NORM, mapping.HAS_EMBEDDING_NORM),
        *(mapping.NO_GATE, mapping.HEADS_FILL, mapping.ALL_KEYS),
    ),
    beside=(
        r"bert\.pooler\..*",
        r"cls\.seq_relationship\..*",
        r"bert\.embeddings\.position_ids",
        r"cls\.predictions\.decoder\.bias",
    ),
    link=_BERT.link,
    computed=lambda shape: {"type_vocab_size": max(shape.n_token_types, 1)},
    inferred=_inferred_for_bert,
)

ROBERTA = replace(
    BERT,
    model_type="roberta",
    class_name="RobertaForMaskedLM",
    embedding="roberta.embeddings.word_embeddings.weight",
    head="lm_head.decoder.weight",
    prefix="roberta.",
    # The head has a GELU, whatever the blocks have; max_position_embeddings counts the rows before the first position.
    fields=[
        replace(
            row, default={"vocab_size": 50265}.get(row.key, row.default), words=row.words and {"gelu": "gelu"}
        )
        for row in BERT.fields
        if row.key != "max_position_embeddings"
    ],
    constants={"is_decoder": False, "add_cross_attention": False},
    beside=(r"roberta\.pooler\..*", r"roberta\.embeddings\.position_ids", r"lm_head\.decoder\.bias"),
    link=_ROBERTA.link,
    inferred=lambda config: {
        **_inferred_for_bert(config),
        "block_size": config.get("max_position_embeddings", 512) - _places_before(config),
    },
)
DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    class_name="DistilBertForMaskedLM",
    embedding="distilbert.embeddings.word_embeddings.weight",
    head="vocab_projector.weight",
    prefix="distilbert.",
    fixed={**BERT.fixed, "norm_eps": 1e-12, "n_token_types": 0},
    fields=(
        Field("vocab_size", "vocab_size", 30522),
        Field("max_position_embeddings", "block_size", 512),
        Field("dim", "n_embd", 768),
        Field("n_layers", "n_layer", 6),
        Field("n_heads", "n_head", 12),
        Field("hidden_dim", "d_ff", 3072),
        Field("activation", "activation", "gelu", mapping.PLAIN),
        Field("tie_word_embeddings", "tie_weights", True),
        Field("dropout", "residual_dropout", 0.1),
        Field("attention_dropout", "attention_dropout", 0.1),
    ),
    constants={},
    beside=(r"distilbert\.embeddings\.position_ids",),
    link=_DISTILBERT.link,
    computed=nothing,
    inferred=lambda config: {"embedding_dropout": config.get("dropout", 0.1)},
)

ARCHITECTURES: dict[str, Architecture] = {
    kind.model_type: kind for kind in (GPT2, LLAMA, MISTRAL, MIXTRAL, BERT, ROBERTA, DISTILBERT, T5, BART)
}
