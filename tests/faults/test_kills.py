"""A study that is killed again and again ends as if nothing had happened."""

import os
import random

import psutil
import pytest
from faults import kills

pytestmark = pytest.mark.faults


def test_kills_at_random_moments_change_no_bit(tmp_path):
    seed = int(os.environ.get("SWEEPLAB_FAULT_SEED", random.randrange(10**6)))
    print(f"SWEEPLAB_FAULT_SEED={seed}")
    expected = kills.undisturbed(tmp_path)
    study = kills.Study(tmp_path, tmp_path / "other", random.Random(seed))
    study.run(8)
    assert study.counts.total() > 3
    assert [*study.problems(expected)] == [], study.said.read_text()


def test_a_killed_supervisor_takes_its_workers_along_and_a_killed_worker_is_replaced(tmp_path):
    expected = kills.undisturbed(tmp_path)
    study = kills.Study(tmp_path, tmp_path / "other", random.Random(0))
    study.start()
    assert study.pass_time(lambda: study.n_points > 20)
    killed = study.workers()[0]
    killed.kill()
    psutil.wait_procs([killed], timeout=300)
    assert study.pass_time(lambda: len(study.workers()) == 2)
    workers = study.workers()
    study.process.kill()
    study.process.wait()
    assert not psutil.wait_procs(workers, timeout=300)[1]
    study.run(0)
    assert [*study.problems(expected)] == [], study.said.read_text()
