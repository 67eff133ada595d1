"""The study loop of one worker: claim trials, train them in a stack, report, prune, finish.

A worker trains one stack at a time, and it alone decides which runs enter and leave: a free slot takes the next run of
the same shape, which is claimed from the store if none waits here. The study's commands are read and followed after
every evaluation.
"""

from __future__ import annotations

import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sweeplab.data.dataset import Dataset
from sweeplab.errors import StorageUnavailable
from sweeplab.formatting import several
from sweeplab.hyperparameters import AUTO, SHAPE
from sweeplab.lab import events
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunEnd, RunFolder, RunState, TrialEnding
from sweeplab.study.inputs import start_weights
from sweeplab.study.space import Cell
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.engines.copies import RunFiles
from sweeplab.sweep.trials.leases import Renewal
from sweeplab.sweep.trials.store import MOST_ATTEMPTS, Claim, LeaseLost, Report, Store
from sweeplab.sweep.work.memory import Memory, does_not_fit
from sweeplab.sweep.work.trial import ClaimedTrial, Training, scored
from sweeplab.train.checkpoint import SnapshotWriter, read_snapshot, write_checkpoint
from sweeplab.train.devices import is_out_of_memory
from sweeplab.train.member import Record
from sweeplab.train.program import Paused
from sweeplab.train.run import shape_key
from sweeplab.train.stack import Stack

# How many stacks' worth of claimed runs may wait for a stack of their shape.
STACKS_WAITING = 8
# How many pruned trials, beyond those that keep their snapshots, are checked for snapshots to drop at each pruning.
SNAPSHOTS_LOOKED_AT = 8
# How often an idle worker checks whether other workers' trials, on which new ones depend, have ended.
AWAIT_SECONDS = 0.5


class Runner:
    """Trains one worker's trials of a study; `stopping` is asked before every step, `emit` gets every event."""

    def __init__(
        self,
        spec: StudySpec,
        store: Store,
        dataset: Dataset,
        folder: StudyFolder,
        emit: Callable[[events.Event], None] = lambda event: None,
        stopping: Callable[[], bool] = lambda: False,
        files: RunFiles | None = None,
    ) -> None:
        self.spec, self.store, self.dataset, self.folder = spec, store, dataset, folder
        self._files = files or RunFiles()
        self.emit, self.stopping = emit, stopping
        self._trials: dict[str, ClaimedTrial] = {}  # the trials held, by the key of each of their runs
        self._waiting: list[Training] = []  # runs of these that are in no stack
        self._suspects: set[str] = set()  # runs of a stack that raised an error
        self._memory = Memory()
        self._snapshots = SnapshotWriter()
        self._start_weights = cache(lambda: start_weights(spec))  # read when the first run starts
        # The part of a cell's shape that is known before a trial is sampled: cells that differ in it share no stack.
        known = [name for name in SHAPE if name not in spec.search]
        unsampled = [space.resolve({}, spec.first_seed) for space in store.spaces]
        self._shape = [tuple(getattr(values, name) for name in known) for values in unsampled]

    def work(self) -> None:
        """Train trials until the store has no more, or the worker has to stop."""
        self.store.poll_commands()
        with Renewal(self.store.renew):
            try:
                while not self._is_leaving and (self._waiting or self._claim() or self.store.awaits_results):
                    if self._waiting:
                        self._train_stack(self._next_run())
                    elif self.store.awaits_results:
                        time.sleep(AWAIT_SECONDS)
                for training in [self._trials[key].trainings[key] for key in self._trials]:
                    self._await_snapshot(training)
            except StorageUnavailable:
                self._trials.clear()  # they cannot be requeued without the storage: their leases expire
                raise
            finally:
                self._snapshots.close()  # before another worker may take a trial up
                trials = dict.fromkeys(self._trials.values())
                with suppress(OSError):
                    self._send(trials)
                self.store.requeue(trial.claim for trial in trials)
                for trial in trials:
                    self._emit(events.TrialRequeued, trial)

    def tell_ends(self, trials: Container[tuple[str, int]]) -> None:
        """Report to the storage the ends that unleased trials have in their folders."""
        with Renewal(self.store.renew):
            claims = self.store.take_up(trials)
            try:
                for claim in claims:
                    self._take_up(claim)
            finally:
                self._snapshots.close()
                self.store.requeue(trial.claim for trial in dict.fromkeys(self._trials.values()))

    def _next_run(self) -> Training:
        """Return the first waiting run of the most frequent shape: its stack fills best."""
        shapes = Counter(shape_key(each.run.values) for each in self._waiting)
        return max(self._waiting, key=lambda each: shapes[shape_key(each.run.values)])

    @property
    def _is_leaving(self) -> bool:
        return self.stopping() or self.store.commands.state.phase != "run"

    def _is_told_to_leave(self) -> bool:
        self.store.poll_commands()
        return self._is_leaving

    def _train_stack(self, first: Training) -> None:
        """Train a stack with the first run and all others that fit it, until it is empty."""
        trial, values = self._trials[first.run.key], first.run.values
        cell, wanted = trial.claim.cell, self.spec.engine.stack
        if wanted == AUTO:
            wanted = self.folder.decided(cell.key).get("stack", AUTO)
        wanted, capacity = 1 if self._one_at_a_time else wanted, 1
        try:
            capacity = self._memory.capacity(wanted, values, len(trial.trainings))
            train, tracks = self.dataset.training(values), self.spec.track.gradients
            stack = Stack(values, train, self.dataset.val, capacity, tracks, self._is_told_to_leave)
        except Paused:
            return None
        except StorageUnavailable:
            raise
        except Exception as error:
            return self._handle_error([first.run.key], error, self._one_at_a_time, capacity)
        self._fill(stack, cell)
        while len(stack):
            n_live = len(stack)
            try:
                records = stack.advance(lambda: self.stopping() or not self._trials)
            except Exception as error:  # whatever a model or a device may raise
                if is_out_of_memory(error):
                    self._save_in_tight_memory(stack, error)
                return self._handle_error(stack.keys, error, n_live == 1, stack.capacity)
            try:
                has_commands = self.store.poll_commands()
                if not self._evaluated(stack, records):
                    return None
                # Otherwise nothing has changed since the last time, when there was nothing to claim.
                if has_commands or len(stack) < n_live or self.store.awaits_results:
                    self._fill(stack, cell)
            except StorageUnavailable:
                # Runs that have ended continue from their last snapshot later: their end was not reported.
                ended = {record.key for record in records if record.state != "running"}
                self._save(stack, [key for key in stack.keys if key in self._trials.keys() - ended])
                raise
        return None

    def _evaluated(self, stack: Stack, records: Sequence[Record]) -> bool:
        """Record and report an evaluation, and finish trials that have ended; return whether the stack goes on."""
        known = [self._as_commanded(record) for record in records if record.key in self._trials]
        try:
            known, whole = scored(stack, known, self.spec.objective.at)
        except Exception as error:  # such as out of memory
            self._handle_error(stack.keys, error, len(stack) == 1, stack.capacity)
            return False
        behind = self._report(known, whole)
        known = [record for record in known if record.key in self._trials]
        for record in known:
            self._keep(stack, record)
        # Trials are judged once all records are taken in: a seed that ends may end its trial's other runs too.
        for trial in dict.fromkeys(self._trials[record.key] for record in known):
            if outcome := trial.outcome or (RunState.PRUNED if trial in behind else None):
                self._finish(trial, trial.ending(outcome))
        for key in [key for key in stack.keys if key not in self._trials]:  # ended, or its lease was lost
            stack.release(key)
        if self._is_leaving:
            self._save(stack, stack.keys)
            return False
        return True

    def _fill(self, stack: Stack, cell: Cell) -> None:
        """Admit waiting runs that fit the stack, then runs of newly claimed trials of its shape."""

        def fits(other: Cell) -> bool:
            return self._shape[other.index] == self._shape[cell.index]

        n_seeds = len(self.store.spaces[cell.index].seeds)
        while len(stack) < stack.capacity:
            fitting = (each for each in self._waiting if shape_key(each.run.values) == stack.key)
            if training := next(fitting, None):
                self._waiting.remove(training)
                self._await_snapshot(training)
                start = self._start_weights()(training.run.values)
                stack.admit(training.run, read_snapshot(training.folder.path), start)
                continue
            n_trials = math.ceil((stack.capacity - len(stack)) / n_seeds)
            if self._one_at_a_time or not self._may_wait(n_trials * n_seeds, stack.capacity):
                return
            if not self._claim(n_trials, fits):
                return

    def _may_wait(self, n_runs: int, capacity: int) -> bool:
        """Return whether `n_runs` more may be claimed, though some may not fit the stack and have to wait for another.

        Not if other workers would lack them.
        """
        waiting = len(self._waiting)
        left = self.store.share_left() if self.store.n_holders > 1 else math.inf
        return not waiting or waiting + n_runs <= min(STACKS_WAITING * capacity, left)

    def _claim(self, n_trials: int = 1, fits: Callable[[Cell], bool] = lambda cell: True) -> bool:
        """Claim trials and add their runs to the waiting ones; return whether there was any trial."""
        claims = self.store.claim_many(n_trials, fits)
        self.store.availability.retry(
            lambda: self._files.fetch(
                run for claim in claims for run in self._folders(claim.cell, claim.number)
            ),
            of="records",
        )
        for message in self.store.take_notices():
            self.emit(events.StudyError(message=message))
        for claim in claims:
            self._take_up(claim)
        return bool(claims)

    def _take_up(self, claim: Claim) -> None:
        """Add the runs of a claimed trial to the waiting ones, or end the trial as an earlier worker did."""
        space = self.store.spaces[claim.cell.index]
        trial = self.store.availability.retry(
            lambda: ClaimedTrial(self.spec, self.dataset, self.folder, claim, space), of="records"
        )
        self._trials |= dict.fromkeys(trial.trainings, trial)
        self._emit(events.TrialClaimed, trial, started=time.time())
        ends = trial.read_ends()
        snapshots = {each: read_snapshot(each.folder.path) for each in trial.trainings.values()}
        for training, snapshot in snapshots.items():
            n_parts = snapshot.numbers.get("grad_accum", 1) if snapshot else 1
            trial.accumulate(training.run.key, max(n_parts, self._memory.parts(training.run.values)))
            known = [snapshot.numbers["evaluated"]] if snapshot else []
            # A failed trial has nothing left to report, and its metric may be what failed.
            known += [end.iteration for end in ends if end.ending.outcome is not RunState.FAILED]
            if known:
                trial.restore_curve(training, until=max(known))
        # Report what an earlier worker could not, because the database was unavailable.
        means = trial.curves.means.items()
        self.store.report_many([Report(claim, *each) for each in means if each[0] not in claim.reported])
        if ends:  # an earlier worker has written it, perhaps without telling the storage
            return self._finish(trial, ends[0].ending)
        if claim.attempt > MOST_ATTEMPTS and not any(snapshots.values()):
            trial.error = (
                f"{several(claim.attempt - 1, 'worker')} in turn died training it, before its first snapshot"
            )
            return self._finish(trial, trial.ending(RunState.FAILED))
        self._waiting += trial.trainings.values()
        return None

    @property
    def _one_at_a_time(self) -> bool:
        """Return whether runs train alone: after an error in a stack, to find the run that causes it."""
        return not self._suspects.isdisjoint(self._trials)

    def _as_commanded(self, record: Record) -> Record:
        """Return the record, as stopped if a person has stopped its trial."""
        trial = self._trials[record.key]
        if record.state != "running" or trial.place not in self.store.commands.state.stopped:
            return record
        trial.is_stopped = True
        return replace(record, state="stopped")

    def _report(self, records: Sequence[Record], whole: Mapping[str, float]) -> set[ClaimedTrial]:
        """Write records and report the means that they complete; return the trials to be pruned.

        Trials that another worker holds by now are dropped.
        """
        reports = []
        for record in records:
            trial = self._trials[record.key]
            means = trial.take_in(record, whole.get(record.key))
            self._write(trial.write_points, "points")
            reports += [Report(trial.claim, iteration, mean) for iteration, mean in means]
        self._write(lambda: self._send(self._trials[record.key] for record in records), "points")
        verdicts = self.store.report_many(reports)
        trials = {trial.claim.trial_id: trial for trial in self._trials.values()}
        for trial_id in verdicts.lost:
            self._emit(events.TrialLost, trials[trial_id])
            self._forget(trials[trial_id])
        return {trials[trial_id] for trial_id in verdicts.behind}

    def _keep(self, stack: Stack, record: Record) -> None:
        """Write the checkpoint of a run that has ended, or a snapshot if one is due."""
        trial = self._trials[record.key]
        training = trial.trainings[record.key]
        measured = {"iteration": record.iteration, "val_loss": record.val_loss}
        self._emit(events.RunEvaluated, trial, seed=training.folder.seed, **measured)
        has_value, every = RunState(record.state).has_value, training.run.values.save_interval
        before = record.iteration - training.run.values.eval_interval
        is_due = record.iteration // every > before // every
        kept = self.spec.track.checkpoints
        if kept == "all" and (has_value or is_due) and record.state != "diverged":
            self._write_checkpoint(stack, training, record, training.folder.checkpoint_at(record.iteration))
        if has_value:
            if kept != "none":
                name = "last" if kept == "last" else "best"
                self._write_checkpoint(stack, training, record, training.folder.path / name)
            stack.release(record.key)
        elif record.state == "running" and is_due and record.iteration:
            self._save(stack, [record.key])

    def _finish(self, trial: ClaimedTrial, ending: TrialEnding) -> None:
        """Write an ending to the folders, then report it; if this worker dies in between, the next one reports it."""
        with suppress(OSError):
            # They are removed next.
            self._snapshots.wait(*(each.folder.path for each in trial.trainings.values()))
        try:
            ends = self.store.availability.retry(lambda: self._write_ends(trial, ending), of="records")
            ending = ends[0].ending
            flops, seconds = sum(end.train_flops for end in ends), sum(end.wall_seconds for end in ends)
            totals = {"train_flops": flops, "wall_seconds": seconds}
            self.store.finish(trial.claim, ending.outcome, ending.value, totals)
        except LeaseLost:
            self._emit(events.TrialLost, trial)
        else:
            self._emit(events.TrialEnded, trial, ending=ending, ended=time.time())
            if ending.outcome is RunState.PRUNED:
                self._drop_snapshots(trial.claim.cell)
        self._forget(trial)

    def _write_ends(self, trial: ClaimedTrial, ending: TrialEnding) -> list[RunEnd]:
        ends = trial.write_ends(ending)
        # If the lab already had another worker's end, that one holds for all runs.
        return trial.write_ends(ending) if self._send([trial]) else ends

    def _send(self, trials: Iterable[ClaimedTrial]) -> bool:
        return self._files.send({folder: trial.promoted for trial in trials for folder in trial.folders})

    def _folders(self, cell: Cell, number: int) -> list[RunFolder]:
        return [self.folder.run(cell.key, number, seed) for seed in self.store.spaces[cell.index].seeds]

    def _drop_snapshots(self, cell: Cell) -> None:
        """Drop the snapshots of pruned trials beyond the best `track.snapshots`; check several, as ranks change."""
        kept = self.spec.track.snapshots
        for trial in self.store.tally(cell).best_pruned(kept + SNAPSHOTS_LOOKED_AT)[kept:]:
            for run in self._folders(cell, trial.number):
                self._files.drop_snapshots(run)

    def _forget(self, trial: ClaimedTrial) -> None:
        self._files.forget(trial.folders)
        for key in trial.trainings:
            self._trials.pop(key, None)
        self._waiting = [training for training in self._waiting if training.run.key in self._trials]

    def _handle_error(self, keys: Collection[str], error: Exception, is_alone: bool, capacity: int) -> None:
        """Fail a run that raised an error alone; after an error in a stack of several, train each alone to find it.

        After running out of memory with a stack of this capacity, the runs continue in a smaller one.
        """
        if is_out_of_memory(error):
            return self._make_smaller([key for key in keys if key in self._trials], capacity, error)
        for key, trial in [(key, self._trials[key]) for key in keys if key in self._trials]:
            if is_alone:
                trial.error = "".join(traceback.format_exception(error))
                self._finish(trial, trial.ending(RunState.FAILED))
                continue
            self._suspects.add(key)
            self._let_wait(trial.trainings[key])
        return None

    def _let_wait(self, training: Training) -> None:
        if training not in self._waiting:
            self._waiting.append(training)

    def _make_smaller(self, keys: Sequence[str], capacity: int, error: Exception) -> None:
        """Halve the stack; for a run alone, increase gradient accumulation; if that is impossible, fail its trial."""
        traceback.clear_frames(error.__traceback__)  # the frames hold the step's tensors
        if not keys:
            return
        for key in keys:
            self._let_wait(self._trials[key].trainings[key])
        trial = self._trials[keys[0]]
        values = trial.trainings[keys[0]].run.values
        where = f"cell {trial.claim.cell.key}: not enough memory for"
        if capacity > 1:
            n_runs = len(keys) if len(keys) > 1 else capacity
            smaller = several(self._memory.halve(values, n_runs), "run")
            self.emit(events.StudyNotice(message=f"{where} a stack of {n_runs}; continuing with {smaller}"))
        elif n_parts := self._memory.cut(values):
            alike = [each for each in self._waiting if shape_key(each.run.values) == shape_key(values)]
            cut = [self._trials[each.run.key].accumulate(each.run.key, n_parts) for each in alike]
            self._waiting = [each for each in self._waiting if each not in alike] + cut
            self.emit(events.StudyNotice(message=f"{where} a run; continuing with grad_accum {n_parts}"))
        else:
            trial.error = does_not_fit(values, error)
            self._finish(trial, trial.ending(RunState.FAILED))

    def _save_in_tight_memory(self, stack: Stack, error: Exception) -> None:
        """Save a stack's runs one by one, as far as memory allows; the others continue from their last snapshots."""
        traceback.clear_frames(error.__traceback__)
        for key in [key for key in stack.keys if key in self._trials and stack.is_whole]:
            try:
                self._save(stack, [key])
                self._await_snapshot(self._trials[key].trainings[key])
            except Exception as another:
                if not is_out_of_memory(another):
                    raise

    def _save(self, stack: Stack, keys: Collection[str]) -> None:
        errors = list[StorageUnavailable]()
        for trial, key in [(self._trials[key], key) for key in keys]:
            with suppress(OSError):
                trial.write_points()
            if trial.has_unwritten:  # a run that continues from a later snapshot would lack these points
                continue
            training, snapshot = trial.trainings[key], stack.snapshot(key)
            snapshot.numbers["grad_accum"] = training.run.values.grad_accum
            try:
                self._await_snapshot(training)
            except StorageUnavailable as error:  # the write below is tried anyway
                errors.append(error)
            self._snapshots.write(training.folder.path, snapshot)
        if errors:
            raise errors[0]

    def _await_snapshot(self, training: Training) -> None:
        """Wait until a run's last snapshot is written; if it cannot be, the previous one is kept."""
        self._write(lambda: self._snapshots.wait(training.folder.path), "snapshots")

    def _write(self, call: Callable[[], bool | None], of: str) -> None:
        """Write files, and go on if that fails, as on a full disk: the next write tries again.

        Raises:
            StorageUnavailable: writing has failed for too long.
        """
        try:
            has_written = call()
        except OSError as error:
            self.store.availability.note_failure(error, of)
        else:
            if has_written is not False:
                self.store.availability.note_answer(of)

    def _write_checkpoint(self, stack: Stack, training: Training, record: Record, place: Path) -> None:
        """Write a checkpoint: the run's best weights if `place` is named best, else its current ones, and metadata."""
        is_best = place.name == "best"
        val_loss, iteration = record.best if is_best else (record.val_loss, record.iteration)
        facts = {
            "run": record.key,
            "kind": place.name,
            "values": training.run.values.as_dict(),
            "tokenizer": self.dataset.tokenizer.to_json(),
            **({"labels": self.dataset.labels} if self.dataset.labels else {}),
            "val_loss": val_loss,
            "iteration": iteration,
        }
        weights = stack.weights(record.key, best=is_best)
        self.store.availability.retry(lambda: write_checkpoint(place, "model", weights, facts), of="records")

    def _emit(self, kind: type[events.TrialEvent], trial: ClaimedTrial, **more: Any) -> None:
        cell, number = trial.place
        self.emit(kind(cell=cell, trial=number, **more))
