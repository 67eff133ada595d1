"""Closed forms against the tensors themselves, torch's own counter, and published numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sweeplab.data.batches import Batch
from sweeplab.model.accounting import (
    forward_flops_per_token,
    n_params,
    n_params_non_embedding,
    parameters,
    train_flops_per_token,
)
from sweeplab.model.decoder import Decoder
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape

GPT2 = ModelShape(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768)
LECTURE = ModelShape(65, 32, 4, 4, 64, activation="relu", qkv_bias=False, head_bias=True, tie_weights=False)

shapes = st.builds(
    lambda width, heads, **rest: ModelShape(n_embd=width * heads, n_head=heads, **rest),
    width=st.integers(1, 8),
    heads=st.integers(1, 4),
    vocab_size=st.integers(2, 70),
    block_size=st.integers(1, 40),
    n_layer=st.integers(1, 4),
    bias=st.booleans(),
    qkv_bias=st.booleans(),
    head_bias=st.booleans(),
    tie_weights=st.booleans(),
)


def test_published_sizes() -> None:
    assert n_params(GPT2) == 124_439_808
    assert n_params(LECTURE) == 209_729
    assert n_params_non_embedding(GPT2) == 124_439_808 - 50257 * 768 - 1024 * 768


@given(shapes)
@settings(deadline=None)
def test_components_are_the_tensors(shape: ModelShape) -> None:
    sizes = {"attention": 0, "feed_forward": 0, "norms": 0, "head": 0}
    for weight in Layout(shape).weights:
        part = weight.name.split(".")
        component = part[2] if part[0] == "blocks" else part[0]
        component = "norms" if "norm" in component else component
        sizes[component] = sizes.get(component, 0) + weight.size
    assert sizes == parameters(shape)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n_runs", [1, 3])
def test_flops_are_what_torch_counts(bias: bool, tied: bool, n_runs: int) -> None:
    shape = ModelShape(40, block_size=16, n_layer=2, n_head=2, n_embd=24, tie_weights=tied, bias=bias)
    decoder = Decoder(shape)
    rows = torch.stack([decoder.layout.initial_row(seed) for seed in range(n_runs)])
    tokens = torch.zeros(n_runs, 5, 16, dtype=torch.long)
    batch = Batch(tokens, tokens)
    n_tokens = n_runs * 5 * 16
    # torch does not count the CPU's attention kernel; the plain products under it are the same ones.
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            decoder.losses(decoder.layout.views(rows), batch)
        leaves = {name: view.requires_grad_() for name, view in decoder.layout.views(rows).items()}
        with FlopCounterMode(display=False) as both:
            torch.autograd.grad(decoder.losses(leaves, batch).sum(), list(leaves.values()))
    # A norm's bias goes through the next product once a step, whatever the number of tokens.
    c = shape.n_embd
    shifts = n_runs * bias * 2 * c * (shape.n_layer * (3 * c + 4 * c) + shape.vocab_size)
    assert forward.get_total_flops() == n_tokens * forward_flops_per_token(shape) + shifts
    assert both.get_total_flops() == n_tokens * train_flops_per_token(shape) + 3 * shifts
