"""What a worker saves of the runs that it trains: points of curves, snapshots and checkpoints.

On a full disk it trains on, and every later write tries again, until writing has failed for too long.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from sweeplab.data.dataset import Dataset
from sweeplab.errors import StorageUnavailable
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState
from sweeplab.study.space import Cell
from sweeplab.sweep.trial import Training, TrialRuns
from sweeplab.sweep.trials.store import Store
from sweeplab.train.checkpoint import SnapshotWriter, remove_snapshots, write_checkpoint
from sweeplab.train.devices import is_out_of_memory
from sweeplab.train.member import Record
from sweeplab.train.stack import Stack

# How many pruned trials, beyond those that keep their snapshots, are checked for snapshots to drop at each pruning.
SNAPSHOTS_LOOKED_AT = 8


class Saving:
    """Writes what has to outlive a worker of its runs.

    All calls raise StorageUnavailable when writing has failed for too long.
    """

    def __init__(self, store: Store, folder: StudyFolder, dataset: Dataset) -> None:
        self._store, self._folder, self._dataset = store, folder, dataset
        self._track, self._snapshots = store.spec.track, SnapshotWriter()

    def close(self) -> None:
        """Wait until all snapshots are written."""
        self._snapshots.close()

    def write_points(self, trial: TrialRuns) -> None:
        """Append the points of a trial's curves that are not written yet."""
        self._write(trial.write_points, "points")

    def keep(self, stack: Stack, trial: TrialRuns, record: Record) -> None:
        """Write the checkpoints of an evaluated run, or a snapshot if one is due."""
        training = trial.trainings[record.key]
        has_value, every = RunState(record.state).has_value, training.run.values.save_interval
        before = record.iteration - training.run.values.eval_interval
        is_due = record.iteration // every > before // every
        checkpoints = self._track.checkpoints
        if checkpoints == "all" and (has_value or is_due) and record.state != "diverged":
            self._checkpoint(stack, training, record, training.folder.checkpoint_at(record.iteration))
        if has_value and checkpoints != "none":
            name = {"last": "last"}.get(checkpoints, "best")
            self._checkpoint(stack, training, record, training.folder.path / name)
        elif record.state == "running" and is_due and record.iteration:
            self.snapshot(stack, {record.key: trial}, [record.key])

    def snapshot(self, stack: Stack, trials: Mapping[str, TrialRuns], keys: Collection[str]) -> None:
        """Write the snapshots of these runs."""
        errors = list[StorageUnavailable]()
        for trial, key in [(trials[key], key) for key in keys]:
            with suppress(OSError):
                trial.write_points()
            if trial.has_unwritten:  # a run that continues from a later snapshot would lack these points
                continue
            training, snapshot = trial.trainings[key], stack.snapshot(key)
            snapshot.numbers["grad_accum"] = training.run.values.grad_accum
            try:
                self.wait(training)
            except StorageUnavailable as error:  # the write below is tried anyway
                errors.append(error)
            self._snapshots.write(training.folder.path, snapshot)
        if errors:
            raise errors[0]

    def snapshot_in_tight_memory(
        self, stack: Stack, trials: Mapping[str, TrialRuns], error: Exception
    ) -> None:
        """Save a stack's runs one by one, as far as memory allows; the others continue from their last snapshots."""
        traceback.clear_frames(error.__traceback__)
        for key in [key for key in stack.keys if key in trials and stack.is_whole]:
            try:
                self.snapshot(stack, trials, [key])
                self.wait(trials[key].trainings[key])
            except Exception as another:
                if not is_out_of_memory(another):
                    raise

    def wait(self, training: Training) -> None:
        """Wait until a run's last snapshot is written; if it cannot be, the previous one is kept."""
        self._write(lambda: self._snapshots.wait(training.folder.path), "snapshots")

    def wait_before_removal(self, trial: TrialRuns) -> None:
        """Wait until no snapshot of a trial is being written, whether the last ones could be or not."""
        with suppress(OSError):
            self._snapshots.wait(*(training.folder.path for training in trial.trainings.values()))

    def drop_snapshots(self, cell: Cell) -> None:
        """Drop the snapshots of pruned trials beyond the best `track.snapshots`; check several, as ranks change."""
        n_kept = self._track.snapshots
        for trial in self._store.tally(cell).best_pruned(n_kept + SNAPSHOTS_LOOKED_AT)[n_kept:]:
            for seed in self._store.seeds(cell, trial):
                remove_snapshots(self._folder.run(cell.key, trial.number, seed).path)

    def _write(self, call: Callable[[], bool | None], of: str) -> None:
        try:
            has_written = call()
        except OSError as error:
            self._store.availability.note_failure(error, of)
        else:
            if has_written is not False:
                self._store.availability.note_answer(of)

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
        if self._store.spec.plugins:
            needed = self._store.spec.plugins
            facts["plugins"] = [{"file": plugin.file, "sha256": plugin.sha256} for plugin in needed]
        if self._dataset.labels:
            facts["labels"] = self._dataset.labels
        weights = stack.weights(record.key, best=path.name == "best")
        self._store.availability.retry(lambda: write_checkpoint(path, "model", weights, facts), of="records")
