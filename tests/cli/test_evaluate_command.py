"""`sweeplab evaluate` on a study that has been run."""

import json
from pathlib import Path

import pytest

from sweeplab.lab.listing import StudyTrials
from sweeplab.records.folders import StudyFolder


def test_learned_positions_have_nothing_longer(cli, finished) -> None:
    said = cli("evaluate", "tiny", "--lab", finished.lab, "--json")
    assert said.code == 0
    found = json.loads(said.out)
    best = StudyTrials(StudyFolder(finished.lab, "tiny")).find()
    assert found["measures"]["val_loss"] == pytest.approx(best.value, rel=1e-6)
    assert set(found["measures"]) == {"val_loss", "perplexity", "bits_per_byte"}
    (own,) = found["length_extrapolation"]
    assert own["times"] == 1 and own["length"] == len(own["by_position"]) == found["block_size"]
    assert own["val_loss"] == pytest.approx(best.value, rel=1e-6)
    assert [each["times"] for each in found["left_out"]] == [2, 4]
    assert all("learned positions end at block_size" in each["why"] for each in found["left_out"])


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_run_of_longer_reach(cli, folder: Path) -> None:
    text = STUDY_OF_ROTARY
    (folder / "longer.yaml").write_text(text)
    assert cli("study", "run", "longer.yaml").code == 0
    found = json.loads(cli("evaluate", "longer", "--json").out)
    assert [(row["times"], row["length"]) for row in found["length_extrapolation"]] == [
        (1, 8),
        (2, 16),
        (4, 32),
    ]
    assert not found["left_out"]
    assert "perplexity" in cli("evaluate", "longer").out


STUDY_OF_ROTARY = """
name: longer
data: {corpus: python-docs, tokenizer: char}
fixed:
  {n_layer: 1, n_head: 2, n_embd: 8, block_size: 8, batch_size: 4, max_iters: 4, eval_interval: 4, eval_iters: 2,
   positions: rotary, device: cpu, warmup_iters: 1}
budget: {trials_per_cell: 1}
"""
