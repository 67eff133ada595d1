"""A lab that was moved or copied is whole where it is, and what is done there stays there."""

import shutil

import pytest
from cli.conftest import contents

import sweeplab
from sweeplab.tracking.connection import connect, tracking_uri

pytestmark = pytest.mark.slow


@pytest.fixture(params=["copied", "moved"])
def lab(request, finished, tmp_path):
    """Return the lab where it is now, whose database knows it by another path; the original may not change."""
    original, there = tmp_path / "original", tmp_path / "there"
    shutil.copytree(finished.lab, original)
    connect(original, tracking_uri(original))
    before = contents(original)
    if request.param == "moved":
        original.rename(there)
        yield there
        assert not original.exists()
    else:
        shutil.copytree(original, there)
        yield there
        assert contents(original) == before


def tracked(lab):
    """Return the runs that MLflow has of the study, all of whose files must lie in this lab."""
    client = connect(lab, tracking_uri(lab))
    experiment = client.get_experiment_by_name("tiny")
    runs = client.search_runs([experiment.experiment_id])
    assert experiment.artifact_location == f"{lab.as_uri()}/artifacts"
    assert all(run.info.artifact_uri.startswith(f"{lab.as_uri()}/artifacts/") for run in runs)
    return runs


def test_pages_and_checkpoints_are_those_of_the_lab(lab, cli):
    assert cli("report", "tiny", "--page", "sweep", "--lab", lab).code == 0
    (parent,) = [run for run in tracked(lab) if "mlflow.parentRunId" not in run.data.tags]
    assert (lab / "artifacts" / parent.info.run_id / "artifacts" / "plan.json").exists()
    kept = {path.parents[1].name for path in lab.glob("artifacts/*/artifacts/checkpoint")}
    assert kept and all(sweeplab.load_run(each, lab=lab).values.n_embd for each in kept)
    assert cli("doctor", "tiny", "--lab", lab).code == 0


@pytest.mark.usefixtures("workers_here")
def test_by_public_ways_its_runs_are_sent_again(lab, finished, cli, monkeypatch):
    monkeypatch.setenv("SWEEPLAB_PUBLIC_ONLY", "1")
    assert cli("run", finished.file, "--lab", lab, "--quiet").code == 0
    assert [run.info.status for run in tracked(lab)] == ["FINISHED"] * 5


@pytest.mark.usefixtures("workers_here")
def test_the_study_goes_on_and_sends_no_run_again(lab, finished, cli):
    def sent():
        return {
            (path, path.stat().st_mtime_ns)
            for path in lab.glob("studies/tiny/runs/*/*/shipped")
        }

    before = sent()
    changes = ("-o", "budget.trials_per_cell=3", "--lab", lab, "--quiet")
    assert cli("run", finished.file, *changes).code == 0
    assert before < sent() and len(sent()) == len(before) + 2
