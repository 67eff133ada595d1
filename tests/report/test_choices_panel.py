"""The panels of choices and of what was confirmed, and baselines beside a study's losses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from sweeplab.analysis.studies import Studies
from sweeplab.errors import BadInput
from sweeplab.records.confirmed import Confirmed
from sweeplab.records.folders import StudyFolder
from sweeplab.report.data import ReportData
from sweeplab.report.options import PanelSpec
from sweeplab.report.panels.base import make_panel
from sweeplab.report.panels.comparisons import ChoicesPanel, ConfirmedPanel
from sweeplab.report.summary import SUMMARIES

CELL = "n_layer=4,n_embd=64"
BASELINE = {
    "loss": 3.5,
    "bits_per_byte": 5.05,
    "method": "n-grams",
    "order": 4,
    "copied": 0.0,
    "n_counted": 9,
    "by_order": [5.0, 4.5, 4.0, 3.5],
}


@pytest.fixture
def material(plant) -> ReportData:
    """Six sizes with three seeds each, whose losses differ by 0.1 and more; a seed moves all alike."""
    planted = plant(["complete"], seeds=3)
    planted = planted._replace(runs=planted.runs.assign(objective="next_token"))
    bits = planted.runs["best_val_loss"] / 0.6931472 / 2
    planted = planted._replace(runs=planted.runs.assign(best_bits_per_byte=bits))
    data = {"planted": {"val_bytes": 200, "val_tokens": 100}}
    return ReportData.of_study(
        *planted, studied=Studies(planted.runs, {}, data, {"planted": {CELL: BASELINE}})
    )


def test_choices_are_ranked_and_told_apart(material: ReportData) -> None:
    found = ChoicesPanel.of(material)
    rows = found.result["choices"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[0]["choice"] == CELL and rows[0]["against"] == CELL
    assert [row["loss"] for row in rows] == sorted(row["loss"] for row in rows)
    assert [row["groups"] for row in rows] == list("abcdef")
    assert rows[0]["bits_per_byte"] == pytest.approx(rows[0]["loss"] / 0.6931472 / 2, rel=1e-6)
    assert [row["n_grams"] == 3.5 for row in rows] == [True, *[False] * 5]
    assert found.notes[0] == "n_layer=4, n_embd=64 is best, and differs significantly from the next."
    evidence = "Each cell's one trial, without a search, 3 seeds, tested on the same seeds' validation losses"
    assert found.notes[1:] == (f"{evidence}: different.",)
    assert found.result["evidence"][0]["n_seeds"] == 3
    assert set(found.data["verdict"]) == {"different"}
    assert len(found.figure().data) == 1


def test_unlike_tasks_are_not_compared(plant) -> None:
    planted = plant(["complete"], seeds=2, widths=(32,))
    runs = planted.runs.copy()
    runs["objective"] = ["masked" if cell == "n_layer=4,n_embd=32" else "next_token" for cell in runs["cell"]]
    found = ChoicesPanel.of(ReportData.of_study(runs, planted.curves))
    assert found.result["tasks"] == [
        "the next token, from all before it", "hidden tokens, from all around them, 15% of them",
    ]  # fmt: skip
    assert [row["rank"] for row in found.result["choices"]] == [1, 2, 1]
    (warning,) = found.warnings
    assert "ranked separately" in warning and "not even in bits per byte" in warning
    assert (
        found.notes[-1]
        == "Hidden tokens, from all around them, 15% of them: n_layer=4, n_embd=32 is the only cell."
    )
    assert len(found.data) == 1
    summary = SUMMARIES["sweep"](ReportData.of_study(runs, planted.curves), [])
    lowest = [name for name, _ in summary.entries if name.startswith("Best trial")]
    assert lowest and set(lowest) == {f"Best trial, {task}" for task in found.result["tasks"]}
    assert not summary.best


def test_choices_that_are_alone_in_their_tasks_are_listed(plant) -> None:
    planted = plant(["complete"], seeds=2, layers=(4,), widths=(16, 32))
    runs = planted.runs.assign(objective="masked", mask_share=planted.runs["n_embd"] / 100)
    found = ChoicesPanel.of(ReportData.of_study(runs, planted.curves))
    assert found.figure() is None and list(found.data["rank"]) == [1, 1]
    assert [note.partition(": ")[2] for note in found.notes] == [
        f"n_layer=4, n_embd={width} is the only cell." for width in sorted(set(runs["n_embd"]))
    ]


def test_one_seed_cannot_tell(plant) -> None:
    found = ChoicesPanel.of(ReportData.of_study(*plant(["complete"])))
    (note,) = found.notes
    assert "undecided: each cell's one trial, without a search, 1 seed; no cell has two seeds" in note


def test_a_single_cell_has_nothing_to_rank(plant) -> None:
    material = ReportData.of_study(*plant(["complete"], layers=(1,), widths=(32,)))
    with pytest.raises(BadInput, match="two cells or more"):
        ChoicesPanel.of(material)
    assert make_panel(PanelSpec("choices"), material).missing


def test_the_base_is_what_others_are_set_against(plant) -> None:
    planted = plant(["complete"], seeds=3, widths=(32,))
    runs = planted.runs.assign(cell=planted.runs["cell"].replace({"n_layer=2,n_embd=32": "base"}))
    found = ChoicesPanel.of(ReportData.of_study(runs, planted.curves))
    assert {row["against"] for row in found.result["choices"]} == {"base"}
    better = "Against base, better: n_layer=4, n_embd=32; worse: n_layer=1, n_embd=32."
    assert found.notes[1] == better


def test_seeds_are_counted_in_each_trial(plant) -> None:
    planted = plant(["complete"], seeds=3)
    runs = planted.runs
    fewer = runs[(runs["cell"] != CELL) | (runs["seed"] != runs["seed"].max())]
    for kept, counted in ((runs, "6 trials of 3 seeds"), (fewer, "6 trials of 2 to 3 seeds")):
        report = ReportData.of_study(*planted._replace(runs=kept))
        (text,) = (text for name, text in SUMMARIES["sweep"](report, []).entries if name == "Runs")
        assert text.startswith(f"{len(kept)} runs ({counted}) in 6 cells: ")


def test_baselines_stand_beside_the_curves_and_in_the_summary(material: ReportData) -> None:
    curves = make_panel(PanelSpec("learning_curves", {"x": "iteration", "metric": "val_loss"}), material)
    assert curves.baselines == (3.5,)
    lines = [shape for shape in curves.figure().layout.shapes if shape.y0 == 3.5]
    assert len(lines) == 1
    without = make_panel(PanelSpec("learning_curves", {"metric": "train_loss"}), material)
    assert without.missing == "no run has a train_loss"
    said = [text for name, text in SUMMARIES["sweep"](material, []).entries if name == "N-gram baseline"]
    (whole,) = said
    assert whole.startswith(
        "3.5000 nats/token, by n-grams, counted in 9 tokens, order 4; order 1 on: 5.00, 4.50, 4.00; "
    )
    assert "; the loss on the evaluation targets is " in whole and whole.endswith("% below it")
    high = BASELINE | {"loss": 1e-3, "by_order": [5.0, 4.9, 1e-3]}
    above = replace(material, studied=replace(material.studied, baselines={"planted": {CELL: high}}))
    said = [text for name, text in SUMMARIES["sweep"](above, []).entries if name == "N-gram baseline"]
    assert said[-1].endswith("above it, and below that of order 2")
    near = {"a": BASELINE, CELL: BASELINE | {"loss": 3.5004}}
    alike = replace(material, studied=replace(material.studied, baselines={"planted": near}))
    assert make_panel(PanelSpec("learning_curves"), alike).baselines == (3.5,), "one label for one height"
    said = [text for name, text in SUMMARIES["sweep"](alike, []).entries if name == "N-gram baseline"]
    assert said[0].startswith("of ") and not any("n-gram baseline" in each for each in said)
    without = replace(material, studied=None)
    assert not [name for name, _ in SUMMARIES["sweep"](without, []).entries if name == "N-gram baseline"]


def test_what_was_confirmed_is_drawn_beside_what_was_searched(material: ReportData, tmp_path) -> None:
    material = replace(material, lab=tmp_path)
    with pytest.raises(BadInput, match="nothing is confirmed: `sweeplab confirm"):
        ConfirmedPanel.of(material)
    tests = {"n_layer=1,n_embd=32": {7: 3.5, 8: 3.6, 9: 3.55}, CELL: {7: 3.0, 8: 3.1, 9: 3.05}, "lost": {}}
    found = [
        Confirmed(cell, 1, 3.2, True, {}, {seed: loss - 0.1 for seed, loss in test.items()}, test)
        for cell, test in tests.items()
    ]
    folder = StudyFolder(tmp_path, "planted")
    folder.path.mkdir(parents=True)
    folder.confirm_file.write_text(json.dumps([asdict(each) for each in found]))
    panel = ConfirmedPanel.of(material)
    assert list(panel.data["cell"]) == [CELL, "n_layer=1,n_embd=32", "lost"]
    assert panel.data["test"].iloc[0] == pytest.approx(3.05)
    test, searched = panel.figure().data
    assert list(test.x) == pytest.approx([3.05, 3.55]) and list(searched.x) == [3.2, 3.2]
    assert panel.notes == (
        "Each cell's best trial, 3 seeds, tested on fresh seeds and the test split: 1 of 1 other cell differs from the "
        "search's best cell.",
    )
    entries = dict(SUMMARIES["sweep"](material, []).entries)
    assert entries["Confirmed"].startswith(
        "3.0500 nats/token on the whole test split, 2.9657 to 3.1343: trial 1 in cell"
    )
