"""Each kind of attention against the whole square of weights with a mask."""

from functools import partial

import pytest
import torch
from model.cases import dropout_of

from sweeplab.model.attention import AttentionMask, attend, n_weights
from sweeplab.model.blocks import Site, element_hashes


@pytest.mark.parametrize("window", [None, 4])
def test_dropped_weights_are_right_on_average(window):
    generator = torch.Generator().manual_seed(12)
    q, k, v = (
        torch.randn(2, 2, 12, 5, generator=generator, dtype=torch.float64) for _ in "qkv"
    )
    n_draws = 400
    elements = element_hashes(2 * n_weights(12, 12, True, window), torch.device("cpu"))
    sites = {"here": Site(0, "attention")}
    found = []
    for step in range(n_draws):
        dropout = dropout_of([1, 2], [step] * 2, [{"attention": 0.3}] * 2, sites, elements)
        found.append(
            attend(q, k, v, AttentionMask(True), window, partial(dropout, site="here"))
        )
    draws = torch.stack(found)
    expected = attend(q, k, v, AttentionMask(True), window)
    assert (
        (draws.mean(dim=0) - expected).abs() < 5 * draws.std(dim=0) / n_draws**0.5 + 1e-9
    ).all()


def test_local_attention_never_holds_the_square():
    assert n_weights(1024, 1024, True) == 1024 * 1024
    assert n_weights(1024, 1024, True, 8) == 1024 * 16
