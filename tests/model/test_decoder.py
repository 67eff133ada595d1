"""The stack against a plain torch module, and its runs against each other."""

from __future__ import annotations

import itertools

import pytest
import torch
from references.plain_gpt import PlainGPT

from sweeplab.data.batches import Batch
from sweeplab.model.decoder import Decoder
from sweeplab.model.shape import ModelShape

SHAPES = [
    ModelShape(
        33, 12, 2, 3, 24, **dict(zip(("bias", "tie_weights", "activation", "head_bias"), each, strict=True))
    )
    for each in itertools.product((True, False), (True, False), ("gelu", "relu"), (True, False))
]


def rows_of(decoder: Decoder, n_runs: int) -> torch.Tensor:
    """Initial rows with every weight moved off its start, so that no gain is 1 and no bias 0."""
    rows = torch.stack([decoder.layout.initial_row(seed) for seed in range(n_runs)])
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(9)) * 0.05
    noise[:, decoder.layout.n_params :] = 0
    return rows + noise


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_a_plain_module_in_loss_and_gradient(shape: ModelShape) -> None:
    decoder = Decoder(shape)
    rows = rows_of(decoder, 3).double()
    tokens = torch.randint(0, 33, (3, 4, 13), generator=torch.Generator().manual_seed(1))
    views = {name: view.requires_grad_() for name, view in decoder.layout.views(rows).items()}
    losses = decoder.losses(views, Batch(tokens[:, :, :-1], tokens[:, :, 1:]))
    gradients = dict(zip(views, torch.autograd.grad(losses.sum(), list(views.values())), strict=True))
    for run in range(3):
        plain = PlainGPT(shape).double()
        plain.take({name: view[run] for name, view in views.items()})
        loss = plain.loss(tokens[run])
        loss.backward()
        # The stack takes its loss in single precision, whatever its weights are.
        torch.testing.assert_close(losses[run].double(), loss, rtol=1e-6, atol=1e-6)
        theirs = PlainGPT(shape).double()
        theirs.take({name: view[run] for name, view in gradients.items()})
        for (name, parameter), expected in zip(plain.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.data, rtol=1e-4, atol=1e-6, msg=name)


def test_initialisation_is_gpt2s() -> None:
    shape = ModelShape(vocab_size=500, block_size=64, n_layer=8, n_head=4, n_embd=128)
    decoder = Decoder(shape)
    weights = {
        name: view[0] for name, view in decoder.layout.views(decoder.layout.initial_row(3)[None]).items()
    }
    assert weights["token_embedding"].std().item() == pytest.approx(0.02, rel=0.02)
    assert weights["blocks.3.attention.qkv.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert weights["blocks.3.attention.out.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert weights["blocks.3.feed_forward.down.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert (weights["final_norm.gain"] == 1).all()
    assert (weights["blocks.0.feed_forward.up.bias"] == 0).all()


def test_no_position_sees_the_future() -> None:
    decoder = Decoder(SHAPES[0])
    rows = rows_of(decoder, 1)
    tokens = torch.randint(0, 33, (1, 1, 12), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[0, 0, 7] = (changed[0, 0, 7] + 1) % 33
    before, after = (
        decoder.logits(decoder.layout.views(rows), Batch(tokens, tokens))[0],
        decoder.logits(decoder.layout.views(rows), Batch(changed, changed))[0],
    )
    assert torch.equal(before[:7], after[:7])
    assert not torch.equal(before[7:], after[7:])


def test_a_short_sequence_needs_no_padding() -> None:
    decoder = Decoder(SHAPES[0])
    rows = rows_of(decoder, 2)
    tokens = torch.randint(0, 33, (2, 3, 12), generator=torch.Generator().manual_seed(2))
    whole = decoder.logits(decoder.layout.views(rows), Batch(tokens, tokens)).view(2, 3, 12, -1)
    begun = tokens[:, :, :5]
    short = decoder.logits(decoder.layout.views(rows), Batch(begun, begun)).view(2, 3, 5, -1)
    torch.testing.assert_close(whole[:, :, :5], short)
