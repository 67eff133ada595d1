"""How the stack starts, and what padding, targets and scales do to it."""

import math

import pytest
import torch
from model.cases import batch_of, losses_and_gradients, rows_of, shape_of
from torch import nn
from torch.nn import functional as F

from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer


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
    table, bound = weights["token_embedding"], math.sqrt(6 / (500 + 128))
    assert 0.99 * bound < table.abs().max().item() <= bound
    assert table.std().item() == pytest.approx(math.sqrt(2 / (500 + 128)), rel=0.02)


def test_bert_starts_every_matrix_alike_and_gpt2_those_into_the_residual_stream_smaller() -> None:
    for init, expected in (("bert", 0.02), ("normal", 0.02 / math.sqrt(4))):
        shape = ModelShape(vocab_size=500, block_size=64, n_layer=2, n_head=4, n_embd=128, init=init)
        layout = Transformer(shape).layout
        weights = {name: view[0] for name, view in layout.views(layout.initial_row(3)[None]).items()}
        for part in ("attention.out", "feed_forward.down"):
            assert weights[f"blocks.1.{part}.weight"].std().item() == pytest.approx(expected, rel=0.03)
        for name in ("token_embedding", "blocks.0.feed_forward.up.weight", "blocks.1.attention.qkv.weight"):
            assert weights[name].std().item() == pytest.approx(0.02, rel=0.03)


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


@pytest.mark.parametrize("tie_weights", [True, False])
def test_weights_start_as_torchs_own(tie_weights: bool) -> None:
    """Within a tenth of torch's deviations and bounds, over thousands of numbers each."""
    sizes = {"vocab_size": 300, "n_embd": 60, "n_head": 4, "n_layer": 1, "block_size": 64, "d_ff": 100}
    shape = ModelShape(**sizes, init="torch", tie_weights=tie_weights, head_bias=True)
    layout = Layout(shape)
    runs = layout.views(torch.stack([layout.initial_row(seed) for seed in range(40)]))
    modules = {
        "token_embedding": (nn.Embedding, 300, 60), "position_embedding": (nn.Embedding, 64, 60),
        "blocks.0.attention.qkv": (nn.Linear, 60, 180), "blocks.0.attention.out": (nn.Linear, 60, 60),
        "blocks.0.feed_forward.up": (nn.Linear, 60, 100), "blocks.0.feed_forward.down": (nn.Linear, 100, 60),
        "head": (nn.Linear, 60, 300),
    }  # fmt: skip
    seen = set()
    for name, (kind, n_in, n_out) in modules.items():
        drawn = [dict(kind(n_in, n_out).named_parameters()) for _ in range(40)]
        for part in drawn[0]:
            own = runs.get(f"{name}.{part}", runs.get(name))
            if own is None:  # a tied head has the embedding's
                continue
            seen.add(name)
            theirs = torch.stack([each[part] for each in drawn])
            assert own.std().item() == pytest.approx(theirs.std().item(), rel=0.05), (name, part)
            if kind is nn.Linear:
                assert own.abs().max().item() == pytest.approx(n_in**-0.5, rel=0.01)
    assert seen == set(modules)


def test_router_losses_are_each_runs_own_and_only_training_has_them() -> None:
    model = Transformer(shape_of(n_expert=3, n_layer=2))
    rows, batch = rows_of(model, 2), batch_of(model.shape, 2)
    views = model.layout.views(rows)
    plain = model.losses(views, batch)
    routings = model.routings(views, batch)
    assert len(routings) == 2
    weighed = model.losses(views, batch, router=(torch.tensor([0.5, 0.0]), torch.tensor([0.0, 0.25])))
    balance, z = sum(each.balance for each in routings), sum(each.z for each in routings)
    torch.testing.assert_close(weighed - plain, torch.stack([0.5 * balance[0], 0.25 * z[1]]))
