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


@pytest.mark.slow
def test_a_best_value_at_the_end_of_its_range_is_told_and_the_range_is_widened(
    cli, folder: Path, workers_here: None
) -> None:
    # In 20 iterations with rates as low as these the largest rate is the best.
    text = STUDY.replace("{min: 3e-4, max: 1e-2, log: true}", "{min: 1e-5, max: 1e-3, log: true}")
    text = text.replace("{trials_per_cell: 2}", "{trials_per_cell: 5}").replace("name: tiny", "name: values")
    file, lab = folder / "values.yaml", folder / "lab"
    file.write_text(
        text.replace("n_embd: [8, 16]", "n_embd: [16]").replace("fixed: {", "fixed: {min_lr: 0.0, ")
        + "sampler: random\n"
    )
    assert cli("study", "run", file).code == 0
    assert cli("study", "enqueue", "values", "learning_rate=0.001").code == 0
    assert cli("study", "resume", "values").code == 0
    before = read_trials(StudyFolder(lab, "values"))
    for command in (("plan", file), ("show", "values"), ("best", "values")):
        said = " ".join(cli("study", *command).out.split())
        assert "learning_rate 1e-3 of the best trial is at the upper end of its range (1e-5 to 1e-3)" in said
        assert "raise search.learning_rate.max to 1e-2: sweeplab extend values --widen learning_rate" in said
    more = ("--no-run", "--widen", "learning_rate", "--trials-per-cell", str(len(before) + 2))
    done = cli("extend", "values", *more)
    assert done.code == 0 and "searches learning_rate from 1e-5 to 1e-2 (was 1e-5 to 1e-3)" in done.out
    # The same file goes on with the wider range, and says by which command.
    planned = cli("study", "plan", file)
    assert planned.code == 0 and "search.learning_rate.max is 1e-2, by extend" in " ".join(
        planned.out.split()
    )
    assert cli("study", "run", file).code == 0
    after = read_trials(StudyFolder(lab, "values"))
    assert len(after) == len(before) + 2
    assert [trial.start.sampled for trial in after][: len(before)] == [
        trial.start.sampled for trial in before
    ]
    assert max(trial.start.sampled["learning_rate"] for trial in after) > 1e-3
