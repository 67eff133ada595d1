"""What a batch system sends before it ends a job: every process puts its runs away, and nothing is trained twice."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from terminal import heeds_hangups

from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.worker import LEAVING_SIGNALS

pytestmark = pytest.mark.faults

# Runs are saved only where they are asked to: never by themselves.
STUDY = """\
name: asked
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 32, batch_size: 8, max_iters: 1000, n_layer: 1, n_head: 2, n_embd: 16, dropout: 0.0,
        warmup_iters: 2, eval_interval: 20, eval_iters: 2, save_interval: 1000, patience: null, device: cpu}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 4}
sampler: random
pruner: none
engine: {workers: 2, stack: 2}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "asked.yaml").write_text(STUDY)
    return StudyFolder(tmp_path / "lab", "asked")


def start(folder: StudyFolder) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sweeplab", "study", "run", "asked.yaml", "--lab", str(folder.lab)]
    place = folder.lab.parent
    with (place / "said.txt").open("ab") as said:
        own = {"start_new_session": True, "preexec_fn": heeds_hangups}
        return subprocess.Popen(command, cwd=place, stdout=said, stderr=said, **own)


def wait_for_points(folder: StudyFolder, study: subprocess.Popen[bytes], n: int = 8) -> None:
    while sum(len(run.points()) for run in folder.runs()) < n:
        assert study.poll() is None, (folder.lab.parent / "said.txt").read_text()
        time.sleep(0.1)


def workers_of(study: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [each for each in psutil.Process(study.pid).children() if "sweep.worker" in str(each.cmdline())]


def n_points(folder: StudyFolder) -> dict[Path, int]:
    return {run.path: len(run.points_file.read_bytes().splitlines()) for run in folder.runs()}


def statuses(folder: StudyFolder) -> set[str]:
    """Return the statuses of all runs that MLflow has."""
    with closing(sqlite3.connect(folder.lab / "mlflow.db")) as database:
        return {status for (status,) in database.execute("SELECT status FROM runs")}


def test_signals_to_the_whole_group_lose_no_step(folder):
    for sent in LEAVING_SIGNALS:
        before = sum(n_points(folder).values())
        with start(folder) as study:
            wait_for_points(folder, study, before + 8)
            os.killpg(study.pid, sent)
            assert study.wait() == 130, sent.name
        assert "RUNNING" not in statuses(folder)
        assert any(run.read_end() is None for run in folder.runs())
    before = n_points(folder)
    with start(folder) as study:
        assert study.wait() == 0, (folder.lab.parent / "said.txt").read_text()
    assert [run.read_end().state for run in folder.runs()] == ["complete"] * 4
    for run in folder.runs():
        iterations = [point.iteration for point in run.points()]
        assert len(run.points_file.read_bytes().splitlines()) == len(iterations), "no point was trained twice"
    assert all(n_points(folder)[path] >= n for path, n in before.items())


def test_a_process_that_was_started_to_ignore_a_signal_ignores_it():
    code = "from sweeplab.sweep.worker import leaving_signals; print(*leaving_signals())"
    as_nohup = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, **as_nohup
    )
    assert [int(each) for each in done.stdout.split()] == [signal.SIGTERM, signal.SIGUSR1]


@pytest.mark.parametrize("is_locked", [False, True])
def test_who_is_waited_for_is_said_of_a_worker_that_a_signal_has_stopped(is_locked, folder):
    """Wherever the signal meets the worker, while it writes to the study's database, too."""
    said = folder.lab.parent / "said.txt"
    with start(folder) as study:
        wait_for_points(folder, study)
        worker = workers_of(study)[0]
        worker.suspend()
        database = sqlite3.connect(folder.path / "trials.db", timeout=10)
        if is_locked:
            with suppress(sqlite3.OperationalError):  # the suspended worker itself holds the lock
                database.execute("BEGIN IMMEDIATE")
        study.send_signal(signal.SIGINT)
        while f"kill -CONT {worker.pid} continues it" not in said.read_text():
            assert study.poll() is None, said.read_text()
            time.sleep(0.1)
        database.close()
        worker.resume()
        assert study.wait() == 130
    why = "still waiting for|does not answer: database is locked:"
    assert re.search(rf"({why}) worker . \(process {worker.pid}\), stopped by a signal", said.read_text())


def words_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process, none once it has ended."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


@pytest.mark.parametrize("asked_by", ["a signal", "study stop"])
def test_a_worker_that_compiles_leaves_before_it_has_compiled(asked_by, folder, monkeypatch):
    cache = folder.lab.parent / "cache"  # of its own: other tests compile, too
    monkeypatch.setenv("SWEEPLAB_CACHE", str(cache))
    (folder.lab.parent / "asked.yaml").write_text(STUDY.replace("n_embd: 16", "n_embd: 24, compile: true"))
    with start(folder) as study:
        found: list[psutil.Process] = []  # the workers, and what compiles for one of them
        while not any("sweeplab.train.compiling" in words_of(each) for each in found):
            assert study.poll() is None
            time.sleep(0.1)
            found = psutil.Process(study.pid).children(recursive=True)
        if asked_by == "a signal":
            os.killpg(study.pid, signal.SIGTERM)
        else:
            command = [sys.executable, "-m", "sweeplab", "study", "stop", "asked", "--lab", str(folder.lab)]
            subprocess.run(command, check=True)
        _, alive = psutil.wait_procs(found, timeout=300)
        assert not alive
        study.wait()
    assert not [*cache.glob("programs/*.so")]
    assert not any(run.read_end() for run in folder.runs())
