"""The trials of a cell as a process knows them: its counts are updated as trials end, never recomputed from all."""

from __future__ import annotations

import abc
import bisect
import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import sqlalchemy as sql
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from sweeplab.lab.storage import PROMOTED, REPEATS, VOID
from sweeplab.records.runs import RunState
from sweeplab.study.space import Cell

Storage = TypeVar("Storage", bound=type[BaseStorage])

# One lock per schema of a PostgreSQL database: each study has its own schema.
TAKE_TURN = sql.text("SELECT pg_advisory_xact_lock(hashtext('sweeplab ' || current_schema()))")


@dataclass
class CachedTrials:
    """The trials of one Optuna study by number, and their ids.

    `unended` are those that have not ended, by id, and `ended` the others in the order of their ends. `version` grows
    when a trial starts or ends.
    """

    trials: list[FrozenTrial] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    unended: dict[int, FrozenTrial] = field(default_factory=dict)
    ended: list[FrozenTrial] = field(default_factory=list)
    version: int = 0


def forwards(storage: Storage) -> Storage:
    """Let a storage forward the calls that it does not define to its attribute `inner`.

    The calls are those that the installed Optuna demands, so that a later version may add some.
    """
    for name in storage.__abstractmethods__:
        setattr(storage, name, _forwarded(name))
    abc.update_abstractmethods(storage)
    return storage


def _forwarded(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **arguments: Any) -> Any:
        return getattr(self.inner, name)(*args, **arguments)

    return call


# How many of the newest and of the best ended trials of a cell TPE models.
NEWEST, BEST = 1_000, 1_000


@dataclass(frozen=True)
class CellCounts:
    """The progress of one cell; `waiting` counts enqueued trials, `failed` the failed ones not retried."""

    cell: Cell
    counted: int
    running: int
    waiting: int
    failed: int
    best: float | None


def is_own(trial: FrozenTrial) -> bool:
    """Return whether a trial is the study's own: not infeasible, repeated, withdrawn or from a warm start."""
    return not any(each in trial.user_attrs for each in VOID)


def _hash(parameters: Mapping[str, Any]) -> int:
    return hash(frozenset(parameters.items()))


class History:
    """The newest and the best trials of a cell, updated as trials end."""

    def __init__(self, trials: CachedTrials) -> None:
        self._trials, self._n_seen = trials, 0
        self._newest: deque[FrozenTrial] = deque(maxlen=NEWEST)
        self._best: list[tuple[float, int]] = []  # value and number
        self._ended: list[FrozenTrial] = []

    def ended(self) -> list[FrozenTrial]:
        """Return the complete and pruned trials of the history by number."""
        new = self._trials.ended[self._n_seen :]
        self._n_seen += len(new)
        for trial in new:
            if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED):
                continue
            self._newest.append(trial)
            if trial.value is not None and trial.state == TrialState.COMPLETE:
                bisect.insort(self._best, (trial.value, trial.number))
        if new:
            del self._best[BEST:]
            numbers = {trial.number for trial in self._newest} | {number for _, number in self._best}
            self._ended = [self._trials.trials[number] for number in sorted(numbers)]
        return self._ended

    def unended(self) -> list[FrozenTrial]:
        """Return the running and waiting trials."""
        return [*self._trials.unended.values()]


@dataclass
class CellTally:
    """The sums over a cell's trials; `modelled` counts the trials that a sampler learns from, warm starts included.

    `best` is the study's own trial of lowest value, the first of several; `pruned` are the trials that may be promoted,
    and `n_promoted` counts the promoted trials that have ended.
    """

    trials: CachedTrials
    counted: int = 0
    modelled: int = 0
    train_flops: float = 0.0
    best: FrozenTrial | None = None
    pruned: list[FrozenTrial] = field(default_factory=list)
    n_promoted: int = 0
    _points: dict[int, int] = field(default_factory=dict)  # by hash of the parameters, the first trial
    _failed: list[FrozenTrial] = field(default_factory=list)
    _retried: set[int | None] = field(default_factory=set)
    _n_seen: int = 0
    _counts: CellCounts | None = None
    _counted: int = 0

    @cached_property
    def history(self) -> History:
        """Return the cell's trials that TPE models."""
        return History(self.trials)

    def update(self) -> None:
        """Count the trials that have ended since the last time."""
        new = self.trials.ended[self._n_seen :]
        self._n_seen += len(new)
        for trial in new:
            is_modelled = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
            self.modelled += is_modelled
            if not is_own(trial):
                continue
            self.train_flops += trial.user_attrs.get("train_flops", 0)
            self._retried.add(trial.user_attrs.get("retries"))
            if not is_modelled:
                self._failed.append(trial)
                continue
            self.counted += 1
            self.n_promoted += PROMOTED in trial.user_attrs
            if trial.user_attrs.get("outcome") == RunState.PRUNED:
                self.pruned.append(trial)
            point = _hash(trial.params)
            self._points[point] = min(trial.number, self._points.get(point, trial.number))
            if trial.state == TrialState.COMPLETE and trial.value is not None:
                self.best = min(filter(None, (self.best, trial)), key=lambda best: (best.value, best.number))

    def ended(self) -> list[FrozenTrial]:
        """Return the trials that have ended, in any state."""
        return self.trials.ended

    def running(self) -> list[FrozenTrial]:
        """Return the trials that have started and not ended."""
        return [trial for trial in self.trials.unended.values() if trial.state == TrialState.RUNNING]

    def waiting(self) -> list[FrozenTrial]:
        """Return the enqueued trials that have not started."""
        return [trial for trial in self.trials.unended.values() if trial.state == TrialState.WAITING]

    def failed(self) -> list[FrozenTrial]:
        """Return the failed trials that no other trial retries."""
        retried = self._retried | {each.user_attrs.get("retries") for each in self.trials.unended.values()}
        return [trial for trial in self._failed if trial.number not in retried]

    def twin(self, parameters: Mapping[str, Any], number: int) -> int | None:
        """Return the number of the first trial before this one with the same parameters that has not failed."""
        ended = self._points.get(_hash(parameters))
        others = self.running()
        if ended is not None:
            others.append(self.trials.trials[ended])
        twins = [other.number for other in others if other.number < number and other.params == parameters]
        return min(twins, default=None)

    def best_pruned(self, n: int) -> list[FrozenTrial]:
        """Return the best `n` pruned trials, the best first: by furthest last step, then by lowest value."""

        def rank(trial: FrozenTrial) -> tuple[int, float, int]:
            value = math.inf if trial.value is None else trial.value
            return -(trial.last_step or 0), value, trial.number

        return heapq.nsmallest(n, self.pruned, key=rank)

    def repeats(self, n_trials: int) -> bool:
        """Return whether each of the last `n_trials` trials repeated another one."""
        last = self.trials.trials[-n_trials:]
        return len(last) == n_trials and all(REPEATS in trial.user_attrs for trial in last)

    def counts(self, cell: Cell) -> CellCounts:
        """Return the cell's counts."""
        if self._counts is None or self._counted != self.trials.version:
            n_running, n_waiting, n_failed = map(len, (self.running(), self.waiting(), self.failed()))
            best = self.best.value if self.best else None
            self._counts = CellCounts(cell, self.counted, n_running, n_waiting, n_failed, best)
            self._counted = self.trials.version
        return self._counts
