"""A lab of its own for all tests of tracking (a database takes seconds to make), a server, and run folders to ship."""

import json
import os
import signal
import socket
import subprocess
import sys
from threading import Event
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from sweeplab.hyperparameters import defaults

STARTED = 1_700_000_000.25
VALUES = defaults() | {
    "batch_size": 4,
    "block_size": 16,
    "vocab_size": 65,
    "device": "cpu",
    "compile": False,
}


@pytest.fixture(scope="session", autouse=True)
def _no_tracking_uri():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    return tmp_path_factory.mktemp("a lab") / "lab"


def point(iteration, **metrics):
    return {
        "iteration": iteration,
        "train_tokens": 64 * iteration,
        "wall_seconds": 0.5 * iteration,
    } | metrics


def training(iteration):
    speed = {"learning_rate": 1e-3, "grad_norm": 0.5, "tokens_per_second": 1000.0 + iteration}
    return point(iteration, train_loss=4.0 - 0.01 * iteration, **speed)


def evaluation(iteration):
    return point(iteration, val_loss=4.0 - iteration / 80)


def lines(*iterations):
    """Return the lines of a run: every iteration evaluated, and after the first with its training's numbers."""
    return [(training(each) if each else {}) | evaluation(each) for each in iterations]


def append(folder, points, torn=""):
    with (folder / "points.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in points)
        file.write(torn)


def end(folder, state="complete", iteration=30, **rest):
    known = {
        "best_val_loss": 3.8,
        "final_val_loss": 3.8,
        "train_tokens": 64 * iteration,
        "train_flops": 1e9,
    }
    summary = {
        "state": state,
        "iteration": iteration,
        "wall_seconds": 15.0,
        "value": None,
        "ending": {"outcome": state, "value": None},
    }
    (folder / "end.json").write_text(json.dumps(summary | known | rest))


def begin(folder, key, values=VALUES, **rest):
    folder.mkdir(parents=True)
    cell, trial, seed = key.rsplit("/", 2)
    place = {"key": key, "cell": cell, "trial": int(trial), "seed": int(seed)}
    facts = {"n_params": 1234, "n_params_active": 1234, "n_params_non_embedding": 1000}
    run = place | {"values": values, "facts": facts, "started": STARTED} | rest
    (folder / "run.json").write_text(json.dumps(run))
    return folder


class Writer:
    """What a worker writes, as functions, for tests that cannot import this file."""

    started = STARTED
    values = VALUES
    point, training, evaluation, lines = map(staticmethod, (point, training, evaluation, lines))
    append, end, begin = map(staticmethod, (append, end, begin))


@pytest.fixture(scope="session")
def writer():
    return Writer


@pytest.fixture
def run_folder(tmp_path):
    """Return a function that writes a run's folder; with a state, an ended run with a checkpoint."""

    def make(key="all/0/0", state="", **rest):
        folder = begin(tmp_path / key, key, **rest)
        append(folder, lines(0, 10, 20))
        if state:
            append(folder, lines(30))
            (folder / "best").mkdir()
            (folder / "best" / "model.safetensors").write_bytes(b"weights")
            (folder / "best" / "model.json").write_text("{}")
            end(folder, state, error="Traceback\nValueError: no" if state == "failed" else None)
        return folder

    return make


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Return the address of an MLflow server with a database and artifacts of its own."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'server.db'}"]
    command += ["--artifacts-destination", str(folder / "files")]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_until_up(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def wait_until_up(url, server):
    for _ in range(3000):
        if server.poll() is not None:
            break
        try:
            urlopen(url, timeout=1).close()
        except (URLError, OSError):
            Event().wait(0.1)
        else:
            return
    raise pytest.UsageError("the server did not start")
