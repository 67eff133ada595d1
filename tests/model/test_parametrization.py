"""muP's table, typed off: what a weight starts as and by how much its learning rate is scaled."""

import pytest
import torch

from sweeplab.data.batches import Batch
from sweeplab.model.attention import query_factor
from sweeplab.model.layout import Layout, Weight
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer
from sweeplab.train.optimizers import OPTIMIZERS, Rates


def shape(n_embd, **changed):
    given = {
        "parametrization": "mup",
        "mup_base_width": 32,
        "tie_weights": False,
        "head_bias": True,
    } | changed
    return ModelShape(vocab_size=50, block_size=16, n_layer=2, n_head=4, n_embd=n_embd, **given)


def weight(name, n_dims):
    return Weight(name, (8,) * n_dims)


@pytest.mark.parametrize(
    ("name", "n_dims", "expected"),
    [
        ("token_embedding", 2, "input"),
        ("encoder.position_embedding", 2, "input"),
        ("encoder.relative_bias", 2, "input"),
        ("embedding_norm.gain", 1, "vector"),
        ("blocks.0.attention.qkv.weight", 2, "hidden"),
        ("blocks.0.attention.qkv.bias", 1, "vector"),
        ("blocks.1.feed_forward.down.weight", 3, "hidden"),
        ("blocks.1.feed_forward.router.weight", 2, "router"),
        ("head.transform.weight", 2, "hidden"),
        ("head.weight", 2, "output"),
        ("head.bias", 1, "vector"),
    ],
)
def test_kinds(name, n_dims, expected):
    assert weight(name, n_dims).role == expected


# Of a weight at 4 times the base's width: initial deviation and learning rate (Yang, Hu et al. 2022, table 8).
@pytest.mark.parametrize(
    ("name", "n_dims", "std", "rate"),
    [
        ("token_embedding", 2, 1.0, 1.0),
        ("blocks.0.attention.out.weight", 2, 0.5, 0.25),
        ("blocks.0.attention.out.bias", 1, 1.0, 1.0),
        ("head.weight", 2, 1.0, 1.0),
        ("blocks.0.feed_forward.router.weight", 2, 0.25, 0.25),
    ],
)
def test_factors(name, n_dims, std, rate):
    assert weight(name, n_dims).width_factors(4.0) == (std, rate)
    assert weight(name, n_dims).width_factors(1.0) == (1.0, 1.0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("heads", [{}, {"head_dim": 16}])
def test_at_the_base_mup_is_the_standard_parametrization(tied, heads):
    own, standard = (
        shape(32, parametrization=each, tie_weights=tied, **heads)
        for each in ("mup", "standard")
    )
    row = Layout(standard).initial_row(1)
    assert torch.equal(row, Layout(own).initial_row(1))
    views = Layout(own).views(row[None])
    batch = Batch(torch.arange(24).view(1, 2, 12), None)
    assert torch.equal(
        Transformer(own).logits(views, batch), Transformer(standard).logits(views, batch)
    )


# Scores are divided by head_dim, times a constant, if the heads grow; a constant divides them if their number does.
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 0.5),
        ({"head_dim": 16}, 1.0),
        ({"head_dim": 16, "mup_base_head_dim": 4}, 0.5),
        ({"mup_base_width": 128}, 1.0),
    ],
)
def test_scores_are_those_of_the_base_head_over_the_ratio_of_heads(changed, expected):
    assert query_factor(shape(128, **changed)) == expected


def test_logits_are_divided_by_the_width_ratio_and_their_bias_is_not():
    layout = Layout(shape(128))
    views = layout.views(layout.initial_row(1)[None])
    views["head.bias"].normal_()
    batch = Batch(torch.arange(24).view(1, 2, 12), None)
    ours = Transformer(shape(128)).logits(views, batch)
    plain = dict(views) | {"head.weight": views["head.weight"] / 4.0}
    scaled = Transformer(shape(128, mup_base_width=128, mup_base_head_dim=8)).logits(
        plain, batch
    )
    torch.testing.assert_close(ours, scaled)
    assert ours.abs().mean() > 0.5  # the bias


@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_a_step_is_scaled_by_the_factor_and_decay_is_not(name):
    ends = {}
    for way in ("standard", "mup"):
        layout = Layout(shape(128, parametrization=way))
        optimizer = OPTIMIZERS[name](layout)
        weights = torch.randn(2, layout.row_size, generator=torch.Generator().manual_seed(0))
        begin = weights.clone()
        state = {key: torch.zeros(2, size) for key, size in optimizer.buffers().items()}
        slopes = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1))
        usual = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "momentum": 0.9, "step": 1}
        rates = [Rates.at(learning_rate=1e-2, weight_decay=0.5, **usual)] * 2
        optimizer.update_(
            weights, slopes, state, Rates(*torch.tensor(rates, dtype=torch.float64).unbind(1))
        )
        begin[:, : layout.n_decayed] *= 1 - 1e-2 * 0.5
        ends[way] = layout.views(weights - begin)
    for weight in layout.weights:
        _, factor = weight.width_factors(4.0)
        torch.testing.assert_close(
            ends["mup"][weight.name],
            ends["standard"][weight.name] * factor,
            atol=1e-6,
            rtol=1e-3,
        )
