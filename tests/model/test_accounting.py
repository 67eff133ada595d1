"""Closed forms against the tensors themselves, torch's own counter, and published numbers."""

import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from model.cases import ATTENTION, LENGTH, SOURCE, batch_of, legal_shapes, rows_of, shape_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sweeplab.data.batches import Batch
from sweeplab.model.accounting import (
    EMBEDDINGS,
    activation_bytes,
    forward_flops,
    n_params,
    n_params_active,
    n_params_non_embedding,
    terms,
)
from sweeplab.model.layout import Layout
from sweeplab.model.shape import FAMILIES, ModelShape
from sweeplab.model.transformer import Transformer

GPT2 = ModelShape(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768)
LECTURE = ModelShape(
    vocab_size=65,
    block_size=32,
    n_layer=4,
    n_head=4,
    n_embd=64,
    activation="relu",
    qkv_bias=False,
    head_bias=True,
    tie_weights=False,
)
BERT = ModelShape(
    vocab_size=30522,
    block_size=512,
    n_layer=12,
    n_head=12,
    n_embd=768,
    family="encoder",
    norm_position="post",
    embedding_norm=True,
    n_token_types=2,
)
ORIGINAL = ModelShape(
    vocab_size=37_000, block_size=512, n_layer=6, n_head=8, n_embd=512,
    family="encoder_decoder", norm_position="post", positions="sinusoidal",
    activation="relu", qkv_bias=False, out_bias=False, scale_embedding=True, init="xavier",
)  # fmt: skip
T5 = ModelShape(
    vocab_size=32128, block_size=512, n_layer=6, n_head=8, n_embd=512,
    family="encoder_decoder", positions="relative", norm="rmsnorm", bias=False,
    activation="relu", head_dim=64, d_ff=2048, tie_scale=True,
)  # fmt: skip
PUBLISHED = {
    "gpt2": (GPT2, 124_439_808),
    "gpt2-xl": (
        ModelShape(vocab_size=50257, block_size=1024, n_layer=48, n_head=25, n_embd=1600),
        1_557_611_200,
    ),
    "bert-base": (BERT, 109_514_298),
    "original base": (ORIGINAL, 63_045_632),
    "t5-small": (T5, 60_506_624),
    "the lecture's": (LECTURE, 209_729),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    shape, expected = PUBLISHED[name]
    assert n_params(shape) == expected
    assert Layout(shape).n_params == expected


def test_published_sizes_without_embeddings():
    assert n_params_non_embedding(GPT2) == 124_439_808 - 50257 * 768 - 1024 * 768
    assert n_params_non_embedding(T5) == 60_506_624 - 32128 * 512


def test_the_lectures_table():
    shape = ModelShape(
        vocab_size=30_000,
        block_size=128,
        n_layer=1,
        n_head=8,
        n_embd=512,
        qkv_bias=False,
        out_bias=False,
    )
    found = {term.component: term.each for term in terms(shape)}
    assert found["token_embedding"] == 15_360_000
    assert found["attention"] == 1_048_576
    assert found["feed_forward"] == 2_099_712


def test_components_are_the_tensors_of_every_model():
    for shape in legal_shapes(activation="swiglu"):
        counted = Counter()
        for term in terms(shape):
            counted[term.component] += term.count
        assert sizes_by_component(shape) == counted, shape


def sizes_by_component(shape):
    sizes = Counter()
    for weight in Layout(shape).weights:
        sizes[component_of(weight.name)] += weight.size
    return sizes


def component_of(name):
    """Return where a weight is counted, by its name."""
    own, _, _ = name.removeprefix("encoder.").partition(".")
    if own in (*EMBEDDINGS, "relative_bias", "head"):
        return own
    if re.search(r"norm\.(gain|bias)$", name):
        return "norms"
    part = name.split("blocks.")[1].split(".")[1]
    return {"cross": "cross_attention"}.get(part, part)


def test_active_parameters_leave_out_idle_experts():
    dense, two_of_eight = (
        shape_of(bias=False),
        shape_of(bias=False, n_expert=8, n_expert_active=2),
    )
    expert = 2 * dense.n_embd * dense.d_ff
    router = dense.n_embd * 8
    assert n_params_active(dense) == n_params(dense)
    assert n_params(two_of_eight) == n_params(dense) + 7 * expert + router
    assert n_params_active(two_of_eight) == n_params(dense) + expert + router


VARIANTS = (
    {},
    {"positions": "alibi"},
    {"n_kv_head": 1, "qk_norm": True, "head_dim": 6},
    {"activation": "swiglu", "d_ff": 10, "parallel_block": True},
    {"n_expert": 3, "n_expert_active": 2, "activation": "geglu"},
    {"norm_position": "post", "attention_window": 20},
)


def norms_of_heads(shape):
    """Return the FLOPs of the norms of queries and keys, two products of nD by n heads: no part of a model's FLOPs."""
    if not shape.qk_norm:
        return 0

    def of_token(heads):
        return 2 * 2 * heads * heads * shape.head_dim

    flops = LENGTH * of_token(shape.n_head + shape.n_kv_head)
    if shape.family == "encoder_decoder":
        flops += SOURCE * of_token(shape.n_head + shape.n_kv_head)
        flops += LENGTH * of_token(shape.n_head) + SOURCE * of_token(shape.n_kv_head)
    return flops


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", FAMILIES)
def test_flops_of_every_kind_of_attention_are_what_torch_counts(family, attention):
    for variant in VARIANTS:
        parallel = family != "encoder_decoder" and variant.get("parallel_block", False)
        positions = variant.get("positions", "rotary")
        changed = {**variant, "parallel_block": parallel, "positions": positions, "bias": False}
        shape = shape_of(family=family, attention=attention, **changed)
        forward, both = counted(
            shape, batch_of(shape, 2)._replace(lengths=None, source_lengths=None), 2
        )
        flops, norms = forward_flops(shape, LENGTH, SOURCE), norms_of_heads(shape)
        assert forward == 2 * 2 * (flops + norms), shape
        assert both == 2 * 2 * (3 * flops + 2 * norms), shape


def counted(shape, batch, n_runs):
    """Return the FLOPs that torch counts forward, and forward and backward."""
    model = Transformer(shape)
    rows = torch.stack([model.layout.initial_row(seed) for seed in range(n_runs)])
    # torch does not count the CPU's attention kernel; the plain products under it are the same ones.
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            model.losses(model.layout.views(rows), batch)
        leaves = {
            name: view.requires_grad_() for name, view in model.layout.views(rows).items()
        }
        with FlopCounterMode(display=False) as both:
            torch.autograd.grad(model.losses(leaves, batch).sum(), list(leaves.values()))
    return forward.get_total_flops(), both.get_total_flops()


def kept_bytes(shape, batch):
    """Return the bytes that a forward pass keeps for the backward one, each piece of memory once; no weights."""
    model = Transformer(shape)
    leaves = {
        name: view.requires_grad_()
        for name, view in model.layout.views(rows_of(model, 1)).items()
    }
    weights = {leaf.untyped_storage().data_ptr() for leaf in leaves.values()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = model.losses(
            leaves, batch
        )  # lives on, and so does what it keeps: no memory is given out twice
    assert losses.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_what_a_pass_keeps(family, attention):
    """An estimate to choose K by: within a factor of two, and never far below."""
    sizes = {"n_embd": 64, "n_layer": 2, "vocab_size": 100, "bias": False}
    shape = shape_of(family=family, attention=attention, positions="none", **sizes)
    batch = batch_of(shape, 1, n_sequences=16)
    source = 0 if batch.source is None else SOURCE
    ratio = 16 * activation_bytes(shape, LENGTH, source) / kept_bytes(shape, batch)
    assert 0.8 < ratio < 2, ratio
    more = activation_bytes(replace(shape, vocab_size=200), LENGTH, source, 2)
    assert more - activation_bytes(shape, LENGTH, source, 2) == 2 * 3 * 100 * LENGTH


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n_runs", [1, 3])
def test_flops_are_what_torch_counts(bias, tied, n_runs):
    shape = ModelShape(
        vocab_size=40,
        block_size=16,
        n_layer=2,
        n_head=2,
        n_embd=24,
        tie_weights=tied,
        bias=bias,
    )
    tokens = torch.zeros(n_runs, 5, 16, dtype=torch.long)
    forward, both = counted(shape, Batch(tokens, tokens), n_runs)
    # A norm's bias goes through the next product once a step, whatever the number of tokens.
    c = shape.n_embd
    shifts = n_runs * bias * 2 * c * (shape.n_layer * (3 * c + 4 * c) + shape.vocab_size)
    assert forward == n_runs * 5 * forward_flops(shape, 16) + shifts
    assert both == 3 * forward
