"""Each kind of attention against the whole square of weights with a mask."""

import math
from functools import partial

import pytest
import torch
from model.cases import batch_of, dropout_of, rows_of, shape_of

from sweeplab.errors import BadInput
from sweeplab.model.attention import ATTENTION, AttentionMask
from sweeplab.model.blocks import Site, element_hashes
from sweeplab.model.transformer import Transformer

VISIBLE = {
    "full": lambda distance, shape: distance == distance,
    "local": lambda distance, shape: distance.abs() < shape.attention_window,
}


def heads(length: int, width: int = 5) -> list[torch.Tensor]:
    """Queries, keys and values of 2 runs of 3 sequences and 2 heads."""
    generator = torch.Generator().manual_seed(length)
    size = (6, 2, length, width)
    return [torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def by_definition(q, k, v, attention, shape, causal, present, bias):
    length = q.shape[2]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    visible = VISIBLE[attention](distance, shape) & ((distance >= 0) if causal else True)
    visible = visible.expand(6, 1, length, length)
    if present is not None:
        visible = visible & present[:, None, None]
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias(distance).repeat_interleave(3, dim=0)
    return scores.masked_fill(~visible, -1e9).softmax(dim=-1) @ v


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize("length", [1, 3, 12, 13, 131])
@pytest.mark.parametrize("attention", ATTENTION)
def test_equals_its_definition_in_value_and_gradient(attention: str, length: int, causal: bool) -> None:
    shape = shape_of(attention_window=4)
    lengths = torch.tensor([1, 2, 5, 9, 12, 13]).clamp(max=length)
    table = torch.randn(2, 2, 2 * length + 1, dtype=torch.float64)

    def bias(distances: torch.Tensor) -> torch.Tensor:
        return table[:, :, (distances + length).clamp(0, 2 * length)]

    cases = [(None, None)]
    if not causal:
        cases.append((torch.arange(length) < lengths[:, None], None))
    cases += [(present, bias) for present, _ in cases]
    for present, shift in cases:
        q, k, v = heads(length)
        found = ATTENTION[attention].attend(q, k, v, shape, AttentionMask(causal, 2, present, shift), None)
        expected = by_definition(q, k, v, attention, shape, causal, present, shift)
        # What a padded query sees is of no use.
        counts = (
            torch.ones_like(found) if present is None else present[:, None, :, None].double().expand_as(found)
        )
        assert found.isfinite().all()
        torch.testing.assert_close(found * counts, expected * counts, rtol=1e-10, atol=1e-12)
        mixed = torch.randn(found.shape, dtype=torch.float64) * counts
        ours = torch.autograd.grad((found * mixed).sum(), (q, k, v))
        theirs = torch.autograd.grad((expected * mixed).sum(), (q, k, v))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("attention", ["full", "local"])
def test_dropped_weights_are_right_on_average(attention: str) -> None:
    shape = shape_of(attention_window=4)
    q, k, v = (each.detach()[:2] for each in heads(12))
    kind, n_draws = ATTENTION[attention], 400
    elements = element_hashes(2 * kind.n_weights(shape, 12, 12, True), torch.device("cpu"))
    found = []
    for step in range(n_draws):
        dropout = dropout_of(
            [1, 2], [step] * 2, [{"attention": 0.3}] * 2, {"here": Site(0, "attention")}, elements
        )
        found.append(kind.attend(q, k, v, shape, AttentionMask(True, 2), partial(dropout, site="here")))
    draws = torch.stack(found)
    expected = kind.attend(q, k, v, shape, AttentionMask(True, 2), None)
    assert ((draws.mean(dim=0) - expected).abs() < 5 * draws.std(dim=0) / n_draws**0.5 + 1e-9).all()


@pytest.mark.parametrize("attention", ["strided", "linear"])
def test_a_model_with_a_kind_of_older_versions_is_refused_in_one_line(attention: str) -> None:
    model = Transformer(shape_of(attention=attention, n_layer=2, full_attention_interval=2))
    with pytest.raises(
        BadInput, match=f"^attention is {attention}; attention must be full or local: .*removed"
    ):
        model.losses(model.layout.views(rows_of(model, 1)), batch_of(model.shape, 1))


def test_local_attention_never_holds_the_square() -> None:
    shape = shape_of(attention_window=8)
    assert ATTENTION["full"].n_weights(shape, 1024, 1024, True) == 1024 * 1024
    assert ATTENTION["local"].n_weights(shape, 1024, 1024, True) == 1024 * 16
