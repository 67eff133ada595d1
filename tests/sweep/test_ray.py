"""Workers on a real Ray cluster of several nodes: the contract of engines, and nodes that come and go."""

import json
import os
import random
import sys
import time
from collections import defaultdict
from contextlib import suppress

import postgres_server
import psutil
import pytest
import ray_cluster
import strangers
from faults import kills
from sweep.engine_contract import EngineContract
from terminal import PROGRAM, captured

from sweeplab.records.folders import StudyFolder
from sweeplab.study.spec import Engine
from sweeplab.sweep.engines import LEFT, ray
from sweeplab.sweep.trials.sharing import LEASE_SECONDS
from sweeplab.sweep.trials.store import open_store

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not ray_cluster.IS_INSTALLED, reason="the extra ray is not installed"),
    pytest.mark.skipif(
        not postgres_server.IS_INSTALLED,
        reason="PostgreSQL's programs or psycopg are not installed",
    ),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster.started(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def running():
    with postgres_server.started() as server:
        yield server


class TestRay(EngineContract):
    @pytest.fixture
    def storage(self, running, monkeypatch):
        monkeypatch.setenv("SWEEPLAB_STORAGE", running.url)

    @pytest.fixture
    def make_engine(self, cluster):
        spec = Engine(type="ray", address=cluster.address)
        return lambda folder, resources: ray.RayEngine(folder, spec, resources)

    def test_a_node_that_is_lost_is_told_apart_and_one_that_joins_gets_a_worker(
        self, begin, cluster
    ):
        study = begin(max_iters=100_000)
        study.start()
        study.wait(lambda: study.n_points() > 4)
        study.wait(lambda: all(each.state == "running" for each in study.engine.places()))
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        study.wait(study.ended)
        ((index, code),) = study.ended().items()
        assert code == LEFT, "its worker's end is none of the worker's faults"

        def comes_to_be(state):
            """Start the worker where it is not, as a study does: Ray may give it to the lost node once more."""
            states = {each.worker: each.state for each in study.engine.places()}
            if index not in states:
                study.start(index)
            return states.get(index) == state

        study.wait(lambda: comes_to_be("queued"))
        cluster.add_node(**ray_cluster.SMALL)
        study.wait(lambda: comes_to_be("running"))


class RayStudy(kills.Study):
    """A study with an actor for each of three nodes of a Ray cluster; it takes the kinds of faults that are `left`."""

    KINDS = (
        "SIGKILL to an actor",
        "SIGKILL to a worker",
        "node lost, another joins",
        "SIGSTOP to a worker",
    )

    def __init__(self, folder, dice, server, cluster, left):
        super().__init__(folder, folder / "lab", dice, server=server)
        self.cluster, self.left = cluster, left
        self.free_after = defaultdict(list)

    def start(self):
        """Start the study, or go on with it."""
        address = f"engine.address={self.cluster.address}"
        super().start("--engine", "ray", "-o", address, "-o", "engine.workers=3")

    def workers(self):
        """Return the worker processes, which are children of actors."""
        lab = str(self.folder.lab)
        listed = [
            (each, each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])
        ]
        return [
            each for each, words in listed if lab in words and "sweeplab.sweep.worker" in words
        ]

    def held(self):
        """Return the processes that hold trials which nobody else may take."""
        store = open_store(self.folder)
        with store.storage.reading() as connection:
            leases = store.leases.all(connection).values()
        store.storage.engine.dispose()
        return {lease.owner.pid for lease in leases if not lease.is_dead}

    def befall(self):
        """Let one fault befall a worker that holds a trial; wait until none of its trials is its own."""
        if not (self.left and self.n_points):
            return
        holding = self.held()
        victims = [each for each in self.workers() if each.pid in holding]
        if not victims:
            return
        victim, kind, began = self.dice.choice(victims), self.left[-1], time.monotonic()
        with suppress(psutil.Error):  # it has ended meanwhile
            actor = victim.parent()
            assert actor and "ray::" in " ".join(actor.cmdline())
            faults = {
                self.KINDS[0]: actor.kill,
                self.KINDS[1]: victim.kill,
                self.KINDS[2]: lambda: self._lose_node(actor),
                self.KINDS[3]: lambda: self._stop(victim),
            }
            faults[kind]()
            self.counts[self.left.pop()] += 1
        while victim.pid in self.held() and time.monotonic() - began < LEASE_SECONDS + 5:
            if not self.pass_time(lambda: True):
                break
            time.sleep(0.1)
        self.free_after[kind].append(time.monotonic() - began)

    def _lose_node(self, actor):
        raylets = {each.pid for each in [actor, *actor.parents()]}
        for node in [*self.cluster.worker_nodes]:
            if any(each.process.pid in raylets for each in node.all_processes["raylet"]):
                self.cluster.remove_node(node, allow_graceful=False)
                with suppress(psutil.Error):
                    actor.kill()  # with its node all is gone that ran there
                self.cluster.add_node(**ray_cluster.SMALL)
                return
        raise AssertionError("the actor is on no node")


def test_a_study_on_three_nodes_comes_to_the_same_bits_whatever_is_lost(
    cluster, running, tmp_path
):
    dice, left = random.Random(0), [*RayStudy.KINDS]
    known = kills.undisturbed(tmp_path)
    cluster.add_node(**ray_cluster.SMALL)
    while left:  # on a fast machine a study ends before all has befallen it
        folder = tmp_path / f"left-{len(left)}"
        folder.mkdir()  # else nothing befell the study before
        study = RayStudy(folder, dice, running, cluster, left)
        try:
            study.run(len(left))
        finally:
            study.process.kill()
        assert [*study.problems(known)] == [], study.said.read_text()
        # Whose process is known to be gone is followed at once, who is silent when its lease runs out.
        seconds = [each for times in study.free_after.values() for each in times]
        assert max(seconds, default=0.0) < LEASE_SECONDS + 5, study.free_after


def test_no_shell_of_a_node_reads_a_name(cluster, running, tmp_path):
    file, lab = strangers.hostile_place(tmp_path, kills.STUDY)
    planted = strangers.plant_modules(tmp_path)
    (tmp_path / "sweeplab.py").unlink()  # which `python -m` asks for
    words = ["-o", "budget.trials_per_cell=2", "-o", "max_iters=20"]
    words += ["-o", f"engine.address={cluster.address}"]
    environment = {**os.environ, "SWEEPLAB_STORAGE": running.url}
    for command in (
        ["study", "run", str(file), *words, "--engine", "ray"],
        ["doctor", "killed"],
    ):
        program = [sys.executable, "-m", "sweeplab", *command, "--lab", str(lab)]
        ended = captured(program, cwd=tmp_path, env=environment)
        assert ended.returncode in (0, 1) and "Traceback" not in ended.stderr, ended
    assert len([*StudyFolder(lab, "killed").runs()]) == 2
    assert not [*tmp_path.rglob("ran")] and not planted.exists()


def doctor(place, engine, **environment):
    """Return what the doctor finds for a study that has not run yet, by name and verdict."""
    study = f"{kills.STUDY.partition('engine:')[0]}engine: {json.dumps(engine.model_dump())}\n"
    (place / "killed.yaml").write_text(study)
    command = [*PROGRAM, "doctor", "killed.yaml", "--json"]
    known = {**os.environ, **ray_cluster.SETTINGS, **environment}
    ended = captured(command, cwd=place, env=known)
    assert ended.returncode in (0, 1) and not (place / "lab").exists(), ended
    return {(each["name"], each["verdict"]): each for each in json.loads(ended.stdout)}


def test_a_cluster_without_a_token_is_told_whatever_the_client_is_set_to(running, tmp_path):
    more = ("-o", "budget.trials_per_cell=1", "-o", "max_iters=20", "-o", "engine.workers=1")
    with ray_cluster.alone(RAY_AUTH_MODE="disabled") as address:
        known = {
            "SWEEPLAB_STORAGE": running.url,
            "RAY_AUTH_MODE": "token",
            "RAY_ADDRESS": address,
        }
        told = doctor(tmp_path, Engine(type="ray", address=address), **known)["ray", "bad"][
            "found"
        ]
        assert ray.OPEN in told and ray.CLOSES in told
        known["RAY_AUTH_MODE"] = "disabled"
        found = doctor(tmp_path, Engine(type="ray", address=address), **known)
        assert (
            found["ray", "warn"]["found"] == ray.OPEN
            and found["ray", "warn"]["cure"] == ray.CLOSES
        )
        command = [*PROGRAM, "study", "run", "killed.yaml", *more]
        for mode, code in (("token", 2), ("disabled", 0)):
            environment = {**os.environ, **ray_cluster.SETTINGS, **known, "RAY_AUTH_MODE": mode}
            ended = captured(command, cwd=tmp_path, env=environment)
            assert ended.returncode == code and ended.stderr.count(ray.OPEN) == 1, ended


def test_what_keeps_workers_from_starting_is_said_in_one_line(cluster, running, tmp_path):
    (tmp_path / "killed.yaml").write_text(kills.STUDY)

    def said(*words, **environment):
        command = [
            sys.executable,
            "-m",
            "sweeplab",
            "study",
            "run",
            "killed.yaml",
            "--engine",
            "ray",
            *words,
        ]
        known = {**os.environ, "SWEEPLAB_STORAGE": running.url, **environment}
        ended = captured(command, cwd=tmp_path, env=known, timeout=200)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
        assert not (tmp_path / "lab").exists()
        return ended.stderr

    assert "the engine ray: no cluster answers at 127.0.0.1:9" in said(
        RAY_ADDRESS="127.0.0.1:9"
    )
    at = f"engine.address={cluster.address}"
    assert "token" in said("-o", at, RAY_AUTH_TOKEN="a-word-that-somebody-has-guessed")
    client = "ray://127.0.0.1:9"
    for words, known in (
        (("-o", f"engine.address={client}"), {}),
        ((), {"RAY_ADDRESS": client}),
    ):
        what = "does not use Ray Client; allowed: HOST:PORT of the cluster's head, auto"
        assert what in said(*words, **known)
    without = "import sys; sys.modules['ray'] = None; from sweeplab.sweep.engines.ray import connect; connect('auto')"
    ended = captured([sys.executable, "-c", without])
    assert (
        "the engine ray: Ray is not installed" in ended.stderr
        and "sweeplab[ray]" in ended.stderr
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can hide a folder from a node")
def test_a_node_that_does_not_see_the_lab_is_said_and_nothing_is_left(running, tmp_path):
    (tmp_path / "killed.yaml").write_text(kills.STUDY)
    with ray_cluster.alone(hidden=tmp_path) as address:
        words = ("study", "run", "killed.yaml", "--engine", "ray", "-o", "engine.workers=1")
        command = [*PROGRAM, *words, "-o", f"engine.address={address}"]
        known = {**os.environ, **ray_cluster.SETTINGS, "SWEEPLAB_STORAGE": running.url}
        ended = captured(command, cwd=tmp_path, env=known)
    assert ended.returncode == 2, ended
    said = ended.stderr.splitlines()[-1]
    assert (
        f"does not see {tmp_path / 'lab'}: several nodes need a lab on a disk that all of"
        in said
    )
    assert not [*tmp_path.glob("lab/studies/*")]
