"""Masks: the right share, the right scale, and nothing in common between any two of them."""

from __future__ import annotations

import pytest
import torch

from sweeplab.model.dropout import Dropout, element_hashes

N = 200_000
ELEMENTS = element_hashes(N, torch.device("cpu"))


def masks(seeds=(1, 2), iterations=(5, 5), probabilities=(0.1, 0.4), site=0, n=N) -> torch.Tensor:
    dropout = Dropout(seeds, iterations, probabilities, 4, ELEMENTS)
    return dropout(torch.ones(len(seeds), n), site)


def test_share_and_scale_are_each_runs_own() -> None:
    found = masks()
    dropped = (found == 0).double().mean(dim=1)
    assert dropped.tolist() == pytest.approx([0.1, 0.4], abs=5 * (0.24 / N) ** 0.5)
    assert found[0].max().item() == pytest.approx(1 / 0.9)
    assert found[1].max().item() == pytest.approx(1 / 0.6)


def test_probability_zero_beside_another_keeps_all() -> None:
    found = masks(probabilities=(0.0, 0.5))
    assert (found[0] == 1).all()
    assert (found[1] == 0).any()


def test_a_runs_mask_depends_on_no_neighbour() -> None:
    alone = masks(seeds=(7,), iterations=(11,), probabilities=(0.3,))
    among = masks(seeds=(3, 9, 7), iterations=(2, 400, 11), probabilities=(0.1, 0.5, 0.3))
    assert torch.equal(alone[0], among[2])


def test_masks_of_other_seeds_iterations_and_sites_are_unrelated() -> None:
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


def test_drops_are_spread_evenly_over_blocks() -> None:
    blocks = (masks(probabilities=(0.5, 0.5))[0] == 0).view(-1, 100).double().sum(dim=1)
    assert blocks.var().item() == pytest.approx(25, rel=0.15)  # binomial: n p (1 - p)
