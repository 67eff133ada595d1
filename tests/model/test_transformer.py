"""How the stack starts, and what padding, targets and scales do to it."""

import pytest
import torch
from model.cases import batch_of, losses_and_gradients, rows_of, shape_of
from torch import nn
from torch.nn import functional as F

from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer


def test_a_sequence_of_padding_alone_is_finite():
    shape = shape_of(family="encoder_decoder", attention="local", attention_window=2)
    model = Transformer(shape)
    batch = batch_of(shape, 2)
    batch.source_lengths[0, 0] = 0
    losses, gradients = losses_and_gradients(model, rows_of(model, 2), batch)
    assert losses.isfinite().all() and gradients.isfinite().all()


def test_targets_that_do_not_count_are_left_out():
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
def test_label_smoothing_is_torchs_with_each_runs_share(dense):
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


QKV, OUT, UP, DOWN = (
    f"blocks.3.{part}.weight"
    for part in ("attention.qkv", "attention.out", "feed_forward.up", "feed_forward.down")
)
# Standard deviations of a model of width 128 with 500 tokens, and 8 projections into the residual stream.
STARTS = {
    "normal": {QKV: 0.02, OUT: 0.02 / 8**0.5, DOWN: 0.02 / 8**0.5, "token_embedding": 0.02},
    "bert": {QKV: 0.02, OUT: 0.02, DOWN: 0.02, "token_embedding": 0.02},
    "t5": {
        QKV: 128**-0.5,
        OUT: 128**-0.5,
        DOWN: 512**-0.5,
        "token_embedding": 1.0,
        "relative_bias": 128**-0.5,
    },
    "xavier": {
        QKV: (2 / 256) ** 0.5,
        UP: (2 / 640) ** 0.5,
        "token_embedding": (2 / 628) ** 0.5,
    },
}


@pytest.mark.parametrize("init", STARTS)
def test_weights_start_as_published(init):
    shape = ModelShape(
        vocab_size=500,
        block_size=64,
        n_layer=4,
        n_head=4,
        n_embd=128,
        init=init,
        positions="relative",
    )
    layout = Layout(shape)
    weights = layout.views(torch.stack([layout.initial_row(seed) for seed in range(4)]))
    for name, expected in STARTS[init].items():
        assert weights[name].std().item() == pytest.approx(
            expected, rel=0.1 if name == "relative_bias" else 0.02
        ), name
        if init == "xavier":
            assert weights[name].abs().max().item() == pytest.approx(
                expected * 3**0.5, rel=0.01
            )
    assert all((each == 1).all() for name, each in weights.items() if name.endswith("gain"))


def test_torchs_start_is_that_of_its_own_layers():
    layout = Layout(ModelShape(
        vocab_size=300, n_embd=60, n_head=4, n_layer=1, block_size=64, d_ff=100, init="torch", tie_weights=False,
        head_bias=True,
    ))  # fmt: skip
    runs = layout.views(torch.stack([layout.initial_row(seed) for seed in range(40)]))
    modules = {
        "token_embedding": nn.Embedding(300, 60),
        "position_embedding": nn.Embedding(64, 60),
    }
    modules |= {"blocks.0.attention.qkv": nn.Linear(60, 180), "head": nn.Linear(60, 300)}
    modules |= {"blocks.0.feed_forward.down": nn.Linear(100, 60)}
    for name, module in modules.items():
        for part, theirs in module.named_parameters():
            own = runs.get(f"{name}.{part}", runs.get(name))
            assert own.std().item() == pytest.approx(theirs.std().item(), rel=0.15), (
                name,
                part,
            )
            if isinstance(module, nn.Linear):
                assert own.abs().max().item() == pytest.approx(
                    module.in_features**-0.5, rel=0.01
                )
