"""A lab that was moved or copied is whole where it is, and what is done there stays there."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import sweeplab
from sweeplab.tracking.connection import connect, tracking_uri


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file with when it was written and what it has; locks are no contents."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".lock", ".db-shm", ".db-wal")
    }


@pytest.fixture
def original(finished, tmp_path: Path) -> Path:
    """Return a lab of this test's own, whose database knows it by this path."""
    shutil.copytree(finished.lab, tmp_path / "original")
    connect(tmp_path / "original", tracking_uri(tmp_path / "original"))
    return tmp_path / "original"


@pytest.fixture(params=["copied", "moved"])
def lab(request: pytest.FixtureRequest, original: Path, tmp_path: Path) -> Iterator[Path]:
    """Return the lab where it is now; what is still there of the original may not change."""
    there = tmp_path / "there"
    before = contents(original)
    if request.param == "moved":
        original.rename(there)
        yield there
        assert not original.exists()
    else:
        shutil.copytree(original, there)
        yield there
        assert contents(original) == before


@pytest.mark.slow
def test_pages_and_checkpoints_are_those_of_the_lab(lab: Path, cli) -> None:
    assert cli("report", "tiny", "--page", "sweep", "--lab", lab).code == 0
    client = connect(lab, tracking_uri(lab))
    experiment = client.get_experiment_by_name("tiny")
    runs = client.search_runs([experiment.experiment_id])
    assert experiment.artifact_location == f"{lab.as_uri()}/artifacts"
    assert all(run.info.artifact_uri.startswith(f"{lab.as_uri()}/artifacts/") for run in runs)
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert (lab / "artifacts" / parent.info.run_id / "artifacts" / "report" / "sweep.html").exists()
    kept = {path.parents[1].name for path in lab.glob("artifacts/*/artifacts/checkpoint")}
    assert kept and all(sweeplab.load_run(each, lab=lab).values.n_embd for each in kept)
    said = cli("doctor", "tiny", "--lab", lab)
    assert said.code == 0, said.out


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
@pytest.mark.parametrize("lab", ["copied", "moved"], indirect=True)
def test_by_public_ways_its_runs_are_sent_again(lab: Path, finished, cli, monkeypatch) -> None:
    monkeypatch.setenv("SWEEPLAB_PUBLIC_ONLY", "1")
    assert cli("study", "run", finished.file, "--lab", lab, "--quiet").code == 0
    client = connect(lab, tracking_uri(lab))
    experiment = client.get_experiment_by_name("tiny")
    assert experiment.artifact_location == f"{lab.as_uri()}/artifacts"
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 5 and all(run.info.status == "FINISHED" for run in runs)
    assert all(run.info.artifact_uri.startswith(f"{lab.as_uri()}/artifacts/") for run in runs)


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
@pytest.mark.parametrize("lab", ["copied", "moved"], indirect=True)
def test_the_study_goes_on_and_sends_no_run_again(lab: Path, finished, cli) -> None:
    markers = sorted(lab.glob("studies/tiny/runs/*/*/shipped"))
    before = {path: path.stat().st_mtime_ns for path in markers}
    changes = ("-o", "budget.trials_per_cell=3", "--lab", lab, "--quiet")
    assert cli("study", "run", finished.file, *changes).code == 0
    assert {path: path.stat().st_mtime_ns for path in markers} == before
    assert len(sorted(lab.glob("studies/tiny/runs/*/*/shipped"))) == len(markers) + 2
