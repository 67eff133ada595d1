"""How fast this machine trains a model: by precision, compilation, runs in a stack, workers and threads.

A few steps of each are timed in processes like a study's own workers, which train side by side where a study's would.
What was measured is kept in the user's cache, by shape, versions and processor.

`python -m sweeplab.sweep.measuring FILE` is one of these processes; FILE has what it times.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from sweeplab.data.batches import Split
from sweeplab.files import cache_folder, write_whole
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.accounting import has_large_product
from sweeplab.model.shape import ModelShape
from sweeplab.sweep.engines.base import SETTINGS
from sweeplab.train.devices import has_matrix_units, processor
from sweeplab.train.run import Run, shape_key
from sweeplab.version import VERSION

if TYPE_CHECKING:
    from sweeplab.train.stack import Stack

# How long one round of a way is timed, and how many rounds there are; a step that takes longer is a round.
ROUND_SECONDS, ROUNDS = 0.25, 5
# bfloat16 is chosen where a step takes at most this share of its time in float32: less is not worth its rounding.
MIXED_BELOW = 0.9
_NEVER = 10**9


@dataclass(frozen=True)
class Way:
    """A way to train runs of one shape: so many workers of so many threads, each with a stack of so many runs."""

    workers: int
    threads: int
    stack: int
    dtype: str
    compile: bool


def measured(
    values: Hyperparameters, train: Split, val: Split, ways: Sequence[Way], again: bool = False
) -> list[float]:
    """Return the seconds of each way a trial-step: of one step of one run, while all workers train.

    `again` measures what is known already.

    Raises:
        RuntimeError: a way cannot be trained at all; with what its process said.
    """
    files = [_cache_file(values, way) for way in ways]
    unknown = [way for way, file in zip(ways, files, strict=True) if again or not file.exists()]
    for workers, threads in dict.fromkeys((way.workers, way.threads) for way in unknown):
        alike = [way for way in unknown if (way.workers, way.threads) == (workers, threads)]
        for way, seconds in zip(alike, _side_by_side(values, train, val, alike), strict=True):
            file = _cache_file(values, way)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps({"seconds": seconds, **asdict(way)}).encode())
    return [float(json.loads(file.read_bytes())["seconds"]) for file in files]


def settled_dtype(
    values: Hyperparameters, train: Split, val: Split, stack: int, threads: int, workers: int
) -> str:
    """Return the precision of matrix products on this machine's CPU: what a few steps of both say.

    Without matrix units, or where no product is large enough for them, it is float32, and nothing is timed.
    """
    n_rows = values.batch_size // values.grad_accum * values.block_size
    if not has_large_product(ModelShape.of(values), n_rows) or not has_matrix_units():
        return "float32"
    ways = [Way(workers, threads, stack, dtype, False) for dtype in ("float32", "bfloat16")]
    single, half = measured(values, train, val, ways)
    return "bfloat16" if half <= MIXED_BELOW * single else "float32"


def _cache_file(values: Hyperparameters, way: Way) -> Path:
    what = (shape_key(_as_trained(values, way)), asdict(way), processor(), VERSION, version("torch"))
    return cache_folder() / "steps" / f"{hashlib.sha256(repr(what).encode()).hexdigest()[:32]}.json"


def _as_trained(values: Hyperparameters, way: Way) -> Hyperparameters:
    """Return the values as they are timed: nothing but steps, after one evaluation of a single batch."""
    return values.replace(
        device="cpu", dtype=way.dtype, compile=way.compile, max_iters=_NEVER, eval_interval=_NEVER, log_interval=_NEVER,
        save_interval=_NEVER, eval_tokens=1, eval_full=False, eval_train=False,
    )  # fmt: skip


def _side_by_side(values: Hyperparameters, train: Split, val: Split, ways: Sequence[Way]) -> list[float]:
    """Return the seconds a trial-step of ways that have the same workers and threads."""
    workers, threads = ways[0].workers, str(ways[0].threads)
    environment = {**os.environ, **SETTINGS, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "given"
        given.write_bytes(pickle.dumps((values, train, val, ways)))
        command = [sys.executable, "-m", __name__, str(given)]
        pipe = subprocess.PIPE
        processes = [
            subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            for _ in range(workers)
        ]
        try:
            found = [_in_step(processes) for _ in ways]
        finally:
            for each in processes:
                each.kill()
                each.communicate()
    # Workers side by side do so many trial-steps a second together.
    return [1.0 / sum(way.stack / seconds for seconds in each) for way, each in zip(ways, found, strict=True)]


def _in_step(processes: Sequence[subprocess.Popen[str]]) -> list[float]:
    """Let all processes time the next way at once, when all are ready for it; return the seconds of a step."""

    def line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        if said := process.stdout.readline():
            return said
        raise RuntimeError((process.communicate()[1] or "no word").strip().splitlines()[-1])

    for each in processes:
        line(each)
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    return [float(line(each)) for each in processes]


def main(file: Path) -> None:
    """Time each way that a file has: say when it is ready, wait for a line, and say the seconds of a step."""
    import torch

    values, train, val, ways = pickle.loads(file.read_bytes())  # our own parent's
    for way in ways:
        torch.set_num_threads(way.threads)
        like = _as_trained(values, way)
        stack = _stack(like, train, val, way.stack)
        seconds = max(_timed(stack, 1) for _ in range(2))
        n_steps = max(1, min(1000, int(ROUND_SECONDS / seconds)))
        print("ready", flush=True)
        sys.stdin.readline()
        rounds = [_timed(stack, n_steps) for _ in range(ROUNDS)]
        print(median(rounds), flush=True)


def _stack(like: Hyperparameters, train: Split, val: Split, n_runs: int) -> Stack:
    from sweeplab.train.stack import Stack

    stack = Stack(like, train, val, n_runs)
    for seed in range(n_runs):
        stack.admit(Run(str(seed), like.replace(seed=seed)))
    stack.advance()  # the first evaluation
    return stack


def _timed(stack: Stack, n_steps: int) -> float:
    """Return the seconds of a step of a stack, over so many."""
    left = iter(range(n_steps))
    started = time.perf_counter()
    stack.advance(lambda: next(left, None) is None)
    return (time.perf_counter() - started) / n_steps


if __name__ == "__main__":
    main(Path(sys.argv[1]))
