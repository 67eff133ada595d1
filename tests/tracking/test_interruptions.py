"""Kill -9 at every moment of shipping, then ship again: each point once, one run a key, the right end."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Event

import pytest
from tracked import Tracked

import sweeplab
from sweeplab.tracking.connection import connect, tracking_uri

KILLED = -signal.SIGKILL
FRESH = {"artifacts", "mlflow.db", "mlflow.db.lock", "studies", "tracking.lock"}


class Shipper:
    """A process that forks one process a job."""

    def __init__(self):
        environment = os.environ | {"PYTHONPATH": str(Path(sweeplab.__path__[0]).parent)}
        command = [sys.executable, str(Path(__file__).with_name("shipper.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, **job):
        """Return the pid of a process that does the job."""
        return self._ask(job)

    def wait(self, pid):
        """Return the exit code of a process that was started."""
        return self._ask(pid)

    def run(self, **job):
        return self.wait(self.start(**job))

    def close(self):
        self._process.communicate(timeout=300)

    def _ask(self, order):
        print(json.dumps(order, default=str), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def shipper(lab):
    connect(lab, tracking_uri(lab))
    shipper = Shipper()
    yield shipper
    shipper.close()


def begin(folder, key, writer):
    """Write a run that is under way, whose worker was killed in the middle of a line."""
    writer.begin(folder, key)
    writer.append(folder, writer.lines(0, 10, 20), torn='{"iteration": 30, "train_l')
    return folder


def go_on(folder, writer):
    """Go on from the checkpoint of iteration 10, with other times and speeds, to the end."""
    again = [
        line | {"wall_seconds": 90.0 + line["iteration"]} for line in writer.lines(20, 30, 40)
    ]
    writer.append(folder, again)
    (folder / "best").mkdir()
    for name in ("model.json", "model.safetensors"):
        (folder / "best" / name).write_text("{}")
    writer.end(folder, iteration=40)
    return folder


def assert_shipped_once(lab, study, n_runs):
    tracked = Tracked(lab, study)
    runs = tracked.runs()
    assert len(runs) == len({(run.cell, run.trial, run.seed) for run in runs}) == n_runs
    expected = {
        "val_loss": [0, 10, 20, 30, 40],
        "val_loss_by_tokens": [0, 640, 1280, 1920, 2560],
    }
    expected |= {"train_loss": [10, 20, 30, 40], "tokens_per_second": [10, 20, 30, 40]}
    expected |= {"n_params": [0], "wall_seconds": [40], "best_val_loss": [40]}
    client = connect(lab, tracking_uri(lab))
    for run in runs:
        for name, steps in expected.items():
            assert tracked.steps(run.run_id, name) == steps, (run.trial, name)
        assert run.state == "complete"
        assert len(run.values) > 30
        files = [each.path for each in client.list_artifacts(run.run_id, "checkpoint")]
        assert files == ["checkpoint/model.json", "checkpoint/model.safetensors"]
    experiment = client.get_experiment_by_name(study).experiment_id
    statuses = Counter(run.info.status for run in client.search_runs([experiment]))
    assert statuses == {"FINISHED": n_runs, "RUNNING": 1}  # the parent is still open


@pytest.mark.slow
def test_killed_at_every_commit_of_shipping(lab, tmp_path, writer, shipper):
    study, folders, codes = "every commit", [], []
    # Between two commits lie only files, which "before" has behind it; after the last comes the marker.
    for ended, moment, first in ((False, "after", 1), (True, "before", 1), (True, "after", 1)):
        code, n = KILLED, first - 1
        while code == KILLED:
            n += 1
            folder = begin(tmp_path / f"{len(folders)}", f"all/{len(folders)}/0", writer)
            folders.append(go_on(folder, writer) if ended else folder)
            code = shipper.run(lab=lab, study=study, folders=[folder], die=[moment, n])
            codes.append(code)
        assert code == 0
    assert codes.count(KILLED) > 5
    for folder in folders:
        if not (folder / "end.json").exists():
            go_on(folder, writer)
    for _ in range(2):
        assert shipper.run(lab=lab, study=study, folders=folders) == 0
    assert_shipped_once(lab, study, len(folders))


@pytest.mark.faults
def test_killed_at_every_commit_of_opening(lab, shipper):
    client = connect(lab, tracking_uri(lab))
    code, n = KILLED, 0
    while code == KILLED:
        n += 1
        study = f"opening {n}"
        code = shipper.run(lab=lab, study=study, folders=[], die=["after", n], in_open=True)
        assert shipper.run(lab=lab, study=study, folders=[]) == 0
        (parent,) = client.search_runs([client.get_experiment_by_name(study).experiment_id])
        assert parent.data.params == {"sampler": "tpe"}
        assert parent.info.status == "RUNNING"
    assert n > 4


@pytest.mark.faults
def test_a_fresh_lab_killed_while_its_database_is_made(tmp_path, shipper):
    lab, job = tmp_path / "lab", {"study": "fresh", "folders": [], "cache": tmp_path / "cache"}
    for delay in (0.0, 0.3):
        pid = shipper.start(lab=lab, **job)
        while not (lab / ".mlflow.db.new").exists():
            Event().wait(0.01)
        Event().wait(delay)
        os.kill(pid, signal.SIGKILL)
        assert shipper.wait(pid) == KILLED
    assert shipper.run(lab=lab, **job) == 0
    assert {path.name for path in lab.iterdir()} == FRESH


@pytest.mark.slow
def test_processes_that_open_a_fresh_lab_together(tmp_path, shipper):
    lab, cache = tmp_path / "lab", tmp_path / "cache"
    pids = [shipper.start(lab=lab, study="fresh", folders=[], cache=cache) for _ in range(3)]
    assert [shipper.wait(pid) for pid in pids] == [0, 0, 0]
    client = connect(lab, tracking_uri(lab))
    assert sorted(each.name for each in client.search_experiments()) == ["Default", "fresh"]
    assert len(client.search_runs([client.get_experiment_by_name("fresh").experiment_id])) == 1
    assert client.get_experiment("0").artifact_location.startswith((lab / "artifacts").as_uri())
    assert {path.name for path in lab.iterdir()} == FRESH
