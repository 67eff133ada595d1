"""A study of an older version is read."""

import json

from sweeplab.lab.listing import read_spec
from sweeplab.records.folders import StudyFolder


def test_a_study_with_entries_that_are_known_no_more_is_read(lab, cli):
    (folder,) = (lab / "studies").iterdir()
    file = folder / "study.json"
    study = json.loads(file.read_text())
    study["budget"]["repeats"] = 0
    study["sampler"]["batch"] = 1
    study["confirm"] = {"top": 3, "seeds": 5}
    file.write_text(json.dumps(study))
    assert cli("plan", file).code == 2  # a new study may not have them
    assert (
        read_spec(StudyFolder(lab, folder.name)).budget.trials_per_cell
        == study["budget"]["trials_per_cell"]
    )
