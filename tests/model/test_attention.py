"""Each kind of attention against the whole square of weights with a mask."""

from functools import partial

import pytest
import torch
from model.cases import batch_of, dropout_of, rows_of, shape_of

from sweeplab.errors import BadInput
from sweeplab.model.attention import ATTENTION, AttentionMask
from sweeplab.model.blocks import Site, element_hashes
from sweeplab.model.transformer import Transformer


@pytest.mark.parametrize("attention", ["full", "local"])
def test_dropped_weights_are_right_on_average(attention):
    shape = shape_of(attention_window=4)
    generator = torch.Generator().manual_seed(12)
    q, k, v = (torch.randn(2, 2, 12, 5, generator=generator, dtype=torch.float64) for _ in "qkv")
    kind, n_draws = ATTENTION[attention], 400
    elements = element_hashes(2 * kind.n_weights(shape, 12, 12, True), torch.device("cpu"))
    sites = {"here": Site(0, "attention")}
    found = []
    for step in range(n_draws):
        dropout = dropout_of([1, 2], [step] * 2, [{"attention": 0.3}] * 2, sites, elements)
        found.append(kind.attend(q, k, v, shape, AttentionMask(True, 2), partial(dropout, site="here")))
    draws = torch.stack(found)
    expected = kind.attend(q, k, v, shape, AttentionMask(True, 2), None)
    assert ((draws.mean(dim=0) - expected).abs() < 5 * draws.std(dim=0) / n_draws**0.5 + 1e-9).all()


@pytest.mark.parametrize("attention", ["strided", "linear"])
def test_a_model_with_a_kind_of_older_versions_is_refused_in_one_line(attention):
    model = Transformer(shape_of(attention=attention, n_layer=2, full_attention_interval=2))
    with pytest.raises(
        BadInput, match=f"^attention is {attention}; attention must be full or local: .*removed"
    ):
        model.losses(model.layout.views(rows_of(model, 1)), batch_of(model.shape, 1))


def test_local_attention_never_holds_the_square():
    shape = shape_of(attention_window=8)
    assert ATTENTION["full"].n_weights(shape, 1024, 1024, True) == 1024 * 1024
    assert ATTENTION["local"].n_weights(shape, 1024, 1024, True) == 1024 * 16
