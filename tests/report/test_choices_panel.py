"""The panels of choices and of what was confirmed, and baselines beside a study's losses."""

import json
from dataclasses import asdict, replace

import pytest
from report.scaling_page import report_of

from sweeplab.analysis.studies import Studies
from sweeplab.records.folders import StudyFolder
from sweeplab.records.kept import Confirmed
from sweeplab.report.panels.base import PanelSpec, make_panel

CELL = "n_layer=4,n_embd=64"
BASELINE = {
    "loss": 3.5,
    "bits_per_byte": 5.05,
    "method": "n-grams",
    "order": 4,
}


@pytest.fixture
def material(plant):
    """Six sizes with three seeds each, whose losses differ by 0.1 and more; a seed moves all alike."""
    planted = plant(["complete"], seeds=3)
    bits = planted.runs["best_val_loss"] / 0.6931472 / 2
    runs = planted.runs.assign(objective="next_token", best_bits_per_byte=bits)
    data = {"planted": {"val_tokens": 100}}
    studied = Studies(runs, {}, data, {"planted": {CELL: BASELINE}})
    return report_of(runs, planted.curves, studied=studied)


def test_choices_are_ranked_and_told_apart(material):
    found = make_panel(PanelSpec("choices"), material)
    rows = found.result["choices"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[0]["cell"] == rows[0]["against"] == CELL
    assert [row["loss"] for row in rows] == sorted(row["loss"] for row in rows)
    assert rows[0]["bits per byte"] == pytest.approx(rows[0]["loss"] / 0.6931472 / 2, rel=1e-6)
    assert [row["n-grams"] == 3.5 for row in rows] == [True, *[False] * 5]
    assert set(found.data["verdict"]) == {"different"}
    assert len(found.figure().data) == 1


def test_what_was_confirmed_is_drawn_beside_what_was_searched(material, tmp_path):
    material = replace(material, lab=tmp_path)
    assert "confirm" in make_panel(PanelSpec("confirmed"), material).missing
    tests = {
        "n_layer=1,n_embd=32": {7: 3.5, 8: 3.6, 9: 3.55},
        CELL: {7: 3.0, 8: 3.1, 9: 3.05},
        "lost": {},
    }
    found = [
        Confirmed(
            cell, 1, 3.2, True, {}, {seed: loss - 0.1 for seed, loss in test.items()}, test
        )
        for cell, test in tests.items()
    ]
    folder = StudyFolder(tmp_path, "planted")
    folder.path.mkdir(parents=True)
    folder.confirm_file.write_text(json.dumps([asdict(each) for each in found]))
    panel = make_panel(PanelSpec("confirmed"), material)
    assert list(panel.data["cell"]) == [CELL, "n_layer=1,n_embd=32", "lost"]
    assert (
        panel.data["test"].iloc[0] == pytest.approx(3.05)
        and "different" in panel.data["verdict"].tolist()
    )
    test, searched = panel.figure().data
    assert list(test.x) == pytest.approx([3.05, 3.55]) and list(searched.x) == [3.2, 3.2]
