"""The commands that a study was given, and how long a process waits for a storage that does not answer.

A command is one row, added and never changed. The current state follows from applying all of them in order; the table
is also the log of commands and their times. The storage is the database of the trials and the folder of the files:
either may be unavailable for a while, or full.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError

from sweeplab.errors import StorageUnavailable
from sweeplab.formatting import duration
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.storage import PROMOTED, READS, open_database, reason_of
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunStart
from sweeplab.study.space import Cell, Space
from sweeplab.study.spec import Budget
from sweeplab.sweep.trials.leases import TABLES

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from sweeplab.sweep.trials.public import SharedStorage


T = TypeVar("T")
# How long workers and supervisors wait for a restarting or locked database, or for a full disk.
OUTAGE_SECONDS = 600.0
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
FAILURES = (OperationalError, InterfaceError)
DATABASE = "database"


@dataclass
class Availability:
    """Tracks whether a study's storage answers: its `database`, and the files of its folder, by kind.

    `limit` is how many seconds it may be unavailable, 0 where a person waits for the answer. `say` gets messages for
    the user; once `stopping` returns True nothing is retried. `holders` says who may lock the database and not let go.
    """

    name: str
    limit: float = 0.0
    say: Callable[[str], None] = lambda message: None
    stopping: Callable[[], bool] = lambda: False
    holders: Callable[[], str] = lambda: ""
    _lost_since: float | None = None
    _lost: set[str] = field(default_factory=set)

    def retry(self, call: Callable[[], T], of: str = DATABASE) -> T:
        """Make a call until the storage answers it.

        Raises:
            StorageUnavailable: it has not answered within the limit.
        """
        wait = _FIRST_WAIT
        while True:
            try:
                result = call()
            except (*FAILURES, OSError) as error:
                self.note_failure(error, of)
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                self.note_answer(of)
                return result

    def note_failure(self, error: Exception, of: str = DATABASE) -> None:
        """Record that the storage did not answer.

        Raises:
            StorageUnavailable: it has not answered for longer than the limit, or `stopping` returns True.
        """
        now = time.monotonic()
        why = (isinstance(error, OSError) and error.strerror) or reason_of(error)
        if "disk is full" in why:  # SQLite's words for it
            why = os.strerror(errno.ENOSPC)
        holders = self.holders() if of == DATABASE else ""
        why += f": {holders}" * bool(holders)
        reason = f"the storage of study {self.name} does not answer: {why}"
        self._lost.add(of)
        if self._lost_since is None:
            self._lost_since = now
            if self.limit:
                self.say(f"{reason}; training continues, and sweeplab retries for {duration(self.limit)}")
        if now - self._lost_since >= self.limit or self.stopping():
            raise StorageUnavailable(reason) from error

    def note_answer(self, of: str = DATABASE) -> None:
        """Record that a part of the storage answered; it is available again once no other part is lost."""
        self._lost.discard(of)
        if self._lost_since is not None and not self._lost:
            lost, self._lost_since = time.monotonic() - self._lost_since, None
            self.say(f"the storage of study {self.name} answers again, after {duration(lost)}")


# The phase that supervisor and workers follow: `over` means that the time budget is used up, `closing` that the
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
    """One row: when it was given (seconds since 1970), its kind, and its arguments as plain values."""

    revision: int
    given: float
    kind: str
    value: Any

    @property
    def reopened(self) -> tuple[str, int, bool]:
        """Return the cell and number of a reopened trial, and whether it starts without its earlier parameters."""
        return self.value["cell"], self.value["trial"], self.value.get("anew", False)


@dataclass(frozen=True)
class SupervisorStart:
    """What the process that runs the study recorded about itself when it started.

    `given` is the time of the start (seconds since 1970). `done_before` counts trials, `elapsed_before` seconds.
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
    """The state after all commands up to `revision`.

    `budget` is None while the study file's budget applies. `start` is the last supervisor's, and `status` is how it
    ended. `stopped` are the trials to stop, as cell and number; `pruned` those to prune.
    """

    revision: int = 0
    phase: Phase = "run"
    budget: Budget | None = None
    stopped: frozenset[tuple[str, int]] = frozenset()
    pruned: frozenset[tuple[str, int]] = frozenset()
    start: SupervisorStart = SupervisorStart()
    status: str | None = None

    def after(self, command: Command) -> ControlState:
        """Return the state after one more command; the revision rises even if nothing else changes."""
        changes, value = dict[str, Any](), command.value
        match command.kind:
            case "start":
                start = SupervisorStart(**{**value, "given": command.given})
                changes = {"phase": "run", "budget": None, "status": None, "start": start}
            case "ended":
                changes = {"phase": "ended", "status": value}
            case "wanted":  # the phase, as the databases of labs spell this kind
                changes = {"phase": value}
            case "budget":
                changes = {"budget": Budget.model_validate(value)}
            case "stop trial":
                changes = {"stopped": self.stopped | {(value["cell"], value["trial"])}}
            case "prune trial":
                changes = {"pruned": self.pruned | {(value["cell"], value["trial"])}}
            case "reopen":
                place = {(value["cell"], value["trial"])}
                changes = {"stopped": self.stopped - place, "pruned": self.pruned - place}
        return replace(self, revision=command.revision, **changes)


class Commands:
    """The commands of one study; `state` is the state as of the last reading."""

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
        """Do the same in a single attempt; errors of the database are raised as they are."""
        query = _NEW.where(_COMMANDS.c.revision > self.state.revision)
        with self._reading.connect() as connection:
            rows = connection.execute(query).all()
        commands = [Command(row.revision, row.given, row.kind, json.loads(row.value)) for row in rows]
        for command in commands:
            self.state = self.state.after(command)
        return commands

    def set_phase(self, phase: Phase, after: int | None = None) -> bool:
        """Set the phase that supervisor and workers follow; `after` and the result as in `add`."""
        return self.add("wanted", phase, after)

    def add(self, kind: str, value: Any = None, after: int | None = None) -> bool:
        """Add a command; with `after`, only if none was added since that revision. Return whether it was added."""

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
    """Return whether a process that still reads commands runs the study."""
    return folder.is_run and commands.state.phase not in ("closing", "ended")


class Reopening:
    """Reopens trials that have ended, pruned ones or such as disagree with their folders, in the caller's transaction.

    Optuna cannot reopen an ended trial, and processes read an ended trial only once. So the same transaction adds a row
    to the study's commands, and a process that reads the row reads the trial again. It stays one trial: a new one with
    the same values would be counted, modeled and compared at rungs twice.
    """

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
        from optuna.trial import TrialState, create_trial  # slow to import

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
