"""The commands that a study was given: one row per command, added and never changed.

What holds now follows from all of them in turn, and the table is also the record of who asked for what when.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from sweeplab.lab.storage import READS, open_database
from sweeplab.records.folders import StudyFolder
from sweeplab.study.spec import Budget
from sweeplab.sweep.trials.availability import Availability
from sweeplab.sweep.trials.leases import TABLES

# What the supervisor and the workers are to do: `over` says that the budget of time is used up, `closing` that the
# supervisor is about to end.
Phase = Literal["run", "pause", "stop", "over", "closing", "ended"]

_COMMANDS = sql.Table(
    "sweeplab_order",
    TABLES,
    sql.Column("revision", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("given", sql.Float, nullable=False),
    sql.Column("kind", sql.String(50), nullable=False),
    sql.Column("value", sql.Text, nullable=False),
)
_NEW = sql.select(_COMMANDS).order_by(_COMMANDS.c.revision)
_LAST = sql.select(sql.func.max(_COMMANDS.c.revision))


@dataclass(frozen=True)
class Command:
    """One row: when it was given (seconds since 1970), its kind, and what belongs to it, as plain values."""

    revision: int
    given: float
    kind: str
    value: Any

    @property
    def reopened(self) -> tuple[str, int, bool]:
        """Return the cell and number of the trial that runs again, and whether the storage is told it anew."""
        return self.value["cell"], self.value["trial"], self.value.get("anew", False)


@dataclass(frozen=True)
class SupervisorStart:
    """What others may want to know of the process that runs the study, as it said when it started.

    `given` is when that was (seconds since 1970). `done_before` counts trials, `elapsed_before` seconds.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    host: str = ""
    pid: int = 0
    done_before: int = 0
    elapsed_before: float = 0.0
    given: float = 0.0


@dataclass(frozen=True)
class ControlState:
    """What holds after all commands up to `revision`.

    `budget` is None while the study file's holds. `start` is the last supervisor's, and `status` is how it ended.
    `stopped` are trials to end, as cell and number.
    """

    revision: int = 0
    phase: Phase = "run"
    budget: Budget | None = None
    stopped: frozenset[tuple[str, int]] = frozenset()
    start: SupervisorStart = SupervisorStart()
    status: str | None = None

    def after(self, command: Command) -> ControlState:
        """Return what holds after one more command; one of a kind that changes nothing raises the revision too."""
        state, value = replace(self, revision=command.revision), command.value
        match command.kind:
            case "start":
                start = SupervisorStart(**{**value, "given": command.given})
                return replace(state, phase="run", budget=None, status=None, start=start)
            case "ended":
                return replace(state, phase="ended", status=value)
            case "wanted":  # the phase, as it is spelled in the databases of labs
                return replace(state, phase=value)
            case "budget":
                return replace(state, budget=Budget.model_validate(value))
            case "stop trial":
                return replace(state, stopped=self.stopped | {(value["cell"], value["trial"])})
            case "reopen":
                return replace(state, stopped=self.stopped - {(value["cell"], value["trial"])})
        return state


class Commands:
    """The commands of one study; `state` is what held when they were last read."""

    def __init__(self, engine: sql.Engine, availability: Availability) -> None:
        self._engine, self._availability = engine, availability
        self._reading = engine.execution_options(**READS)
        self.state = ControlState()

    @classmethod
    def open(cls, folder: StudyFolder) -> Commands:
        """Open the commands of a study, read up to now.

        Raises:
            StorageUnavailable: its database does not answer.
        """
        commands = cls(open_database(folder.storage_url), Availability(folder.name))
        commands.read()
        return commands

    def read(self) -> list[Command]:
        """Return the commands that are new since the last time, and apply them to the state."""
        return self._availability.retry(self.read_once)

    def read_once(self) -> list[Command]:
        """Do the same once, whether the database answers or not."""
        query = _NEW.where(_COMMANDS.c.revision > self.state.revision)
        with self._reading.connect() as connection:
            rows = connection.execute(query).all()
        commands = [Command(row.revision, row.given, row.kind, json.loads(row.value)) for row in rows]
        for command in commands:
            self.state = self.state.after(command)
        return commands

    def set_phase(self, phase: Phase, after: int | None = None) -> bool:
        """Say what the supervisor and the workers are to do; `after` as in `add`."""
        return self.add("wanted", phase, after)

    def add(self, kind: str, value: Any = None, after: int | None = None) -> bool:
        """Add a command; with `after`, only if none was added since that revision. Say whether it was added."""

        def add() -> bool:
            with self._engine.begin() as connection:
                last = connection.execute(_LAST).scalar() or 0
                if after not in (None, last):
                    return False
                self.add_in(connection, kind, value)
                return True

        while True:
            with suppress(IntegrityError):  # on PostgreSQL another process was faster
                return self._availability.retry(add)

    @staticmethod
    def add_in(connection: sql.Connection, kind: str, value: Any = None) -> None:
        """Add a command as part of a transaction of the caller's."""
        last = connection.execute(_LAST).scalar() or 0
        row = {"revision": last + 1, "given": time.time(), "kind": kind, "value": json.dumps(value)}
        connection.execute(sql.insert(_COMMANDS).values(**row))


def is_running(folder: StudyFolder, commands: Commands) -> bool:
    """Say whether the study is run by a process that still reads commands."""
    return folder.is_run and commands.state.phase not in ("closing", "ended")
