"""Panels of sweeps and of comparisons, drawn from what was planted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from analysis.planted_sweep import CELLS, plant_sweep, slow_ones_pruned, too_fast
from pandas import DataFrame

from sweeplab.analysis.importance import FEWEST_TRIALS, OVER_ALL, WITHIN
from sweeplab.report.data import ReportData
from sweeplab.report.options import PanelSpec
from sweeplab.report.panels.base import PAGES, PANELS, TablePanel, make_panel, panels_of
from sweeplab.report.panels.sweep import MOST_DRAWN, MOST_PAIRED

SWEEPS = [name for name, kind in PANELS.items() if kind.source == "sweeps"]


def mixed(values, random: np.random.Generator) -> str:
    return too_fast(values, random) if values["learning_rate"] > 0.01 else slow_ones_pruned(values, random)


def speeds(runs: DataFrame) -> DataFrame:
    columns = ["cell", "trial", "seed", "iteration", "train_tokens", "metric", "value"]
    rows = [
        (row.cell, row.trial, row.seed, 100, 12800, "tokens_per_second", 6400.0) for row in runs.itertuples()
    ]
    rows += [(row.cell, row.trial, row.seed, 100, 12800, "val_loss", 3.0) for row in runs.itertuples()]
    return DataFrame(rows, columns=columns)


@pytest.fixture(scope="module")
def one() -> ReportData:
    runs = plant_sweep(40, CELLS[1:3], state=mixed)
    return ReportData.of_study(runs, speeds(runs))


@pytest.fixture(scope="module")
def two() -> ReportData:
    runs = pd.concat(
        [
            plant_sweep(
                FEWEST_TRIALS, CELLS[1:4], 2, key=key, shift=0.3 * key, name=name, state=slow_ones_pruned
            )
            for key, name in enumerate("ab")
        ],
        ignore_index=True,
    )
    return ReportData.of_study(runs, speeds(runs).assign(study=runs["study"].tolist() * 2))


# What planted studies have nothing of.
MISSING = {
    "confirmed": "nothing is confirmed",
    "timeline": "no run has ended",  # planted runs have no folders
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SWEEPS)
def test_every_panel_of_a_sweep_is_drawn_from_its_data(kind: str, one: ReportData) -> None:
    found = make_panel(PanelSpec(kind), one)
    if kind in (
        "confirmed",
        "timeline",
    ):  # which are drawn in test_choices_panel.py and cli/test_dashboard.py
        assert found.missing.startswith(MISSING[kind])
        return
    assert not found.missing and len(found.data)
    if not isinstance(found, TablePanel):
        figure = found.figure()
        assert len(figure.data) and figure.layout.height >= 150
        figure.to_json()


@pytest.mark.slow
@pytest.mark.parametrize("kind", panels_of("compare"))
def test_several_studies_are_drawn_together_or_it_is_said_why_not(kind: str, two: ReportData) -> None:
    found = make_panel(PanelSpec(kind), two)
    if kind in ("parallel_coordinate", "rank", "contour", "slice"):
        assert "one study" in found.missing
        return
    if kind in MISSING:
        assert found.missing.startswith(MISSING[kind])
        return
    assert not found.missing
    text = found.data.to_csv() if isinstance(found, TablePanel) else found.figure().to_json()
    assert "a" in text and "b" in text
    assert {"a", "b"} <= set(found.data.get("study", found.data.get("a"))) | set(found.data.get("b", ()))


def test_the_history_falls_and_ends_at_the_best(one: ReportData) -> None:
    found = make_panel(PanelSpec("optimization_history"), one)
    for cell, line in found.data.groupby("cell"):
        assert line["best"].is_monotonic_decreasing
        (sweep,) = one.sweeps
        assert line["best"].iloc[-1] == sweep.ended.loc[sweep.ended["cell"] == cell, "loss"].min()


@pytest.mark.slow
def test_importances_show_both_scopes_and_say_what_is_chance(one: ReportData) -> None:
    found = make_panel(PanelSpec("param_importances"), one)
    assert list(found.scopes.values()) == [WITHIN, OVER_ALL]
    (chance,) = (
        note for note in found.notes if note.startswith("Not distinguishable from chance, within cells: ")
    )
    assert "learning_rate" not in chance and ("activation" in chance or "weight_decay" in chance)
    top = found.figure().layout.yaxis.ticktext[0]
    assert top in ("learning_rate", "dropout")


def test_slices_and_pairs_have_those_asked_for(one: ReportData) -> None:
    found = make_panel(PanelSpec("slice", {"params": ("dropout", "n_layer")}), one)
    assert [each.name for each in found.dimensions] == ["dropout", "n_layer"]
    assert any("diverged or failed" in note for note in found.notes)
    assert {axis.title.text for axis in found.figure().select_xaxes()} == {"dropout", "n_layer"}
    rank = make_panel(PanelSpec("rank"), one)
    assert len(rank.dimensions) == MOST_PAIRED
    assert make_panel(PanelSpec("slice", {"params": ("n_head",)}), one).missing == "n_head does not vary"


@pytest.mark.slow
def test_a_large_sweep_is_thinned_with_its_best_trials_kept() -> None:
    runs = plant_sweep(1000, cells=CELLS[:1])
    found = make_panel(PanelSpec("parallel_coordinate"), ReportData.of_study(runs, speeds(runs)))
    drawn = found.data[found.data["drawn"]]
    assert len(found.data) == 1000 and len(drawn) == MOST_DRAWN
    assert set(found.data.nsmallest(MOST_DRAWN // 2, "loss")["trial"]) <= set(drawn["trial"])
    assert f"Drawn: {MOST_DRAWN} of 1,000 trials" in found.notes[-1]


def test_pruning_says_what_it_saved(one: ReportData) -> None:
    (note,) = make_panel(PanelSpec("pruning"), one).notes
    assert "which saved" in note


def test_a_difference_is_said_with_its_interval(two: ReportData) -> None:
    found = make_panel(PanelSpec("differences"), two)
    assert found.notes[0].startswith("b against a: different, +0.")
    assert len(found.data) == 1 + 3 and len(found.notes) == 1
    studies = make_panel(PanelSpec("studies"), two)
    assert studies.data["study"].tolist() == ["a", "b"] and studies.data["seeds"].tolist() == [2, 2]
    assert (studies.data["seed spread (loss)"] < 0.02).all()


@pytest.mark.slow
def test_a_sweep_without_pruning_or_values_says_so() -> None:
    runs = plant_sweep(12)
    material = ReportData.of_study(runs, speeds(runs))
    assert make_panel(PanelSpec("pruning"), material).missing == "no trial was pruned"
    lost = ReportData.of_study(runs.assign(state="failed"), speeds(runs))
    why = make_panel(PanelSpec("best_values"), lost).missing
    assert why.startswith("no run of") and why.endswith("has ended with a loss")
    few = ReportData.of_study(runs.groupby("cell").head(1), speeds(runs))
    assert "importances need 10 or more trials" in make_panel(PanelSpec("param_importances"), few).missing


@pytest.fixture(scope="module")
def under_way() -> ReportData:
    runs = plant_sweep(3, state=lambda values, random: "running")
    runs[["value", "best_val_loss", "final_val_loss", "wall_seconds", "train_flops"]] = np.nan
    runs["iterations"] = pd.NA
    return ReportData.of_study(runs, speeds(runs))


@pytest.mark.parametrize("kind", SWEEPS)
def test_a_sweep_under_way_is_drawn_or_says_what_it_waits_for(kind: str, under_way: ReportData) -> None:
    found = make_panel(PanelSpec(kind), under_way)
    assert found.missing, kind


def test_pages_may_have_the_panels_they_can_serve() -> None:
    assert set(panels_of("compare")) == {*SWEEPS, "studies", "differences"}
    assert set(panels_of("sweep")) == set(panels_of("scaling"))
    assert set(PAGES) == {"scaling", "sweep", "compare"}
