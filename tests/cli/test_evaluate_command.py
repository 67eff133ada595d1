"""`sweeplab evaluate` on a study that has been run."""

import json

import pytest

from sweeplab.lab.listing import StudyTrials
from sweeplab.records.folders import StudyFolder


def test_it_measures_the_best_run_as_its_evaluations_did(cli, finished):
    said = cli("evaluate", "tiny", "--lab", finished.lab, "--json")
    assert said.code == 0
    found = json.loads(said.out)
    best = StudyTrials(StudyFolder(finished.lab, "tiny")).find()
    assert found["measures"]["val_loss"] == pytest.approx(best.value, rel=1e-6)
    assert set(found["measures"]) == {"val_loss", "perplexity", "bits_per_byte"}
    assert "perplexity" in cli("evaluate", "tiny", "--lab", finished.lab).out
