"""How many workers one PostgreSQL serves: simulated ones, with real calls of the store and pretended training.

Run: python tests/benchmarks/load.py URL [--workers N ...] [--seconds S] [--report R] [--trials T --trial-seconds S].
Each worker is a thread with a store and connections of its own, in a process with at most 63 others, and to the others
it is one of eight workers of another node. It claims a trial, reports ten times, R seconds apart, and ends it.
The workers begin at even distances over one trial's time; then trials that end, and calls, are counted for S seconds.
Printed are trials a second, what the workers could do if the store took no time, the 50th and 99th percentile of a
claim and a report, and the CPU that a trial costs all workers together, and the server where it is on this machine.
With --trials the last number of workers trains so many trials of S seconds with one report each, and the time that it
takes is printed. The server has to allow two connections a worker (max_connections).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import psutil
from benchmarks.setting import print_table, setting
from benchmarks.store import N_REPORTS, VOCAB_SIZE, finish, fresh, opened, study

from sweeplab.study.space import cells
from sweeplab.sweep.trials.leases import Renewal, Report
from sweeplab.sweep.trials.store import Store

N_ON_NODE = 8
# Of one process: more of them mostly wait for the interpreter's lock.
MOST_THREADS = 64


@dataclass(frozen=True)
class Plan:
    """What the workers do; what ends in `seconds` is counted, which start after `lead_seconds`."""

    n_workers: int
    n_trials: int
    n_reports: int
    report_seconds: float
    lead_seconds: float
    seconds: float

    @property
    def is_whole(self) -> bool:
        """Return whether the workers train all trials to their ends."""
        return self.seconds == float("inf")

    @property
    def trial_seconds(self) -> float:
        """Return how long a trial trains."""
        return self.n_reports * self.report_seconds


class Worker(threading.Thread):
    """A worker that trains one trial at a time, until it is over or no trial is left."""

    def __init__(self, url: str, number: int, plan: Plan) -> None:
        super().__init__(daemon=True)
        spec = study("random", "none")
        budget = spec.budget.model_copy(update={"trials_per_cell": plan.n_trials})
        spec = spec.model_copy(update={"budget": budget})
        self.store = Store(spec, cells(spec, VOCAB_SIZE)[0], VOCAB_SIZE, url)
        node = f"node{number // N_ON_NODE}"
        self.store.leases.owner = replace(self.store.leases.owner, host=node, unique=f"{number:08x}")
        self.plan, self.waits = plan, plan.trial_seconds * number / plan.n_workers
        self.took: dict[str, list[float]] = defaultdict(list)
        self.n_ended, self.starts = 0, 0.0  # within the seconds that count; when those start

    def run(self) -> None:
        """Work."""
        time.sleep(self.waits)
        ends = self.starts + self.plan.seconds
        with Renewal(self.store.renew):
            while time.monotonic() < ends and (claim := self._timed("claim", self.store.claim)):
                for each in range(1, self.plan.n_reports + 1):
                    time.sleep(self.plan.report_seconds)
                    reports = [Report(claim, 10 * each, 4.0 - each / 10)]
                    self._timed("report", lambda reports=reports: self.store.report_many(reports))
                finish(self.store, claim, "complete")
                self.n_ended += self.starts <= time.monotonic() < ends
        self.store.storage.engine.dispose()

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        found = call()
        if self.starts <= time.monotonic() < self.starts + self.plan.seconds:
            self.took[name].append(time.perf_counter() - started)
        return found


def work(url: str, first: int, n_workers: int, plan: Plan) -> None:
    """Be one of the processes: say when all workers are ready, go on at a line, and say what calls took."""
    threading.stack_size(2**19)
    workers = [Worker(url, number, plan) for number in range(first, first + n_workers)]
    for each in workers:
        each.store.counts()
    print("ready", flush=True)
    sys.stdin.readline()
    starts = time.monotonic() + plan.lead_seconds
    for each in workers:
        each.starts = starts
        each.start()
    time.sleep(plan.lead_seconds)
    before = time.process_time()
    for each in workers if plan.is_whole else ():
        each.join()
    time.sleep(0 if plan.is_whole else plan.seconds)
    cpu_seconds = time.process_time() - before
    # Copies, because the workers go on.
    took = {name: [s for each in workers for s in [*each.took[name]]] for name in ("claim", "report")}
    said = {**took, "ended": sum(each.n_ended for each in workers), "cpu_seconds": cpu_seconds}
    print(json.dumps(said), flush=True)
    os._exit(0)  # without the trials that have not ended


def server_seconds() -> float:
    """Return the CPU seconds of all processes of PostgreSQL on this machine, those that have ended included."""
    servers = [each for each in psutil.process_iter(["name", "cpu_times"]) if each.info["name"] == "postgres"]
    return sum(sum(each.info["cpu_times"][:4]) for each in servers)  # also of children that have ended


def load(url: str, plan: Plan) -> tuple[float, dict[str, Any]]:
    """Return the seconds that all took, and what the processes said, together."""
    with fresh(url) as own:
        store = opened(own, study("random", "none"))
        pipe = subprocess.PIPE
        n_processes = max(len(os.sched_getaffinity(0)), math.ceil(plan.n_workers / MOST_THREADS))
        firsts = [plan.n_workers * at // n_processes for at in range(n_processes + 1)]
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--worker",
                    own,
                    str(first),
                    str(end - first),
                    json.dumps(asdict(plan)),
                ],
                stdin=pipe,
                stdout=pipe,
                text=True,
            )
            for first, end in pairwise(firsts)
            if first < end
        ]
        for each in processes:
            assert each.stdout and each.stdout.readline() == "ready\n"
        started = time.monotonic()
        for each in processes:
            assert each.stdin
            each.stdin.write("go\n")
            each.stdin.flush()
        server = 0.0
        if not plan.is_whole:
            time.sleep(plan.lead_seconds)
            before = server_seconds()
            time.sleep(plan.seconds)
            server = server_seconds() - before
        said = [json.loads(each.communicate()[0]) for each in processes]
        took = time.monotonic() - started
        trials = store.trials(store.cells[0])
        numbers = [trial.number for trial in trials]
        ended = [trial for trial in trials if trial.state.is_finished()]
        assert numbers == [*range(len(numbers))] and (len(ended) == len(trials) or not plan.is_whole)
        assert all(len(trial.intermediate_values) == plan.n_reports for trial in ended), "every report once"
    found: dict[str, Any] = {name: sum((each[name] for each in said[1:]), said[0][name]) for name in said[0]}
    return took, found | {"server_seconds": server}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--report", type=float, default=1.0)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--trial-seconds", type=float, default=1.0)
    asked = parser.parse_args()
    print(setting())
    if asked.trials:
        plan = Plan(asked.workers[-1], asked.trials, 1, asked.trial_seconds, 0.0, float("inf"))
        least = asked.trials * asked.trial_seconds / plan.n_workers
        asked_for = f"{asked.trials:,} trials of {asked.trial_seconds:g} s, {plan.n_workers} workers"
        print(f"{asked_for}: {load(asked.url, plan)[0]:.0f} s, at least {least:.0f}")
        return
    rows = []
    for n_workers in asked.workers:
        trial_seconds = N_REPORTS * asked.report
        plan = Plan(n_workers, 10**6, N_REPORTS, asked.report, trial_seconds, asked.seconds)
        found = load(asked.url, plan)[1]
        calls = [
            f"{1e3 * np.percentile(found[name], q):.0f} ms" for name in ("claim", "report") for q in (50, 99)
        ]
        n = max(1, found["ended"])
        cpu = [f"{1e3 * found[name] / n:.0f} ms" for name in ("cpu_seconds", "server_seconds")]
        at_most = n_workers / trial_seconds
        rows.append(
            [f"{n_workers:,}", f"{found['ended'] / asked.seconds:.2f}", f"{at_most:.2f}", *calls, *cpu]
        )
        print("#", *rows[-1], flush=True)
    calls = ["claim", "99%", "report", "99%"]
    header = ["workers", "trials a second", "at most", *calls, "CPU of workers", "of PostgreSQL"]
    print_table(header, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        url, first, n_workers, plan = sys.argv[2:]
        work(url, int(first), int(n_workers), Plan(**json.loads(plan)))
    else:
        main()
