"""What MLflow shows: the parent run, the nested runs, their files and statuses, and what goes wrong."""

import json
import math
import socket
import time
from pathlib import Path

import pytest
from tracked import Tracked

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.permissions import name_address
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking.connection import artifact_location, connect, planned_uri, tracking_uri
from sweeplab.tracking.experiment import rename_experiment
from sweeplab.tracking.mlflow import MLflowTracker
from sweeplab.tracking.tracker import USE

DESCRIPTION = {
    "study": "name: small\n",
    "plan": {"cells": 9},
    "environment": {
        "python": "3.11.2",
        "packages": {"torch": "2.13.0"},
        "git": {"code": {"commit": "abc123", "dirty": True}, "study": None},
        "device": {"cpu": "a fast one", "gpus": []},
    },
    "params": {
        "sampler": "tpe",
        "pruner": {"type": "asha"},
        "trials_per_cell": 4,
        "constraints": "a | b",
    },
    "note": "Nine cells of four trials.",
    "changes": {"study.diff": "-name: a\n+name: small\n"},
}


@pytest.fixture
def client(lab):
    return connect(lab, tracking_uri(lab))


@pytest.fixture
def tracker(lab, request):
    return MLflowTracker(lab, request.node.name)


def seen(tracker):
    return Tracked(tracker.lab, tracker.study)


def nested(client, parent):
    experiment = client.get_run(parent).info.experiment_id
    return list(client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent}'"))


def text(client, run_id, name, folder):
    return Path(client.download_artifacts(run_id, name, str(folder))).read_text()


@pytest.mark.slow
def test_the_parent_describes_the_study(tracker, client, lab, tmp_path):
    parent = client.get_run(tracker.open(DESCRIPTION))
    experiment = client.get_experiment(parent.info.experiment_id)
    assert experiment.name == parent.info.run_name == "test_the_parent_describes_the_study"
    assert experiment.artifact_location == (lab / "artifacts").as_uri()
    assert parent.info.status == "RUNNING"
    params = {
        "sampler": "tpe",
        "pruner": '{"type": "asha"}',
        "trials_per_cell": "4",
        "constraints": "a | b",
    }
    assert parent.data.params == params
    expected = {"sweeplab.state": "running"}
    expected |= {
        "mlflow.source.git.commit": "abc123",
        "sweeplab.git_dirty": "True",
    }
    assert expected.items() <= parent.data.tags.items()
    note = parent.data.tags["mlflow.note.content"]
    assert "Nine cells of four trials." in note
    run_id = parent.info.run_id
    assert text(client, run_id, "study.yaml", tmp_path) == "name: small\n"
    assert text(client, run_id, "study.diff", tmp_path) == DESCRIPTION["changes"]["study.diff"]
    assert json.loads(text(client, run_id, "plan.json", tmp_path)) == {"cells": 9}
    assert (
        json.loads(text(client, run_id, "environment.json", tmp_path))
        == DESCRIPTION["environment"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("complete", "FINISHED"),
        ("pruned", "FINISHED"),
        ("diverged", "FINISHED"),
        ("failed", "FAILED"),
    ],
)
def test_a_nested_run(state, status, lab, client, run_folder, tmp_path):
    tracker = MLflowTracker(lab, f"nested {state}")
    parent = tracker.open(DESCRIPTION)
    tracker.ship(
        run_folder(
            "n_embd=32/7/3", state, grid=["n_embd"], sampled={"learning_rate": 0.0123456}
        )
    )
    (run,) = nested(client, parent)
    assert run.info.run_name == "n_embd=32 #7 seed 3"
    assert (run.info.status, run.info.start_time) == (status, 1_700_000_000_250)
    assert run.info.end_time == run.info.start_time + 15_000
    tags = run.data.tags
    assert tags["sweeplab.key"] == f"nested {state}/n_embd=32/7/3"
    assert (tags["sweeplab.cell"], tags["sweeplab.trial"], tags["sweeplab.seed"]) == (
        "n_embd=32",
        "7",
        "3",
    )
    assert (tags["sweeplab.state"], tags["sweeplab.searched"]) == (
        state,
        '{"learning_rate": 0.0123456}',
    )
    assert run.data.params["learning_rate"] == "0.01235", "as much as a column shows"
    assert tags["mlflow.source.git.commit"] == "abc123"
    assert tags.get("sweeplab.error") == ("ValueError: no" if state == "failed" else None)
    assert text(client, run.info.run_id, "checkpoint/model.safetensors", tmp_path) == "weights"
    if state == "failed":
        assert (
            text(client, run.info.run_id, "error.txt", tmp_path) == "Traceback\nValueError: no"
        )


def test_each_worker_has_a_series_which_goes_on_with_the_next_process(lab, client):
    parent = MLflowTracker(lab, "workers").open(DESCRIPTION)
    place, begun = (
        StudyFolder(lab, "workers").path / USE,
        client.get_run(parent).info.start_time / 1000,
    )
    place.mkdir()
    for at in (10, 20):
        for worker in (0, 1):
            with (place / f"worker-{worker}.jsonl").open("a") as file:
                file.write(
                    json.dumps({"time": begun + at, "cpu_utilization_percentage": at + worker})
                    + "\n"
                )
        tracker = MLflowTracker(lab, "workers")
        assert tracker.open(DESCRIPTION) == parent
        for _ in range(2):
            tracker.ship_use()
    for worker in (0, 1):
        history = client.get_metric_history(
            parent, f"{USE}/worker-{worker}/cpu_utilization_percentage"
        )
        assert [(point.step, point.value) for point in history] == [
            (10, 10 + worker),
            (20, 20 + worker),
        ]


def test_closing_writes_the_best(tracker, client, run_folder):
    parent = tracker.open({"note": "A study."})
    tracker.ship(run_folder("all/0/0", "complete"))
    best = StudyFolder(tracker.lab, tracker.study).run("all", 1, 0).path
    best.parent.mkdir(parents=True)
    tracker.ship(run_folder("all/1/0", "pruned").rename(best))
    for _ in range(2):
        tracker.close(
            {
                "state": "complete",
                "metric": "val_loss",
                "best_value": 3.8,
                "best_run": "all/1/0",
                "best_searched": {"betas": [0.9, 0.95], "bias": True},
                "counts": {"complete": 1, "pruned": 1},
            }
        )
    run = client.get_run(parent)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"best_value": 3.8})
    assert [
        (point.step, point.value) for point in client.get_metric_history(parent, "best_value")
    ] == [(2, 3.8)]
    best = client.get_run(run.data.tags["sweeplab.best_run"])
    assert best.data.tags["sweeplab.trial"] == "1"
    link = f"#/experiments/{best.info.experiment_id}/runs/{best.info.run_id}"
    assert run.data.tags["mlflow.note.content"] == (
        f"**Best val_loss 3.8000**: [all/1/0]({link}) betas [0.9, 0.95], bias True\n\n"
        "**complete** 1 complete, 1 pruned\n\nA study."
    )
    tracker.open({})
    assert client.get_run(parent).data.tags["mlflow.note.content"] == "**running**"


@pytest.mark.slow
def test_more_than_fits_one_call(tracker, client, run_folder, writer):
    params = {f"value_{each}": each for each in range(250)} | {"long": "x" * 10_000}
    parent = tracker.open({"params": params})
    known = client.get_run(parent).data.params
    assert len(known) == 251 and known["long"] == "x" * 6000
    folder = run_folder()
    writer.append(folder, writer.lines(*range(30, 530)))
    tracker.ship(folder)
    (run,) = nested(client, parent)
    assert len(run.data.params) == len(Hyperparameters.of(writer.values).applicable())
    assert [point.step for point in seen(tracker).points(run.info.run_id, "val_loss")] == [
        0,
        10,
        20,
        *range(30, 530),
    ]
    assert len(seen(tracker).points(run.info.run_id, "val_loss_by_tokens")) == 503


def test_no_infinity_in_a_chart(tracker, run_folder, writer):
    tracker.open({})
    folder = run_folder()
    writer.append(folder, [writer.point(30, val_loss=math.inf, train_loss=math.nan)])
    writer.end(folder, "diverged", best_val_loss=None, final_val_loss=math.inf)
    tracker.ship(folder)
    (run,) = seen(tracker).runs()
    assert math.isnan(seen(tracker).points(run.run_id, "val_loss")[-1].value)
    assert "best_val_loss" not in run.metrics


def test_a_run_deleted_by_hand_is_made_again(tracker, client, run_folder, writer):
    parent = tracker.open({})
    folder = run_folder()
    tracker.ship(folder)
    client.delete_run(nested(client, parent)[0].info.run_id)
    writer.append(folder, writer.lines(30))
    with pytest.raises(TrackingUnavailable):
        tracker.ship(folder)
    tracker.ship(folder)
    (run,) = seen(tracker).runs()
    assert len(seen(tracker).points(run.run_id, "val_loss")) == 4


def test_a_deleted_experiment_is_said(tracker, client, lab):
    parent = client.get_run(tracker.open({}))
    client.delete_experiment(parent.info.experiment_id)
    with pytest.raises(BadInput, match="was deleted in MLflow"):
        MLflowTracker(lab, "test_a_deleted_experiment_is_said").open({})


def test_a_removal_that_broke_off_is_finished(tracker, client, lab):
    parent = client.get_run(tracker.open({}))
    client.rename_experiment(parent.info.experiment_id, "gone")
    rename_experiment(
        lab, "test_a_removal_that_broke_off_is_finished", None, "gone", is_deleted=True
    )
    assert client.get_experiment_by_name("gone").lifecycle_stage == "deleted"


def test_another_place_has_not_got_what_was_shipped_here(tracker, run_folder):
    parent = tracker.open({})
    folder = run_folder(state="complete")
    tracker.ship(folder)
    shipped = (folder / "shipped").read_text()
    assert shipped.startswith(f"mlflow.db {parent} ")
    # Elsewhere, or in a new database at the same place: there the study is another parent run.
    for marker in (
        shipped.replace("mlflow.db", "https://elsewhere"),
        shipped.replace(parent, "another"),
    ):
        (folder / "shipped").write_text(marker)
        tracker.ship(folder)
        assert (folder / "shipped").read_text() == shipped


def test_a_run_that_ends_another_time_is_sent_again(tracker, run_folder):
    """As one that was promoted between the look at its end and the marker."""
    tracker.open({})
    folder = run_folder(state="pruned")
    tracker.ship(folder)
    (folder / "end.json").write_text(
        (folder / "end.json").read_text().replace("pruned", "complete")
    )
    assert tracker.ship(folder)
    (run,) = seen(tracker).runs()
    assert run.state == "complete"
    (folder / "end.json").unlink()
    assert not tracker.ship(folder)


@pytest.mark.slow
@pytest.mark.parametrize("listens", [False, True])
def test_a_server_that_is_down_does_not_block(listens, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:  # and never answers
            server.listen()
        place = f"http://127.0.0.1:{server.getsockname()[1]}"
        name_address(place)
        tracker = MLflowTracker(tmp_path, "down", place.replace("//", "//me:secret@"))
        began = time.monotonic()
        with pytest.raises(TrackingUnavailable, match=place):
            tracker.open({})
        assert time.monotonic() - began < 60, "MLflow's own retries take four minutes"


@pytest.mark.parametrize("uri", ["mlruns", "file:///somewhere", "ftp://somewhere", "/a/folder"])
def test_a_place_that_mlflow_does_not_know(uri, tmp_path):
    with pytest.raises(BadInput, match="allowed: sqlite"):
        MLflowTracker(tmp_path, "s", uri)


def test_where_tracking_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Path("lab")) == f"sqlite:///{tmp_path}/lab/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///x.db")
    assert tracking_uri(Path("lab")) == f"sqlite:///{tmp_path}/x.db"
    assert planned_uri(Path("lab"), "http://a/b") == "http://a/b"
    assert (
        artifact_location(Path("lab"), "sqlite:///x.db") == f"file://{tmp_path}/lab/artifacts"
    )
    assert artifact_location(Path("lab"), "http://a/b") is None
