"""The devices of this machine: their memory, and what `auto` means for device, dtype and compile."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput
from sweeplab.hyperparameters import AUTO, TRANSFORMER, Hyperparameters

# Compiling takes up to a minute, which shorter runs do not save.
COMPILE_PAYS_FROM_ITERATIONS = 1000
# Files of Linux about the container, and about the machine.
CGROUP = Path("/sys/fs/cgroup")


@cache
def cuda_count() -> int:
    """Return the number of CUDA devices; imports torch, which is slow, only if there is a driver."""
    if not (Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi")):
        return 0
    import torch

    return torch.cuda.device_count()


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def multiplies_bfloat16() -> bool:
    """Return whether this CPU has instructions for products in bfloat16; one with matrix units (AMX) has them too."""
    return "avx512_bf16" in processor().split()


@cache
def processor() -> str:
    """Return the name and feature flags of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    described = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    facts = dict.fromkeys(line.partition(":")[2].strip() for line in described)
    return "; ".join(facts) or platform.machine()


def settle_devices(
    values: Hyperparameters,
    has_cuda: bool | None = None,
    decided: Mapping[str, Any] | None = None,
) -> Hyperparameters:
    """Return the values with `auto` replaced in device, dtype and compile, for this machine or one with `has_cuda`.

    On a CPU `decided` holds the dtype and compile that a study's plan has chosen; the default is float32 and false.

    Raises:
        BadInput: device is cuda, but the machine has no CUDA device.
    """
    if has_cuda is None:
        has_cuda = cuda_count() > 0
    device = values.device
    if device == AUTO:
        device = "cuda" if has_cuda else "cpu"
    if device == "cuda" and not has_cuda:
        raise BadInput(
            "device is cuda, but this machine has no CUDA device; allowed here: cpu, auto"
        )
    usual: dict[str, Any] = {"dtype": "float32", "compile": False, **(decided or {})}
    if device == "cuda":
        # A router waits for the device in each layer, which would break the compiled graph.
        pays = (
            values.n_expert == 1
            and values.model == TRANSFORMER
            and values.max_iters >= COMPILE_PAYS_FROM_ITERATIONS
        )
        usual = {"dtype": "bfloat16", "compile": pays}
        if values.dtype == AUTO:
            import torch

            # Before Ampere there is no bfloat16.
            if torch.cuda.get_device_capability() < (8, 0):
                usual["dtype"] = "float32"
    autos = {
        name: usual[name] for name in ("dtype", "compile") if getattr(values, name) == AUTO
    }
    return values.replace(device=device, **autos)


def free_memory_bytes(device: str) -> int:
    """Return the memory that is free on the device."""
    if device == "cuda":
        import torch

        # Cached from an earlier stack.
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(torch.cuda.mem_get_info()[0] + unused)
    import psutil

    free = min(int(psutil.virtual_memory().available), memory_bytes(device))
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return free
    return min(free, most - psutil.Process().memory_info().vms)


def memory_bytes(device: str) -> int:
    """Return the memory of the device, or the container's limit."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[1])
    import psutil

    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int((CGROUP / "memory.max").read_text()))
    except (OSError, ValueError):  # not in a container, or no limit ("max")
        return total


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that the memory of the device or machine ran out."""
    # Torch has an exception class only for its CUDA allocator; other errors are recognized by their text.
    phrases = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
    has_phrase = isinstance(error, RuntimeError) and any(each in str(error) for each in phrases)
    return isinstance(error, MemoryError) or has_phrase
