"""`sweeplab laws predict`: the best values and the loss of a size that a study has not tried."""

import json

import pytest

from sweeplab.analysis.studies import read_studies
from sweeplab.study.file.reading import read_study


@pytest.mark.slow
def test_a_study_of_few_trials_gives_the_nearest_cell_s_values_and_a_file_that_runs(
    cli, finished, folder
):
    asked = ("laws", "predict", "tiny", "--lab", finished.lab, "--at", "n_embd=32")
    (found,) = json.loads(cli(*asked, "--write", "big.yaml", "--json").out)["sizes"]
    rate = found["values"]["learning_rate"]
    best = (
        read_studies(finished.lab, ["tiny"])
        .runs.query("n_embd == 16")
        .sort_values("value")
        .iloc[0]
    )
    assert (
        rate["value"] == best["learning_rate"]
        and rate["low"] is None
        and "n_embd=16" in rate["why"]
    )
    assert found["loss"]["value"] is None and found["loss"]["why"]
    assert read_study(folder / "big.yaml").fixed["learning_rate"] == rate["value"]
    said = cli(*asked, "--write", "big.yaml")
    assert said.code == 2 and "the file exists already" in said.err
    assert "of the nearest cell, n_embd=16" in cli(*asked).out
