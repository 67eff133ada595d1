"""A renaming or removal that is killed at any step is finished by whoever comes next, and everything agrees."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import wraps
from pathlib import Path

import pytest

from sweeplab.doctor import examine
from sweeplab.lab import moving
from sweeplab.lab.showing import show_study
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking import experiment
from sweeplab.tracking.connection import connect, tracking_uri

KILLED = 9
# What a renaming calls, in its order; a process dies after one of them. The second and third are inside MLflow.
STEPS = (
    "written down",
    "MLflow's experiment",
    "MLflow",
    "storage",
    "study.json",
    "study.yaml",
    "plan.json",
    "folder",
)


@pytest.fixture
def lab(finished, folder: Path) -> Path:
    """Return a copy of the lab with a finished study, beside its study file."""
    shutil.copy(finished.file, folder)
    shutil.copytree(finished.lab, folder / "lab")
    return folder / "lab"


def counter(n_steps: int) -> Callable[[Callable], Callable]:
    """Let this process die as soon as so many calls of what is counted are done, and one more."""
    left = [n_steps]

    def counted(call: Callable) -> Callable:
        @wraps(call)
        def run(*arguments, **named):
            found = call(*arguments, **named)
            if not left[0]:
                os._exit(KILLED)
            left[0] -= 1
            return found

        return run

    return counted


def kill_after(step: str, patch: pytest.MonkeyPatch) -> None:
    """Let this process die as soon as a step is done."""
    counted = counter(STEPS.index(step))
    patch.setattr(moving, "write_whole", counted(moving.write_whole))
    from mlflow import MlflowClient

    patch.setattr(MlflowClient, "rename_experiment", counted(MlflowClient.rename_experiment))
    patch.setattr(moving, "rename_experiment", counted(moving.rename_experiment))
    patch.setattr(moving, "_rename_in_storage", counted(moving._rename_in_storage))
    patch.setattr(Path, "rename", counted(Path.rename))


def renamed_until(step: str, lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rename the study in a process that dies after a step."""
    connect(lab, tracking_uri(lab))  # MLflow is loaded once, before any fork
    if not (child := os.fork()):
        kill_after(step, monkeypatch)
        moving.rename_study(StudyFolder(lab, "tiny"), "other")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def assert_agrees(lab: Path, before: dict) -> None:
    """Make sure that all stores have the study under its new name, once, with all that it had."""
    assert [path.name for path in (lab / "studies").iterdir()] == ["other"]
    study = StudyFolder(lab, "other")
    assert not study.moving_file.exists()
    assert show_study(study) | {"name": "tiny"} == before | {"best": show_study(study)["best"]}
    with closing(sqlite3.connect(study.database)) as connection:
        names = {name for (name,) in connection.execute("SELECT study_name FROM studies")}
    assert names == {"other/n_embd=8", "other/n_embd=16"}
    client = connect(lab, tracking_uri(lab))
    (found,) = [each for each in client.search_experiments() if each.name != "Default"]
    runs = client.search_runs([found.experiment_id])
    assert found.name == "other" and {run.data.tags["sweeplab.study"] for run in runs} == {"other"}
    keys = Counter(run.data.tags["sweeplab.key"] for run in runs)
    assert keys == Counter(["other", *(f"other/n_embd={n}/{i}/0" for n in (8, 16) for i in (0, 1))])
    assert {run.info.run_name for run in runs if run.data.tags["sweeplab.key"] == "other"} == {"other"}
    checks = [each for each in examine(lab, study) if each.name in ("storage", "runs", "agreement")]
    assert {each.verdict for each in checks} == {"ok"}, checks


QUICK = ("MLflow's experiment", "storage", "folder")


@pytest.mark.parametrize(
    "step", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in STEPS]
)
def test_the_same_command_finishes_what_was_killed(step: str, lab: Path, cli, monkeypatch) -> None:
    before = show_study(StudyFolder(lab, "tiny"))
    renamed_until(step, lab, monkeypatch)
    said = cli("study", "rename", "tiny", "other", "--yes")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("tiny is now other") and "undo: sweeplab study rename other tiny" in said.out
    assert_agrees(lab, before)


@pytest.mark.parametrize(
    "step", [each if each == "MLflow" else pytest.param(each, marks=pytest.mark.slow) for each in STEPS]
)
@pytest.mark.parametrize("name", ["tiny", pytest.param("other", marks=pytest.mark.slow)])
def test_a_run_under_either_name_finishes_what_was_killed(
    step: str, name: str, lab: Path, cli, monkeypatch
) -> None:
    before = show_study(StudyFolder(lab, "tiny"))
    renamed_until(step, lab, monkeypatch)
    said = cli("study", "run", "tiny.yaml", "--name", name, "--quiet")
    if name == "tiny":
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("error: an interrupted command was finished first: tiny is now other")
    else:
        assert (said.code, said.err) == (0, "")
    assert_agrees(lab, before)


def test_a_name_that_mlflow_has_changes_nothing(lab: Path, cli) -> None:
    connect(lab, tracking_uri(lab)).create_experiment("other")
    said = cli("study", "rename", "tiny", "other", "--yes")
    assert said.code == 2 and "has an experiment 'other'; give another name" in said.err
    assert not StudyFolder(lab, "tiny").moving_file.exists()
    assert cli("study", "run", "tiny.yaml", "--quiet").code == 0


def test_a_servers_runs_are_renamed_one_by_one(lab: Path, monkeypatch) -> None:
    before = show_study(StudyFolder(lab, "tiny"))
    monkeypatch.setattr(experiment, "engine_of", lambda client: None)
    moving.rename_study(StudyFolder(lab, "tiny"), "other")
    assert_agrees(lab, before)


# What a removal calls, in its order.
REMOVAL = ("written down", "renamed in MLflow", "deleted in MLflow", "folder")


@pytest.mark.parametrize(
    "step", [each if each == REMOVAL[1] else pytest.param(each, marks=pytest.mark.slow) for each in REMOVAL]
)
@pytest.mark.parametrize(
    "command", ["study rm tiny --yes", pytest.param("study run tiny.yaml --quiet", marks=pytest.mark.slow)]
)
def test_a_removal_that_was_killed_is_finished_and_can_be_taken_back(
    step: str, command: str, lab: Path, cli, monkeypatch
) -> None:
    before = show_study(StudyFolder(lab, "tiny"))
    client = connect(lab, tracking_uri(lab))
    if not (child := os.fork()):
        from mlflow import MlflowClient

        counted = counter(REMOVAL.index(step))
        monkeypatch.setattr(moving, "write_whole", counted(moving.write_whole))
        for name in ("rename_experiment", "delete_experiment"):
            monkeypatch.setattr(MlflowClient, name, counted(getattr(MlflowClient, name)))
        monkeypatch.setattr(Path, "rename", counted(Path.rename))
        moving.remove_study(StudyFolder(lab, "tiny"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    said = cli(*command.split())
    assert client.get_experiment_by_name("tiny") is None
    assert not StudyFolder(lab, "tiny").path.exists() and len(list((lab / "trash").iterdir())) == 1
    if "run" in command:
        assert said.code == 2
        assert said.err.startswith("error: an interrupted command was finished first: tiny was removed")
        return
    assert said.code == 0, said.err
    for line in said.out.splitlines()[1:]:
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        subprocess.run(
            line.removeprefix("undo: "), shell=True, check=True, env=environment, capture_output=True
        )
    assert show_study(StudyFolder(lab, "tiny")) == before
    checks = [each for each in examine(lab, StudyFolder(lab, "tiny")) if each.name == "agreement"]
    assert [each.verdict for each in checks] == ["ok"]


def test_a_removal_that_mlflow_does_not_take_leaves_the_study(lab: Path, cli, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    said = cli("study", "rm", "tiny", "--yes")
    assert said.code == 1 and "tracking does not answer" in said.err
    assert not StudyFolder(lab, "tiny").moving_file.exists()
