"""A run's records: what is written is read again, and what is missing or short is no error."""

import json
import math
from dataclasses import replace

import pytest

from sweeplab.errors import DamagedFile
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.records.folders import StudyFolder
from sweeplab.records.kept import Confirmed, read_confirmed, write_confirmed
from sweeplab.records.runs import RunEnd, RunFolder, RunStart, RunState, TrialEnding

START = RunStart(
    key="a/b=1/2/3",
    cell="a/b=1",
    trial=2,
    seed=3,
    grid=[],
    values=Hyperparameters(),
    facts={"n_params": 7},
    started=1000.5,
)


def test_the_best_checkpoint_before_the_last(tmp_path):
    (tmp_path / "last").mkdir()
    assert RunFolder(tmp_path).checkpoint() == tmp_path / "last"
    (tmp_path / "best").mkdir()
    assert RunFolder(tmp_path).checkpoint() == tmp_path / "best"


def test_records_come_back_as_they_were_written(tmp_path):
    folder = RunFolder(tmp_path / "a" / "2-3")
    assert (folder.cell, folder.trial, folder.seed) == ("a", 2, 3)
    folder.write_start(START)
    folder.write_start(replace(START, started=2000.0))
    assert folder.read_start() == START and folder.read_start().values.betas == (0.9, 0.95)
    said = json.loads(folder.start_file.read_bytes())
    assert "enqueued" not in said and said["values"]["betas"] == [0.9, 0.95]
    ending = TrialEnding(
        RunState.STOPPED, 2.5, {3: RunState.STOPPED, 4: RunState.PRUNED}, "why"
    )
    end = RunEnd(
        state=RunState.PRUNED,
        value=2.5,
        final_val_loss=math.nan,
        best={"exact_match": 0.5},
        ending=ending,
    )
    folder.write_end(end)
    assert folder.read_end() == replace(end, final_val_loss=None)
    said = json.loads(folder.end_file.read_bytes())
    assert (
        said["ending"]["states"] == {"3": "stopped", "4": "pruned"}
        and said["final_val_loss"] is None
    )
    assert said["best_exact_match"] == 0.5 and "best_accuracy" not in said


def test_of_two_ends_the_first_holds(tmp_path):
    pruned, complete = (
        RunEnd(state=state, value=value, ending=TrialEnding(state, value))
        for state, value in ((RunState.PRUNED, 2.5), (RunState.COMPLETE, 2.0))
    )
    folder = RunFolder(tmp_path)
    assert folder.write_end(pruned) == folder.write_end(complete) == folder.read_end() == pruned
    assert [file.name for file in tmp_path.iterdir()] == ["end.json"]


def test_a_promoted_trial_ends_as_it_says_whatever_a_stopped_worker_wrote(tmp_path):
    state = RunState.COMPLETE
    complete = RunEnd(state=state, value=2.0, iteration=40, ending=TrialEnding(state, 2.0))
    state, folder = RunState.PRUNED, RunFolder(tmp_path)
    pruned = RunEnd(state=state, value=2.5, iteration=20, ending=TrialEnding(state, 2.5))
    # The worker that pruned it wakes up when its trial has been promoted, and trained on, by another one.
    folder.write_end(pruned)
    assert folder.write_end(complete, promoted=20) == folder.read_end() == complete
    assert folder.write_end(pruned) == complete


def test_losses_on_the_test_split_come_back_and_damage_is_said(tmp_path):
    study, run = StudyFolder(tmp_path, "a"), RunFolder(tmp_path)
    study.path.mkdir(parents=True)
    assert run.read_test() is None and read_confirmed(study) == []
    run.write_test({"test_loss": 2.5, "perplexity": 12.0})
    assert run.read_test() == {"test_loss": 2.5, "perplexity": 12.0}
    found = [Confirmed("a", 3, math.inf, True, {4: 2.5}, {5: 2.25}, {})]
    write_confirmed(study, found)
    assert read_confirmed(study) == found
    for file, read in (
        (run.test_file, run.read_test),
        (study.confirm_file, lambda: read_confirmed(study)),
    ):
        file.write_text("{")
        with pytest.raises(DamagedFile, match="confirm"):
            read()
