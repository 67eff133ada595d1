"""How fast this machine trains a model: by precision, compilation, runs in a stack, workers and threads.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import NamedTuple

from sweeplab.data.batches import Split
from sweeplab.files import cache_folder, write_whole
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.accounting import has_large_product, n_params
from sweeplab.model.shape import ModelShape
from sweeplab.processes import python, python_environment
from sweeplab.study.plan import CPU_STACK_BELOW_PARAMS
from sweeplab.sweep.engines.base import SETTINGS
from sweeplab.train.devices import has_matrix_units, processor
from sweeplab.train.program import compiling_pays, program_file
from sweeplab.train.run import Run, row_flops, shape_key, state_bytes, train_flops
from sweeplab.version import VERSION

# Seconds per round of one way (a longer step is a round by itself) and for all rounds; their least and greatest number.
ROUND_SECONDS, ALL_SECONDS, FEWEST_ROUNDS, MOST_ROUNDS = 0.15, 10.0, 3, 7
# bfloat16 is chosen if a step takes at most this share of its time in float32: less gain is not worth its rounding.
MIXED_BELOW = 0.9
# A step of more FLOPs is not timed: a dozen of them would take longer than anyone waits for a plan.
MOST_STEP_FLOPS = 1e11
# The stacks that are timed, and the most FLOPs of a stack's step and bytes of its state. In larger stacks more runs
# begin before any has ended, so samplers and pruners have fewer results to learn from.
STACKS, MOST_FLOPS, MOST_BYTES = (1, 2, 4, 8, 16), 2e11, 2**28
# The smallest stack that reaches this share of the fastest one's speed is chosen: its runs end earlier.
WITHIN = 0.97
# A shape's stacks are timed if its runs would take longer than this in all, at the peak rate of a CPU core; of a study,
# no more shapes than MOST_SHAPES, as the user waits for the plan.
WORTH_SECONDS, STEP_SECONDS, CORE_FLOPS = 300.0, 5e-4, 1e11
MOST_SHAPES = 4
_NEVER = 10**9
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
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps({"seconds": seconds, **asdict(job.way)}).encode())
    return [known_seconds(job.values, job.way) or math.nan for job in jobs]


def known_seconds(values: Hyperparameters, way: Job) -> float | None:
    """Return the cached seconds per trial-step of a way; None if it was not measured."""
    try:
        return float(json.loads(_cache_file(values, way).read_bytes())["seconds"])
    except FileNotFoundError:
        return None


def may_be_mixed(values: Hyperparameters) -> bool:
    """Return whether this machine's CPU has matrix units and such a run has matrix products large enough for them."""
    n_rows = values.batch_size // values.grad_accum * values.block_size
    return has_large_product(ModelShape.of(values), n_rows) and has_matrix_units()


def settled_dtype(
    values: Hyperparameters, train: Split, val: Split, stack: int, threads: int, workers: int
) -> str:
    """Return the faster precision of matrix products on this machine's CPU, by timing a few steps in both.

    If steps are to be compiled, times from `bench` decide; without them, times of uncompiled steps do, as compiling
    would delay the plan. It is float32, untimed, without matrix units, if no product is large enough for them, or if a
    step takes seconds.
    """

    def ways_to(compiled: bool) -> tuple[list[Way], bool]:
        """Return the ways in either precision, and whether both are known."""
        ways = [Way(workers, threads, stack, dtype, compiled) for dtype in ("float32", "bfloat16")]
        return ways, all(known_seconds(values, way) is not None for way in ways)

    # If both times are known there is no need to examine the machine, which imports torch, slowly.
    ways, is_known = ways_to(values.compile)
    if values.compile and not is_known:
        ways, is_known = ways_to(False)
    if not (is_known or may_be_mixed(values)) or train_flops(values, 1) > MOST_STEP_FLOPS:
        return "float32"
    single, half = measured(values, train, val, ways)
    # Compare the precisions each in its best stack, among those that `bench` has timed: the plan chooses that stack.
    others = [[known_seconds(values, replace(way, stack=n)) for way in ways] for n in stacks_timed(values)]
    single, half = map(min, zip((single, half), *(each for each in others if all(each)), strict=True))
    return "bfloat16" if half <= MIXED_BELOW * single else "float32"


def stacks_timed(values: Hyperparameters) -> list[int]:
    """Return the stacks that are timed for runs like `values`."""
    flops, size = row_flops(values) * values.batch_size, state_bytes(values)
    return [
        each for each in STACKS if each == 1 or (each * flops <= MOST_FLOPS and each * size <= MOST_BYTES)
    ]


def stack_rates(
    values: Hyperparameters, train: Split, val: Split, workers: int, threads: int, n_runs: float
) -> dict[int, float]:
    """Return trial-steps per second by stack size, on this machine's CPU, in the precision and compilation of `values`.

    Empty if the bits of a larger model would depend on its stack, as they do with several threads. Unless the rates are
    known from an earlier plan or `study bench`, also empty if timing could take longer than it saves, or if the step
    would have to be compiled first. Stacks that would leave some workers without runs are left out.
    """
    if threads > 1 and n_params(ModelShape.of(values)) >= CPU_STACK_BELOW_PARAMS:
        return {}
    stacks = [each for each in stacks_timed(values) if each == 1 or each * workers <= n_runs]
    ways = [Way(workers, threads, each, values.dtype, values.compile) for each in stacks]
    if not all(_cache_file(values, way).exists() for way in ways):
        flops = row_flops(values) * values.batch_size
        seconds = n_runs * values.max_iters * max(STEP_SECONDS, flops / CORE_FLOPS) / workers
        must_compile = values.compile and not program_file(values, threads).exists()
        if seconds < WORTH_SECONDS or flops > MOST_STEP_FLOPS or must_compile:
            return {}
    found = measured(values, train, val, ways)
    return {stack: 1.0 / each for stack, each in zip(stacks, found, strict=True)}


def fastest_stack(rates: Mapping[int, float]) -> int:
    """Return the smallest stack whose rate is within measurement noise (WITHIN) of the highest."""
    return min(stack for stack, rate in rates.items() if rate >= WITHIN * max(rates.values()))


def _cache_file(values: Hyperparameters, way: Job) -> Path:
    shape = shape_key(_as_trained(values, way)) if isinstance(way, Way) else ()
    what = (shape, asdict(way), processor(), VERSION, version("torch"))
    return cache_folder() / "steps" / f"{hashlib.sha256(repr(what).encode()).hexdigest()[:32]}.json"


def _as_trained(values: Hyperparameters, way: Way) -> Hyperparameters:
    """Return the values for timing: only training steps, after one evaluation of a single batch."""
    return values.replace(
        device="cpu", dtype=way.dtype, compile=way.compile, max_iters=_NEVER, eval_interval=_NEVER, log_interval=_NEVER,
        save_interval=_NEVER, eval_tokens=1, eval_full=False, eval_train=False,
    )  # fmt: skip


def _side_by_side(jobs: Sequence[Timed], val: Split) -> list[float]:
    """Return the seconds per trial-step of ways that have the same workers and threads."""
    ways = [job.way for job in jobs]
    workers, threads = ways[0].workers, str(ways[0].threads)
    variables = python_environment(**SETTINGS, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "given"
        given.write_bytes(pickle.dumps((jobs, val)))
        command = python("-c", _CHILD, given)
        pipe = subprocess.PIPE
        processes = [
            subprocess.Popen(command, env=variables, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            for _ in range(workers)
        ]
        try:
            for each in processes:
                _line(each)
            ends, rounds = time.monotonic() + ALL_SECONDS, list[list[list[float]]]()
            while len(rounds) < FEWEST_ROUNDS or (len(rounds) < MOST_ROUNDS and time.monotonic() < ends):
                rounds.append([_in_step(processes) for _ in ways])
        finally:
            for each in processes:
                each.kill()
                each.communicate()
    # The rates of workers side by side add up.
    return [
        1.0 / median(sum(way.stack / seconds for seconds in each) for each in of_way)
        for way, of_way in zip(ways, zip(*rounds, strict=True), strict=True)
    ]


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if said := process.stdout.readline():
        return said
    raise RuntimeError((process.communicate()[1] or "no word").strip().splitlines()[-1])


def _in_step(processes: Sequence[subprocess.Popen[str]]) -> list[float]:
    """Let all processes time a round of the next way at the same time; return the seconds per step of each."""
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    return [float(_line(each)) for each in processes]


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
    """Return a function that trains a stack for a number of steps and returns the seconds per step."""
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


@dataclass(frozen=True)
class BenchRow:
    """A way of training a cell: its trial-steps per second, and their share of the machine's bound.

    The bound is the rate at which all cores multiply large square matrices in the way's precision. `taken` marks the
    way that the plan chooses, and `why` is the reason.
    """

    workers: int
    threads: int
    stack: int
    dtype: str
    compile: bool
    trial_steps_per_second: float
    share_of_bound: float
    taken: bool
    why: str


def bench(
    values: Hyperparameters, train: Split, val: Split, taken: Way, why: str, again: bool = False
) -> list[BenchRow]:
    """Time the ways in which this machine's CPU can train runs like `values`; return them, the fastest first."""
    n_cpus = taken.workers * taken.threads
    flops = row_flops(values) * values.batch_size
    dtypes = ("float32", "bfloat16") if may_be_mixed(values) else ("float32",)
    stacks = stacks_timed(values)
    like = values.replace(device="cpu", compile=True)
    compiles = (False, True) if compiling_pays(like, math.inf) else (False,)
    ways = [Way(n_cpus, 1, stack, dtype, each) for dtype in dtypes for each in compiles for stack in stacks]
    ways += [Way(1, n_cpus, stacks[-1], dtype, False) for dtype in dtypes if n_cpus > 1]
    ways += [] if taken in ways else [taken]
    products = [Product(n_cpus, 1, dtype) for dtype in dtypes]
    found = measured(values, train, val, [*products, *ways], again)
    rates = {each.dtype: 2 * each.size**3 / s for each, s in zip(products, found, strict=False)}
    rows = [
        BenchRow(
            **asdict(way),
            trial_steps_per_second=1.0 / seconds,
            share_of_bound=flops / seconds / rates[way.dtype],
            taken=way == taken,
            why=why if way == taken else "",
        )
        for way, seconds in zip(ways, found[len(products) :], strict=True)
    ]
    return sorted(rows, key=lambda row: -row.trial_steps_per_second)
