"""Runs of an older version, with a choice that this one does not have, are shown, and say so."""

import json

from sweeplab.lab.listing import read_spec
from sweeplab.records.folders import StudyFolder


def test_runs_with_a_removed_choice_are_shown(lab, cli):
    (study,) = (lab / "studies").iterdir()
    for file in study.glob("runs/*/*/run.json"):
        file.write_text(
            file.read_text().replace('"attention": "full"', '"attention": "linear"')
        )
    file = study / "study.json"
    grid = {"grid": {"attention": ["strided", "linear", "full"]}}
    file.write_text(json.dumps(json.loads(file.read_text()) | grid))
    assert (
        "removed from this version: attention=linear;" in cli("study", "show", study.name).out
    )
    assert cli("report", study.name, "--page", "sweep").code == 0


def test_a_study_with_entries_that_are_known_no_more_is_read(lab, cli):
    (folder,) = (lab / "studies").iterdir()
    file = folder / "study.json"
    study = json.loads(file.read_text())
    study["budget"]["repeats"] = 0
    study["sampler"]["batch"] = 1
    study["confirm"] = {"top": 3, "seeds": 5}
    file.write_text(json.dumps(study))
    assert cli("plan", file).code == 2  # a new study may not have them
    spec = read_spec(StudyFolder(lab, folder.name))
    assert spec.budget.trials_per_cell == study["budget"]["trials_per_cell"]
    assert spec.sampler.options["batch"] == 1
