"""The stack against a plain torch module, and its runs against each other."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from model.cases import batch_of, losses_and_gradients, rows_of, shape_of
from references.plain_gpt import PlainGPT
from torch.nn import functional as F

from sweeplab.data.batches import Batch
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer

SHAPES = [
    ModelShape(
        vocab_size=33,
        block_size=12,
        n_layer=2,
        n_head=3,
        n_embd=24,
        **dict(zip(("bias", "tie_weights", "activation", "head_bias"), each, strict=True)),
    )
    for each in itertools.product((True, False), (True, False), ("gelu", "relu"), (True, False))
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_a_plain_module_in_loss_and_gradient(shape: ModelShape) -> None:
    model = Transformer(shape)
    rows = rows_of(model, 3).double()
    tokens = torch.randint(0, 33, (3, 4, 13), generator=torch.Generator().manual_seed(1))
    views = {name: view.requires_grad_() for name, view in model.layout.views(rows).items()}
    losses = model.losses(views, Batch(tokens[:, :, :-1], tokens[:, :, 1:]))
    gradients = dict(zip(views, torch.autograd.grad(losses.sum(), list(views.values())), strict=True))
    for run in range(3):
        plain = PlainGPT(shape).double()
        plain.take({name: view[run] for name, view in views.items()})
        loss = plain.loss(tokens[run])
        loss.backward()
        torch.testing.assert_close(losses[run], loss, rtol=1e-12, atol=1e-12)
        theirs = PlainGPT(shape).double()
        theirs.take({name: view[run] for name, view in gradients.items()})
        for (name, parameter), expected in zip(plain.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.data, rtol=1e-10, atol=1e-12, msg=name)


def test_initialization_is_gpt2s() -> None:
    shape = ModelShape(vocab_size=500, block_size=64, n_layer=8, n_head=4, n_embd=128)
    model = Transformer(shape)
    weights = {name: view[0] for name, view in model.layout.views(model.layout.initial_row(3)[None]).items()}
    assert weights["token_embedding"].std().item() == pytest.approx(0.02, rel=0.02)
    assert weights["blocks.3.attention.qkv.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert weights["blocks.3.attention.out.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert weights["blocks.3.feed_forward.down.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert (weights["final_norm.gain"] == 1).all()
    assert (weights["blocks.0.feed_forward.up.bias"] == 0).all()


def test_no_position_sees_the_future() -> None:
    model = Transformer(SHAPES[0])
    rows = rows_of(model, 1)
    tokens = torch.randint(0, 33, (1, 1, 12), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[0, 0, 7] = (changed[0, 0, 7] + 1) % 33
    before, after = (
        model.logits(model.layout.views(rows), Batch(tokens, tokens))[0],
        model.logits(model.layout.views(rows), Batch(changed, changed))[0],
    )
    assert torch.equal(before[:7], after[:7])
    assert not torch.equal(before[7:], after[7:])


def test_a_short_sequence_needs_no_padding() -> None:
    model = Transformer(SHAPES[0])
    rows = rows_of(model, 2)
    tokens = torch.randint(0, 33, (2, 3, 12), generator=torch.Generator().manual_seed(2))
    whole = model.logits(model.layout.views(rows), Batch(tokens, tokens)).view(2, 3, 12, -1)
    short = model.logits(model.layout.views(rows), Batch(tokens[:, :, :5], tokens[:, :, :5])).view(
        2, 3, 5, -1
    )
    torch.testing.assert_close(whole[:, :, :5], short)


def test_xavier_is_glorots_of_each_matrix() -> None:
    shape = ModelShape(
        vocab_size=500, block_size=64, n_layer=2, n_head=4, n_embd=128, init="xavier", positions="none"
    )
    layout = Transformer(shape).layout
    weights = {name: view[0] for name, view in layout.views(layout.initial_row(3)[None]).items()}
    for name, n_out in (("attention.qkv", 128), ("attention.out", 128), ("feed_forward.up", 512)):
        matrix, bound = weights[f"blocks.1.{name}.weight"], math.sqrt(6 / (128 + n_out))
        assert 0.99 * bound < matrix.abs().max().item() <= bound
        assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert weights["token_embedding"].std().item() == pytest.approx(128**-0.5, rel=0.02)


def test_bert_starts_every_matrix_alike_and_gpt2_those_into_the_residual_stream_smaller() -> None:
    for init, expected in (("bert", 0.02), ("normal", 0.02 / math.sqrt(4))):
        shape = ModelShape(vocab_size=500, block_size=64, n_layer=2, n_head=4, n_embd=128, init=init)
        layout = Transformer(shape).layout
        weights = {name: view[0] for name, view in layout.views(layout.initial_row(3)[None]).items()}
        for part in ("attention.out", "feed_forward.down"):
            assert weights[f"blocks.1.{part}.weight"].std().item() == pytest.approx(expected, rel=0.03)
        for name in ("token_embedding", "blocks.0.feed_forward.up.weight", "blocks.1.attention.qkv.weight"):
            assert weights[name].std().item() == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder_decoder"])
@pytest.mark.parametrize("attention", ["full", "local", "strided", "linear"])
def test_what_padding_holds_changes_nothing(family: str, attention: str) -> None:
    shape = shape_of(family=family, attention=attention, n_layer=2, positions="rotary")
    model = Transformer(shape)
    rows, batch = rows_of(model, 2), batch_of(shape, 2)
    if family == "decoder":
        batch = batch._replace(lengths=torch.full((2, 2), 6))
        batch.targets[:, :, 6:] = -1
    padding = torch.arange(batch.inputs.shape[2]) >= batch.lengths[:, :, None]
    other = batch._replace(inputs=batch.inputs.where(~padding, 3))
    if batch.source is not None:
        padding = torch.arange(batch.source.shape[2]) >= batch.source_lengths[:, :, None]
        other = other._replace(source=batch.source.where(~padding, 5))
    losses = model.losses(model.layout.views(rows), batch)
    assert losses.isfinite().all()
    torch.testing.assert_close(model.losses(model.layout.views(rows), other), losses, rtol=1e-5, atol=1e-6)


def test_a_sequence_of_padding_alone_is_finite() -> None:
    shape = shape_of(family="encoder_decoder", attention="local", attention_window=2)
    model = Transformer(shape)
    batch = batch_of(shape, 2)
    batch.source_lengths[0, 0] = 0
    losses, gradients = losses_and_gradients(model, rows_of(model, 2), batch)
    assert losses.isfinite().all() and gradients.isfinite().all()


def test_targets_that_do_not_count_are_left_out() -> None:
    shape = shape_of()
    model = Transformer(shape)
    rows, batch = rows_of(model, 2), batch_of(shape, 2)
    batch.targets[0, :, 3:] = -1
    batch.targets[1] = -1
    losses = model.losses(model.layout.views(rows), batch)
    logits = model.logits(model.layout.views(rows), batch)[0]
    expected = F.cross_entropy(logits, batch.targets[0].flatten(), ignore_index=-1)
    torch.testing.assert_close(losses[0], expected)
    assert losses[1] == 0
    full = batch_of(shape, 2)
    views = model.layout.views(rows)
    assert torch.equal(model.losses(views, full), model.losses(views, full, dense=True))


@pytest.mark.parametrize("dense", [True, False])
def test_label_smoothing_is_torchs_with_each_runs_share(dense: bool) -> None:
    shape = shape_of()
    model = Transformer(shape)
    rows, batch = rows_of(model, 3), batch_of(shape, 3)
    if not dense:
        batch.targets[:, :, 4:] = -1
    shares = torch.tensor([0.0, 0.1, 0.4])
    views = model.layout.views(rows)
    losses = model.losses(views, batch, smoothing=shares, dense=dense)
    logits = model.logits(views, batch)
    for run, share in enumerate(shares.tolist()):
        flat = batch.targets[run].flatten()
        expected = F.cross_entropy(logits[run], flat, ignore_index=-1, label_smoothing=share)
        torch.testing.assert_close(losses[run], expected)


def test_a_tied_head_may_be_scaled() -> None:
    plain, scaled = Transformer(shape_of()), Transformer(shape_of(tie_scale=True))
    rows, batch = rows_of(plain, 1), batch_of(plain.shape, 1)
    expected = plain.logits(plain.layout.views(rows), batch) * 8**-0.5
    torch.testing.assert_close(scaled.logits(scaled.layout.views(rows), batch), expected)
