"""How a machine is shared: the threads and GPU of each worker, and how many runs train as one stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeplab.model.accounting import n_params
from sweeplab.model.shape import ModelShape
from sweeplab.train.counting import row_flops, train_memory_bytes

# On a CPU a step of a small model is mostly the interpreter's time, which a stack shares; a larger one fills
# the caches alone. Measured on two cores: 8 runs of 27k parameters train 1.9 times as fast, of 200k no faster.
CPU_STACK = 8
CPU_STACK_BELOW_PARAMS = 100_000
# A GPU is busy when a step has this much to do; more runs only make the step longer.
CUDA_STEP_FLOPS = 2e11
CUDA_MOST = 256
# Attention folds runs, batch and heads into one grid dimension of the kernel.
MOST_FOLDED = 65_535
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class WorkerResources:
    """What one worker gets: threads, and the index of its GPU where it has one."""

    threads: int
    gpu: int | None = None


def divide_machine(workers: int | str, n_stacks: int, n_cpus: int, n_gpus: int) -> list[WorkerResources]:
    """Divide the machine among workers: one per GPU, else one per core with a single thread.

    With fewer stacks than cores the cores are divided among as many workers, so a lone run gets them all.
    """
    if n_gpus:
        count = min(n_stacks, n_gpus if workers == "auto" else int(workers))
        return [WorkerResources(max(1, n_cpus // count), index % n_gpus) for index in range(count)]
    count = max(1, min(n_stacks, n_cpus)) if workers == "auto" else int(workers)
    return [WorkerResources(max(1, n_cpus // count) if count < n_cpus else 1)] * count


def stack_capacity(wanted: int | str, values: Mapping[str, Any], n_seeds: int, memory_bytes: float) -> int:
    """Return K for runs like `values`: as wanted, or what pays on their device and fits its memory.

    The seeds of a trial share a stack where memory allows.
    """
    shape = ModelShape.of(values)
    at_once: int = values["batch_size"] // values["grad_accum"]
    room = int(memory_bytes * MEMORY_SHARE / train_memory_bytes(values))
    fits = max(1, min(room, MOST_FOLDED // (at_once * shape.n_head)))
    if wanted != "auto":
        return min(int(wanted), fits)
    if values["device"] == "cuda":
        pays = min(CUDA_MOST, max(1, round(CUDA_STEP_FLOPS / (row_flops(values) * at_once))))
    else:
        pays = CPU_STACK if n_params(shape) < CPU_STACK_BELOW_PARAMS else 1
    return min(fits, max(pays, n_seeds))
