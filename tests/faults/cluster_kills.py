"""Faults of a Ray cluster on real studies: nodes, actors and workers killed or stopped, one after another."""

import time
from collections import defaultdict
from contextlib import suppress

import psutil
import ray_cluster
from faults import kills

from sweeplab.sweep.trials.store import open_store

STOP_SECONDS = 60.0


class RayStudy(kills.Study):
    """A study with an actor for each of three nodes of a Ray cluster; it takes the kinds of faults that are `left`."""

    KINDS = ("SIGKILL to an actor", "SIGKILL to a worker", "node lost, another joins", "SIGSTOP to a worker")

    def __init__(self, folder, dice, server, cluster, left):
        super().__init__(folder, folder / "lab", dice, server=server)
        self.cluster, self.left = cluster, left
        self.free_after = defaultdict[str, list[float]](list)

    def start(self):
        """Start the study, or go on with it."""
        address = f"engine.address={self.cluster.address}"
        super().start("--engine", "ray", "-o", address, "-o", "engine.workers=3")

    def workers(self):
        """Return the worker processes, which are children of actors."""
        lab = str(self.folder.lab)
        listed = [(each, each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
        return [each for each, words in listed if lab in words and "sweeplab.sweep.worker" in words]

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
                self.KINDS[3]: lambda: self._stop(victim, STOP_SECONDS),
            }
            faults[kind]()
            self.counts[self.left.pop()] += 1
        while victim.pid in self.held() and time.monotonic() - began < STOP_SECONDS:
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
