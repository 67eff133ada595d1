"""A study whose database is lost for a while: it is waited for, training goes on, and nothing is lost or doubled."""

import json
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from sqlalchemy.exc import OperationalError

from sweeplab.errors import StorageUnavailable
from sweeplab.records.folders import StudyFolder
from sweeplab.study.options import Pruner
from sweeplab.sweep.trials.sharing import LEASE_SECONDS, Report

pytestmark = pytest.mark.faults


@pytest.fixture
def briefly_busy(monkeypatch):
    """Let SQLite give up at once where another process holds the file."""
    monkeypatch.setattr("sweeplab.lab.storage.BUSY_SECONDS", 0.05)


class Locked:
    """Keeps all others from writing to a database, as a backup or a process that hangs does."""

    def __init__(self, folder: StudyFolder) -> None:
        self._connection = sqlite3.connect(folder.database, 60, isolation_level=None, check_same_thread=False)
        self._connection.execute("BEGIN IMMEDIATE")

    def free(self) -> None:
        self._connection.rollback()
        self._connection.close()


def test_reports_wait_for_the_database_and_no_trial_is_judged_without_it(tiny, opened, briefly_busy):
    folder, store = opened(tiny(pruner=Pruner(type="median", options={"n_startup_trials": 1})))
    said: list[str] = []
    store.availability.limit, store.availability.say = 60.0, said.append
    good, bad = store.claim(), store.claim()
    for iteration in (0, 10):
        store.report_many([Report(good, iteration, 1.0)])
    store.finish(good, "complete", 1.0, {})
    lock = Locked(folder)
    assert store.report_many([Report(bad, 0, 3.0)]) == (set(), set())
    assert store.report_many([Report(bad, 10, 3.0)]) == (set(), set())
    lock.free()
    assert store.report_many([Report(bad, 20, 3.0)]).behind == {bad.trial_id}
    assert store.trials(store.cells[0])[1].intermediate_values == {0: 3.0, 10: 3.0, 20: 3.0}
    assert ["does not answer" in said[0], "answers again" in said[1], len(said)] == [True, True, 2]


def test_an_ending_waits_for_the_database_and_gives_up_after_the_limit(tiny, opened, briefly_busy):
    folder, store = opened(tiny())
    first, second = store.claim(), store.claim()
    lock = Locked(folder)
    with pytest.raises(StorageUnavailable, match=r"the storage of study tiny does not answer: .*locked"):
        store.finish(first, "complete", 1.0, {})
    store.availability.limit = 60.0
    threading.Timer(0.5, lock.free).start()
    store.finish(second, "complete", 2.0, {})
    assert store.counts()[0].counted == 1


def test_an_ending_of_which_the_answer_was_lost_is_told_once(tiny, opened, monkeypatch):
    _, store = opened(tiny())
    claim, run = store.claim(), type(store.storage)._write
    store.availability.limit = 60.0

    def lose_the_answer(storage: object) -> None:
        run(storage)
        storage._connection.commit()
        monkeypatch.undo()
        raise OperationalError("COMMIT", {}, sqlite3.OperationalError("disk I/O error"))

    monkeypatch.setattr(type(store.storage), "_write", lose_the_answer)
    store.finish(claim, "complete", 1.0, {"wall_seconds": 1.5})
    assert [trial.value for trial in store.trials(store.cells[0])] == [1.0]


STUDY = """\
name: lost
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 32, batch_size: 8, max_iters: 400, n_layer: 1, n_head: 2, n_embd: 16, dropout: 0.0,
        warmup_iters: 2, eval_interval: 20, eval_iters: 2, save_interval: 20, device: cpu}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 12}
pruner: {type: median, n_startup_trials: 2}
engine: {workers: 2, stack: 2}
"""


@pytest.mark.slow
def test_a_study_goes_on_after_its_database_was_locked_for_longer_than_a_lease(tmp_path):
    (tmp_path / "lost.yaml").write_text(STUDY)
    command = [sys.executable, "-m", "sweeplab", "study", "run", "lost.yaml", "--lab", str(tmp_path / "lab")]
    folder = StudyFolder(tmp_path / "lab", "lost")
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as study:
        while len(list(folder.runs())) < 3:
            assert study.poll() is None
            time.sleep(0.1)
        lock = Locked(folder)
        time.sleep(LEASE_SECONDS + 5)
        lock.free()
        said = study.communicate()[0].decode()
    assert study.returncode == 0, said
    shown = [*command[:3], "study", "show", "lost", *command[-2:], "--json"]
    (cell,) = json.loads(subprocess.run(shown, cwd=tmp_path, capture_output=True, check=True).stdout)["cells"]
    assert cell["trials"] == 12
    for run in folder.runs():
        iterations = [point.iteration for point in run.points() if point.val_loss is not None]
        assert iterations == sorted(set(iterations)) and run.read_end() is not None
