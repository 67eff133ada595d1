"""The trials that a worker holds, what it saves of their runs, and what it does after an error in a stack.

On a full disk it trains on, and every later write tries again, until writing has failed for too long. After an error it
finds the run that caused it; after running out of memory half as many runs train at a time, then each in smaller parts
of its batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sweeplab.data.dataset import Dataset
from sweeplab.errors import StorageUnavailable
from sweeplab.formatting import bytes_in_words, several
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.lab.events import StudyNotice
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import DOES_NOT_FIT, RunState
from sweeplab.study.plan import stack_capacity
from sweeplab.study.space import Cell
from sweeplab.sweep.trial import Training, TrialRuns
from sweeplab.sweep.trials.store import Store
from sweeplab.train.checkpoint import SnapshotWriter, remove_snapshots, write_checkpoint
from sweeplab.train.devices import free_memory_bytes, is_out_of_memory
from sweeplab.train.member import Record
from sweeplab.train.run import ShapeKey, shape_key, train_memory_bytes, with_more_accumulation
from sweeplab.train.stack import Stack

# How many pruned trials, beyond those that keep their snapshots, are checked for snapshots to drop at each pruning.
SNAPSHOTS_LOOKED_AT = 8


@dataclass
class Held:
    """The trials that this worker holds, by the key of each of their runs; runs that are in no stack are waiting."""

    trials: dict[str, TrialRuns] = field(default_factory=dict)
    waiting: list[Training] = field(default_factory=list)

    def each_trial(self) -> Collection[TrialRuns]:
        """Return every trial once."""
        return dict.fromkeys(self.trials.values())

    def training(self, key: str) -> Training:
        """Return a run that this worker holds."""
        return self.trials[key].trainings[key]

    def add(self, trial: TrialRuns) -> None:
        """Hold one more trial."""
        for key in trial.trainings:
            self.trials[key] = trial

    def forget(self, trial: TrialRuns) -> None:
        """Let go of a trial."""
        for key in trial.trainings:
            self.trials.pop(key, None)
        self.waiting = [
            training for training in self.waiting if training.run.key in self.trials
        ]

    def let_wait(self, keys: Iterable[str]) -> None:
        """Let runs wait for a stack."""
        self.waiting += [
            self.training(key) for key in keys if self.training(key) not in self.waiting
        ]

    def take(self, shape: ShapeKey) -> Training | None:
        """Return the first waiting run of a shape, which waits no longer; None if there is none."""
        for training in self.waiting:
            if training.shape == shape:
                self.waiting.remove(training)
                return training
        return None


class Saving:
    """Writes what has to outlive a worker of its runs.

    All calls raise StorageUnavailable when writing has failed for too long.
    """

    def __init__(self, store: Store, folder: StudyFolder, dataset: Dataset, held: Held) -> None:
        self._store = store
        self._folder = folder
        self._dataset = dataset
        self._held = held
        self._track = store.spec.track
        self._snapshots = SnapshotWriter()

    def close(self) -> None:
        """Wait until all snapshots are written."""
        self._snapshots.close()

    def write_points(self, trial: TrialRuns) -> None:
        """Append the points of a trial's curves that are not written yet."""
        self._store.availability.attempt(trial.write_points, "points")

    def keep(self, stack: Stack, record: Record) -> None:
        """Write the checkpoints of an evaluated run, or a snapshot if one is due."""
        training = self._held.training(record.key)
        checkpoints = self._track.checkpoints
        has_value = RunState(record.state).has_value
        every = training.run.values.save_interval
        before = record.iteration - training.run.values.eval_interval
        is_due = record.iteration // every > before // every
        if has_value and checkpoints != "none":
            self._checkpoint(stack, training, record, training.folder.path / checkpoints)
        elif record.state == "running" and is_due and record.iteration:
            self.snapshot(stack, [record.key])

    def snapshot(self, stack: Stack, keys: Iterable[str]) -> None:
        """Write the snapshots of those of these runs that this worker holds."""
        failure: StorageUnavailable | None = None
        for key in keys:
            if key not in self._held.trials:
                continue
            trial = self._held.trials[key]
            training = self._held.training(key)
            with suppress(OSError):
                trial.write_points()
            # A run that continues from a later snapshot would lack these points.
            if trial.unwritten:
                continue
            snapshot = stack.snapshot(key)
            snapshot.numbers["grad_accum"] = training.run.values.grad_accum
            try:
                self.wait(training)
            except StorageUnavailable as error:  # the write below is tried anyway
                failure = failure or error
            self._snapshots.write(training.folder.path, snapshot)
        if failure:
            raise failure

    def wait(self, training: Training) -> None:
        """Wait until a run's last snapshot is written; if it cannot be, the previous one is kept."""
        path = training.folder.path
        self._store.availability.attempt(lambda: self._snapshots.wait(path), "snapshots")

    def wait_before_removal(self, trial: TrialRuns) -> None:
        """Wait until no snapshot of a trial is being written, whether the last ones could be or not."""
        with suppress(OSError):
            self._snapshots.wait(
                *(training.folder.path for training in trial.trainings.values())
            )

    def drop_snapshots(self, cell: Cell) -> None:
        """Drop the snapshots of pruned trials beyond the best `track.snapshots`; check several, as ranks change."""
        n_kept = self._track.snapshots
        for trial in self._store.tally(cell).best_pruned(n_kept + SNAPSHOTS_LOOKED_AT)[n_kept:]:
            for seed in self._store.seeds(cell, trial):
                remove_snapshots(self._folder.run(cell.key, trial.number, seed).path)

    def _checkpoint(self, stack: Stack, training: Training, record: Record, path: Path) -> None:
        """Write a checkpoint: the run's best weights if `path` is named best, else its current ones, and metadata."""
        val_loss, iteration = record.val_loss, record.iteration
        if path.name == "best":
            val_loss, iteration = record.best
        facts = {
            "run": record.key,
            "kind": path.name,
            "values": training.run.values.as_dict(),
            "tokenizer": self._dataset.tokenizer.to_json(),
            "val_loss": val_loss,
            "iteration": iteration,
        }
        plugins = self._store.spec.plugins
        if plugins:
            facts["plugins"] = [
                {"file": plugin.file, "sha256": plugin.sha256} for plugin in plugins
            ]
        if self._dataset.labels:
            facts["labels"] = self._dataset.labels
        weights = stack.weights(record.key, best=path.name == "best")
        self._store.availability.retry(
            lambda: write_checkpoint(path, "model", weights, facts), of="records"
        )


class Recovery:
    """What a worker has learned from errors: the runs that may cause one, and for each shape the memory that it has."""

    def __init__(self, held: Held, emit: Callable[[StudyNotice], None]) -> None:
        self._held = held
        self._emit = emit
        self._suspects: set[str] = set()  # runs of a stack that raised an error
        # The largest stacks that fit, of shapes that did not.
        self._capacities: dict[ShapeKey, int] = {}
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
        keys = [key for key in keys if key in self._held.trials]
        if is_out_of_memory(error):
            traceback.clear_frames(error.__traceback__)  # the frames hold the step's tensors
            return self._in_less_memory(keys, capacity, error) if keys else []
        if not is_alone:
            self._suspects.update(keys)
            self._held.let_wait(keys)
            return []
        trials = [self._held.trials[key] for key in keys]
        for trial in trials:
            trial.error = "".join(traceback.format_exception(error))
        return trials

    def _in_less_memory(
        self, keys: Sequence[str], capacity: int, error: Exception
    ) -> list[TrialRuns]:
        self._held.let_wait(keys)
        trial = self._held.trials[keys[0]]
        training = self._held.training(keys[0])
        values = training.run.values
        shape = training.shape
        where = f"cell {trial.claim.cell.key}: not enough memory for"
        if capacity > 1:
            n_runs = len(keys) if len(keys) > 1 else capacity
            fits = self._capacities[shape] = max(1, n_runs // 2)
            message = f"{where} a stack of {n_runs}; continuing with {several(fits, 'run')}"
            self._emit(StudyNotice(message=message))
            return []
        smaller = with_more_accumulation(values)
        if smaller is None:  # a part is already one row
            needed = bytes_in_words(train_memory_bytes(values))
            free = bytes_in_words(free_memory_bytes(values.device))
            why = str(error).partition("\n")[0] or type(error).__name__
            what = f"one run alone, row by row, needs {needed}, {free} are free ({why})"
            trial.error = f"{DOES_NOT_FIT}: {what}"
            return [trial]
        self._parts[shape] = smaller.grad_accum
        self._capacities[shape_key(smaller)] = 1
        for waiting in [waiting for waiting in self._held.waiting if waiting.shape == shape]:
            self._held.waiting.remove(waiting)
            key = waiting.run.key
            self._held.waiting.append(
                self._held.trials[key].accumulate(key, smaller.grad_accum)
            )
        self._emit(
            StudyNotice(
                message=f"{where} a run; continuing with grad_accum {smaller.grad_accum}"
            )
        )
        return []
