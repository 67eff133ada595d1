"""A step of a stack on a GPU: what it depends on goes there in one copy, and the rest waits for nothing.

A step runs over a bucket of rows, a power of two: those beyond the live runs compute on what the first run is given,
and what they come to is never read, for a run that enters writes its whole row. So a bucket's shapes never change, and
its step can be captured as a CUDA graph, which is one launch instead of some hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Every part begins at a multiple of this many bytes, as views of any type need.
_ALIGNED = 16
# Steps before a capture, on a stream of their own: what libraries set up at first use is no part of a graph.
_WARM_UP = 3

Part = tuple[torch.Size, torch.dtype]
Step = Callable[..., object]


def bucket(n_live: int, capacity: int) -> int:
    """Return over how many rows a step of so many runs goes: the next power of two, at most the capacity."""
    return int(min(capacity, 1 << (n_live - 1).bit_length()))


class _Place(NamedTuple):
    """Where parts of fixed shapes lie on the device: all of it as bytes, and each part as a view of them."""

    whole: Tensor
    parts: list[Tensor]
    begins: list[int]


class StagedStep:
    """A step on a device: `step` takes rows, staged parts and what never changes, and changes the rows in place.

    With `captures` each bucket's step is captured as a CUDA graph when it is first taken, and replayed then.
    """

    def __init__(self, step: Step, device: torch.device, captures: bool = False) -> None:
        self._step, self._device, self._captures = step, device, captures
        self._places: dict[tuple[Part, ...], _Place] = {}
        self._graphs: dict[tuple[Part, ...], torch.cuda.CUDAGraph] = {}

    def __call__(
        self, rows: Sequence[Tensor], parts: Sequence[Tensor], fixed: Sequence[Tensor], capacity: int
    ) -> None:
        """Take a step of the runs in the first rows [capacity, …], of which the parts [K, …] lie on the host."""
        n_live = len(parts[0])
        n_rows = bucket(n_live, capacity)
        padded = [torch.cat([part, part[:1].expand(n_rows - n_live, *part.shape[1:])]) for part in parts]
        key = tuple((part.shape, part.dtype) for part in padded)
        place = self._place(key)
        # A new pinned buffer each time: torch gives one again once the copy from it is done.
        host = torch.empty(len(place.whole), dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        for begin, part in zip(place.begins, padded, strict=True):
            as_bytes = part.contiguous().view(torch.uint8).view(-1)
            host[begin : begin + len(as_bytes)] = as_bytes
        place.whole.copy_(host, non_blocking=True)
        given = (*(row[:n_rows] for row in rows), *place.parts, *fixed)
        if not self._captures:
            self._step(*given)
            return
        if key not in self._graphs:
            self._graphs[key] = self._captured(given, len(rows))
        self._graphs[key].replay()

    def _place(self, key: tuple[Part, ...]) -> _Place:
        if key not in self._places:
            sizes = [prod(shape) * dtype.itemsize for shape, dtype in key]
            begins = [0]
            for size in sizes:
                begins.append(-(-(begins[-1] + size) // _ALIGNED) * _ALIGNED)
            whole = torch.zeros(begins.pop(), dtype=torch.uint8, device=self._device)
            parts = [
                whole[begin : begin + size].view(dtype).view(shape)
                for begin, size, (shape, dtype) in zip(begins, sizes, key, strict=True)
            ]
            self._places[key] = _Place(whole, parts, begins)
        return self._places[key]

    def _captured(self, given: Sequence[Tensor], n_rows: int) -> torch.cuda.CUDAGraph:
        """Capture a step without taking one: the rows are put back as they were."""
        before = [row.clone() for row in given[:n_rows]]
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._step(*given)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            self._step(*given)
        for row, was in zip(given, before, strict=False):
            row.copy_(was)
        return graph
