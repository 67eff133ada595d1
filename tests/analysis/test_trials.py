"""A study's grid is what its record says, however long its cells' names are, and its best trial what it values best."""

from analysis.planted_sweep import SEARCH, plant_sweep
from pandas import DataFrame

from sweeplab.analysis.sweep import sweep_of
from sweeplab.analysis.trials import (
    StudyDesign,
    grid_of,
    searched_of,
    trials_table,
    with_models,
)
from sweeplab.model.shape import SETTLED
from sweeplab.study.space import LONGEST_KEY, Cell

LONG = (
    *(
        "scheduler_type",
        "tie_weights",
        "vocab_size",
        "block_size",
        "batch_size",
        "n_head",
        "max_iters",
    ),
    *("eval_interval", "eval_iters", "grad_clip", "patience", "optimizer", "n_layer", "n_embd"),
)


def cut_names():
    """Return a sweep whose cells have names that are cut before the hyperparameters that differ."""
    runs = plant_sweep(4)
    keys = [Cell(0, {name: row[name] for name in LONG}).key for row in runs.to_dict("records")]
    assert all(len(key) > LONGEST_KEY and "n_embd" not in key for key in keys)
    return runs.assign(cell=keys)


def test_a_long_name_hides_no_hyperparameter_of_the_grid():
    runs, design = cut_names(), StudyDesign(LONG, SEARCH)
    assert runs["cell"].nunique() == 6
    assert grid_of(runs, design) == list(LONG)
    sweep = sweep_of(runs, design)
    assert set(LONG) <= set(sweep.trials)
    assert list(sweep.grid) == ["n_layer", "n_embd"]
    assert {*grid_of(runs.drop(columns=[*SETTLED]))} == {"n_layer", "n_embd"}, (
        "without a record, what differs between cells alone"
    )
    assert set(searched_of(runs, design)) == set(SEARCH)
    whole = with_models(plant_sweep(4))
    assert with_models(runs)["model"].tolist() == whole["model"].tolist()
    assert whole["model"].nunique() == 6


def test_the_best_trial_is_the_one_that_its_study_values_best():
    """With two seeds the mean of their minima is not the minimum of their mean curve, which Optuna was told."""
    losses = {0: ((1.0, 3.0), 2.5), 1: ((2.1, 2.1), 2.1), 2: ((0.5, 0.5), 0.4)}
    rows = [
        {"cell": "all", "trial": trial, "seed": seed, "state": "pruned" if trial == 2 else "complete",
         "best_val_loss": loss, "value": value}
        for trial, (of_seeds, value) in losses.items() for seed, loss in enumerate(of_seeds)
    ]  # fmt: skip
    table = trials_table(DataFrame(rows))
    assert table["loss"].tolist() == [2.0, 2.1, 0.5] and table["best"].tolist() == [
        False,
        True,
        False,
    ]
    without = trials_table(DataFrame(rows).drop(columns="value"))
    assert without["best"].tolist() == [True, False, False], (
        "of a table from elsewhere that is all there is"
    )
