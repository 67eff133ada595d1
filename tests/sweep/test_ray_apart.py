"""Workers on nodes of a real Ray cluster that do not see the lab: a mount namespace hides its disk from them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import postgres_server
import psutil
import pytest
import ray_cluster
from faults import kills, ray_kills
from sweep.ray_contract import RayContract

from sweeplab.sweep.engines.base import UNSEEN
from sweeplab.sweep.trials.leases import LEASE_SECONDS

HAS_NAMESPACES = (
    os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0
)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not ray_cluster.IS_INSTALLED, reason="Ray is not installed"),
    pytest.mark.skipif(not postgres_server.IS_INSTALLED, reason="PostgreSQL's programs are not installed"),
    pytest.mark.skipif(not HAS_NAMESPACES, reason="a disk of a node's own takes root and mount namespaces"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[ray_cluster.NodesApart]:
    with ray_cluster.started(0) as cluster:
        nodes = ray_cluster.NodesApart(cluster.address, tmp_path_factory.getbasetemp())
        try:
            nodes.add()
            nodes.add()
            yield nodes
        finally:
            nodes.close()


@pytest.fixture(scope="module")
def running() -> Iterator[postgres_server.Server]:
    with postgres_server.started() as server:
        yield server


class TestApart(RayContract):
    def test_a_study_that_needs_other_folders_of_the_lab_is_refused(self, begin) -> None:
        study = begin()
        spec = json.loads(study.folder.canonical_file.read_text())
        study.folder.canonical_file.write_text(json.dumps(spec | {"init_from": "/nowhere"}))
        study.start(0)
        study.wait(study.ended)
        assert study.ended() == {0: UNSEEN}
        assert f"does not see {study.folder.path}, nor the run that" in study.engine.last_words(0)


class StudyApart(ray_kills.RayStudy):
    """A study whose workers see nothing of the lab."""

    def _lose_node(self, actor: psutil.Process) -> None:
        self.cluster.lose(actor)
        self.cluster.add()


def test_a_study_comes_to_the_same_bits_whatever_is_lost(
    cluster, running, tmp_path: Path, monkeypatch
) -> None:
    dice = random.Random(0)
    known = ray_kills.expected(tmp_path, dice)
    monkeypatch.setattr(ray_kills, "STOP_SECONDS", LEASE_SECONDS + 5)
    cluster.add()
    counts = Counter[str]()
    while counts.total() < len(ray_kills.KINDS):  # on a fast machine a study ends before all has befallen it
        folder = tmp_path / f"after-{counts.total()}"
        folder.mkdir()  # else nothing befell the study before
        study = StudyApart(folder, dice, running, cluster)
        study.counts = counts
        try:
            study.run(len(ray_kills.KINDS))
        finally:
            study.process.kill()
        assert [*study.problems(known)] == [], study.said.read_text()
    assert set(counts.values()) == {1} and set(counts) == {*ray_kills.KINDS}


def test_doctor_says_which_nodes_have_disks_of_their_own(cluster, running, tmp_path: Path) -> None:
    (tmp_path / "killed.yaml").write_text(kills.STUDY)
    environment = os.environ | {"SWEEPLAB_STORAGE": running.url}
    more = ("-o", "budget.trials_per_cell=1", "-o", "max_iters=20", "-o", f"engine.address={cluster.address}")
    for words in (("study", "run", "killed.yaml", "--engine", "ray", *more), ("doctor", "killed", "--json")):
        command = [sys.executable, "-m", "sweeplab", *words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert ended.returncode == 0, ended
    found = [
        each["found"]
        for each in json.loads(ended.stdout)
        if (each["name"], each["verdict"]) == ("disk", "ok")
    ]
    assert any("send their runs through Ray" in each for each in found), ended.stdout
