"""How many workers one PostgreSQL serves: simulated ones, with real calls of the store and pretended training.

Run: python tests/benchmarks/load.py URL [--workers N ...] [--seconds S] [--report R] [--trials T --trial-seconds S].
Each worker is a thread with a store and a connection of its own, in as many processes as there are cores; it claims a
trial, reports ten times, R seconds apart, and ends it, for S seconds. Printed are trials a second, what the workers
could do if the store took no time, and the 50th and 99th percentile of a claim and a report. With --trials the last
number of workers trains so many trials of S seconds with one report each, and the time that it takes is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from benchmarks.setting import print_table, setting
from benchmarks.store import N_REPORTS, VOCAB_SIZE, finish, fresh, opened, study

from sweeplab.study.space import cells
from sweeplab.sweep.trials.leases import Renewal
from sweeplab.sweep.trials.store import Report, Store

N_PROCESSES = len(os.sched_getaffinity(0))


class Worker(threading.Thread):
    """A worker that trains one trial at a time, until it is over or no trial is left."""

    def __init__(self, url: str, n_trials: int, n_reports: int, report_seconds: float) -> None:
        super().__init__(daemon=True)
        spec = study("random", "none")
        spec = spec.model_copy(
            update={"budget": spec.budget.model_copy(update={"trials_per_cell": n_trials})}
        )
        self.store = Store(spec, cells(spec, VOCAB_SIZE)[0], VOCAB_SIZE, url)
        self.n_reports, self.report_seconds = n_reports, report_seconds
        self.took: dict[str, list[float]] = defaultdict(list)
        self.ends = float("inf")

    def run(self) -> None:
        """Work."""
        time.sleep(random.random() * self.report_seconds)  # not all at once
        with Renewal(self.store.renew):
            while time.monotonic() < self.ends and (claim := self._timed("claim", self.store.claim)):
                for each in range(1, self.n_reports + 1):
                    time.sleep(self.report_seconds)
                    reports = [Report(claim, 10 * each, 4.0 - each / 10)]
                    self._timed("report", lambda reports=reports: self.store.report_many(reports))
                finish(self.store, claim, "complete")

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        found = call()
        self.took[name].append(time.perf_counter() - started)
        return found


def work(
    url: str, n_workers: int, n_trials: int, n_reports: int, report_seconds: float, seconds: float
) -> None:
    """Be one of the processes: say when all workers are ready, go on at a line, and say what calls took."""
    threading.stack_size(2**19)
    workers = [Worker(url, n_trials, n_reports, report_seconds) for _ in range(n_workers)]
    for each in workers:
        each.store.counts()
    print("ready", flush=True)
    sys.stdin.readline()
    ends = time.monotonic() + seconds
    for each in workers:
        each.ends = ends
        each.start()
    for each in workers:
        each.join()
    print(
        json.dumps({name: [s for each in workers for s in each.took[name]] for name in ("claim", "report")})
    )


def load(
    url: str, n_workers: int, n_trials: int, n_reports: int, report_seconds: float, seconds: float
) -> tuple[int, float, dict[str, np.ndarray]]:
    """Return the trials that ended, the seconds they took, and those of each call."""
    with fresh(url) as own:
        spec = study("random", "none")
        store = opened(own, spec)
        shares = [n_workers // N_PROCESSES + (at < n_workers % N_PROCESSES) for at in range(N_PROCESSES)]
        words = [str(each) for each in (n_trials, n_reports, report_seconds, seconds)]
        pipe = subprocess.PIPE
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", own, str(share), *words],
                stdin=pipe,
                stdout=pipe,
                text=True,
            )
            for share in shares
            if share
        ]
        for each in processes:
            assert each.stdout and each.stdout.readline() == "ready\n"
        started = time.monotonic()
        for each in processes:
            assert each.stdin
            each.stdin.write("go\n")
            each.stdin.flush()
        said = [json.loads(each.communicate()[0]) for each in processes]
        took = time.monotonic() - started
        trials = store.trials(store.cells[0])
        numbers = [trial.number for trial in trials]
        assert numbers == [*range(len(numbers))] and all(trial.state.is_finished() for trial in trials)
        assert all(len(trial.intermediate_values) == n_reports for trial in trials), "every report once"
    return len(trials), took, {name: np.concatenate([each[name] for each in said]) for name in said[0]}


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
        n, took, _ = load(asked.url, asked.workers[-1], asked.trials, 1, asked.trial_seconds, float("inf"))
        least = n * asked.trial_seconds / asked.workers[-1]
        asked_for = f"{n:,} trials of {asked.trial_seconds:g} s, {asked.workers[-1]} workers"
        print(f"{asked_for}: {took:.0f} s, at least {least:.0f}")
        return
    rows = []
    for n_workers in asked.workers:
        n, took, calls = load(asked.url, n_workers, 10**6, N_REPORTS, asked.report, asked.seconds)
        times = [f"{1e3 * np.percentile(calls[name], q):.0f} ms" for name in calls for q in (50, 99)]
        at_most = n_workers / N_REPORTS / asked.report
        rows.append([f"{n_workers:,}", f"{n / took:.1f}", f"{at_most:.1f}", *times])
        print("#", *rows[-1], flush=True)
    header = ["workers", "trials a second", "at most", "claim", "99%", "report", "99%"]
    print_table(header, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        url, n_workers, n_trials, n_reports, *times = sys.argv[2:]
        work(url, int(n_workers), int(n_trials), int(n_reports), *map(float, times))
    else:
        main()
