"""Values that are not luck, as a person sees them: the expected value beside the one seen, repetitions, edges."""

import json
from pathlib import Path

import pytest
from cli.conftest import STUDY

from sweeplab.lab.listing import read_trials
from sweeplab.records.folders import StudyFolder


def study(folder: Path, **changes: str) -> Path:
    text = STUDY.replace("{trials_per_cell: 2}", changes.pop("budget", "{trials_per_cell: 4}"))
    for old, new in changes.items():
        text = text.replace(f"{old}: {{", f"{old}: {{{new}, ", 1)
    file = folder / "values.yaml"
    file.write_text(text.replace("name: tiny", "name: values"))
    return file


@pytest.mark.slow
def test_a_study_gives_the_expected_value(cli, folder: Path, workers_here: None) -> None:
    assert cli("study", "run", study(folder)).code == 0
    lab = folder / "lab"
    trials = read_trials(StudyFolder(lab, "values"))
    by_cell = {
        trial.cell: {other.number: other for other in trials if other.cell == trial.cell} for trial in trials
    }
    assert {cell: sorted(of_cell) for cell, of_cell in by_cell.items()} == {
        "n_embd=8": [0, 1, 2, 3],
        "n_embd=16": [0, 1, 2, 3],
    }
    best = json.loads(cli("study", "best", "values", "--json").out)
    choice = best["choice"]
    assert choice["value"] == best["value"]
    assert choice["expected"]["low"] < choice["expected"]["value"] < choice["expected"]["high"]
    said = cli("study", "best", "values").out
    assert f"by the expected value, {choice['expected']['value']:.4f}" in said
    shown = json.loads(cli("study", "show", "values", "--json").out)
    assert shown["best"]["choice"] == choice and shown["best"]["key"].startswith(
        f"{best['cell']}/{best['trial']}/"
    )
    assert cli("study", "run", folder / "values.yaml").code == 0
    assert len(read_trials(StudyFolder(lab, "values"))) == len(trials), "totals: nothing is added"
