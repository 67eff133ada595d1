"""Reopen trials that have ended: pruned trials that are promoted, and trials that disagree with their run folders.

Optuna cannot reopen an ended trial, and processes read an ended trial only once. So the same transaction adds a row to
the study's commands, and a process that reads the row reads the trial again. It stays one trial: a new trial with the
same values would be counted, modeled and compared at rungs twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeplab.hyperparameters import TABLE
from sweeplab.records.runs import RunStart
from sweeplab.study.space import Cell, Space
from sweeplab.sweep.trials.commands import Command, Commands
from sweeplab.sweep.trials.counting import PROMOTED

if TYPE_CHECKING:
    from sweeplab.sweep.trials.public import SharedStorage


class Reopening:
    """Reopens trials, always within a transaction of the caller's."""

    def __init__(
        self, storage: SharedStorage, commands: Commands, trial_id: Callable[[Cell, int], int]
    ) -> None:
        self._storage, self._commands, self._trial_id = storage, commands, trial_id
        self._heard: set[int] = set()  # reopened trials that this process has not read again yet

    def hear(self, command: Command) -> None:
        """Record that a trial was reopened."""
        self._heard.add(command.value["trial_id"])

    def read(self) -> None:
        """Read the reopened trials again."""
        if self._heard:
            self._storage.read_again(self._heard)
            self._heard.clear()

    def reopen(self, connection: sql.Connection, cell: Cell, trial: FrozenTrial, anew: bool = False) -> bool:
        """Set an ended trial to running, without a lease; return False if another process was faster.

        With `anew` its parameters, reports and attributes are removed.
        """
        trial_id = self._trial_id(cell, trial.number)
        if not self._storage.reopen(trial_id, anew):
            return False
        place = {"cell": cell.key, "trial": trial.number, "trial_id": trial_id, "anew": anew}
        self._commands.add_in(connection, "reopen", place)
        return True

    def promote(self, connection: sql.Connection, cell: Cell, pruned: FrozenTrial) -> bool:
        """Let a pruned trial continue to its end; return False if another process was faster."""
        if not self.reopen(connection, cell, pruned):
            return False
        trial_id = self._trial_id(cell, pruned.number)
        self._storage.set_trial_user_attr(trial_id, PROMOTED, pruned.last_step or 0)
        return True

    def restore(self, connection: sql.Connection, space: Space, study_id: int, start: RunStart) -> None:
        """Set the trial of a run to running, as its record has it, in place of the one of this number in the storage.

        Missing numbers before it are filled with trials marked infeasible.

        Raises:
            ValueError: a searched value is outside of its range.
        """
        point, number = {"fixed_params": stored_point(space, start)}, start.trial
        marks = {name: getattr(start, name) for name in ("enqueued", "retries")}
        marks = {name: value for name, value in marks.items() if value is not None}
        while (n_known := len(self._storage.cell(study_id).trials)) < number:
            void = create_trial(state=TrialState.FAIL, user_attrs={"infeasible": True})
            self._storage.create_new_trial(study_id, void)
        if n_known == number:
            new = create_trial(state=TrialState.RUNNING, system_attrs=point, user_attrs=marks)
            self._storage.create_new_trial(study_id, new)
            return
        old = self._storage.cell(study_id).trials[number]
        if PROMOTED in old.user_attrs:
            marks[PROMOTED] = old.user_attrs[PROMOTED]
        self.reopen(connection, space.cell, old, anew=True)
        trial_id = self._trial_id(space.cell, number)
        self._storage.set_trial_system_attr(trial_id, *point.popitem())
        for name, value in marks.items():
            self._storage.set_trial_user_attr(trial_id, name, value)


def stored_point(space: Space, start: RunStart) -> dict[str, Any]:
    """Return a run's searched values as Optuna stores them.

    Raises:
        ValueError: one is outside of its search range.
    """
    point: dict[str, Any] = {}
    for name, value in start.sampled.items():
        point |= space.stored(name, TABLE[name].check(value))
    return point
