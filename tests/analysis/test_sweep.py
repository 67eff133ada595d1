"""What a sweep says, against sweeps whose truth was planted."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from analysis.planted_sweep import CELLS, DESIGN, SEARCH, plant_sweep, slow_ones_pruned

from sweeplab.analysis.importance import (
    ABOVE_CHANCE,
    FEWEST_TRIALS,
    OVER_ALL,
    WITHIN,
    WITHIN_CHANCE,
    importances,
)
from sweeplab.analysis.sweep import (
    Dimension,
    dimension_of,
    occupancy,
    saved,
    searched_dimensions,
    spent,
    sweep_of,
)
from sweeplab.analysis.trials import StudyDesign, searched_of
from sweeplab.expressions import Expression
from sweeplab.study.search import Choices, Range

ONE_CELL, SOME_CELLS = CELLS[:1], CELLS[1:4]


def test_dimensions_are_the_studys_own_ranges_and_else_those_of_the_values() -> None:
    runs = plant_sweep(10)
    own = {each.name: each for each in searched_dimensions(runs, DESIGN)}
    assert list(own) == list(SEARCH)
    assert own["learning_rate"] == Dimension("learning_rate", 1e-4, 1e-1, log=True)
    assert own["activation"].choices == ("relu", "gelu")
    guessed = {each.name: each for each in searched_dimensions(runs)}
    assert guessed["learning_rate"].log and not guessed["dropout"].log
    assert guessed["learning_rate"].low == runs["learning_rate"].min()
    assert guessed["activation"].choices == ("gelu", "relu")


def test_what_only_follows_from_others_is_no_dimension() -> None:
    runs = plant_sweep(10)
    assert list(runs["attention_dropout"]) == list(runs["dropout"])
    assert "attention_dropout" not in searched_of(runs)
    runs.loc[3, "attention_dropout"] += 0.1
    assert "attention_dropout" in searched_of(runs)
    assert "residual_dropout" not in searched_of(runs)


def test_places_run_from_0_to_1_and_back() -> None:
    rate = Dimension("learning_rate", 1e-4, 1e-2, log=True)
    assert rate.coordinates(pd.Series([1e-4, 1e-3, 1e-2, None])).tolist()[:3] == pytest.approx([0, 0.5, 1])
    assert rate.value_at(0.5) == pytest.approx(1e-3)
    either = Dimension("betas", choices=("(0.9, 0.95)", "(0.9, 0.99)"))
    assert either.coordinates(pd.Series(["(0.9, 0.99)", "(0.9, 0.95)"])).tolist() == [1, 0]
    assert dimension_of("n_layer", pd.Series([1, 2, 4])).log


def test_what_was_not_sampled_is_missing() -> None:
    runs = plant_sweep(20)
    search = SEARCH | {"dropout": Range(0.0, 0.5, when=Expression("activation == 'gelu'"))}
    trials = sweep_of(runs, StudyDesign(DESIGN.grid, search)).trials
    assert trials["dropout"].isna().equals(trials["activation"] == "relu")


def test_a_trial_stands_by_its_value_in_its_cell_and_behind_if_it_was_cut_short() -> None:
    trials = sweep_of(plant_sweep(40, state=slow_ones_pruned), DESIGN).trials
    for _, cell in trials.groupby("cell"):
        ended = cell[cell["state"] == "complete"]
        assert ended["standing"].rank().equals(ended["loss"].rank())
        pruned = cell.loc[cell["state"] == "pruned", "standing"]
        assert pruned.nunique() == 1 and pruned.min() > ended["standing"].max()
        assert ended["above"].min() == 0


@pytest.mark.slow
def test_importances_find_what_was_planted() -> None:
    found = importances(sweep_of(plant_sweep(60, SOME_CELLS), DESIGN))
    within = {each.hyperparameter: each for each in found if each.scope == WITHIN}
    assert max(within.values(), key=lambda each: each.importance).hyperparameter == "learning_rate"
    assert within["learning_rate"].verdict == ABOVE_CHANCE and within["learning_rate"].importance > 0.5
    assert within["activation"].verdict == within["weight_decay"].verdict == WITHIN_CHANCE
    assert sum(each.importance for each in within.values()) == pytest.approx(1)
    over_all = {each.hyperparameter: each for each in found if each.scope == OVER_ALL}
    assert set(over_all) == {*SEARCH, "n_layer", "n_embd"}
    assert over_all["n_layer"].verdict == ABOVE_CHANCE
    assert {each.scope for each in found} - {WITHIN, OVER_ALL} == {
        f"n_layer={a},n_embd={b}" for a, b in SOME_CELLS
    }


def test_unlike_tasks_have_no_importance_over_all() -> None:
    runs = plant_sweep(12, SOME_CELLS[:2])
    runs["objective"] = [
        "masked" if n_layer == runs["n_layer"].min() else "next_token" for n_layer in runs["n_layer"]
    ]
    runs["mask_share"] = 0.15
    scopes = {each.scope for each in importances(sweep_of(runs, DESIGN))}
    assert OVER_ALL not in scopes and WITHIN in scopes


@pytest.mark.slow
def test_chance_alone_is_told_from_importance() -> None:
    verdicts = [
        each.verdict
        for key in range(6)
        for each in importances(sweep_of(plant_sweep(30, ONE_CELL, loss=lambda _: 0.0, key=key), DESIGN))
    ]
    assert verdicts.count(ABOVE_CHANCE) <= 0.15 * len(verdicts)


def test_copies_of_a_trial_change_no_importance() -> None:
    runs = plant_sweep(20, ONE_CELL, loss=lambda _: 0.0)
    best = runs[runs["value"] == runs["value"].min()]
    copies = [best.assign(trial=100 + n) for n in range(12)]
    with_copies = sweep_of(pd.concat([runs, *copies], ignore_index=True), DESIGN)
    assert importances(with_copies) == importances(sweep_of(runs, DESIGN))


def test_too_few_trials_have_no_importances() -> None:
    assert importances(sweep_of(plant_sweep(FEWEST_TRIALS - 1, ONE_CELL), DESIGN)) == []


def test_what_pruning_saved_is_what_was_not_trained() -> None:
    sweep = sweep_of(plant_sweep(30, state=slow_ones_pruned), DESIGN)
    for cell in saved(sweep):
        own = sweep.trials[sweep.trials["cell"] == cell.cell]
        pruned = int((own["state"] == "pruned").sum())
        whole = float(own["planned_flops"].iloc[0])
        assert cell.n_pruned == pruned and cell.n_trials == 30
        assert cell.flops_saved == pytest.approx(pruned * whole * 2 / 3)
        assert cell.seconds_saved == pytest.approx(pruned * 2.0)
        assert cell.share == pytest.approx(cell.flops_saved / (30 * whole))


def test_compute_is_told_by_state_and_phase() -> None:
    runs = plant_sweep(20, ONE_CELL, state=slow_ones_pruned)
    tokens = 8 * 16
    speeds = pd.DataFrame(
        [
            (row.cell, row.trial, row.seed, at, at * tokens, "tokens_per_second", 100 * tokens / 0.8)
            for row in runs.itertuples()
            for at in range(100, int(row.iterations) + 1, 100)
        ],
        columns=["cell", "trial", "seed", "iteration", "train_tokens", "metric", "value"],
    )
    found = {(each.state, each.phase): each for each in spent(sweep_of(runs, DESIGN), speeds)}
    complete = int((runs["state"] == "complete").sum())
    assert found["complete", "training"].n_runs == complete
    assert found["complete", "training"].seconds == pytest.approx(2.4 * complete)
    assert found["complete", "evaluation"].seconds == pytest.approx(0.6 * complete)
    # Four evaluations of two batches of 128 tokens, forward alone, against 300 steps forward and backward.
    share = found["complete", "evaluation"].flops / found["complete", "training"].flops
    assert share == pytest.approx(4 * 2 / (300 * 3))
    without = spent(sweep_of(runs, DESIGN), speeds.iloc[:0])
    assert all(math.isnan(each.seconds) for each in without)


def test_pairs_are_choices() -> None:
    runs = plant_sweep(12, ONE_CELL)
    runs["betas"] = ["(0.9, 0.95)" if at % 2 else "(0.9, 0.99)" for at in range(len(runs))]
    search = SEARCH | {"betas": Choices(((0.9, 0.95), (0.9, 0.99)))}
    assert sweep_of(runs, StudyDesign(DESIGN.grid, search)).dimensions[-1].choices == (
        "(0.9, 0.95)",
        "(0.9, 0.99)",
    )


def test_occupancy_is_the_share_of_slots_that_had_a_run() -> None:
    runs = plant_sweep(20, ONE_CELL)
    assert occupancy(sweep_of(runs, DESIGN)) is None
    steps = runs["iterations"].astype(float)
    slots = steps.where(runs.index % 2 == 0, 3.0 * steps)  # every other run was alone in three slots
    share = float(steps.sum() / slots.sum())
    assert occupancy(sweep_of(runs.assign(slot_steps=slots), DESIGN)) == pytest.approx(share)
    known = slots.where(runs.index > 3)  # the others train yet
    share = float(steps[runs.index > 3].sum() / known.sum())
    assert occupancy(sweep_of(runs.assign(slot_steps=known), DESIGN)) == pytest.approx(share)
