"""Small runs with weights large enough for every part to matter, and what they compute."""

import random

import torch
from model.cases import shape_of

from sweeplab.data.batches import Batch
from sweeplab.data.objectives import settled_objective
from sweeplab.data.tokenizers import ByteTokenizer
from sweeplab.hyperparameters import TABLE, Hyperparameters, defaults
from sweeplab.model.attention import why_not
from sweeplab.model.shape import settled
from sweeplab.model.transformer import Transformer
from sweeplab.tracking.models import LoadedRun, Model

VOCABULARY = 262
GPT2 = {"family": "decoder"}
LLAMA = {"family": "decoder", "positions": "rotary", "norm": "rmsnorm", "activation": "swiglu"}
BERT = {
    "family": "encoder",
    "norm_position": "post",
    "embedding_norm": True,
    "n_token_types": 2,
}
T5 = {
    "family": "encoder_decoder", "positions": "relative", "norm": "rmsnorm", "bias": False, "activation": "relu",
}  # fmt: skip
BART = {"family": "encoder_decoder", "norm_position": "post", "embedding_norm": True}
MIXTRAL = {**LLAMA, "bias": False, "n_expert": 3, "n_expert_active": 2}
NEOX = {"family": "decoder", "positions": "rotary"}
QWEN2 = {**LLAMA, "out_bias": False, "ff_bias": False}
QWEN3 = {**LLAMA, "bias": False, "qk_norm": True}
BASES = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "gpt_neox": NEOX,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "bert": BERT,
    "t5": T5,
    "bart": BART,
    "mixtral": MIXTRAL,
}
# What each may be otherwise, and is still what it is.
EXPRESSIBLE = (
    (GPT2, {}),
    (GPT2, {"bias": False, "tie_weights": False, "activation": "relu", "d_ff": 12}),
    (
        GPT2,
        {
            "positions": "none",
            "activation": "relu2",
            "parametrization": "mup",
            "mup_base_width": 2,
        },
    ),
    (LLAMA, {}),
    (
        LLAMA,
        {"n_kv_head": 1, "head_dim": 6, "bias": False, "rotary_base": 500.0, "norm_eps": 1e-3},
    ),
    # Mistral.
    (LLAMA, {"attention": "local", "attention_window": 3, "n_kv_head": 1, "bias": False}),
    (
        NEOX,
        {
            "parallel_block": True,
            "rotary_share": 0.5,
            "tie_weights": False,
            "activation": "relu",
        },
    ),
    (
        NEOX,
        {
            "parallel_block": True,
            "shared_norm": False,
            "ff_bias": False,
            "attention_scale": "n_embd",
        },
    ),
    (QWEN2, {"n_kv_head": 1, "tie_weights": False}),
    (QWEN3, {"n_kv_head": 1, "head_dim": 6, "attention_scale": "n_embd"}),
    (BERT, {}),
    (
        BERT,
        {
            "tie_weights": False,
            "n_token_types": 0,
            "activation": "relu2",
            "positions": "sinusoidal",
        },
    ),
    (T5, {"tie_scale": True, "head_dim": 5, "d_ff": 12}),
    (
        T5,
        {
            "activation": "geglu",
            "tie_weights": False,
            "n_encoder_layer": 1,
            "relative_buckets": 6,
        },
    ),
    (MIXTRAL, {"n_expert_active": 3, "tie_weights": False}),
    (
        MIXTRAL,
        {
            "attention": "local",
            "attention_window": 3,
            "n_kv_head": 1,
            "activation": "geglu_tanh",
        },
    ),
    (BART, {"head_bias": True, "scale_embedding": True}),
    (
        BART,
        {"bias": False, "activation": "relu", "positions": "sinusoidal", "n_encoder_layer": 1},
    ),
)


# What random models have besides: most of it, but not all, can be expressed somewhere.
CHANGES = {
    "positions": ("learned", "sinusoidal", "relative", "rotary", "alibi", "none"),
    "norm": ("layernorm", "rmsnorm"),
    "activation": TABLE["activation"].choices,
    "attention": ("full", "local"),
    "n_kv_head": (1,),
    "head_dim": (6,),
    "d_ff": (9,),
    "norm_eps": (0.01,),
    "bias": (True, False),
    "qkv_bias": (False,),
    "out_bias": (False,),
    "ff_bias": (False,),
    "qk_norm": (True,),
    "parallel_block": (True,),
    "shared_norm": (False,),
    "rotary_share": (0.5,),
    "head_bias": (True,),
    "final_norm": (True, False),
    "attention_scale": ("n_embd",),
    "tie_weights": (False,),
    "tie_scale": (True,),
    "scale_embedding": (True,),
    "n_token_types": (0, 3),
    "share_embeddings": (False,),
    "n_encoder_layer": (1,),
    "rotary_base": (100.0,),
    "relative_buckets": (8,),
    "n_expert": (2,),
}


def random_shapes(count, seed=0):
    """Yield legal models: those that a class is made for, with up to four things changed."""
    draw = random.Random(seed)
    while count:
        names = draw.sample(sorted(CHANGES), draw.randint(0, 4))
        shape = small(
            draw.choice(list(BASES.values())),
            **{name: draw.choice(CHANGES[name]) for name in names},
        )
        if why_not(shape) is None:
            count -= 1
            yield shape


def small(base, **changed):
    """Return the shape of a small model."""
    return shape_of(**{"vocab_size": VOCABULARY, "n_layer": 2, **base, **changed})


def run_of(shape, seed=0, tokenizer=None, **values):
    """Return a run with random weights."""
    model, generator = Transformer(shape), torch.Generator().manual_seed(seed)
    row = torch.randn(1, model.layout.row_size, generator=generator).mul_(0.4)
    views = model.layout.views(row)
    for weight in model.layout.weights:
        views[weight.name] += weight.fill
    known = Hyperparameters.of(settled({**defaults(), **vars(shape), **values}))
    known = known.replace(objective=settled_objective(known, "text"))
    weights = {name: view[0] for name, view in views.items()}
    return LoadedRun("planted", Model(known, weights), tokenizer or ByteTokenizer(), known, {})


def tokens_of(shape):
    """Return inputs, and a source where the family reads one."""
    generator, length = torch.Generator().manual_seed(7), min(shape.block_size, 12)
    inputs = torch.randint(0, shape.vocab_size, (2, length), generator=generator)
    source = torch.randint(0, shape.vocab_size, (2, length - 3), generator=generator)
    return inputs, source if shape.of_family.reads_source else None


@torch.no_grad()
def logits_of(run, inputs, source=None, **lengths):
    """Return logits [B, T, V]."""
    batch = Batch(inputs[None], inputs[None], None if source is None else source[None])
    batch = batch._replace(**{name: each[None] for name, each in lengths.items()})
    return run.model.transformer.logits(run.model.stacked, batch)[0].view(*inputs.shape, -1)
