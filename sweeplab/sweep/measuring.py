"""How long this machine takes for a step of training: by precision, compilation, runs in a stack, workers and threads.

A few steps of each are timed in processes like a study's workers, as many side by side as the study would run.
Measurements are kept in the user's cache, by shape, versions and processor.

`main` runs in each of these processes.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from sweeplab.data.batches import Split
from sweeplab.files import cache_folder, make_folder, read_bytes, write_whole
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.processes import python, python_environment
from sweeplab.sweep.engines.base import SETTINGS
from sweeplab.train.devices import processor
from sweeplab.train.run import Run, shape_key
from sweeplab.version import VERSION

# Seconds per round of one way (a longer step is a round by itself) and for all rounds; their least and greatest number.
ROUND_SECONDS, ALL_SECONDS, FEWEST_ROUNDS, MOST_ROUNDS = 0.15, 10.0, 3, 7
_NEVER = 10**9
MOST_TOKENS = 2**22  # of a text that steps are timed on
_CHILD = f"import sys; from pathlib import Path; from {__name__} import main; main(Path(sys.argv[1]))"


@dataclass(frozen=True)
class Way:
    """A way to train runs of one shape: workers, threads per worker, runs per stack, precision, compiled or not."""

    workers: int
    threads: int
    stack: int
    dtype: str
    compile: bool


@dataclass(frozen=True)
class Product:
    """A product of square matrices, large enough to reach the machine's peak rate for matrix products."""

    workers: int
    threads: int
    dtype: str
    size: int = 2048
    stack: int = 1


Job = Way | Product


class Timed(NamedTuple):
    """A job to be timed: a way of training runs like `values` on `train`, or a product."""

    values: Hyperparameters
    train: Split
    way: Job


def measured(
    values: Hyperparameters, train: Split, val: Split, ways: Sequence[Job], again: bool = False
) -> list[float]:
    """Return each way's seconds per trial-step (one step of one run, or one product) while all workers train.

    `again` repeats measurements that are in the cache.

    Raises:
        RuntimeError: a way cannot be trained at all; with the error of its process.
    """
    return all_measured([Timed(values, train, way) for way in ways], val, again)


def all_measured(jobs: Sequence[Timed], val: Split, again: bool = False) -> list[float]:
    """Return what `measured` returns, for runs that may differ; the same processes time them one after another."""

    def together(job: Timed) -> tuple[int, int, bool]:
        return job.way.workers, job.way.threads, isinstance(job.way, Way) and job.way.compile

    unknown = [job for job in jobs if again or known_seconds(job.values, job.way) is None]
    for group in dict.fromkeys(map(together, unknown)):
        alike = [job for job in unknown if together(job) == group]
        for job, seconds in zip(alike, _side_by_side(alike, val), strict=True):
            file = _cache_file(job.values, job.way)
            make_folder(file.parent)
            write_whole(file, json.dumps({"seconds": seconds, **asdict(job.way)}).encode())
    return [known_seconds(job.values, job.way) or math.nan for job in jobs]


def known_seconds(values: Hyperparameters, way: Job) -> float | None:
    """Return the cached seconds per trial-step of a way; None if it was not measured."""
    try:
        return float(json.loads(read_bytes(_cache_file(values, way)))["seconds"])
    except FileNotFoundError:
        return None


def _cache_file(values: Hyperparameters, way: Job) -> Path:
    shape = shape_key(_as_trained(values, way)) if isinstance(way, Way) else ()
    what = (shape, asdict(way), processor(), VERSION, version("torch"))
    return cache_folder() / "steps" / f"{hashlib.sha256(repr(what).encode()).hexdigest()[:32]}.json"


def _as_trained(values: Hyperparameters, way: Way) -> Hyperparameters:
    return values.replace(
        device="cpu", dtype=way.dtype, compile=way.compile, max_iters=_NEVER, eval_interval=_NEVER, log_interval=_NEVER,
        save_interval=_NEVER, eval_tokens=1, eval_full=False, eval_train=False,
    )  # fmt: skip


def _side_by_side(jobs: Sequence[Timed], val: Split) -> list[float]:
    ways = [job.way for job in jobs]
    workers, threads = ways[0].workers, str(ways[0].threads)
    variables = python_environment(**SETTINGS, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs"
        some = [job._replace(train=_some(job.train)) for job in jobs]
        file.write_bytes(pickle.dumps((some, _some(val))))
        command = python("-c", _CHILD, file)
        pipe = subprocess.PIPE
        processes = [
            subprocess.Popen(command, env=variables, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            for _ in range(workers)
        ]
        try:
            for process in processes:
                _line(process)
            ends, rounds = time.monotonic() + ALL_SECONDS, list[list[list[float]]]()
            while len(rounds) < FEWEST_ROUNDS or (len(rounds) < MOST_ROUNDS and time.monotonic() < ends):
                rounds.append([_in_step(processes) for _ in ways])
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    # The rates of workers side by side add up.
    return [
        1.0 / median(sum(way.stack / seconds for seconds in each) for each in of_way)
        for way, of_way in zip(ways, zip(*rounds, strict=True), strict=True)
    ]


def _some(split: Split) -> Split:
    if isinstance(split, np.ndarray):
        return split[:MOST_TOKENS]
    return split


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise RuntimeError((process.communicate()[1] or "no word").strip().splitlines()[-1])


def _in_step(processes: Sequence[subprocess.Popen[str]]) -> list[float]:
    """Let all processes time a round of the next way at the same time; return the seconds per step of each."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [float(_line(process)) for process in processes]


def main(file: Path) -> None:
    """Prepare all jobs of a file; then, for each line read, time a round of the next job and print its step's seconds.

    Jobs take turns, so that other load on the machine slows all of them alike.
    """
    import torch

    jobs, val = pickle.loads(file.read_bytes())  # our own parent's
    torch.set_num_threads(jobs[0].way.threads)
    ready = []
    for values, train, way in jobs:
        timed = _timing_steps(values, train, val, way) if isinstance(way, Way) else _timing_products(way)
        seconds = max(timed(1) for _ in range(2))
        ready.append((timed, max(1, min(1000, int(ROUND_SECONDS / seconds)))))
    print("ready", flush=True)
    for timed, n_times in cycle(ready):
        if not sys.stdin.readline():
            return
        print(timed(n_times), flush=True)


def _timing_steps(values: Hyperparameters, train: Split, val: Split, way: Way) -> Callable[[int], float]:
    from sweeplab.train.stack import Stack

    like = _as_trained(values, way)
    stack = Stack(like, train, val, way.stack)
    for seed in range(way.stack):
        stack.admit(Run(str(seed), like.replace(seed=seed)))
    stack.advance()  # the first evaluation

    def timed(n_steps: int) -> float:
        left = iter(range(n_steps))
        started = time.perf_counter()
        stack.advance(lambda: next(left, None) is None)
        return (time.perf_counter() - started) / n_steps

    return timed


def _timing_products(what: Product) -> Callable[[int], float]:
    import torch

    one = torch.randn(what.size, what.size, dtype=getattr(torch, what.dtype))
    out = torch.empty_like(one)

    def timed(n_times: int) -> float:
        started = time.perf_counter()
        for _ in range(n_times):
            torch.mm(one, one, out=out)
        return (time.perf_counter() - started) / n_times

    return timed
