"""A study whose database is lost for a while: it is waited for, training goes on, and nothing is lost or doubled."""

import random
import sqlite3
import threading
import time
from collections import Counter

import pytest
from faults import kills
from sqlalchemy.exc import OperationalError
from tiny_study import claim_one, expire_leases, on_report

from sweeplab.errors import StorageUnavailable
from sweeplab.study.options import Pruner
from sweeplab.study.spec import Budget
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.trials.sharing import LEASE_SECONDS, Report

pytestmark = pytest.mark.faults


@pytest.fixture
def briefly_busy(monkeypatch):
    """Let SQLite give up at once where another process holds the file."""
    monkeypatch.setattr("sweeplab.lab.storage.BUSY_SECONDS", 0.05)


class Locked:
    """Keeps all others from writing to a database, as a backup or a process that hangs does."""

    def __init__(self, folder):
        self._connection = sqlite3.connect(
            folder.database, 60, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("BEGIN IMMEDIATE")

    def free(self):
        self._connection.rollback()
        self._connection.close()


def test_reports_wait_for_the_database_and_no_trial_is_judged_without_it(
    tiny, opened, briefly_busy
):
    folder, store = opened(tiny(pruner=Pruner(type="median", options={"n_startup_trials": 1})))
    said = []
    store.availability.limit, store.availability.say = 60.0, said.append
    good, bad = claim_one(store), claim_one(store)
    for iteration in (0, 10):
        store.report_many([Report(good, iteration, 1.0)])
    store.finish(good, "complete", 1.0, {})
    lock = Locked(folder)
    assert store.report_many([Report(bad, 0, 3.0)]) == (set(), set())
    assert store.report_many([Report(bad, 10, 3.0)]) == (set(), set())
    lock.free()
    assert store.report_many([Report(bad, 20, 3.0)]).behind == {bad.trial_id}
    assert store.trials(store.cells[0])[1].intermediate_values == {0: 3.0, 10: 3.0, 20: 3.0}
    assert ["does not answer" in said[0], "answers again" in said[1], len(said)] == [
        True,
        True,
        2,
    ]


def test_an_ending_waits_for_the_database_and_gives_up_after_the_limit(
    tiny, opened, briefly_busy
):
    folder, store = opened(tiny())
    first, second = claim_one(store), claim_one(store)
    lock = Locked(folder)
    with pytest.raises(
        StorageUnavailable, match=r"the storage of study tiny does not answer: .*locked"
    ):
        store.finish(first, "complete", 1.0, {})
    store.availability.limit = 60.0
    threading.Timer(0.5, lock.free).start()
    store.finish(second, "complete", 2.0, {})
    assert store.tallies()[0].counted == 1


def test_an_ending_of_which_the_answer_was_lost_is_told_once(tiny, opened, monkeypatch):
    _, store = opened(tiny())
    claim, run = claim_one(store), type(store.storage)._write
    store.availability.limit = 60.0

    def lose_the_answer(storage):
        run(storage)
        storage._connection.commit()
        monkeypatch.undo()
        raise OperationalError("COMMIT", {}, sqlite3.OperationalError("disk I/O error"))

    monkeypatch.setattr(type(store.storage), "_write", lose_the_answer)
    store.finish(claim, "complete", 1.0, {"wall_seconds": 1.5})
    assert [trial.value for trial in store.trials(store.cells[0])] == [1.0]


@pytest.mark.slow
def test_a_study_goes_on_after_its_database_was_locked_for_longer_than_a_lease(tmp_path):
    expected = kills.undisturbed(tmp_path)
    study = kills.Study(tmp_path, tmp_path / "other", random.Random(0))
    study.start()
    assert study.pass_time(lambda: study.n_points > 20), study.said.read_text()
    lock = Locked(study.folder)
    time.sleep(LEASE_SECONDS + 5)  # so that every lease runs out
    lock.free()
    assert study.process.wait() == 0
    assert [*study.problems(expected)] == [], study.said.read_text()


def test_a_worker_that_lost_its_database_for_good_has_saved_its_runs(
    tiny, opened, dataset, briefly_busy, monkeypatch
):
    spec = tiny(budget=Budget(trials_per_cell=2))
    folder, store = opened(spec)
    locks = []

    on_report(store, lambda report: locks or locks.append(Locked(folder)))
    with pytest.raises(StorageUnavailable):
        Loop(store, dataset, folder).run()
    locks[0].free()
    assert [run.read_end() for run in folder.runs()] == [None, None]
    assert all(list(run.path.glob("state*")) for run in folder.runs())
    _, again = opened(spec)
    monkeypatch.setattr(again.leases, "owner", store.leases.owner)
    expire_leases(store)
    Loop(again, dataset, folder).run()
    assert Counter(trial.state.name for trial in again.trials(again.cells[0])) == {
        "COMPLETE": 2
    }
    assert all(run.read_end().state == "complete" for run in folder.runs())
