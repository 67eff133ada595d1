"""What a batch system sends before it ends a job: every process puts its runs away, and nothing is trained twice."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from functools import partial

import psutil
import pytest
from faults.kills import Study
from terminal import said

from sweeplab.sweep.worker import LEAVING_SIGNALS

pytestmark = pytest.mark.faults

# Runs are saved only where they are asked to: never by themselves.
STUDY = """\
name: killed
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
def study(tmp_path):
    return Study(tmp_path, tmp_path / "lab", random.Random(0), text=STUDY)


def lines(folder):
    return {run.path: len(run.points_file.read_bytes().splitlines()) for run in folder.runs()}


def test_signals_to_the_whole_group_lose_no_step(study):
    folder = study.folder
    for sent in LEAVING_SIGNALS:
        before = study.n_points
        study.start()
        assert study.pass_time(lambda: study.n_points >= before + 8), study.said.read_text()  # noqa: B023
        os.killpg(study.process.pid, sent)
        assert study.process.wait() == 130, sent.name
        with closing(sqlite3.connect(folder.lab / "mlflow.db")) as database:
            assert ("RUNNING",) not in database.execute("SELECT status FROM runs").fetchall()
        assert any(run.read_end() is None for run in folder.runs())
    before = lines(folder)
    study.start()
    assert study.process.wait() == 0, study.said.read_text()
    assert [run.read_end().state for run in folder.runs()] == ["complete"] * 4
    assert lines(folder) == {run.path: len(run.points()) for run in folder.runs()}, (
        "no point twice"
    )
    assert all(lines(folder)[path] >= n for path, n in before.items())


def test_a_process_that_was_started_to_ignore_a_signal_ignores_it():
    code = "from sweeplab.sweep.worker import leaving_signals; print(*leaving_signals())"
    as_nohup = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    found = said([sys.executable, "-c", code], **as_nohup)
    assert [int(each) for each in found.split()] == [signal.SIGTERM, signal.SIGUSR1]


def compiles(process):
    with suppress(psutil.Error):
        return "sweeplab.train.compiling" in process.cmdline()
    return False


@pytest.mark.parametrize("asked_by", ["a signal", "study stop"])
def test_a_worker_that_compiles_leaves_once_it_has_compiled(asked_by, tmp_path, monkeypatch):
    # Of its own: other tests compile, too.
    monkeypatch.setenv("SWEEPLAB_CACHE", str(tmp_path / "cache"))
    text = STUDY.replace("n_embd: 16", "n_embd: 24, compile: true")
    study = Study(tmp_path, tmp_path / "lab", random.Random(0), text=text)
    study.start()
    children = partial(psutil.Process(study.process.pid).children, recursive=True)
    assert study.pass_time(lambda: any(map(compiles, children())))
    found = children()
    if asked_by == "a signal":
        os.killpg(study.process.pid, signal.SIGTERM)
    else:
        command = [
            sys.executable,
            "-m",
            "sweeplab",
            "stop",
            "killed",
            "--lab",
            str(study.folder.lab),
        ]
        subprocess.run(command, check=True)
    assert not psutil.wait_procs(found, timeout=300)[1]
    study.process.wait()
    assert not any(run.read_end() for run in study.folder.runs())


def test_a_signal_to_one_worker_replaces_it_and_loses_no_step(study):
    study.start()
    assert study.pass_time(lambda: study.n_points >= 8), study.said.read_text()
    study.workers()[0].send_signal(signal.SIGHUP)
    assert study.process.wait() == 0, study.said.read_text()
    runs = list(study.folder.runs())
    assert [run.read_end().state for run in runs] == ["complete"] * 4
    assert lines(study.folder) == {run.path: len(run.points()) for run in runs}, (
        "no point twice"
    )
