"""What a sweep says, against sweeps whose truth was planted."""

import pandas as pd
import pytest
from analysis.planted_sweep import CELLS, DESIGN, SEARCH, plant_sweep, slow_ones_pruned
from optuna.distributions import CategoricalDistribution, FloatDistribution

from sweeplab.analysis.sweep import (
    ABOVE_CHANCE,
    FEWEST_TRIALS,
    WITHIN_CHANCE,
    distribution_of,
    importances,
    searched_space,
    sweep_of,
)
from sweeplab.analysis.trials import StudyDesign
from sweeplab.expressions import Expression
from sweeplab.study.values import Choices, Range

ONE_CELL, SOME_CELLS = CELLS[:1], CELLS[1:4]


def test_the_space_has_the_studys_own_ranges_and_else_those_of_the_values():
    runs = plant_sweep(10)
    own = searched_space(runs, DESIGN)
    assert list(own) == list(SEARCH)
    assert own["learning_rate"] == FloatDistribution(1e-4, 1e-1, log=True)
    assert own["activation"] == CategoricalDistribution(("relu", "gelu"))
    guessed = searched_space(runs)
    assert guessed["learning_rate"].low == runs["learning_rate"].min()
    assert guessed["activation"].choices == ("gelu", "relu")
    assert distribution_of("n_layer", pd.Series([1, 2, 4])).log


def test_what_was_not_sampled_is_missing_and_pairs_are_choices():
    runs = plant_sweep(20)
    runs["betas"] = ["(0.9, 0.95)" if at % 2 else "(0.9, 0.99)" for at in range(len(runs))]
    search = SEARCH | {
        "dropout": Range(0.0, 0.5, when=Expression("activation == 'gelu'")),
        "betas": Choices(((0.9, 0.95), (0.9, 0.99))),
    }
    sweep = sweep_of(runs, StudyDesign(DESIGN.grid, search))
    assert sweep.trials["dropout"].isna().equals(sweep.trials["activation"] == "relu")
    assert sweep.space["betas"].choices == ("(0.9, 0.95)", "(0.9, 0.99)")
    assert "dropout" in {each.hyperparameter for each in importances(sweep)}


def test_a_trial_stands_by_its_value_in_its_cell_and_behind_if_it_was_cut_short():
    trials = sweep_of(plant_sweep(40, state=slow_ones_pruned), DESIGN).trials
    for _, cell in trials.groupby("cell"):
        ended = cell[cell["state"] == "complete"]
        assert ended["standing"].rank().equals(ended["loss"].rank())
        pruned = cell.loc[cell["state"] == "pruned", "standing"]
        assert pruned.nunique() == 1 and pruned.min() > ended["standing"].max()


@pytest.mark.slow
def test_importances_find_what_was_planted():
    found = {
        each.hyperparameter: each
        for each in importances(sweep_of(plant_sweep(60, SOME_CELLS), DESIGN))
    }
    assert (
        max(found.values(), key=lambda each: each.importance).hyperparameter == "learning_rate"
    )
    assert (
        found["learning_rate"].verdict == ABOVE_CHANCE
        and found["learning_rate"].importance > 0.5
    )
    assert found["activation"].verdict == found["weight_decay"].verdict == WITHIN_CHANCE
    assert sum(each.importance for each in found.values()) == pytest.approx(1)
    few = plant_sweep(FEWEST_TRIALS - 1, ONE_CELL)
    assert importances(sweep_of(few, DESIGN)) == []


@pytest.mark.slow
def test_chance_alone_is_told_from_importance():
    verdicts = [
        each.verdict
        for key in range(6)
        for each in importances(
            sweep_of(plant_sweep(30, ONE_CELL, loss=lambda _: 0.0, key=key), DESIGN)
        )
    ]
    assert verdicts.count(ABOVE_CHANCE) <= 0.15 * len(verdicts)
