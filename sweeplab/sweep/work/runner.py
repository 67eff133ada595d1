"""The one loop of a worker: ask, train, report, prune, tell.

A worker trains one stack at a time. It alone decides who enters and leaves: a slot that comes free takes the next
run of the same shape, claimed from the store when none waits here. What the study's owner has asked for is read after
every evaluation, and done then.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from sweeplab.data.dataset import Dataset
from sweeplab.hyperparameters import SHAPE
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState, TrialEnding
from sweeplab.study.resources import stack_capacity
from sweeplab.study.space import Cell
from sweeplab.study.spec import StudySpec
from sweeplab.study.starting import start_weights
from sweeplab.sweep.trials.store import MOST_ATTEMPTS, LeaseLost, Store
from sweeplab.sweep.work.trial import ClaimedTrial, Training
from sweeplab.train.checkpoint import write_checkpoint, write_snapshot
from sweeplab.train.devices import free_memory_bytes, settle_devices
from sweeplab.train.run import shape_key
from sweeplab.train.stack import Record, Snapshot, Stack

RENEW_SECONDS = 20.0
Emit = Callable[[dict[str, Any]], None]


class Runner:
    """A worker's hold on one study; `stopping` is asked before every step, `emit` hears what happens."""

    def __init__(
        self,
        spec: StudySpec,
        store: Store,
        dataset: Dataset,
        folder: StudyFolder,
        emit: Emit = lambda event: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.spec, self.store, self.dataset, self.folder = spec, store, dataset, folder
        self.emit, self.stopping = emit, stopping
        self._trials: dict[str, ClaimedTrial] = {}  # by the key of each of its live runs
        self._waiting: list[tuple[Training, Snapshot | None]] = []
        self._suspects: set[str] = set()  # runs of a stack that raised an error
        self._renewed = time.monotonic()
        # What of a cell's shape is known before a trial is sampled: cells that differ in it share no stack.
        known = [name for name in SHAPE if name not in spec.search]
        unsampled = [space.resolve({}, spec.first_seed) for space in store.spaces]
        self._shape = [tuple(values[name] for name in known) for values in unsampled]

    def work(self) -> None:
        """Train trials until the store has no more of them, or it is time to stop."""
        self.store.poll_commands()
        try:
            while not self._is_leaving and (self._waiting or self._claim()):
                if self._waiting:
                    self._train(self._trials[self._waiting[0][0].run.key].claim.cell)
        finally:
            for trial in set(self._trials.values()):
                self.store.requeue(trial.claim)
                self.emit({"event": "requeued", **self._named(trial)})

    @property
    def _is_leaving(self) -> bool:
        return self.stopping() or self.store.commands.state.phase != "run"

    def _train(self, cell: Cell) -> None:
        """Train a stack for the first run that waits, and whatever else fits it, until it is empty."""
        try:
            stack = self._new_stack()
        except Exception as error:  # such as no memory
            return self._survive([self._waiting[0][0].run.key], error, is_alone=self._alone)
        self._fill(stack, cell)
        while len(stack):
            n_live = len(stack)
            try:
                records = stack.advance(self._pause)
            except Exception as error:  # whatever a model or a device may raise
                return self._survive(stack.keys, error, is_alone=len(stack) == 1)
            self._renew_in_time()
            asked = self.store.poll_commands()
            for key in [key for key in stack.keys if key not in self._trials]:
                stack.release(key)  # its lease was lost
            known = [self._as_asked(record) for record in records if record.key in self._trials]
            behind = {self._trials[record.key] for record in known if self._take_in(stack, record)}
            # Judged when all is written down: what one seed ends is another one's trial too.
            for trial in dict.fromkeys(self._trials[record.key] for record in known):
                self._judge(stack, trial, trial in behind)
            if self._is_leaving:
                return self._save(stack, stack.keys)
            if asked or len(stack) < n_live:  # else there was nothing to claim the last time either
                self._fill(stack, cell)
        return None

    @cached_property
    def _start(self) -> Mapping[str, Tensor] | None:
        return start_weights(self.spec)

    # who enters

    def _fill(self, stack: Stack, cell: Cell) -> None:
        while len(stack) < stack.capacity:
            fitting = [each for each in self._waiting if shape_key(each[0].run.values) == stack.key]
            if fitting:
                self._waiting.remove(fitting[0])
                stack.admit(fitting[0][0].run, fitting[0][1], self._start)
            elif (
                self._alone
                or self._waiting
                or not self._claim(lambda other: self._shape[other.index] == self._shape[cell.index])
            ):
                return

    def _claim(self, wanted: Callable[[Cell], bool] = lambda cell: True) -> bool:
        claim = self.store.claim(wanted)
        for message in self.store.take_notices():
            self.emit({"event": "error", "message": message})
        if claim is None:
            return False
        space = self.store.spaces[claim.cell.index]
        trial = ClaimedTrial(
            self.spec,
            self.folder,
            claim,
            space.seeds,
            lambda seed: settle_devices(space.resolve(claim.sampled, seed)),
        )
        self._trials |= dict.fromkeys(trial.trainings, trial)
        self.emit(
            {"event": "claimed", **self._named(trial), "attempt": claim.attempt, "sampled": claim.sampled}
        )
        if ending := trial.recorded_ending():
            self._tell(trial, ending)
            return True
        snapshots = {key: training.snapshot() for key, training in trial.trainings.items()}
        if claim.attempt > MOST_ATTEMPTS and not any(snapshots.values()):
            self._end(
                trial,
                RunState.FAILED,
                f"{claim.attempt - 1} workers in turn died of it before its first checkpoint",
            )
            return True
        for key, snapshot in snapshots.items():
            if snapshot:
                trial.recall(key, snapshot.numbers["evaluated"])
            self._waiting.append((trial.trainings[key], snapshot))
        return True

    @property
    def _alone(self) -> bool:
        """Say whether runs train one at a time: after an error, to see whose it is."""
        return not self._suspects.isdisjoint(self._trials)

    def _new_stack(self) -> Stack:
        values = self._waiting[0][0].run.values
        memory = free_memory_bytes(values["device"])
        wanted = 1 if self._alone else self.spec.engine.stack
        capacity = stack_capacity(
            wanted, values, len(self._trials[self._waiting[0][0].run.key].trainings), memory
        )
        return Stack(values, self.dataset.train, self.dataset.val, capacity)

    # who leaves

    def _as_asked(self, record: Record) -> Record:
        """End a run here whose trial its owner wants to end."""
        trial = self._trials[record.key]
        if record.state != "running" or trial.place not in self.store.commands.state.stopped:
            return record
        trial.is_stopped = True
        return replace(record, state="stopped")

    def _take_in(self, stack: Stack, record: Record) -> bool:
        """Write a record down and report what it tells; say whether its trial falls behind the others."""
        trial = self._trials[record.key]
        values = trial.trainings[record.key].run.values
        record.measures["bits_per_byte"] = self.dataset.bits_per_byte(record.val_loss, values)
        news = trial.write_down(record)
        verdicts = [self.store.report(trial.claim, iteration, mean) for iteration, mean in news]
        self.emit(
            {"event": "evaluated", **self._named(trial), "run": record.key, "iteration": record.iteration}
            | {"val_loss": record.val_loss}
        )
        if RunState(record.state).has_value:
            self._keep(stack, record)
            stack.release(record.key)
        elif record.state == "running" and self._is_save_due(trial, record):
            self._save(stack, [record.key])
        return any(verdicts)

    def _judge(self, stack: Stack, trial: ClaimedTrial, is_behind: bool) -> None:
        """End a trial that has come to its end, and let go of its runs."""
        if trial.error:
            self._end(trial, RunState.FAILED, trial.error)
        elif RunState.DIVERGED in trial.states.values():
            self._end(trial, RunState.DIVERGED)
        elif trial.is_stopped:  # with seeds that have not begun there is no mean, and no value
            self._end(trial, RunState.STOPPED if trial.curves.means else RunState.PRUNED)
        elif trial.has_ended:
            is_complete = RunState.COMPLETE in trial.states.values()
            self._end(trial, RunState.COMPLETE if is_complete else RunState.STOPPED)
        elif is_behind:
            self._end(trial, RunState.PRUNED)
        for key in set(trial.trainings) & set(stack.keys) - set(self._trials):
            stack.release(key)

    def _end(self, trial: ClaimedTrial, outcome: RunState, error: str | None = None) -> None:
        self._tell(trial, trial.ending(outcome, error))

    def _tell(self, trial: ClaimedTrial, ending: TrialEnding) -> None:
        """Write an ending down, then tell the storage: killed between the two, the next worker tells it."""
        try:
            self.store.check_lease(trial.claim)
            attributes = trial.close(ending)
            self.store.finish(trial.claim, ending.outcome, ending.value, attributes)
        except LeaseLost:
            self.emit({"event": "lost", **self._named(trial)})
        else:
            self.emit({"event": "ended", **self._named(trial), **asdict(ending)})
        self._forget(trial)

    def _forget(self, trial: ClaimedTrial) -> None:
        for key in trial.trainings:
            self._trials.pop(key, None)
        self._waiting = [each for each in self._waiting if each[0].run.key in self._trials]

    def _survive(self, keys: list[str], error: Exception, is_alone: bool) -> None:
        """After an error fail the run that raised it; of several, try each alone first."""
        live = [key for key in keys if key in self._trials]
        if is_alone:
            text = "".join(traceback.format_exception(error))
            for key in live:
                self._end(self._trials[key], RunState.FAILED, text)
            return
        self._suspects |= set(live)
        waiting = {training.run.key for training, _ in self._waiting}
        trainings = [self._trials[key].trainings[key] for key in live if key not in waiting]
        self._waiting += [(training, training.snapshot()) for training in trainings]

    # what lasts

    def _is_save_due(self, trial: ClaimedTrial, record: Record) -> bool:
        values = trial.trainings[record.key].run.values
        before = max(0, record.iteration - values["eval_interval"])
        return bool(record.iteration // values["save_interval"] > before // values["save_interval"])

    def _save(self, stack: Stack, keys: list[str]) -> None:
        for key in keys:
            write_snapshot(self._trials[key].trainings[key].folder.path, stack.snapshot(key))

    def _keep(self, stack: Stack, record: Record) -> None:
        """Write a finished run's checkpoint, with all that it takes to load it."""
        kind = self.spec.track.checkpoints
        if kind == "none":
            return
        training = self._trials[record.key].trainings[record.key]
        facts = {
            "run": record.key,
            "kind": kind,
            "values": dict(training.run.values),
            "tokenizer": self.dataset.tokenizer.to_json(),
            "val_loss": record.best[0] if kind == "best" else record.val_loss,
            "iteration": record.best[1] if kind == "best" else record.iteration,
        }
        weights = stack.weights(record.key, best=kind == "best")
        write_checkpoint(training.folder.path / kind, "model", weights, facts)

    def _pause(self) -> bool:
        return self.stopping() or not self._trials or self._is_renewal_due

    @property
    def _is_renewal_due(self) -> bool:
        return time.monotonic() - self._renewed > RENEW_SECONDS

    def _renew_in_time(self) -> None:
        if not self._is_renewal_due:
            return
        self._renewed = time.monotonic()
        held = self.store.renew()
        for trial in set(self._trials.values()):
            if trial.claim.trial_id not in held:
                self.emit({"event": "lost", **self._named(trial)})
                self._forget(trial)

    def _named(self, trial: ClaimedTrial) -> dict[str, Any]:
        cell, number = trial.place
        return {"cell": cell, "trial": number}
