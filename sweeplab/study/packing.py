"""How many runs share a stack."""

from __future__ import annotations

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.accounting import n_params
from sweeplab.model.shape import ModelShape
from sweeplab.train.run import row_flops, train_memory_bytes

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


def stack_capacity(wanted: int | str, values: Hyperparameters, n_seeds: int, memory_bytes: float) -> int:
    """Return K for runs like `values`: as wanted, or what pays on their device and fits its memory.

    The seeds of a trial share a stack where memory allows.
    """
    shape = ModelShape.of(values)
    at_once = values.batch_size // values.grad_accum
    room = int(memory_bytes * MEMORY_SHARE / train_memory_bytes(values))
    fits = max(1, min(room, MOST_FOLDED // (at_once * shape.n_head)))
    if wanted != "auto":
        return min(int(wanted), fits)
    if values.device == "cuda":
        pays = min(CUDA_MOST, max(1, round(CUDA_STEP_FLOPS / (row_flops(values) * at_once))))
    else:
        pays = CPU_STACK if n_params(shape) < CPU_STACK_BELOW_PARAMS else 1
    return min(fits, max(pays, n_seeds))


def free_memory_bytes(device: str) -> int:
    """Return the memory that is free on the device."""
    if device == "cuda":
        import torch

        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # by an earlier stack
        return int(torch.cuda.mem_get_info()[0] + unused)
    import psutil

    return int(psutil.virtual_memory().available)
