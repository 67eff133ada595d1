"""Workers that share one study in one process, and what befalls them, as a seed says: every failure can be repeated.

The store, its database (SQLite) and its leases are the real ones. Training is pretended: a trial's value at an
iteration follows from its learning rate, and what a worker writes to files stands in `Disk`. Time is made to pass by
moving all leases, so that nothing waits. Each worker may be killed at any statement or commit, be stopped for longer
than a lease and wake up, lose its database for a while, or the answer to a commit.
"""

import math
import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from unittest import mock

import psutil
import sqlalchemy as sql
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from sweeplab.data import DataSizes
from sweeplab.records.runs import RunState
from sweeplab.study.options import Pruner, Sampler
from sweeplab.study.spec import Budget, DataSpec, StudySpec
from sweeplab.study.values import Range
from sweeplab.sweep.trials import sharing
from sweeplab.sweep.trials.sharing import LEASE_SECONDS, LeaseLost, Owner, Report
from sweeplab.sweep.trials.store import Store

SIZES, N_REPORTS, STACK = DataSizes(103), 4, 3
FIXED = {
    "n_layer": 1,
    "n_head": 2,
    "block_size": 16,
    "batch_size": 4,
    "max_iters": 40,
    "eval_interval": 10,
}
# How long an evaluation takes, in seconds of the simulated clock.
TRAINING_SECONDS = 3.0


class Killed(BaseException):
    """Say that a worker's process is no more."""


def study(trials_per_cell, promotes):
    """Return a study whose pruner promotes all that it pruned in the end, or another one."""
    pruner = Pruner(type="median", options={"n_startup_trials": 3})
    if promotes:
        pruner = Pruner(
            type="asha", options={"min_resource": 10, "reduction_factor": 2, "promote": True}
        )
    return StudySpec(
        name="simulated",
        data=DataSpec(corpus="python-docs", tokenizer="char"),
        fixed=FIXED | {"device": "cpu"},
        grid={"n_embd": [8, 16]},
        search={"learning_rate": Range(3e-4, 1e-2, log=True)},
        budget=Budget(trials_per_cell=trials_per_cell, flops=1e30 if promotes else None),
        sampler=Sampler(type="random"),
        pruner=pruner,
    )


def value_at(learning_rate, iteration):
    return 4.0 - iteration * (learning_rate % 1e-3)


@cache
def _this_process():
    return Owner.of_this_process()


@cache
def _gone():
    """Return the number of no process."""
    return next(each for each in range(400_000, 500_000) if not psutil.pid_exists(each))


@dataclass
class Disk:
    """What workers have written to the folders of runs: snapshots, and ends, of which the first holds."""

    snapshots: dict[int, int] = field(default_factory=dict)
    ends: dict[int, tuple[RunState, float, int]] = field(default_factory=dict)
    told: Counter[int] = field(default_factory=Counter)


class Stores:
    """The stores of a few workers and their database, made once: each study begins with a copy of the empty one.

    Tables take longer to make than a small study to run. `befall` is what each store's statements and commits call.
    """

    def __init__(self, folder, n_workers=4, trials_per_cell=40, promotes=False):
        self.place, self.trials_per_cell, self.promotes = (
            folder / "trials.db",
            trials_per_cell,
            promotes,
        )
        self.befall = [lambda _: None] * n_workers
        self.all = [self._open(index) for index in range(n_workers)]
        for store in self.all:
            store.storage.engine.dispose()
        self._empty = self.place.read_bytes()

    def _open(self, index):
        spec = study(self.trials_per_cell, self.promotes)
        store = Store.create(spec, SIZES, f"sqlite:///{self.place}")
        store.availability.limit = 1e9
        engine = store.storage.engine

        # The database's clock stands still: time passes by moving the leases, however long this process takes.
        def stop_clock(connection, _):
            connection.create_function("julianday", 1, lambda _: 2440587.5)

        sql.event.listen(engine, "connect", stop_clock)
        engine.dispose()
        sql.event.listen(engine, "before_cursor_execute", lambda *_: self.befall[index](None))
        sql.event.listen(engine, "commit", lambda connection: self.befall[index](connection))
        return store

    def begin(self):
        """Put the empty database in the place of the last study's."""
        for store in self.all:
            store.storage.engine.dispose()
        for file in self.place.parent.glob(f"{self.place.name}-*"):
            file.unlink()
        self.place.write_bytes(self._empty)


class Worker:
    """One process: a real store, and a stack of pretended runs."""

    def __init__(self, world, store):
        self.world, self.store = world, store
        self.start()

    def start(self):
        """Start a new process in the place of one that is dead: on this machine, or on another."""
        # What the dead one's transaction had done is undone, as SQLite does; its connection is as good as a new one.
        self.store.storage._forget()
        for name in (
            "_tallies",
            "_exhausted",
            "_failed_before",
            "_held",
            "_unsent",
            "_reopened",
        ):
            getattr(self.store, name).clear()
        self.store.commands.state = sharing.ControlState()
        self.store.availability.note_answer()
        owner = replace(_this_process(), unique=f"{self.world.chance.getrandbits(32):08x}")
        elsewhere = Owner(f"machine {self.world.chance.random()}", 1, owner.unique)
        self.store.leases.owner = self.world.chance.choice([owner, elsewhere])
        self.claims = []
        self.at = {}
        self.wakes = self.renewed = self.world.now
        self.until_death, self.lost_until = self.world.next_death(), 0.0

    def befall(self, commits):
        """Let what the seed says happen to the process before a statement, or at a commit."""
        if self.world.is_quiet:
            return
        self.until_death -= 1
        if self.until_death <= 0:
            raise Killed
        lost = OperationalError("", {}, sqlite3.OperationalError("database is locked"))
        if self.world.now < self.lost_until:
            raise lost
        if commits is not None and self.world.chance.random() < 0.02:
            commits.connection.dbapi_connection.execute("COMMIT")
            raise lost

    def step(self):
        """Do what a worker does between two evaluations; say whether it had anything to do."""
        chance, world = self.world.chance, self.world
        if not world.is_quiet:
            if chance.random() < 0.02:
                # SIGSTOP, a suspended machine.
                self.wakes = world.now + chance.uniform(1, 3 * LEASE_SECONDS)
                return True
            if chance.random() < 0.02:
                self.lost_until = world.now + chance.uniform(1, 2 * LEASE_SECONDS)
        try:
            if world.now - self.renewed > sharing.RENEW_SECONDS:
                self.store.renew()
                self.renewed = world.now
        except OperationalError:
            pass
        if len(self.claims) < STACK and not self._claim() and not self.claims:
            return False
        world.advance(TRAINING_SECONDS / world.n_workers)
        self._evaluate()
        if not world.is_quiet and self.claims and chance.random() < 0.03:
            self.store.requeue(self.claims)  # it is asked to stop, and started again
            world.disk.snapshots |= {
                claim.trial_id: self.at[claim.trial_id] for claim in self.claims
            }
            self.start()
        return True

    def _claim(self):
        new = self.store.claim_many(STACK - len(self.claims))
        for claim in new:
            ends = self.world.disk.ends
            self._take_back_end(claim)
            assert claim.trial_id not in self.at, "nobody holds a trial twice"
            at = self.world.disk.snapshots.get(claim.trial_id, 0)
            if claim.trial_id in ends:
                at = ends[claim.trial_id][2]
            # What the worker before it could not report, because its database was lost, is in the files.
            missing = [each for each in range(10, at + 1, 10) if each not in claim.reported]
            rate = claim.sampled["learning_rate"]
            self.store.report_many(
                [Report(claim, each, value_at(rate, each)) for each in missing]
            )
            if claim.trial_id in ends:
                self._tell(claim, ends[claim.trial_id])
            else:
                self.claims.append(claim)
                self.at[claim.trial_id] = at
        return bool(new)

    def _evaluate(self):
        reports = []
        for claim in self.claims:
            self.at[claim.trial_id] += 10
            value = value_at(claim.sampled["learning_rate"], self.at[claim.trial_id])
            reports.append(Report(claim, self.at[claim.trial_id], value))
        verdicts = self.store.report_many(reports)
        for claim in list(self.claims):
            at, disk = self.at[claim.trial_id], self.world.disk
            if claim.trial_id in verdicts.lost:
                self._forget(claim)
                continue
            if self.world.chance.random() < 0.5:
                disk.snapshots[claim.trial_id] = at
            is_pruned = claim.trial_id in verdicts.behind
            if is_pruned or at >= 10 * N_REPORTS:
                value = value_at(claim.sampled["learning_rate"], at)
                end = (RunState.PRUNED if is_pruned else RunState.COMPLETE, value)
                self.world.pass_by(self)
                self._take_back_end(claim)
                written = disk.ends.setdefault(claim.trial_id, (*end, at))
                self.world.pass_by(self)
                self._tell(claim, written)
                self._forget(claim)

    def _take_back_end(self, claim):
        """Remove the end with which a trial was pruned that is promoted."""
        if claim.promoted is not None and claim.trial_id in self.world.disk.ends:
            outcome, _, at = self.world.disk.ends[claim.trial_id]
            if outcome is RunState.PRUNED and at <= claim.promoted:
                del self.world.disk.ends[claim.trial_id]

    def _tell(self, claim, end):
        """Tell the storage what the files say, as the next worker does where this one dies before it."""
        outcome, value, _ = end
        totals = {"wall_seconds": self.world.chance.random(), "train_flops": 1.0}
        try:
            self.store.finish(claim, outcome, value, totals)
        except LeaseLost:
            return
        self.world.disk.told[claim.trial_id] += 1

    def _forget(self, claim):
        self.claims.remove(claim)
        del self.at[claim.trial_id]


class World:
    """A study, its workers, a clock, and chance; a process comes to `mean_life` statements and commits in the mean."""

    def __init__(self, seed, stores, mean_life=25):
        self.chance, self.now, self.disk = random.Random(seed), 0.0, Disk()
        self.n_workers, self.trials_per_cell = len(stores.all), stores.trials_per_cell
        self.promotes = stores.promotes
        self.n_deaths, self._mean_life = 0, mean_life
        self.is_quiet = True
        stores.begin()
        self.workers = [Worker(self, store) for store in stores.all]
        stores.befall[:] = [worker.befall for worker in self.workers]
        self.is_quiet = False
        self._clock = sqlite3.connect(stores.place, isolation_level=None, timeout=60)

    def next_death(self):
        """Return after how many statements and commits the next process dies."""
        return self.chance.expovariate(1 / self._mean_life)

    def advance(self, seconds):
        """Let time pass."""
        self.now += seconds
        self._clock.execute("UPDATE sweeplab_lease SET expires = expires - ?", [seconds])

    def run(self):
        """Run the study to its end, and check it."""

        with closing(self._clock), mock.patch.object(time, "sleep", self.advance):
            while True:
                awake = [worker for worker in self.workers if worker.wakes <= self.now]
                if not awake:
                    self.advance(1.0)
                    continue
                worker = self.chance.choice(awake)
                if not self._step(worker):
                    self.advance(1.0)
                    if self._is_done(worker):
                        break
            self._check()

    def _step(self, worker):
        try:
            return worker.step()
        except Killed:
            self.n_deaths += 1
            self._bury(worker)
            worker.start()
            return True

    def pass_by(self, stopped):
        """Now and then stop a worker in the middle of an ending, while others go on for longer than its lease."""
        if self.is_quiet or stopped.wakes > self.now or self.chance.random() > 0.05:
            return
        stopped.wakes = math.inf
        ends = self.now + self.chance.uniform(1, 4 * LEASE_SECONDS)
        while self.now < ends:
            awake = [worker for worker in self.workers if worker.wakes <= self.now]
            if not awake or not self._step(self.chance.choice(awake)):
                self.advance(1.0)
        stopped.wakes = self.now

    def _bury(self, worker):
        """Let a dead process of this machine be known as such: in truth it is this one."""
        owner = worker.store.leases.owner
        if owner.is_here:
            buried = Owner(owner.host, _gone(), owner.unique, owner.boot, owner.pid_namespace)
            update = "UPDATE sweeplab_lease SET owner = ? WHERE owner = ?"
            self._clock.execute(update, [str(buried), str(owner)])

    def _is_done(self, worker):
        """Say whether the study is at its end, by a worker that had nothing to do; nothing befalls the last ones."""
        self.is_quiet = True
        try:
            return not worker.store.has_room()
        finally:
            self.is_quiet = False

    def _check(self):
        self.is_quiet = True
        store = self.workers[0].store
        store.storage._forget()
        for cell in store.cells:
            trials = store.trials(cell)
            states = Counter(trial.state for trial in trials)
            expected = (
                {TrialState.COMPLETE}
                if self.promotes
                else {TrialState.COMPLETE, TrialState.PRUNED}
            )
            assert states.keys() <= expected, states
            assert len(trials) == self.trials_per_cell, "the budget, exactly"
            for trial in trials:
                outcome, value, at = self.disk.ends[trial._trial_id]
                assert trial.user_attrs["outcome"] == outcome
                if outcome is RunState.PRUNED:
                    # Optuna's value of it is its last report: one from a worker that went on past the end of another,
                    # which had lost its lease between the verdict and the file.
                    value = value_at(
                        trial.params["learning_rate"], max(trial.intermediate_values)
                    )
                assert trial.value == value
                n_ends = 2 if "promoted" in trial.user_attrs else 1
                # Told by one worker; none heard of it where that one died of it.
                assert self.disk.told[trial._trial_id] <= n_ends
                rate, reported = trial.params["learning_rate"], {*trial.intermediate_values}
                known = {
                    each: value_at(rate, each) for each in {*range(10, at + 1, 10)} | reported
                }
                assert trial.intermediate_values == known, (
                    "every report, and nothing of another trial"
                )
        query = self._clock.execute
        assert query("SELECT count(*) FROM sweeplab_lease").fetchone() == (0,), (
            "no lease is left"
        )
