"""Rankings of choices, against truths that were planted: what is called real, and how often when nothing is."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sweeplab.analysis.differences import rank_cells
from sweeplab.analysis.sweep import Sweep
from sweeplab.laws.comparing import DIFFERENT


def planted(means, seeds=4, noise=0.01, by_seed=0.0, key=0, spreads=None, absent=()):
    """Return the sweep of cells with these means; `by_seed` is what a seed does to all of them alike."""
    random = np.random.default_rng(key)
    shared = by_seed * random.standard_normal(seeds)
    rows = []
    for at, (cell, mean) in enumerate(means.items()):
        losses = (
            mean + shared + (spreads or {}).get(cell, noise) * random.standard_normal(seeds)
        )
        for seed in set(range(seeds)) - {number for own, number in absent if own == cell}:
            row = {
                "cell": cell,
                "trial": 0,
                "seed": seed,
                "state": "complete",
                "n_params": 1000 + at,
            }
            rows.append({"objective": "next_token", **row, "best_val_loss": losses[seed]})
    runs = pd.DataFrame(rows)
    trials = runs.drop_duplicates("cell")[["cell", "trial", "state"]].assign(loss=2.0)
    return Sweep("planted", runs, trials, {}, {})


def test_choices_stand_in_order_and_a_gap_is_told_with_its_size():
    found = rank_cells(planted({"base": 2.0, "norm=rmsnorm": 1.8, "bias=false": 2.2}))
    assert [each.cell for each in found.cells] == ["norm=rmsnorm", "base", "bias=false"]
    between = found.differences["norm=rmsnorm"]
    assert between.verdict == DIFFERENT and between.low < -0.2 < between.high < 0
    other = rank_cells(planted({"norm=layernorm": 2.0, "norm=rmsnorm": 1.8}))
    assert other.reference == "norm=rmsnorm" and other.differences["norm=layernorm"].low > 0


def test_seeds_that_move_all_alike_are_left_out():
    means = {"base": 2.0, "norm=rmsnorm": 1.95}
    paired = rank_cells(planted(means, by_seed=0.5, noise=0.01))
    assert paired.differences["norm=rmsnorm"].verdict == DIFFERENT
    assert paired.cells[0].sd > 0.1
    single = rank_cells(
        planted(means, by_seed=0.5, noise=0.01, absent={("base", seed) for seed in (0, 1, 2)})
    )
    assert single.differences["norm=rmsnorm"].n == 1


def test_seeds_are_compared_where_their_trial_is_valued_and_not_at_their_own_minima():
    sweep = planted({"base": 2.0, "norm=rmsnorm": 1.8})
    losses = sweep.runs["best_val_loss"]
    runs = sweep.runs.assign(
        valued_val_loss=losses, best_val_loss=losses - 0.3 * (sweep.runs["cell"] == "base")
    )
    own, valued = rank_cells(sweep), rank_cells(replace(sweep, runs=runs))
    assert [(each.cell, each.loss, each.sd) for each in valued.cells] == [
        (each.cell, each.loss, each.sd) for each in own.cells
    ]
    assert valued.differences == own.differences
    minima = rank_cells(
        replace(sweep, runs=runs.assign(valued_val_loss=losses.where(losses.index > 0)))
    )
    assert [each.cell for each in minima.cells] == ["base", "norm=rmsnorm"], (
        "one run does not say it"
    )


@pytest.mark.slow
def test_the_true_difference_lies_in_the_interval():
    held = 0
    for key in range(100):
        found = rank_cells(planted({"base": 2.0, "bias=false": 2.01}, by_seed=0.1, key=key))
        between = found.differences["bias=false"]
        held += between.low < 0.01 < between.high
    assert held >= 88
