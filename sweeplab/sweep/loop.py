"""The study loop of one worker: ask for trials, train them in a stack, evaluate, report, prune, and tell their ends.

A worker trains one stack at a time, and it alone decides which runs enter and leave: a free slot takes the next run of
the same shape, which is claimed from the store if none waits here. The study's commands are followed after every
evaluation. Beside the loop stand what it is made of: `trials/store.py` asks, reports and holds leases, `trial.py` has
the runs of a trial and their records, `saving.py` writes snapshots and checkpoints, and handles errors.

While trials train, all are judged by sampled evaluations on the same targets. Once all have ended, the chosen trial of
each cell and those that cannot be told from it are evaluated on the whole validation split.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import replace
from functools import cache

from sweeplab.data.dataset import Dataset
from sweeplab.data.objectives import wholly
from sweeplab.errors import StorageUnavailable
from sweeplab.formatting import several
from sweeplab.hyperparameters import SHAPE
from sweeplab.lab.events import StudyNotice
from sweeplab.lab.listing import StudyTrials
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState, TrialEnding
from sweeplab.study.inputs import start_weights
from sweeplab.study.space import Cell
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.saving import Held, Recovery, Saving
from sweeplab.sweep.trial import Training, TrialRuns, metrics_of
from sweeplab.sweep.trials.sharing import Claim, LeaseLost, Report, renewing
from sweeplab.sweep.trials.store import MOST_ATTEMPTS, Store
from sweeplab.train.checkpoint import read_snapshot
from sweeplab.train.member import Record
from sweeplab.train.stack import Stack

# How many stacks' worth of claimed runs may wait for a stack of their shape.
STACKS_WAITING = 8
# How often an idle worker checks whether other workers' trials, on which new ones depend, have ended.
AWAIT_SECONDS = 0.5


class Loop:
    """Trains one worker's trials of a study; `stopping` is asked before every step, `emit` gets what users are told."""

    def __init__(
        self,
        store: Store,
        dataset: Dataset,
        folder: StudyFolder,
        emit: Callable[[StudyNotice], None] = lambda notice: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        spec = self.spec = store.spec
        self.store = store
        self.dataset = dataset
        self.folder = folder
        self.emit = emit
        self.stopping = stopping
        self._held = Held()
        self._saving = Saving(store, folder, dataset, self._held)
        self._recovery = Recovery(self._held, emit)
        # Read when the first run starts.
        self._start_weights = cache(lambda: start_weights(spec))
        # The part of a cell's shape that is known before a trial is sampled: cells that differ in it share no stack.
        known = [name for name in SHAPE if name not in spec.search]
        unsampled = [space.resolve({}, spec.first_seed) for space in store.spaces]
        self._shape = [tuple(getattr(values, name) for name in known) for values in unsampled]

    def run(self) -> None:
        """Train trials until the store has no more, or the worker has to stop."""
        self.store.poll_commands()
        with renewing(self.store.renew):
            try:
                while not self._is_leaving and (
                    self._held.waiting or self._claim() or self.store.awaits_results
                ):
                    if self._held.waiting:
                        self._train_stack()
                    elif self.store.awaits_results:
                        time.sleep(AWAIT_SECONDS)
                for key in self._held.trials:
                    self._saving.wait(self._held.training(key))
                if not self._is_leaving and not self.store.has_room():
                    score_chosen(self.spec, self.folder, self.dataset)
            except StorageUnavailable:
                # They cannot be requeued without the storage: their leases expire.
                self._held.trials.clear()
                raise
            finally:
                self._requeue()

    def tell_ends(self, keys: Container[str]) -> None:
        """Report to the storage the ends that trials of some cells, without a worker, have in their folders."""
        with renewing(self.store.renew):
            try:
                claims = self.store.claim_many(
                    math.inf, lambda cell: cell.key in keys, asks=False
                )
                for claim in claims:
                    self._take_up(claim)
            finally:
                self._requeue()

    def _requeue(self) -> None:
        self._saving.close()  # before another worker may take a trial up
        self.store.requeue(trial.claim for trial in self._held.each_trial())

    @property
    def _is_leaving(self) -> bool:
        return self.stopping() or self.store.commands.state.phase != "run"

    # ------------------------------------------------------------------ ask

    def _claim(
        self, n_trials: int = 1, fits: Callable[[Cell], bool] = lambda cell: True
    ) -> bool:
        claims = self.store.claim_many(n_trials, fits)
        notices, self.store.notices = self.store.notices, []
        for message in notices:
            self.emit(StudyNotice(message=message, is_error=True))
        for claim in claims:
            self._take_up(claim)
        return bool(claims)

    def _take_up(self, claim: Claim) -> None:
        """Add the runs of a claimed trial to the waiting ones, or end the trial as an earlier worker did."""
        trial = self.store.availability.retry(
            lambda: TrialRuns.of_claim(claim, self.spec, self.dataset, self.folder),
            of="records",
        )
        self._held.add(trial)
        ends, has_snapshot = trial.restore(self._recovery.parts)
        # Report what an earlier worker could not, because the database was unavailable.
        means = trial.curves.means.items()
        self.store.report_many(
            [Report(claim, *mean) for mean in means if mean[0] not in claim.reported]
        )
        if ends:  # an earlier worker has written it, perhaps without telling the storage
            self._finish(trial, ends[0].ending)
        elif claim.attempt > MOST_ATTEMPTS and not has_snapshot:
            died = several(claim.attempt - 1, "worker")
            trial.error = f"{died} in turn died training it, before its first snapshot"
            self._finish(trial, trial.ending(RunState.FAILED))
        else:
            self._held.waiting += trial.trainings.values()

    # ------------------------------------------------------------------ stack

    def _train_stack(self) -> None:
        """Train a stack of the waiting runs' most frequent shape, with all that fit it, until it is empty."""
        shapes = Counter(training.shape for training in self._held.waiting)
        first = max(self._held.waiting, key=lambda training: shapes[training.shape])
        cell = self._held.trials[first.run.key].claim.cell
        stack = self._new_stack(first, cell)
        if stack is None:
            return None
        self._fill(stack, cell)
        while len(stack):
            n_live = len(stack)
            try:
                records = stack.advance(lambda: self.stopping() or not self._held.trials)
            except Exception as error:  # whatever a model or a device may raise
                return self._recover(stack.keys, error, n_live == 1, stack.capacity)
            try:
                has_commands = self.store.poll_commands()
                if not self._evaluate(stack, records):
                    return None
                # Otherwise nothing has changed since the last time, when there was nothing to claim.
                if has_commands or len(stack) < n_live or self.store.awaits_results:
                    self._fill(stack, cell)
            except StorageUnavailable:
                # Runs that have ended continue from their last snapshot later: their end was not reported.
                ended = {record.key for record in records if record.state != "running"}
                self._saving.snapshot(stack, [key for key in stack.keys if key not in ended])
                raise
        return None

    def _new_stack(self, first: Training, cell: Cell) -> Stack | None:
        values = first.run.values
        wanted = self.spec.engine.stack
        capacity = 1
        if self._recovery.one_at_a_time:
            wanted = 1
        try:
            n_seeds = len(self._held.trials[first.run.key].trainings)
            capacity = self._recovery.capacity(wanted, values, n_seeds)
            train = self.dataset.training(values)
            tracks = self.spec.track.gradients
            return Stack(
                values, train, self.dataset.val, capacity, tracks, metrics_of(self.spec)
            )
        except StorageUnavailable:
            raise
        except Exception as error:
            self._recover([first.run.key], error, self._recovery.one_at_a_time, capacity)
            return None

    def _fill(self, stack: Stack, cell: Cell) -> None:
        """Admit waiting runs that fit the stack, then runs of newly claimed trials of its shape."""

        def fits(other: Cell) -> bool:
            return self._shape[other.index] == self._shape[cell.index]

        n_seeds = len(self.store.spaces[cell.index].seeds)
        while len(stack) < stack.capacity:
            if training := self._held.take(stack.key):
                self._saving.wait(training)
                start = self._start_weights()(training.run.values)
                stack.admit(training.run, read_snapshot(training.folder.path), start)
                continue
            n_trials = math.ceil((stack.capacity - len(stack)) / n_seeds)
            # Some of them may not fit the stack and have to wait for another: not so many that other workers lack them.
            waiting = len(self._held.waiting)
            most = float(STACKS_WAITING * stack.capacity)
            if self.store.n_workers > 1:
                most = min(most, self.store.share_left())
            if self._recovery.one_at_a_time or (
                waiting and waiting + n_trials * n_seeds > most
            ):
                return
            if not self._claim(n_trials, fits):
                return

    # ------------------------------------------------------------------ evaluate, report, prune

    def _evaluate(self, stack: Stack, records: Sequence[Record]) -> bool:
        """Record and report an evaluation, and finish trials that have ended; return whether the stack goes on."""
        trials = self._held.trials
        commanded = self.store.commands.state
        known = []
        for record in records:
            if record.key in trials:
                trial = trials[record.key]
                if record.state == "running" and trial.place in commanded.stopped:
                    trial.is_stopped = True
                    record = replace(record, state="stopped")
                known.append(record)
        behind = self._report(known)
        known = [record for record in known if record.key in trials]
        for record in known:
            self._saving.keep(stack, record)
            if RunState(record.state).has_value:
                stack.release(record.key)
        # Trials are judged once all records are taken in: a seed that ends may end its trial's other runs too.
        for trial in dict.fromkeys(trials[record.key] for record in known):
            outcome = trial.outcome
            if outcome is None and trial in behind:
                outcome = RunState.PRUNED
            if outcome:
                self._finish(trial, trial.ending(outcome))
        # Ended, or its lease was lost.
        for key in [key for key in stack.keys if key not in trials]:
            stack.release(key)
        if self._is_leaving:
            self._saving.snapshot(stack, stack.keys)
            return False
        return True

    def _report(self, records: Sequence[Record]) -> set[TrialRuns]:
        """Write records and report the means that they complete; return the trials to be pruned.

        Trials that another worker holds by now are dropped.
        """
        reports = []
        for record in records:
            trial = self._held.trials[record.key]
            means = trial.take_in(record)
            self._saving.write_points(trial)
            reports += [Report(trial.claim, iteration, mean) for iteration, mean in means]
        verdicts = self.store.report_many(reports)
        trials = {trial.claim.trial_id: trial for trial in self._held.each_trial()}
        for trial_id in verdicts.lost:
            self._held.forget(trials[trial_id])
        return {trials[trial_id] for trial_id in verdicts.behind}

    # ------------------------------------------------------------------ tell

    def _finish(self, trial: TrialRuns, ending: TrialEnding) -> None:
        """Write an ending to the folders, then report it; if this worker dies in between, the next one reports it."""
        self._saving.wait_before_removal(trial)
        try:
            ends = self.store.availability.retry(lambda: trial.write_ends(ending), of="records")
            ending = ends[0].ending
            totals = {
                "train_flops": sum(end.train_flops for end in ends),
                "wall_seconds": sum(end.wall_seconds for end in ends),
            }
            self.store.finish(trial.claim, ending.outcome, ending.value, totals)
        except LeaseLost:
            pass
        else:
            if ending.outcome is RunState.PRUNED:
                self._saving.drop_snapshots(trial.claim.cell)
        self._held.forget(trial)

    def _recover(
        self, keys: Collection[str], error: Exception, is_alone: bool, capacity: int
    ) -> None:
        """Let the runs of a stack that raised an error wait for other stacks; fail those that no other one can help."""
        for trial in self._recovery.failed(keys, error, is_alone, capacity):
            self._finish(trial, trial.ending(RunState.FAILED))


def score_chosen(spec: StudySpec, folder: StudyFolder, dataset: Dataset) -> None:
    """Write the losses on the whole split into the ends of the chosen trials' runs that lack them.

    Which trials are chosen follows from their values alone, not from who trained them; a run without a checkpoint is
    not evaluated.
    """
    from sweeplab.runs.inspecting import scored
    from sweeplab.tracking.models import load_checkpoint

    trials = StudyTrials(folder)
    places = list[tuple[str, int]]()
    for cell in trials.best_of_cells():
        choice = trials.choice(cell)
        if choice:
            places += [choice.place, *choice.rivals]
    for run in (run for cell, number in places for run in trials.find(cell, number).runs):
        end = run.read_end()
        checkpoint = run.checkpoint()
        if end is None or checkpoint is None or end.whole_val_loss is not None:
            continue
        loaded = load_checkpoint(checkpoint)
        loss = scored(loaded, dataset, whole=True, spec=spec)["val_loss"]
        bits = dataset.bits_per_byte(loss, wholly(loaded.values))
        if spec.objective.at == "best":
            end = replace(end, best_whole_val_loss=loss, best_whole_bits_per_byte=bits)
        else:
            end = replace(end, final_whole_val_loss=loss, final_whole_bits_per_byte=bits)
        run.rewrite_end(end)
