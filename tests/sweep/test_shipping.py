"""Runs are shipped as something happens to them, in a thread that delays nobody."""

import json
import threading
from types import SimpleNamespace

import pytest
import torch
from terminal import wait_until
from tracked import Tracked

from sweeplab.errors import DamagedFile, TrackingUnavailable
from sweeplab.files import GrowingFile
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.lab.events import RunEvaluated, TrialClaimed, TrialEnded
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import CurvePoint, RunEnd, RunStart, RunState, TrialEnding, run_key
from sweeplab.sweep import shipping
from sweeplab.sweep.engines import NUMBER
from sweeplab.sweep.shipping import Shipping
from sweeplab.sweep.worker import write_use
from sweeplab.tracking import open_tracker
from sweeplab.tracking.tracker import USE

COMPLETE = TrialEnding(RunState.COMPLETE, 1.0)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(shipping, "SEND_SECONDS", 0.05)


@pytest.fixture
def folder(tmp_path):
    return StudyFolder(tmp_path / "lab", "shipped")


@pytest.fixture
def tracker(folder):
    tracker = open_tracker(folder.lab, folder.name)
    tracker.open({})
    return tracker


def begin(folder, trial):
    """Write the starts of a trial's runs."""
    runs = [folder.run("all", trial, seed) for seed in (0, 1)]
    for run in runs:
        place = {"cell": "all", "trial": trial, "seed": run.seed}
        start = RunStart(
            key=run_key(*place.values()), **place, values=Hyperparameters(), started=1e9
        )
        run.write_start(start)
    return runs


def evaluate(run, iteration):
    point = {
        "iteration": iteration,
        "train_tokens": 64 * iteration,
        "wall_seconds": 0.1 * iteration,
    }
    run.append([CurvePoint(**point, val_loss=4.0 - 0.1 * iteration)])
    place = {"cell": run.cell, "trial": run.trial, "seed": run.seed}
    return RunEvaluated(**place, iteration=iteration, val_loss=4.0 - 0.1 * iteration)


def end(run):
    run.write_end(RunEnd(state=RunState.COMPLETE, iteration=3, value=1.0, ending=COMPLETE))
    return TrialEnded(cell=run.cell, trial=run.trial, ending=COMPLETE, ended=1e9)


def states(tracker):
    return {(run.trial, run.seed): run.state for run in tracker.runs()}


def test_what_happens_to_a_trial_is_shipped(folder, tracker):
    seen, shipped = Tracked(folder.lab, folder.name), Shipping(folder, [tracker])
    shipped.start()
    first, second = begin(folder, 0)
    for iteration in (0, 1, 2):
        for run in (first, second):
            shipped.hear(evaluate(run, iteration))
    wait_until(lambda: states(seen) == {(0, 0): "running", (0, 1): "running"})
    shipped.hear(evaluate(first, 3))
    # The first run's end is heard of before the second has one.
    shipped.hear(end(first))
    wait_until((first.path / "shipped").exists)
    end(second)
    wait_until((second.path / "shipped").exists)
    assert shipped.finish() == []
    assert states(seen) == {(0, 0): "complete", (0, 1): "complete"}
    for run in seen.runs():
        steps = [0, 1, 2, 3] if run.seed == 0 else [0, 1, 2]
        assert seen.steps(run.run_id, "val_loss") == steps


def test_what_an_earlier_process_left_and_what_nobody_told_of_is_shipped(folder, tracker):
    for run in begin(folder, 0):
        end(run)
    going_on, _ = begin(folder, 1)
    evaluate(going_on, 0)
    seen, shipped = Tracked(folder.lab, folder.name), Shipping(folder, [tracker])
    shipped.start()
    wait_until(lambda: len(states(seen)) == 4)
    end(going_on)  # by a worker that dies before it can say so
    shipped.finish()
    assert states(seen) == {
        (0, 0): "complete",
        (0, 1): "complete",
        (1, 0): "complete",
        (1, 1): "running",
    }


def test_a_server_that_does_not_answer_is_asked_once_and_delays_no_other(
    folder, tracker, monkeypatch
):
    asked, shipped = [], []

    def ship(path):
        asked.append(path)
        raise TrackingUnavailable

    monkeypatch.setattr(shipping, "SLOW_SECONDS", -1)
    monkeypatch.setattr(tracker, "ship", ship)
    begin(folder, 0)
    other = SimpleNamespace(ship=lambda path: not shipped.append(path))
    Shipping(folder, [tracker, other])._ship_open([("all", 0)])
    assert (len(asked), len(shipped)) == (1, 2)


def test_a_damaged_record_is_said(folder, tracker):
    shipped = Shipping(folder, [tracker])
    run, _ = begin(folder, 0)
    run.start_file.write_text("{")
    shipped.start()
    shipped.hear(TrialClaimed(cell="all", trial=0, started=0.0))
    with pytest.raises(DamagedFile, match=r"run\.json"):
        shipped.finish()


def test_no_use_of_a_machine_ends_the_sending(folder, tracker):
    place = folder.path / USE
    place.mkdir()
    (place / "worker-0.jsonl").write_text("[1]\n")
    shipped = Shipping(folder, [tracker])
    for run in begin(folder, 0):
        end(run)
    shipped.start()
    assert shipped.finish() == []
    assert states(Tracked(folder.lab, folder.name)) == {(0, 0): "complete", (0, 1): "complete"}


@pytest.mark.parametrize("gpu", ["", "seen", "without nvidia-ml-py"])
def test_a_worker_writes_what_it_uses(gpu, folder, monkeypatch):
    names = {"time", "cpu_utilization_percentage", "memory_usage_megabytes"}
    if gpu:
        names.add("gpu_memory_usage_megabytes")
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2e6)
    if gpu == "seen":
        names.add("gpu_utilization_percentage")
        monkeypatch.setattr(torch.cuda, "utilization", lambda: 40)
    monkeypatch.setattr("sweeplab.sweep.worker.USE_SECONDS", 0.01)
    monkeypatch.setenv(NUMBER, "3")
    file, ended = folder.path / USE / "worker-3.jsonl", threading.Event()
    writing = threading.Thread(target=write_use, args=(folder, ended))
    writing.start()

    def has_computed():
        used = [json.loads(line) for line in GrowingFile(file).new_lines().splitlines()]
        assert all(
            each.keys() == names and each["memory_usage_megabytes"] > 10 for each in used
        )
        return any(each["cpu_utilization_percentage"] > 0 for each in used)

    wait_until(has_computed)
    ended.set()
    writing.join()
