"""GPT-2: a decoder with a table of positions, layernorms before its sub-layers, and biases everywhere.

Its matrices are [in, out] as ours, query, key and value joined as ours. Biases that a run has not are zeros, and
sinusoidal positions, or none, a table like any other.
"""

from __future__ import annotations

from sweeplab.hf.architectures.base import (
    ALL_KEYS,
    HEADS_FILL,
    NO_EMBEDDING_NORM,
    NO_TYPES,
    PLAIN,
    Architecture,
    Field,
    Links,
    Values,
    only,
)
from sweeplab.model.shape import ModelShape

EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


def _links(shape: ModelShape, config: Values) -> Links:
    found = Links(shape, transposed=False)
    found.embeddings(EMBEDDING, HEAD, ("final_norm", "transformer.ln_f"))
    found.places("transformer.wpe.weight")
    for layer in range(shape.n_layer):
        ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        found.norm(f"{ours}.attention_norm", f"{theirs}.ln_1")
        found.linear(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", columns=found.heads())
        found.linear(f"{ours}.attention.out", f"{theirs}.attn.c_proj")
        found.norm(f"{ours}.feed_forward_norm", f"{theirs}.ln_2")
        found.linear(f"{ours}.feed_forward.up", f"{theirs}.mlp.c_fc")
        found.linear(f"{ours}.feed_forward.down", f"{theirs}.mlp.c_proj")
    return found


GPT2 = Architecture(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    embedding=EMBEDDING,
    head=HEAD,
    prefix="transformer.",
    fixed={"family": "decoder", "positions": "learned", "norm": "layernorm"},
    fields=(
        Field("vocab_size", "vocab_size", 50257),
        Field("n_positions", "block_size", 1024),
        Field("n_embd", "n_embd", 768),
        Field("n_layer", "n_layer", 12),
        Field("n_head", "n_head", 12),
        Field("n_inner", "d_ff"),
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
        only("family", "decoder", "for it finds what follows"),
        only("positions", "learned sinusoidal none", "for it adds a table of positions to the embeddings"),
        only("norm", "layernorm", "for it has no other"),
        only("norm_position", "pre", "for norms come before its sub-layers"),
        only("activation", " ".join(dict.fromkeys(PLAIN.values())), "for its feed-forward has no gate"),
        HEADS_FILL,
        ALL_KEYS,
        NO_TYPES,
        NO_EMBEDDING_NORM,
    ),
    beside=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
    links=_links,
)
