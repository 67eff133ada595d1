"""Trials that have ended and run again: pruned ones that are promoted, and those whose records say other things.

Optuna knows no way back from an end, and processes read an ended trial once. So each such trial is also a row of the
study's commands, in the same transaction: who reads it reads the trial again. It stays one trial: a new one with its
values would be counted, sampled from and compared at rungs twice.
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
    """Lets trials run again; all in a transaction of the caller's."""

    def __init__(self, storage: TrialStorage, commands: Commands) -> None:
        self._storage, self._commands = storage, commands
        self._heard: set[int] = set()  # trials that run again, of which the storage's copy may not know

    def hear(self, command: Command) -> None:
        """Take note that a trial runs again."""
        self._heard.add(command.value["trial_id"])

    def read(self) -> None:
        """Read the trials that run again."""
        if self._heard:
            self._storage.read_again(self._heard)
            self._heard.clear()

    def reopen(self, connection: sql.Connection, cell: Cell, trial: FrozenTrial, anew: bool = False) -> bool:
        """Let a trial that has ended run under nobody's lease; False where another process was faster.

        `anew`: without parameters, reports and attributes.
        """
        if not self._storage.reopen(trial._trial_id, anew):
            return False
        place = {"cell": cell.key, "trial": trial.number, "trial_id": trial._trial_id, "anew": anew}
        self._commands.add_in(connection, "reopen", place)
        return True

    def promote(self, connection: sql.Connection, cell: Cell, pruned: FrozenTrial) -> bool:
        """Let a pruned trial go on to its end; False where another process was faster."""
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
        """Let a trial of these parameters run, in place of what the storage has of its number.

        Numbers before it that the storage does not know are those of trials that broke a constraint.
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
