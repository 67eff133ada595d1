"""Panels of sweeps and of comparisons, drawn from what was planted."""

from pathlib import Path

import pandas as pd
import pytest
from analysis.planted_sweep import CELLS, plant_sweep, slow_ones_pruned, too_fast
from report.scaling_page import report_of

from sweeplab.analysis.studies import Studies
from sweeplab.analysis.sweep import FEWEST_TRIALS
from sweeplab.report.panels.base import PanelSpec, make_panel
from sweeplab.report.panels.sweep import MOST_DRAWN, MOST_PAIRED
from sweeplab.study.file.reading import read_study


def mixed(values, random):
    return (
        too_fast(values, random)
        if values["learning_rate"] > 0.01
        else slow_ones_pruned(values, random)
    )


def made(report, kind, **options):
    return make_panel(PanelSpec(kind, options), report)


# What `plant_sweep` draws from.
STUDY = """
name: planted
data: {corpus: python-docs, tokenizer: char}
fixed: {n_head: 4}
grid: {n_layer: [1, 2, 4], n_embd: [32, 64]}
search:
  learning_rate: {min: 1e-4, max: 1e-1, log: true}
  dropout: {min: 0.0, max: 0.5}
  weight_decay: {min: 0.0, max: 0.3}
  activation: [relu, gelu]
"""


@pytest.fixture(scope="module")
def one():
    runs = plant_sweep(40, CELLS[1:3], state=mixed)
    return report_of(
        runs,
        studied=Studies(runs, {"planted": read_study(Path("planted.yaml"), text=STUDY)}, {}),
    )


@pytest.fixture(scope="module")
def two():
    each = {"cells": CELLS[1:4], "seeds": 2, "state": slow_ones_pruned}
    studies = [
        plant_sweep(FEWEST_TRIALS, key=key, shift=0.3 * key, name=name, **each)
        for key, name in enumerate("ab")
    ]
    return report_of(pd.concat(studies, ignore_index=True))


def test_the_history_falls_and_ends_at_the_best(one):
    (sweep,) = one.sweeps
    for cell, line in made(one, "optimization_history").data.groupby("cell"):
        assert line["best"].is_monotonic_decreasing
        assert (
            line["best"].iloc[-1] == sweep.ended.loc[sweep.ended["cell"] == cell, "loss"].min()
        )


def test_a_front_has_what_no_trial_beats_in_both(two):
    found = made(two, "pareto").data
    for cost in ("n_params", "train_flops"):
        for row in found.to_dict("records"):
            no_dearer, no_worse = found[cost] <= row[cost], found["loss"] <= row["loss"]
            beaten = (
                no_dearer
                & no_worse
                & ((found[cost] < row[cost]) | (found["loss"] < row["loss"]))
            )
            assert row[f"front of {cost}"] == (not beaten.any())


@pytest.mark.slow
def test_importances_say_what_is_chance(one):
    found = made(one, "param_importances")
    (chance,) = (
        note for note in found.notes if note.startswith("Not distinguishable from chance: ")
    )
    assert "learning_rate" not in chance and (
        "activation" in chance or "weight_decay" in chance
    )
    assert found.figure().layout.yaxis.ticktext[0] in ("learning_rate", "dropout")


def test_slices_and_pairs_have_those_asked_for(one):
    found = made(one, "slice", params=("dropout", "n_layer"))
    assert list(found.space) == ["dropout", "n_layer"]
    assert any("diverged or failed" in note for note in found.notes)
    assert {axis.title.text for axis in found.figure().select_xaxes()} == {"dropout", "n_layer"}
    assert len(made(one, "rank").space) == MOST_PAIRED
    assert made(one, "slice", params=("n_head",)).missing == "n_head does not vary"


@pytest.mark.slow
def test_of_a_large_sweep_the_best_trials_are_drawn():
    found = made(report_of(plant_sweep(1000, CELLS[:1])), "parallel_coordinate")
    drawn = found.data[found.data["drawn"]]
    assert len(found.data) == 1000
    assert set(found.data.nsmallest(MOST_DRAWN, "loss")["trial"]) == set(drawn["trial"])
    assert f"Drawn: {MOST_DRAWN} of 1,000 trials" in found.notes[-1]


def test_pruning_and_differences_are_said(one, two):
    assert "which saved" in made(one, "pruning").notes[0]
    found = made(two, "differences")
    assert found.notes[0].startswith("b against a: different, +0.")
    assert len(found.data) == 1 + 3 and len(found.notes) == 1
    studies = made(two, "studies").data
    assert studies["study"].tolist() == ["a", "b"] and studies["seeds"].tolist() == [2, 2]
