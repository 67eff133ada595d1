"""The devices of this machine: their memory, and what `auto` means for device, dtype and compile."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput
from sweeplab.hyperparameters import AUTO

# Compiling costs up to a minute: shorter runs than this are over before it pays.
COMPILE_PAYS_FROM_ITERATIONS = 1000


@cache
def cuda_count() -> int:
    """Return the number of CUDA devices; asks torch only where a driver is, for torch is slow to import."""
    if not (Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi")):
        return 0
    import torch

    return torch.cuda.device_count()


def settle_devices(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with `auto` replaced in device, dtype and compile.

    Raises:
        BadInput: `device: cuda` where there is none.
    """
    settled = dict(values)
    has_cuda = cuda_count() > 0
    if settled["device"] == AUTO:
        settled["device"] = "cuda" if has_cuda else "cpu"
    if settled["device"] == "cuda" and not has_cuda:
        raise BadInput("device is cuda, but there is no CUDA device here; allowed here: cpu, auto")
    on_cuda = settled["device"] == "cuda"
    if settled["dtype"] == AUTO:
        settled["dtype"] = "bfloat16" if on_cuda else "float32"
    if settled["compile"] == AUTO:
        # A router's choice waits for the device in each layer, where what is compiled would break off.
        is_whole, is_long = settled["n_expert"] == 1, settled["max_iters"] >= COMPILE_PAYS_FROM_ITERATIONS
        settled["compile"] = on_cuda and is_whole and is_long
    return settled


def free_memory_bytes(device: str) -> int:
    """Return the memory that is free on the device."""
    if device == "cuda":
        import torch

        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # by an earlier stack
        return int(torch.cuda.mem_get_info()[0] + unused)
    import psutil

    return int(psutil.virtual_memory().available)
