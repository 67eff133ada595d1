"""How a study trains on this machine's CPU: the ways in which it can, how fast each is, which is chosen, and why.

One rule decides by the sizes, the number of steps and the processor, so that equal machines train alike. The ways are a
table: workers, threads, runs in a stack, precision, compiled or not. `plan --bench` times a few steps of each beside
the one that the rule takes, in processes like a study's workers, which run `main`.
"""

from __future__ import annotations

import math
import pickle
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from sweeplab.data.batches import Split
from sweeplab.formatting import several
from sweeplab.hyperparameters import AUTO, TRANSFORMER, Hyperparameters
from sweeplab.model.accounting import has_large_product
from sweeplab.model.shape import ModelShape
from sweeplab.processes import python, python_environment
from sweeplab.records.folders import StudyFolder
from sweeplab.study import plan
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.engines import SETTINGS
from sweeplab.train.devices import multiplies_bfloat16
from sweeplab.train.program import compiling_pays
from sweeplab.train.run import TrainingRun, row_flops, shape_key, state_bytes

# bfloat16 is chosen from this n_embd on. Steps in it took, of the time in float32, 0.75 to 1.05 on a Xeon with matrix
# units at 64 wide, the least in stacks and compiled, and 0.55 at 192; on an EPYC without them 0.73 at 64, 0.6 at 256.
MIXED_FROM_WIDTH = 64
# The stacks that are timed, and the most FLOPs of a stack's step and bytes of its state. In larger stacks more runs
# begin before any has ended, so samplers and pruners have fewer results to learn from.
STACKS, MOST_FLOPS, MOST_BYTES = (1, 2, 4, 8, 16), 2e11, 2**28
SECONDS = 1.0  # that the steps of a way are timed for, at least
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
class BenchRow(Way):
    """A way of training a cell, and its trial-steps per second.

    `taken` marks the way that the plan chooses.
    """

    trial_steps_per_second: float
    taken: bool


# ---------------------------------------------------------------------- the table


def _ways_of(values: Hyperparameters, n_cpus: int) -> list[Way]:
    """Return the ways in which all cores of this machine's CPU can train runs like `values`."""
    stacks = [1]
    if values.model == TRANSFORMER:
        largest = min(
            MOST_FLOPS / (row_flops(values) * values.batch_size),
            MOST_BYTES / state_bytes(values),
        )
        stacks = [stack for stack in STACKS if stack <= max(1, largest)]
    compiles = [False]
    if compiling_pays(values.replace(device="cpu", compile=True), math.inf):
        compiles.append(True)
    ways = []
    for dtype in dict.fromkeys(("float32", precision(values)[0])):
        ways += [
            Way(n_cpus, 1, stack, dtype, compiled) for compiled in compiles for stack in stacks
        ]
        if n_cpus > 1:
            ways.append(Way(1, n_cpus, stacks[-1], dtype, False))
    return ways


def precision(values: Hyperparameters) -> tuple[str, str]:
    """Return the precision in which such a run trains on this machine's CPU, and why: by its sizes and the processor.

    No measurement decides, so that equal machines train alike.
    """
    if values.model != TRANSFORMER:
        return "float32", f"model {values.model} is a plugin's"
    if not multiplies_bfloat16():
        return "float32", "this processor has no instructions for products in bfloat16"
    if values.n_embd < MIXED_FROM_WIDTH:
        return "float32", f"n_embd {values.n_embd} is below {MIXED_FROM_WIDTH}"
    n_rows = values.batch_size // values.grad_accum * values.block_size
    if not has_large_product(ModelShape.of(values), n_rows):
        return (
            "float32",
            f"{several(n_rows, 'token')} at once are too few for products in bfloat16",
        )
    wide = f"n_embd {values.n_embd} is {MIXED_FROM_WIDTH} or more"
    return "bfloat16", f"this processor multiplies bfloat16, and {wide}"


def bench(values: Hyperparameters, train: Split, val: Split, taken: Way) -> list[BenchRow]:
    """Time the table for runs like `values`, with the way that a plan has taken; return it, the fastest first.

    Raises:
        RuntimeError: a way cannot be trained at all; with the error of its process.
    """
    together: dict[tuple[int, int, bool], list[Way]] = {}
    for way in dict.fromkeys([*_ways_of(values, taken.workers * taken.threads), taken]):
        together.setdefault((way.workers, way.threads, way.compile), []).append(way)
    rows = []
    for ways in together.values():
        for way, speed in zip(ways, _speeds(ways, values, train, val), strict=True):
            rows.append(
                BenchRow(**asdict(way), trial_steps_per_second=speed, taken=way == taken)
            )
    return sorted(rows, key=lambda row: -row.trial_steps_per_second)


# ---------------------------------------------------------------------- the choice


def choose(
    spec: StudySpec,
    folder: StudyFolder,
    samples: Sequence[plan.Samples],
    plans: Sequence[plan.CellPlan],
    dtype: str,
) -> tuple[list[plan.CellPlan], str, str]:
    """Return the cells with the way in which each trains on this machine's CPU, the precision of all of them, and why.

    `dtype` is the precision if the study says which. A study that has begun keeps its precision and what it compiles.
    With bfloat16, small products still use float32.
    """
    begun = folder.read(folder.plan_file) if folder.plan_file.exists() else {}
    compiled = {
        cell["cell"]: bool(cell.get("compile", False)) for cell in begun.get("cells", ())
    }
    ways = list[plan.CellPlan]()
    for cell, planned in zip(samples, plans, strict=True):
        compiles = compiled.get(planned.cell, planned.compile)
        is_open = planned.cell not in compiled and spec.fixed.get("compile", AUTO) == AUTO
        # With several shapes, each would have to be compiled.
        if is_open and len({shape_key(values) for values in cell.valid}) == 1:
            n_runs = planned.n_trials(spec.budget.trials_per_cell or 1) * len(planned.seeds)
            like = cell.median.replace(device="cpu", dtype=dtype, compile=True)
            compiles = compiling_pays(like, n_runs * cell.median.max_iters)
        ways.append(replace(planned, compile=compiles))
    why = "as the study says"
    if samples[0].valid[0].dtype == AUTO:  # the cell with most FLOPs decides
        largest, planned = max(
            zip(samples, ways, strict=True), key=lambda pair: pair[1].train_flops
        )
        dtype, why = precision(largest.median)
        if len(ways) > 1:
            why += f", in {planned.cell}, which has most FLOPs"
        if begun and begun["dtype"] != dtype:
            dtype = str(begun["dtype"])
            why = "as it began"
    return ways, dtype, why


# ---------------------------------------------------------------------- the times


def _speeds(
    ways: Sequence[Way], values: Hyperparameters, train: Split, val: Split
) -> list[float]:
    """Return the trial-steps per second of each way (steps of one run) while all workers train side by side.

    The ways have equally many workers and threads, and are timed by the same processes: starting one takes seconds.
    """
    threads = str(ways[0].threads)
    variables = python_environment(**SETTINGS, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
    speeds = [0.0 for _ in ways]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ways"
        file.write_bytes(pickle.dumps((ways, values, _some(train), _some(val), SECONDS)))
        command = python("-c", _CHILD, file)
        pipe = subprocess.PIPE
        processes = []
        for _ in range(ways[0].workers):
            processes.append(
                subprocess.Popen(command, env=variables, text=True, stdout=pipe, stderr=pipe)
            )
        for process in processes:
            timed, error = process.communicate()
            if process.returncode:
                raise RuntimeError((error or "no word").strip().splitlines()[-1])
            for index, line in enumerate(timed.splitlines()):
                speeds[index] += ways[index].stack / float(line)
    return speeds


def _some(split: Split) -> Split:
    return split[:MOST_TOKENS] if isinstance(split, np.ndarray) else split


def main(file: Path) -> None:
    """Time each way of a file, and print the seconds of its step."""
    import torch
    from torch.utils.benchmark import Timer

    from sweeplab.train.stack import Stack

    ways, values, train, val, least = pickle.loads(file.read_bytes())  # our own parent's
    torch.set_num_threads(ways[0].threads)
    never = dict.fromkeys(("max_iters", "eval_interval", "log_interval"), 10**9)
    like = values.replace(device="cpu", eval_tokens=1, eval_full=False, **never)
    for way in ways:
        of_way = like.replace(dtype=way.dtype, compile=way.compile)
        stack = Stack(of_way, train, val, way.stack)
        for seed in range(way.stack):
            stack.admit(TrainingRun(str(seed), of_way.replace(seed=seed)))
        timer = Timer("stack.step()", globals={"stack": stack}, num_threads=way.threads)
        print(timer.blocked_autorange(min_run_time=least).median)
