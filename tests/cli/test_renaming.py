"""A rename or removal that is killed, or that MLflow does not take, leaves a study that can be used or repaired."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tracked import Tracked

from sweeplab.doctor import examine
from sweeplab.lab import studies
from sweeplab.lab.showing import show_study
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking.connection import connect, tracking_uri

KILLED = 9


def killed_before(name, lab, monkeypatch, call, *arguments):
    """Move the study in a process that dies as it calls a function of `studies`, or before it renames the folder."""
    connect(lab, tracking_uri(lab))  # MLflow is loaded once, before any fork
    if not (child := os.fork()):
        target = Path if name == "rename" else studies
        monkeypatch.setattr(target, name, lambda *_: os._exit(KILLED))
        call(StudyFolder(lab, "tiny"), *arguments)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def assert_agrees(lab, before):
    """Make sure that all stores have the study under its new name, once, with all that it had."""
    assert [path.name for path in (lab / "studies").iterdir()] == ["other"]
    study = StudyFolder(lab, "other")
    assert show_study(study) | {"name": "tiny"} == before | {"best": show_study(study)["best"]}
    with closing(sqlite3.connect(study.database)) as connection:
        names = {name for (name,) in connection.execute("SELECT study_name FROM studies")}
    assert names == {"other/n_embd=8", "other/n_embd=16"}
    runs = Tracked(lab, "other").runs()
    places = sorted((run.cell, run.trial) for run in runs)
    assert places == sorted((f"n_embd={n}", i) for n in (8, 16) for i in (0, 1)), (
        "each run once"
    )
    client = connect(lab, tracking_uri(lab))
    assert client.get_experiment_by_name("tiny") is None
    parent = client.get_run(client.get_run(runs[0].run_id).data.tags["mlflow.parentRunId"])
    tags = (parent.data.tags[f"sweeplab.{name}"] for name in ("study", "key"))
    assert {parent.info.run_name, *tags} == {"other"}
    checks = [
        each for each in examine(lab, study) if each.name in ("storage", "runs", "agreement")
    ]
    assert {each.verdict for each in checks} == {"ok"}, checks


@pytest.mark.slow
@pytest.mark.parametrize("step", ["finish_renaming", "rename_studies", "write_whole"])
def test_repair_finishes_a_rename_that_was_killed(step, lab, finished, cli, monkeypatch):
    before = show_study(StudyFolder(lab, "tiny"))
    killed_before(step, lab, monkeypatch, studies.rename_study, "other")
    for words in (f"run {finished.file} --name other --quiet", "doctor other"):
        said = cli(*words.split())
        assert said.code and "a rename was interrupted" in said.out + said.err, said
        assert "sweeplab doctor other --repair" in said.out + said.err
    said = cli("doctor", "other", "--repair")
    assert (said.code, said.out, said.err) == (0, "renamed to other\n", "")
    assert_agrees(lab, before)


def test_the_same_command_finishes_a_removal_that_was_killed(lab, cli, monkeypatch):
    killed_before("rename", lab, monkeypatch, studies.remove_study)
    assert cli("rm", "tiny", "--yes").code == 0
    assert connect(lab, tracking_uri(lab)).get_experiment_by_name("tiny") is None
    assert (
        not StudyFolder(lab, "tiny").path.exists() and len(list((lab / "trash").iterdir())) == 1
    )


def test_a_removal_that_mlflow_does_not_take_leaves_the_study(lab, cli, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    said = cli("study", "rm", "tiny", "--yes")
    assert said.code == 1 and "tracking does not answer" in said.err
    assert cli("show", "tiny").code == 0
