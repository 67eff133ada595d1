"""Masks: the right share, the right scale, and nothing in common between any two of them."""

import pytest
import torch
from model.cases import batch_of, dropout_of, rows_of, shape_of

from sweeplab.model.blocks import Site, element_hashes
from sweeplab.model.transformer import Transformer

N = 200_000
ELEMENTS = element_hashes(N, torch.device("cpu"))


SITES = {str(index): Site(index, "residual") for index in range(4)}


def masks(seeds=(1, 2), iterations=(5, 5), probabilities=(0.1, 0.4), site=0, n=N):
    chances = [{"residual": each} for each in probabilities]
    dropout = dropout_of(seeds, iterations, chances, SITES, ELEMENTS)
    return dropout(torch.ones(len(seeds), n), str(site))


def test_share_and_scale_are_each_runs_own():
    found = masks()
    dropped = (found == 0).double().mean(dim=1)
    assert dropped.tolist() == pytest.approx([0.1, 0.4], abs=5 * (0.24 / N) ** 0.5)
    assert found[0].max().item() == pytest.approx(1 / 0.9)
    assert found[1].max().item() == pytest.approx(1 / 0.6)


def test_masks_of_other_seeds_iterations_and_sites_are_unrelated():
    same = {"seeds": (1,), "iterations": (5,), "probabilities": (0.5,)}
    found = [
        masks(**same),
        masks(**same | {"seeds": (2,)}),
        masks(**same | {"iterations": (6,)}),
        masks(**same, site=1),
        masks(**same).roll(1),
        masks(**same).roll(64),
    ]
    correlation = torch.corrcoef(torch.cat(found).double())
    off = correlation[~torch.eye(len(found), dtype=torch.bool)]
    assert off.abs().max().item() < 5 / N**0.5


def of_model(model, iteration=0, **chances):
    none = dict.fromkeys(("embedding", "attention", "residual"), 0.0)
    n_elements = model.max_mask_size(n_sequences=2)
    return dropout_of(
        [3],
        [iteration],
        [none | chances],
        model.sites,
        element_hashes(n_elements, torch.device("cpu")),
    )


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder_decoder"])
@pytest.mark.parametrize("attention", ["full", "local"])
def test_every_kind_of_site_drops_its_own(family, attention):
    model = Transformer(shape_of(family=family, attention=attention))
    rows, batch = rows_of(model, 1), batch_of(model.shape, 1)
    views = model.layout.views(rows)
    plain = model.losses(views, batch)
    for kind in ("embedding", "attention", "residual"):
        dropped = model.losses(views, batch, of_model(model, **{kind: 0.5}))
        assert not torch.equal(dropped, plain), kind
    assert torch.equal(model.losses(views, batch, of_model(model)), plain)
