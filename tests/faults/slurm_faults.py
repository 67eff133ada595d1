"""Faults of a cluster on real studies: nodes and jobs killed, canceled, queued again, preempted, timed out, stopped.

Run: python tests/faults/slurm_faults.py [N]. N of each kind befall studies of 24 trials on a real Slurm of two nodes
and a real PostgreSQL; each study is held against an undisturbed one of local workers by the checks of `kills.py`.
Prints what was done, what was not as it should be, and after how many seconds a lost worker's trials were free.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from benchmarks.setting import print_table, setting
from faults import kills
from faults.kills import STUDY, Study, curve
from postgres_server import started as database
from slurm_cluster import Cluster, started

from sweeplab.records.folders import WorkerPlace
from sweeplab.sweep.trials.store import open_store

SLURM = "engine: {type: slurm, workers: 2, stack: 2, time: 1h}"
STOPPED_SECONDS = 60.0
# So long a node stays away that was killed.
AWAY_SECONDS = 20.0
FAULTS_A_STUDY = 12


class ClusterStudy(Study):
    """A study on the cluster; `befall` takes the kinds of faults in turn."""

    def __init__(self, folder: Path, dice: random.Random, cluster: Cluster, server, kinds: list[str]) -> None:
        super().__init__(folder, folder / "lab", dice, None, server)
        self.cluster, self.kinds, self.free_after = cluster, kinds, defaultdict[str, list[float]](list)
        (folder / "killed.yaml").write_text(STUDY.replace("engine: {workers: 2, stack: 2}", SLURM))

    def befall(self) -> None:
        running = [each for each in self.folder.workers if each.state == "running"]
        if not running or not self.kinds:
            return
        place, kind = self.dice.choice(running), self.kinds[-1]
        process = worker_of(place, self.cluster)
        began, pid = time.monotonic(), process.pid if process else -1
        ask, job = self.cluster.ask, place.process.removeprefix("job ")
        elsewhere = (f"--nodelist={place.node}", "--output=/dev/null")
        faults: dict[str, Callable[[], object]] = {
            "node killed": lambda: self.cluster.kill_node(place.node),
            "job canceled": lambda: ask("scancel", job),
            "job queued again": lambda: ask("scontrol", "requeue", job),
            "preempted": lambda: ask("sbatch", "--partition=urgent", *elsewhere, "--wrap=sleep 3"),
            "timed out": lambda: ask("scontrol", "update", f"JobId={job}", "TimeLimit=2"),
            "stopped for 60 s": lambda: process and self._stop(process, STOPPED_SECONDS),
        }
        try:
            faults[kind]()
        except subprocess.CalledProcessError:  # the job has ended meanwhile
            return
        self.counts[self.kinds.pop()] += 1
        if self._wait_until_free(pid):
            self.free_after[kind].append(time.monotonic() - began)
        if kind == "node killed":
            until = began + AWAY_SECONDS
            self.pass_time(lambda: time.monotonic() > until)
            self.cluster.start_node(place.node)

    def _wait_until_free(self, pid: int) -> bool:
        """Wait until nobody's trials are held by a process that is gone, stopped or asked to leave."""
        store = open_store(self.folder)

        def held() -> bool:
            with store.storage.reading() as connection:
                leases = store.leases.all(connection).values()
            return any(not each.is_dead and each.owner.pid == pid for each in leases)

        was_held = held()
        self.pass_time(lambda: not held())
        store.storage.engine.dispose()
        return was_held


def worker_of(place: WorkerPlace, cluster: Cluster) -> psutil.Process | None:
    """Return the process of a worker that runs as a job of this cluster; others may run beside it."""
    array, _, task = place.process.removeprefix("job ").partition("_")
    job = cluster.environment | {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task}
    for each in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            if "--engine=slurm" in (each.info["cmdline"] or ()) and job.items() <= each.environ().items():
                return each
    return None


def main(count: int, seed: int) -> int:
    print(setting(), f"seed {seed}", flush=True)
    dice, wrong, done = random.Random(seed), list[str](), defaultdict[str, list[float]](list)
    kinds = ["node killed", "job canceled", "job queued again", "preempted", "timed out", "stopped for 60 s"]
    left = [kind for kind in kinds for _ in range(count)]
    dice.shuffle(left)
    n_done = dict.fromkeys(kinds, 0)
    with tempfile.TemporaryDirectory() as folder, database() as server, started(n_nodes=2) as cluster:
        root = Path(folder)
        whole = Study(root, root / "lab", dice, None, None)
        whole.run(0)
        expected = {run.trial: curve(run) for run in whole.folder.runs()}
        assert len(expected) == kills.N_TRIALS, whole.said.read_text()
        number = 0
        while left:
            place, number = root / f"study-{number}", number + 1
            place.mkdir()
            took = min(FAULTS_A_STUDY, len(left))
            study = ClusterStudy(place, dice, cluster, server, [left.pop() for _ in range(took)])
            study.run(took)
            left += study.kinds  # the study was over before
            found = [f"study {number}: {each}" for each in study.problems(expected)]
            if found:
                print(*found, study.said.read_text()[-3000:], sep="\n", flush=True)
            wrong += found
            for kind, n in study.counts.items():
                n_done[kind] += n
                done[kind] += study.free_after[kind]
            print(f"{dict(study.counts)}: {len(found)} wrong", file=sys.stderr, flush=True)
    rows = [[kind, str(n_done[kind]), f"{max(done[kind], default=0):.1f}"] for kind in kinds]
    print_table(["fault", "done", "most seconds until its trials were free"], rows)
    print(f"{number} studies of {kills.N_TRIALS} trials; not as it should be: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    sys.exit(main(chosen.count, chosen.seed))
