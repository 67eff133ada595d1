"""Real faults on studies on a real Ray cluster of three nodes: actors, workers and nodes lost, workers stopped.

Run: python tests/faults/ray_kills.py [N] [--seed S]. Studies of 24 trials, until N faults of each kind have befallen
them. Each is held against one that local workers trained undisturbed, as `kills.py` does: trials lost, told twice or
beyond the budget, runs of which a bit differs. Prints how often each was done, what was found, and how long it took
until others could take the trials of the worker that was lost: at once where a process of this machine is known to
be gone, as all of these are, else when its lease has run out.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import postgres_server
import psutil
import ray_cluster
from benchmarks.setting import print_table, setting
from faults import kills

from sweeplab.sweep.trials.store import Store, open_store

STOP_SECONDS = 60.0
FAULTS_A_STUDY = 12
KINDS = (
    "SIGKILL to an actor",
    "SIGKILL to a worker",
    "node lost, another joins",
    "SIGSTOP to a worker, 60 s",
)


class RayStudy(kills.Study):
    """A study on a Ray cluster, and what befalls it."""

    def __init__(
        self, folder: Path, dice: random.Random, server: postgres_server.Server, cluster: Any
    ) -> None:
        super().__init__(folder, folder / "lab", dice, None, server)
        self.cluster = cluster
        self.taken_over: list[tuple[str, float]] = []

    def start(self) -> None:
        """Start the study, or go on with it, with an actor for each node."""
        address = f"engine.address={self.cluster.address}"
        super().start("--engine", "ray", "-o", address, "-o", "engine.workers=3")

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes, which are children of actors."""
        lab = str(self.folder.lab)
        listed = [(each, each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
        return [each for each, words in listed if lab in words and "sweeplab.sweep.worker" in words]

    def held(self, store: Store) -> dict[int, int]:
        """Return by trial the process that holds it, of those that nobody else may take."""
        with store.storage.reading() as connection:
            leases = store.leases.all(connection)
        return {number: lease.owner.pid for number, lease in leases.items() if not lease.is_dead}

    def befall(self, kind: str = "") -> None:
        """Let one fault befall a worker that holds a trial; wait until none of its trials is its own."""
        if not self.n_points:
            return
        kind = kind or min(KINDS, key=lambda each: (self.counts[each], KINDS.index(each)))
        store = open_store(self.folder)
        workers = {each.pid: each for each in self.workers()}
        holding = sorted({pid for pid in self.held(store).values() if pid in workers})
        if not holding:
            return
        victim = workers[self.dice.choice(holding)]
        trials = {number for number, pid in self.held(store).items() if pid == victim.pid}
        with suppress(psutil.Error):
            self._befall(kind, victim, trials, store)
        store.storage.engine.dispose()

    def _befall(self, kind: str, victim: psutil.Process, trials: set[int], store: Store) -> None:
        actor = victim.parent()
        assert actor and "ray::" in " ".join(actor.cmdline())
        if kind == KINDS[0]:
            actor.kill()
        elif kind == KINDS[1]:
            victim.kill()
        elif kind == KINDS[2]:
            self._lose_node(actor)
        else:
            self._stop(victim, STOP_SECONDS)
        self.counts[kind] += 1
        lost = time.monotonic()
        while any(self.held(store).get(number) == victim.pid for number in trials):
            if not self.pass_time(lambda: True) or time.monotonic() - lost > STOP_SECONDS:
                break
            time.sleep(0.1)
        self.taken_over.append((kind, time.monotonic() - lost))

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


def expected(root: Path, dice: random.Random) -> dict[int, object]:
    """Return what local workers come to, undisturbed."""
    whole = kills.Study(root, root / "lab", dice, None, None)
    whole.run(0)
    found = {run.trial: kills.curve(run) for run in whole.folder.runs()}
    assert len(found) == kills.N_TRIALS, whole.said.read_text()
    return found


def main(n_faults: int, seed: int) -> int:
    print(setting(), f"seed {seed}", flush=True)
    dice, done, wrong = random.Random(seed), Counter[str](), list[str]()
    times: list[tuple[str, float]] = []
    with (
        tempfile.TemporaryDirectory() as root,
        postgres_server.started() as server,
        ray_cluster.started(3) as cluster,
    ):
        known, number = expected(Path(root), dice), 0
        while min(done[kind] for kind in KINDS) < n_faults:
            folder = Path(root) / str(number)
            folder.mkdir()
            study = RayStudy(folder, dice, server, cluster)
            study.counts.update(done)
            study.run(min(sum(done.values()) + FAULTS_A_STUDY, n_faults * len(KINDS)))
            found = [f"study {number}: {each}" for each in study.problems(known)]
            if found:
                print(*found, study.said.read_text()[-3000:], sep="\n", flush=True)
            done, number = Counter(study.counts), number + 1
            print(f"{dict(done)}: {len(found)} wrong", file=sys.stderr, flush=True)
            times += study.taken_over
            wrong += found
    rows = [
        [kind, str(done[kind]), f"{max((s for k, s in times if k == kind), default=0):.1f} s"]
        for kind in KINDS
    ]
    print_table(["", "times", "its trials are free for others within"], rows)
    print(f"{number} studies of {kills.N_TRIALS} trials, not as it should be: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n_faults", nargs="?", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    sys.exit(main(chosen.n_faults, chosen.seed))
