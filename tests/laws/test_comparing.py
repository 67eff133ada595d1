"""Cells compared by their best trials: how often a difference is seen where none was planted, and where one was."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from laws.planted_cells import plant_cells

from sweeplab.laws.comparing import (
    DIFFERENT,
    NOT_SEEN,
    ONE_SEED,
    ONE_TRIAL,
    UNKNOWN,
    CellTrials,
    compare,
)

SIX = list(combinations(range(6), 2))


def alarms(n, **how):
    """Return in how many of so many studies of cells that are alike any pair is told apart."""
    random = np.random.default_rng(11)
    cells = (plant_cells(random, **how) for _ in range(n))
    found = (compare(each, list(combinations(range(len(each)), 2))) for each in cells)
    return sum(bool(each.significant.any()) for each in found)


@pytest.mark.parametrize("noise", ["equal", "half of 4"])
def test_cells_that_are_alike_are_seldom_told_apart(noise):
    """Tested with the seeds that chose the best of two trials, half of such studies have a false difference."""
    assert alarms(15, noise=noise) <= 2


@pytest.mark.parametrize("n_trials", [1, 4])
def test_a_planted_difference_is_told_with_its_size(n_trials):
    random = np.random.default_rng(1)
    spread = 0.02 if n_trials > 1 else 0.0
    found = compare(plant_cells(random, 6, n_trials, spread=spread, shifts={0: -0.3}), SIX)
    assert list(found.significant) == [a == 0 for a, _ in SIX]
    assert found.evidence.verdict == DIFFERENT
    assert all(
        low < 0.3 < high for low, high in list(zip(found.low, found.high, strict=True))[:5]
    )
    assert (
        found.evidence_of(0).verdict == DIFFERENT and found.evidence_of(14).verdict == NOT_SEEN
    )


def test_trials_cut_short_count_as_draws():
    """The lowest two of eight lie nearer to each other than the only two: they say that more is luck."""
    cells = plant_cells(np.random.default_rng(4), shifts={0: -0.2})
    pruned = [replace(each, n_trials=8) for each in cells]
    assert _width(compare(pruned, SIX)) > 1.2 * _width(compare(cells, SIX))


def test_what_cannot_be_told_says_what_would():
    random = np.random.default_rng(5)
    one_seed = compare(plant_cells(random, n_trials=4, n_seeds=1), SIX)
    one_trial = compare(plant_cells(random, n_trials=1), SIX, is_searched=True)
    for found, why in ((one_seed, ONE_SEED), (one_trial, ONE_TRIAL)):
        assert found.evidence.verdict == found.evidence_of(0).verdict == UNKNOWN
        assert found.evidence.why == why and why in found.evidence.in_words()
        assert np.isnan(found.low).all() and not found.significant.any()


def test_a_seed_that_moves_all_cells_alike_is_left_out_where_some_cells_lack_it():
    cells = plant_cells(np.random.default_rng(6), n_trials=1, spread=0.0, shifts={0: -0.3})
    moved = [
        CellTrials([{seed: loss + 5 * seed for seed, loss in each.best.items()}], 1)
        for each in cells
    ]
    moved[5] = CellTrials([{0: moved[5].best[0]}], 1)
    found = compare(moved, SIX)
    assert found.significant[:5].all() and not found.significant[5:].any()
    assert found.best[1:] == pytest.approx(np.full(5, found.best[1]), abs=0.1)


def _width(found):
    return float(np.median(found.high - found.low))
