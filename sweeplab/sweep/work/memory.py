"""Decide what to try after running out of memory: half as many runs at a time, then more gradient accumulation."""

from __future__ import annotations

from sweeplab.formatting import bytes_in_words
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.records.runs import DOES_NOT_FIT
from sweeplab.study.plan import stack_capacity
from sweeplab.train.devices import free_memory_bytes
from sweeplab.train.run import ShapeKey, shape_key, train_memory_bytes, with_more_accumulation


class Memory:
    """What a worker knows of its memory: for each shape that did not fit, the largest stack and batch part that do."""

    def __init__(self) -> None:
        self._capacities: dict[ShapeKey, int] = {}
        self._parts: dict[ShapeKey, int] = {}

    def capacity(self, wanted: int | str, values: Hyperparameters, n_seeds: int) -> int:
        """Return the capacity K of a stack of runs like `values`: as planned, but no more than is known to fit."""
        planned = stack_capacity(wanted, values, n_seeds, free_memory_bytes(values.device))
        return min(planned, self._capacities.get(shape_key(values), planned))

    def parts(self, values: Hyperparameters) -> int:
        """Return the gradient accumulation with which such a run is known to fit."""
        return self._parts.get(shape_key(values), values.grad_accum)

    def halve(self, values: Hyperparameters, n_runs: int) -> int:
        """Record that `n_runs` runs did not fit; return how many to try next."""
        fits = self._capacities[shape_key(values)] = max(1, n_runs // 2)
        return fits

    def cut(self, values: Hyperparameters) -> int | None:
        """Record that a run alone did not fit; return the gradient accumulation to try next.

        None if a part is already one row: the run cannot be made smaller.
        """
        if (more := with_more_accumulation(values)) is None:
            return None
        self._parts[shape_key(values)], self._capacities[shape_key(more)] = more.grad_accum, 1
        return more.grad_accum


def does_not_fit(values: Hyperparameters, error: Exception) -> str:
    """Return the error of a run that cannot be made smaller: memory needed, memory free, and the original error."""
    asked = bytes_in_words(train_memory_bytes(values))
    there = bytes_in_words(free_memory_bytes(values.device))
    why = str(error).partition("\n")[0] or type(error).__name__
    return f"{DOES_NOT_FIT}: one run alone, row by row, needs {asked}, {there} are free ({why})"
