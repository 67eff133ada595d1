"""Reopen trials that have ended: pruned trials that are promoted, and trials that disagree with their run folders.

Optuna cannot reopen an ended trial, and processes read an ended trial only once. So the same transaction adds a row to
the study's commands, and a process that reads the row reads the trial again. It stays one trial: a new trial with the
same values would be counted, modeled and compared at rungs twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sql
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeplab.study.space import Cell
from sweeplab.sweep.trials.commands import Command, Commands
from sweeplab.sweep.trials.counting import PROMOTED
from sweeplab.sweep.trials.storage import TrialStorage


class Reopening:
    """Reopens trials, always within a transaction of the caller's."""

    def __init__(self, storage: TrialStorage, commands: Commands) -> None:
        self._storage, self._commands = storage, commands
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
        if not self._storage.reopen(trial._trial_id, anew):
            return False
        place = {"cell": cell.key, "trial": trial.number, "trial_id": trial._trial_id, "anew": anew}
        self._commands.add_in(connection, "reopen", place)
        return True

    def promote(self, connection: sql.Connection, cell: Cell, pruned: FrozenTrial) -> bool:
        """Let a pruned trial continue to its end; return False if another process was faster."""
        if not self.reopen(connection, cell, pruned):
            return False
        self._storage.set_trial_user_attr(pruned._trial_id, PROMOTED, pruned.last_step or 0)
        return True

    def restore(
        self,
        connection: sql.Connection,
        cell: Cell,
        study_id: int,
        number: int,
        point: Mapping[str, Any],
        asked: Mapping[str, Any],
    ) -> None:
        """Set a trial with these parameters to running, in place of the one that the storage has under its number.

        Missing numbers before it are filled with trials marked infeasible.
        """
        given = {"fixed_params": dict(point)}
        marks = {name: value for name, value in asked.items() if value is not None}
        while (n_known := len(self._storage.cell(study_id).trials)) < number:
            void = create_trial(state=TrialState.FAIL, user_attrs={"infeasible": True})
            self._storage.create_new_trial(study_id, void)
        if n_known == number:
            new = create_trial(state=TrialState.RUNNING, system_attrs=given, user_attrs=marks)
            self._storage.create_new_trial(study_id, new)
            return
        old = self._storage.cell(study_id).trials[number]
        marks |= {PROMOTED: old.user_attrs[PROMOTED]} if PROMOTED in old.user_attrs else {}
        self.reopen(connection, cell, old, anew=True)
        self._storage.set_trial_system_attr(old._trial_id, "fixed_params", dict(point))
        for name, value in marks.items():
            self._storage.set_trial_user_attr(old._trial_id, name, value)
