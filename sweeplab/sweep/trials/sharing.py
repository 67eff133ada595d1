"""How processes share a study: waiting for a storage that does not answer, leases of trials, and commands.

The storage is the database of the trials and the folder of the files: either may be unavailable for a while, or full.

A lease says which process may change which trial, in an own table beside Optuna's. It belongs to a process and lasts
LEASE_SECONDS by the database's clock, so the machines' clocks do not matter; a thread of the holder renews it. The
death of a process is noticed immediately on its own machine, elsewhere when its lease expires. `attempt` grows each
time a trial is taken over: a write is allowed if owner and attempt are still those of the lease.

A command is one row, added and never changed. The current state follows from applying all of them in order; the table
is also the log of commands and their times. The same statements run on SQLite and PostgreSQL.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import psutil
import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles

from sweeplab.errors import StorageUnavailable
from sweeplab.files import process_space
from sweeplab.formatting import duration
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.lab.server import reason_of
from sweeplab.lab.storage import READS, open_database
from sweeplab.records.folders import StudyFolder
from sweeplab.study.space import Cell
from sweeplab.study.spec import Budget

if TYPE_CHECKING:
    import optuna
T = TypeVar("T")
# How long workers and supervisors wait for a restarting or locked database, or for a full disk.
OUTAGE_SECONDS = 600.0
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
FAILURES = (OperationalError, InterfaceError)
DATABASE = "database"
LEASE_SECONDS = 15.0
RENEW_SECONDS = 4.0
RETRY_SECONDS = 0.5

# The tables that Optuna does not have: leases, and the commands of a study.
TABLES = sql.MetaData()
_LEASES = sql.Table(
    "sweeplab_lease",
    TABLES,
    sql.Column("trial_id", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("owner", sql.String(200), nullable=False),
    sql.Column("expires", sql.Float, nullable=False),
    sql.Column("attempt", sql.Integer, nullable=False),
)


@dataclass
class Availability:
    """Tracks whether a study's storage answers: its `database`, and the files of its folder, by kind.

    `limit` is how many seconds it may be unavailable, 0 where a person waits for the answer. `say` gets messages for
    the user; once `stopping` returns True nothing is retried.
    """

    name: str
    limit: float = 0.0
    say: Callable[[str], None] = lambda message: None
    stopping: Callable[[], bool] = lambda: False
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

    def attempt(self, call: Callable[[], bool | None], of: str) -> None:
        """Write files by a call that may be repeated later; it returns False if there was nothing to write.

        Raises:
            StorageUnavailable: they could not be written for longer than the limit.
        """
        try:
            has_written = call()
        except OSError as error:  # such as a full disk, with which training goes on
            self.note_failure(error, of)
        else:
            if has_written is not False:
                self.note_answer(of)

    def note_failure(self, error: Exception, of: str = DATABASE) -> None:
        """Record that the storage did not answer.

        Raises:
            StorageUnavailable: it has not answered for longer than the limit, or `stopping` returns True.
        """
        now = time.monotonic()
        why = (isinstance(error, OSError) and error.strerror) or reason_of(error)
        if "disk is full" in why:  # SQLite's words for it
            why = os.strerror(errno.ENOSPC)
        reason = f"the storage of study {self.name} does not answer: {why}"
        self._lost.add(of)
        if self._lost_since is None:
            self._lost_since = now
            if self.limit:
                self.say(
                    f"{reason}; training continues, and sweeplab retries for {duration(self.limit)}"
                )
        if now - self._lost_since >= self.limit or self.stopping():
            raise StorageUnavailable(reason) from error

    def note_answer(self, of: str = DATABASE) -> None:
        """Record that a part of the storage answered; it is available again once no other part is lost."""
        self._lost.discard(of)
        if self._lost_since is not None and not self._lost:
            lost, self._lost_since = time.monotonic() - self._lost_since, None
            self.say(f"the storage of study {self.name} answers again, after {duration(lost)}")


# ---------------------------------------------------------------------- leases


class now(sql.sql.expression.FunctionElement[float]):  # noqa: N801 - a function of SQL
    """The database's own clock, in seconds since 1970."""

    type = sql.Float()
    inherit_cache = True


@compiles(now, "sqlite")
def _now_of_sqlite(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _now_of_postgresql(*_: Any, **__: Any) -> str:
    return "extract(epoch FROM clock_timestamp())"


_ALL = sql.select(
    *(_LEASES.c[name] for name in ("trial_id", "owner", "attempt")),
    (_LEASES.c.expires < now()).label("is_over"),
)
_TAKE = sql.insert(_LEASES).values(attempt=1, expires=now() + LEASE_SECONDS)
_MINE = sql.select(_LEASES.c.trial_id, _LEASES.c.attempt).where(
    _LEASES.c.owner == sql.bindparam("who")
)


@dataclass(frozen=True)
class Owner:
    """A process that holds leases, with the kernel and container in which its process ID is valid."""

    host: str
    pid: int
    unique: str
    boot: str = ""
    pid_namespace: str = ""

    def __str__(self) -> str:
        return "|".join(map(str, vars(self).values()))

    @classmethod
    @lru_cache(maxsize=10_000)  # every claim reads the owners of all leases
    def read(cls, text: str) -> Owner:
        """Parse an owner from a lease."""
        host, pid, *rest = text.split("|")
        return cls(host, int(pid), *rest)

    @classmethod
    def of_this_process(cls) -> Owner:
        """Return a new owner for this process, unique on all machines."""
        return cls(socket.gethostname(), os.getpid(), uuid.uuid4().hex[:8], *process_space())

    @classmethod
    def nobody(cls) -> Owner:
        """Return the owner of trials that were given back."""
        return cls(socket.gethostname(), 0, "", *process_space())

    @property
    def is_nobody(self) -> bool:
        """Return whether the trial was given back."""
        return self.pid == 0

    @property
    def is_here(self) -> bool:
        """Return whether the process ID is one of this machine and container."""
        here = (socket.gethostname(), *process_space())
        return (self.host, self.boot, self.pid_namespace) == here

    @property
    def is_gone(self) -> bool:
        """Return whether the process is known to have ended."""
        if not self.is_here:
            return False
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


class Lease(NamedTuple):
    """The lease of a trial; `holder` is the owner's text."""

    trial_id: int
    holder: str
    attempt: int
    is_over: bool

    @property
    def owner(self) -> Owner:
        """Return the parsed holder."""
        return Owner.read(self.holder)

    @property
    def is_dead(self) -> bool:
        """Return whether the trial may be taken over: then its holder can no longer write it."""
        return self.is_over or self.owner.is_nobody or self.owner.is_gone


class Leases:
    """The leases of one database, for one owner; all calls but `renew` run in the caller's transaction."""

    def __init__(self, engine: sql.Engine) -> None:
        self._engine = engine
        self.owner = Owner.of_this_process()

    @staticmethod
    def all(connection: sql.Connection) -> dict[int, Lease]:
        """Return the leases by trial id."""
        return {row.trial_id: Lease._make(row) for row in connection.execute(_ALL)}

    def take(self, connection: sql.Connection, trial_ids: Collection[int]) -> None:
        """Take the leases of new trials."""
        connection.execute(
            _TAKE, [{"trial_id": each, "owner": str(self.owner)} for each in trial_ids]
        )

    def take_over(
        self, connection: sql.Connection, trial_id: int, lease: Lease | None
    ) -> int | None:
        """Take over a trial; return the attempt, or None if another process was faster."""
        # A worker of an earlier version died between asking for the trial and leasing it.
        if lease is None:
            self.take(connection, [trial_id])
            return 1
        held = self._held(lease.trial_id, lease.holder, lease.attempt)
        taken = {
            "owner": str(self.owner),
            "attempt": lease.attempt + 1,
            "expires": now() + LEASE_SECONDS,
        }
        n_taken = connection.execute(sql.update(_LEASES).where(held).values(**taken)).rowcount
        return lease.attempt + 1 if n_taken else None

    def held(self, connection: sql.Connection, attempts: Mapping[int, int]) -> set[int]:
        """Return which trials, given with their attempts, this owner holds, and lock them for the transaction."""
        rows = connection.execute(_MINE.with_for_update(), {"who": str(self.owner)})
        return {row.trial_id for row in rows if attempts.get(row.trial_id) == row.attempt}

    def give_back(self, connection: sql.Connection, trial_id: int, attempt: int) -> None:
        """Let the next claim take an unended trial; this does not count as an attempt."""
        mine = self._held(trial_id, str(self.owner), attempt)
        nobody = {"owner": str(Owner.nobody()), "expires": 0.0, "attempt": attempt - 1}
        connection.execute(sql.update(_LEASES).where(mine).values(**nobody))

    def drop(self, connection: sql.Connection, trial_id: int, attempt: int) -> bool:
        """Remove the lease of a trial that ends; return False if this owner no longer holds it."""
        mine = self._held(trial_id, str(self.owner), attempt)
        return bool(connection.execute(sql.delete(_LEASES).where(mine)).rowcount)

    def renew(self, trial_ids: Collection[int]) -> set[int]:
        """Extend the leases of these trials and return those that this owner still holds."""
        mine = (_LEASES.c.owner == str(self.owner), _LEASES.c.trial_id.in_(trial_ids))
        renewed = sql.update(_LEASES).where(*mine).values(expires=now() + LEASE_SECONDS)
        with self._engine.begin() as connection:
            return set(connection.execute(renewed.returning(_LEASES.c.trial_id)).scalars())

    @staticmethod
    def _held(trial_id: int, owner: str, attempt: int) -> sql.ColumnElement[bool]:
        columns = _LEASES.c
        return sql.and_(
            columns.trial_id == trial_id, columns.owner == owner, columns.attempt == attempt
        )


@contextmanager
def renewing(renew: Callable[[], object]) -> Iterator[None]:
    """Renew leases in a thread while the block runs."""
    ended = threading.Event()

    def work() -> None:
        wait = RENEW_SECONDS
        while not ended.wait(wait):
            try:
                renew()
                wait = RENEW_SECONDS
            # When the database is back, this has to precede another worker's claim.
            except SQLAlchemyError:
                wait = RETRY_SECONDS

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class LeaseLost(Exception):  # noqa: N818 - a state of the world, not a failure
    """Another worker holds the trial by now: this one may write nothing of it."""


@dataclass
class Claim:
    """A trial held by this worker; `attempt` counts the workers that have held it, this one included.

    `values` are those of its run with the study's first seed, and `seeds` those that it is trained with. `reported` has
    the iterations already reported to Optuna: they are not reported twice. `enqueued` has the values that a person
    gave. `promoted` is the iteration at which the trial was pruned before it was promoted; it is not pruned again.
    """

    cell: Cell
    number: int
    trial_id: int
    sampled: dict[str, Any]
    values: Hyperparameters
    attempt: int
    trial: optuna.Trial = field(repr=False)
    reported: set[int]
    enqueued: dict[str, Any] | None
    promoted: int | None
    seeds: list[int]


class Report(NamedTuple):
    """A trial's value at an iteration."""

    claim: Claim
    iteration: int
    value: float


class Verdicts(NamedTuple):
    """The outcome of reports, as trial ids: trials to be pruned (`behind`), and trials that others hold by now."""

    behind: set[int]
    lost: set[int]


# ---------------------------------------------------------------------- commands

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


@dataclass(frozen=True)
class ControlState:
    """The state after all commands up to `revision`.

    `budget` is None while the study file's budget applies. The last supervisor has `started` (seconds since 1970) with
    these `versions`, and `status` is how it ended. `stopped` are the trials to stop, as cell and number.
    """

    revision: int = 0
    phase: Phase = "run"
    budget: Budget | None = None
    stopped: frozenset[tuple[str, int]] = frozenset()
    versions: Mapping[str, str] = field(default_factory=dict)
    started: float = 0.0
    status: str | None = None

    def after(self, command: Command) -> ControlState:
        """Return the state after one more command; the revision rises even if nothing else changes."""
        changes = dict[str, Any]()
        value = command.value
        match command.kind:
            case "start":
                changes = {
                    "phase": "run",
                    "budget": None,
                    "status": None,
                    "started": command.given,
                    "versions": value.get("versions", {}),
                }
            case "ended":
                changes = {"phase": "ended", "status": value}
            case "wanted":  # the phase, as the databases of labs spell this kind
                changes = {"phase": value}
            case "budget":
                changes = {"budget": Budget.model_validate(value)}
            case "stop trial":
                changes = {"stopped": self.stopped | {(value["cell"], value["trial"])}}
            case "reopen":
                changes = {"stopped": self.stopped - {(value["cell"], value["trial"])}}
        return replace(self, revision=command.revision, **changes)


class Commands:
    """The commands of one study; `state` is the state as of the last reading."""

    def __init__(self, engine: sql.Engine, availability: Availability) -> None:
        self._engine = engine
        self._availability = availability
        self._reading = engine.execution_options(**READS)
        self.state = ControlState()

    @classmethod
    def open(cls, folder: StudyFolder) -> Commands:
        """Open the commands of a study; none is read yet."""
        return cls(open_database(folder.storage_url), Availability(folder.name))

    def read(self) -> list[Command]:
        """Return the commands that are new since the last time, and apply them to the state."""
        return self._availability.retry(self.read_once)

    def read_once(self) -> list[Command]:
        """Do the same in a single attempt; errors of the database are raised as they are."""
        query = _NEW.where(_COMMANDS.c.revision > self.state.revision)
        with self._reading.connect() as connection:
            rows = connection.execute(query).all()
        commands = [
            Command(row.revision, row.given, row.kind, json.loads(row.value)) for row in rows
        ]
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
    def add_in(connection: sql.Connection, kind: str, value: Any) -> None:
        """Add a command as part of a transaction of the caller's."""
        last = connection.execute(_LAST).scalar() or 0
        row = {
            "revision": last + 1,
            "given": time.time(),
            "kind": kind,
            "value": json.dumps(value),
        }
        connection.execute(sql.insert(_COMMANDS).values(**row))


def is_running(folder: StudyFolder, commands: Commands) -> bool:
    """Return whether a process that still reads commands runs the study."""
    return folder.is_run and commands.state.phase not in ("closing", "ended")
