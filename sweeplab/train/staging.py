"""A step of a stack on a GPU: all inputs are copied there at once, and the step never waits for the device.

A step computes a power of two of rows, its bucket. The rows after the live runs get the inputs of the first run. Their
results are never read, because a new run overwrites its whole row. So the shapes of a bucket never change, and its step
can be captured as a CUDA graph, which needs one launch instead of hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Every part starts at a multiple of this many bytes, so that it can be viewed as any dtype.
_ALIGNMENT = 16
# Steps on a side stream before a capture, so that the graph has none of the set-up that libraries do at first use.
_WARM_UP = 3

Part = tuple[torch.Size, torch.dtype]
Step = Callable[..., object]


def bucket(n_live: int, capacity: int) -> int:
    """Return the number of rows that a step of n_live runs computes: the next power of two, at most the capacity."""
    return int(min(capacity, 1 << (n_live - 1).bit_length()))


class _Buffer(NamedTuple):
    """A buffer on the device for parts of fixed shapes: its bytes, each part as a view of them, and their offsets."""

    storage: Tensor
    parts: list[Tensor]
    offsets: list[int]


class StagedStep:
    """A step on a device: `step` takes rows, staged parts and fixed inputs, and changes the rows in place.

    With `captures` the first step of each bucket is captured as a CUDA graph, and replayed from then on.
    """

    def __init__(self, step: Step, device: torch.device, captures: bool = False) -> None:
        self._step, self._device, self._captures = step, device, captures
        self._buffers: dict[tuple[Part, ...], _Buffer] = {}
        self._graphs: dict[tuple[Part, ...], torch.cuda.CUDAGraph] = {}

    def __call__(
        self, rows: Sequence[Tensor], parts: Sequence[Tensor], fixed: Sequence[Tensor], capacity: int
    ) -> None:
        """Take a step of the runs in the first K of the rows [capacity, …]; the parts [K, …] are on the host."""
        n_live = len(parts[0])
        n_rows = bucket(n_live, capacity)
        padded = [torch.cat([part, part[:1].expand(n_rows - n_live, *part.shape[1:])]) for part in parts]
        key = tuple((part.shape, part.dtype) for part in padded)
        buffer = self._buffer(key)
        # A new pinned tensor each time: torch reuses its memory when the copy has finished.
        host = torch.empty(len(buffer.storage), dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        for offset, part in zip(buffer.offsets, padded, strict=True):
            as_bytes = part.contiguous().view(torch.uint8).view(-1)
            host[offset : offset + len(as_bytes)] = as_bytes
        buffer.storage.copy_(host, non_blocking=True)
        inputs = (*(row[:n_rows] for row in rows), *buffer.parts, *fixed)
        if not self._captures:
            self._step(*inputs)
            return
        if key not in self._graphs:
            self._graphs[key] = self._capture(inputs, len(rows))
        self._graphs[key].replay()

    def _buffer(self, key: tuple[Part, ...]) -> _Buffer:
        if key not in self._buffers:
            sizes = [prod(shape) * dtype.itemsize for shape, dtype in key]
            offsets = [0]
            for size in sizes:
                offsets.append(-(-(offsets[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
            storage = torch.zeros(offsets.pop(), dtype=torch.uint8, device=self._device)
            parts = [
                storage[offset : offset + size].view(dtype).view(shape)
                for offset, size, (shape, dtype) in zip(offsets, sizes, key, strict=True)
            ]
            self._buffers[key] = _Buffer(storage, parts, offsets)
        return self._buffers[key]

    def _capture(self, inputs: Sequence[Tensor], n_rows: int) -> torch.cuda.CUDAGraph:
        """Capture a step and restore the rows afterwards, so that no step is taken."""
        before = [row.clone() for row in inputs[:n_rows]]
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            self._step(*inputs)
        for row, saved in zip(inputs, before, strict=False):
            row.copy_(saved)
        return graph
