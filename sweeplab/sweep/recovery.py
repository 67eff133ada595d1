"""What a worker does after an error in a stack: it finds the run that caused it, or trains in less memory.

After running out of memory half as many runs train at a time, then each in smaller parts of its batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Sequence

from sweeplab.formatting import bytes_in_words, several
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.lab.events import Event, StudyNotice
from sweeplab.records.runs import DOES_NOT_FIT
from sweeplab.study.plan import stack_capacity
from sweeplab.sweep.trial import Held, TrialRuns
from sweeplab.train.devices import free_memory_bytes, is_out_of_memory
from sweeplab.train.run import ShapeKey, shape_key, train_memory_bytes, with_more_accumulation


class Recovery:
    """What a worker has learned from errors: the runs that may cause one, and for each shape the memory that it has."""

    def __init__(self, held: Held, emit: Callable[[Event], None]) -> None:
        self._held, self._emit = held, emit
        self._suspects: set[str] = set()  # runs of a stack that raised an error
        self._capacities: dict[ShapeKey, int] = {}  # the largest stacks that fit, of shapes that did not
        self._parts: dict[ShapeKey, int] = {}  # the gradient accumulation with which a run fits

    @property
    def one_at_a_time(self) -> bool:
        """Return whether runs train alone: after an error in a stack, to find the run that causes it."""
        return not self._suspects.isdisjoint(self._held.trials)

    def capacity(self, wanted: int | str, values: Hyperparameters, n_seeds: int) -> int:
        """Return the capacity K of a stack of runs like `values`: as planned, but no more than is known to fit."""
        planned = stack_capacity(wanted, values, n_seeds, free_memory_bytes(values.device))
        return min(planned, self._capacities.get(shape_key(values), planned))

    def parts(self, values: Hyperparameters) -> int:
        """Return the gradient accumulation with which such a run is known to fit."""
        return self._parts.get(shape_key(values), values.grad_accum)

    def failed(
        self, keys: Collection[str], error: Exception, is_alone: bool, capacity: int
    ) -> list[TrialRuns]:
        """Let the runs of a stack that raised an error wait for other stacks; return the trials that have failed.

        A run that raised an error alone has failed. After running out of memory with a stack of this capacity, the runs
        continue in a smaller one; a run has failed if it cannot be made smaller.
        """
        held = [key for key in keys if key in self._held.trials]
        if is_out_of_memory(error):
            traceback.clear_frames(error.__traceback__)  # the frames hold the step's tensors
            if held:
                return self._in_less_memory(held, capacity, error)
            return []
        trials = [self._held.trials[key] for key in held]
        if is_alone:
            for trial in trials:
                trial.error = "".join(traceback.format_exception(error))
            return trials
        self._suspects.update(held)
        for key in held:
            self._held.let_wait(key)
        return []

    def _in_less_memory(self, keys: Sequence[str], capacity: int, error: Exception) -> list[TrialRuns]:
        for key in keys:
            self._held.let_wait(key)
        trial = self._held.trials[keys[0]]
        values = trial.trainings[keys[0]].run.values
        where = f"cell {trial.claim.cell.key}: not enough memory for"
        if capacity > 1:
            n_runs = len(keys) if len(keys) > 1 else capacity
            fits = self._capacities[shape_key(values)] = max(1, n_runs // 2)
            message = f"{where} a stack of {n_runs}; continuing with {several(fits, 'run')}"
            self._emit(StudyNotice(message=message))
            return []
        smaller = with_more_accumulation(values)
        if smaller is None:  # a part is already one row
            trial.error = _does_not_fit(values, error)
            return [trial]
        n_parts = self._parts[shape_key(values)] = smaller.grad_accum
        self._capacities[shape_key(smaller)] = 1
        self._held.accumulate(shape_key(values), n_parts)
        self._emit(StudyNotice(message=f"{where} a run; continuing with grad_accum {n_parts}"))
        return []


def _does_not_fit(values: Hyperparameters, error: Exception) -> str:
    needed, free = (
        bytes_in_words(train_memory_bytes(values)),
        bytes_in_words(free_memory_bytes(values.device)),
    )
    why = str(error).partition("\n")[0] or type(error).__name__
    return f"{DOES_NOT_FIT}: one run alone, row by row, needs {needed}, {free} are free ({why})"
