"""Faults of a cluster on real studies: nodes, jobs, actors and workers killed, canceled, preempted, stopped.

Run: python tests/faults/cluster_kills.py slurm|ray [N] [--seed S]. N of each kind befall studies of 24 trials on a real
cluster and a real PostgreSQL; each study is held against an undisturbed one of local workers by the checks of
`kills.py`. Prints what was done, what was not as it should be, and after how many seconds a lost worker's trials were
free: at once where a process of this machine is known to be gone, as all of these are, else when its lease has run out.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import postgres_server
import psutil
import ray_cluster
import slurm_cluster
from benchmarks.setting import print_table, setting
from faults import kills

from sweeplab.sweep.trials.store import open_store

STOP_SECONDS = 60.0
# So long a node stays away that was killed.
AWAY_SECONDS = 20.0
FAULTS_A_STUDY = 12
SLURM = "engine: {type: slurm, workers: 2, stack: 2, time: 1h}"


class ClusterStudy(kills.Study):
    """A study on a cluster; `befall` takes the kinds of faults that are `left` in turn."""

    KINDS: tuple[str, ...]

    def __init__(self, folder: Path, dice: random.Random, server: Any, cluster: Any, left: list[str]) -> None:
        super().__init__(folder, folder / "lab", dice, None, server)
        self.cluster, self.left = cluster, left
        self.free_after = defaultdict[str, list[float]](list)

    def held(self) -> set[int]:
        """Return the processes that hold trials which nobody else may take."""
        store = open_store(self.folder)
        with store.storage.reading() as connection:
            leases = store.leases.all(connection).values()
        store.storage.engine.dispose()
        return {lease.owner.pid for lease in leases if not lease.is_dead}

    def befall(self) -> None:
        """Let one fault befall a worker that holds a trial; wait until none of its trials is its own."""
        if not (self.left and self.n_points):
            return
        holding = self.held()
        victims = [each for each in self.workers() if each.pid in holding]
        if not victims:
            return
        victim, kind, began = self.dice.choice(victims), self.left[-1], time.monotonic()
        with suppress(psutil.Error, subprocess.CalledProcessError):  # it has ended meanwhile
            self.harm(kind, victim)
            self.counts[self.left.pop()] += 1
        while victim.pid in self.held() and time.monotonic() - began < STOP_SECONDS:
            if not self.pass_time(lambda: True):
                break
            time.sleep(0.1)
        self.free_after[kind].append(time.monotonic() - began)

    @abstractmethod
    def harm(self, kind: str, victim: psutil.Process) -> None:
        """Let a fault of a kind befall a worker."""


class RayStudy(ClusterStudy):
    """A study with an actor for each of three nodes of a Ray cluster."""

    KINDS = ("SIGKILL to an actor", "SIGKILL to a worker", "node lost, another joins", "SIGSTOP to a worker")

    def start(self) -> None:
        """Start the study, or go on with it."""
        address = f"engine.address={self.cluster.address}"
        super().start("--engine", "ray", "-o", address, "-o", "engine.workers=3")

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes, which are children of actors."""
        lab = str(self.folder.lab)
        listed = [(each, each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
        return [each for each, words in listed if lab in words and "sweeplab.sweep.worker" in words]

    def harm(self, kind: str, victim: psutil.Process) -> None:
        """Let a fault of a kind befall a worker, its actor or its node."""
        actor = victim.parent()
        assert actor and "ray::" in " ".join(actor.cmdline())
        faults: dict[str, Callable[[], object]] = {
            self.KINDS[0]: actor.kill,
            self.KINDS[1]: victim.kill,
            self.KINDS[2]: lambda: self._lose_node(actor),
            self.KINDS[3]: lambda: self._stop(victim, STOP_SECONDS),
        }
        faults[kind]()

    def _lose_node(self, actor: psutil.Process) -> None:
        raylets = {each.pid for each in [actor, *actor.parents()]}
        for node in [*self.cluster.worker_nodes]:
            if any(each.process.pid in raylets for each in node.all_processes["raylet"]):
                self.cluster.remove_node(node, allow_graceful=False)
                with suppress(psutil.Error):
                    actor.kill()  # with its node all is gone that ran there
                self.cluster.add_node(**ray_cluster.SMALL)
                return
        raise AssertionError("the actor is on no node")


class SlurmStudy(ClusterStudy):
    """A study of two jobs on a Slurm cluster of two nodes."""

    KINDS = ("node killed", "job canceled", "job queued again", "preempted", "timed out", "stopped for 60 s")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        text = kills.STUDY.replace("engine: {workers: 2, stack: 2}", SLURM)
        (self.place / "killed.yaml").write_text(text)

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes, which run as jobs."""
        found = []
        for each in psutil.process_iter(["cmdline"]):
            words = each.info["cmdline"] or ()
            if "--engine=slurm" in words and str(self.folder.lab) in words:
                found.append(each)
        return found

    def harm(self, kind: str, victim: psutil.Process) -> None:
        """Let a fault of a kind befall a worker, its job or its node."""
        known, ask = victim.environ(), self.cluster.ask
        node, job = known["SLURMD_NODENAME"], f"{known['SLURM_ARRAY_JOB_ID']}_{known['SLURM_ARRAY_TASK_ID']}"
        elsewhere = (f"--nodelist={node}", "--output=/dev/null")
        faults: dict[str, Callable[[], object]] = {
            "node killed": lambda: self._lose_node(node),
            "job canceled": lambda: ask("scancel", job),
            "job queued again": lambda: ask("scontrol", "requeue", job),
            "preempted": lambda: ask("sbatch", "--partition=urgent", *elsewhere, "--wrap=sleep 3"),
            "timed out": lambda: ask("scontrol", "update", f"JobId={job}", "TimeLimit=2"),
            "stopped for 60 s": lambda: self._stop(victim, STOP_SECONDS),
        }
        faults[kind]()

    def _lose_node(self, node: str) -> None:
        self.cluster.kill_node(node)
        until = time.monotonic() + AWAY_SECONDS
        self.pass_time(lambda: time.monotonic() > until)
        self.cluster.start_node(node)


def expected(root: Path, dice: random.Random) -> dict[int, object]:
    """Return what local workers come to, undisturbed."""
    whole = kills.Study(root, root / "lab", dice, None, None)
    whole.run(0)
    found = {run.trial: kills.curve(run) for run in whole.folder.runs()}
    assert len(found) == kills.N_TRIALS, whole.said.read_text()
    return found


def main(engine: str, count: int, seed: int) -> int:
    print(setting(), f"seed {seed}", flush=True)
    dice, wrong, done = random.Random(seed), list[str](), Counter[str]()
    times = defaultdict[str, list[float]](list)
    kind_of_study: type[ClusterStudy] = {"ray": RayStudy, "slurm": SlurmStudy}[engine]
    cluster_of = {"ray": lambda: ray_cluster.started(3), "slurm": lambda: slurm_cluster.started(n_nodes=2)}
    left = [kind for kind in kind_of_study.KINDS for _ in range(count)]
    dice.shuffle(left)
    number = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres_server.started() as server,
        cluster_of[engine]() as cluster,
    ):
        known = expected(Path(folder), dice)
        while left:
            place, number = Path(folder) / f"study-{number}", number + 1
            place.mkdir()
            own = [left.pop() for _ in range(min(FAULTS_A_STUDY, len(left)))]
            study = kind_of_study(place, dice, server, cluster, own)
            study.run(len(own))
            left += study.left  # the study was over before
            found = [f"study {number}: {each}" for each in study.problems(known)]
            if found:
                print(*found, study.said.read_text()[-3000:], sep="\n", flush=True)
            wrong += found
            done += study.counts
            for kind, seconds in study.free_after.items():
                times[kind] += seconds
            print(f"{dict(study.counts)}: {len(found)} wrong", file=sys.stderr, flush=True)
    rows = [[kind, str(done[kind]), f"{max(times[kind], default=0):.1f}"] for kind in kind_of_study.KINDS]
    print_table(["fault", "done", "most seconds until its trials were free"], rows)
    print(f"{number} studies of {kills.N_TRIALS} trials; not as it should be: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=("slurm", "ray"))
    parser.add_argument("count", nargs="?", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    sys.exit(main(chosen.engine, chosen.count, chosen.seed))
