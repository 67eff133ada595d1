"""Workers on a real Ray cluster of several nodes: the contract of engines, and nodes that come and go."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import postgres_server
import pytest
import ray_cluster
from faults import kills, ray_kills
from sweep.ray_contract import RayContract

from sweeplab.lab.server import Server
from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.engines.base import LEFT
from sweeplab.sweep.trials.leases import LEASE_SECONDS

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not ray_cluster.IS_INSTALLED, reason="Ray is not installed"),
    pytest.mark.skipif(not postgres_server.IS_INSTALLED, reason="PostgreSQL's programs are not installed"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.started(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def running() -> Iterator[postgres_server.Server]:
    with postgres_server.started() as server:
        yield server


class TestRay(RayContract):
    def test_a_node_that_is_lost_is_told_apart_and_one_that_joins_gets_a_worker(self, begin, cluster) -> None:
        study = begin(max_iters=100_000)
        study.start()
        study.wait(
            lambda: study.n_points() > 4 and all(each.state == "running" for each in study.engine.places())
        )
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        study.wait(study.ended)
        ((index, code),) = study.ended().items()
        assert code == LEFT, "its worker's end is none of the worker's faults"

        def comes_to_be(state: str) -> bool:
            """Start the worker where it is not, as a study does: Ray may give it to the lost node once more."""
            states = {each.worker: each.state for each in study.engine.places()}
            if index not in states:
                study.start(index)
            return states.get(index) == state

        study.wait(lambda: comes_to_be("queued"))
        cluster.add_node(**ray_cluster.SMALL)
        study.wait(lambda: comes_to_be("running"))


def test_a_study_on_three_nodes_comes_to_the_same_bits_whatever_is_lost(
    cluster, running, tmp_path: Path, monkeypatch
) -> None:
    dice = random.Random(0)
    known = ray_kills.expected(tmp_path, dice)
    monkeypatch.setattr(ray_kills, "STOP_SECONDS", LEASE_SECONDS + 5)
    cluster.add_node(**ray_cluster.SMALL)
    counts = Counter[str]()
    while counts.total() < len(ray_kills.KINDS):  # on a fast machine a study ends before all has befallen it
        folder = tmp_path / f"after-{counts.total()}"
        folder.mkdir()  # else nothing befell the study before
        study = ray_kills.RayStudy(folder, dice, running, cluster)
        study.counts = counts
        try:
            study.run(len(ray_kills.KINDS))
        finally:
            study.process.kill()
        assert [*study.problems(known)] == [], study.said.read_text()
        # Whose process is known to be gone is followed at once, who is silent when its lease runs out.
        assert all(seconds < LEASE_SECONDS + 5 for _, seconds in study.taken_over), study.taken_over
    assert set(counts.values()) == {1} and set(counts) == {*ray_kills.KINDS}


def test_without_a_storage_the_lab_gets_one_and_three_nodes_come_to_the_same_bits(cluster) -> None:
    more = ("-o", "budget.trials_per_cell=3", "-o", "max_iters=60", "-o", "engine.workers=3")
    environment = {name: value for name, value in os.environ.items() if name != "SWEEPLAB_STORAGE"}
    said, found = {}, {}
    with tempfile.TemporaryDirectory(
        dir="/tmp"
    ) as name:  # which another account may enter, as root's server does
        place = Path(name)
        place.chmod(0o755)
        (place / "killed.yaml").write_text(kills.STUDY)
        for engine, own in (("local", ()), ("ray", ("-o", f"engine.address={cluster.address}"))):
            words = ["study", "run", "killed.yaml", "--lab", engine, "--engine", engine, *more, *own]
            command = [sys.executable, "-m", "sweeplab", *words]
            ended = subprocess.run(command, cwd=place, capture_output=True, text=True, env=environment)
            assert ended.returncode == 0, ended.stderr
            said[engine] = ended.stderr
            folder = StudyFolder(place / engine, "killed")
            found[engine] = {run.trial: kills.curve(run) for run in folder.runs()}
        assert folder.is_on_own_server and not folder.database.exists()
        examine = [sys.executable, "-m", "sweeplab", "doctor", "killed", "--lab", "ray", "--json"]
        checks = json.loads(subprocess.run(examine, cwd=place, capture_output=True, env=environment).stdout)
        assert Server(place / "ray").stop()
    found_by = {(each["name"], each["verdict"]): each["found"] for each in checks}
    assert "answers; nodes: " in found_by["ray", "ok"] and ("clocks", "ok") in found_by, checks
    assert any("shared: seen" in each["found"] for each in checks), checks
    assert "started the lab's own PostgreSQL" in said["ray"] and "PostgreSQL" not in said["local"]
    assert len(found["ray"]) == 3 and found["ray"] == found["local"]


def test_what_keeps_workers_from_starting_is_said_in_one_line(cluster, running, tmp_path: Path) -> None:
    (tmp_path / "killed.yaml").write_text(kills.STUDY)

    def said(*words: str, **environment: str) -> str:
        command = [sys.executable, "-m", "sweeplab", "study", "run", "killed.yaml", "--engine", "ray", *words]
        known = {**os.environ, "SWEEPLAB_STORAGE": running.url, **environment}
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=known, timeout=200)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
        assert not (tmp_path / "lab").exists()
        return ended.stderr

    assert "the engine ray: no cluster answers at 127.0.0.1:9" in said(RAY_ADDRESS="127.0.0.1:9")
    at = f"engine.address={cluster.address}"
    assert "token" in said("-o", at, RAY_AUTH_TOKEN="a-word-that-somebody-has-guessed")
    without = "import sys; sys.modules['ray'] = None; from sweeplab.sweep.engines.ray import connect; connect('auto')"
    ended = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True)
    assert "the engine ray: Ray is not installed" in ended.stderr and "sweeplab[ray]" in ended.stderr
