"""Leases: which process may change which trial, in an own table beside Optuna's; and the trials that it has claimed.

A lease belongs to a process and lasts LEASE_SECONDS by the database's clock, so the machines' clocks do not matter; a
thread of the holder renews it. The death of a process is noticed immediately on its own machine, elsewhere when its
lease expires. `attempt` grows each time a trial is taken over: a write is allowed if owner and attempt are still those
of the lease. The same statements run on SQLite and PostgreSQL.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles

from sweeplab.files import process_space

if TYPE_CHECKING:
    import optuna

    from sweeplab.study.space import Cell

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
    *(_LEASES.c[name] for name in ("trial_id", "owner", "attempt", "expires")),
    (_LEASES.c.expires < now()).label("is_over"),
)
_TAKE = sql.insert(_LEASES).values(attempt=1, expires=now() + LEASE_SECONDS)
_MINE = sql.select(_LEASES.c.trial_id, _LEASES.c.attempt).where(_LEASES.c.owner == sql.bindparam("who"))


@dataclass(frozen=True)
class Owner:
    """A process that holds leases, with the kernel and container in which its process ID is valid."""

    host: str
    pid: int
    created: float
    unique: str
    boot: str = ""
    pid_namespace: str = ""

    def __str__(self) -> str:
        return "|".join(map(str, vars(self).values()))

    @classmethod
    @lru_cache(maxsize=10_000)  # every claim reads the owners of all leases
    def read(cls, text: str) -> Owner:
        """Parse an owner from a lease; in those of earlier versions kernel and container are missing."""
        host, pid, created, unique, *place = text.split("|")
        return cls(host, int(pid), float(created), unique, *place)

    @classmethod
    def of_this_process(cls) -> Owner:
        """Return a new owner for this process, unique on all machines."""
        process = psutil.Process()
        unique = uuid.uuid4().hex[:8]
        return cls(socket.gethostname(), process.pid, process.create_time(), unique, *process_space())

    @classmethod
    def nobody(cls) -> Owner:
        """Return the owner of trials that were given back."""
        return cls(socket.gethostname(), 0, 0.0, "", *process_space())

    @property
    def is_nobody(self) -> bool:
        """Return whether the trial was given back."""
        return self.pid == 0

    @property
    def is_here(self) -> bool:
        """Return whether the process ID is one of this machine and container."""
        place = (self.boot, self.pid_namespace)
        return self.host == socket.gethostname() and (place == process_space() or not any(place))

    @property
    def is_gone(self) -> bool:
        """Return whether the process is known to have ended.

        A process with this ID and another start time proves nothing: the clock may have been set.
        """
        if not self.is_here:
            return False
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


class Lease(NamedTuple):
    """The lease of a trial; `holder` is the owner's text, `expires` is in seconds of the database's clock."""

    trial_id: int
    holder: str
    attempt: int
    expires: float
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
        connection.execute(_TAKE, [{"trial_id": each, "owner": str(self.owner)} for each in trial_ids])

    def take_over(self, connection: sql.Connection, trial_id: int, lease: Lease | None) -> int | None:
        """Take over a trial; return the attempt, or None if another process was faster."""
        if lease is None:  # a worker of an earlier version died between asking for the trial and leasing it
            self.take(connection, [trial_id])
            return 1
        held = self._held(lease.trial_id, lease.holder, lease.attempt)
        taken = {"owner": str(self.owner), "attempt": lease.attempt + 1, "expires": now() + LEASE_SECONDS}
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
        return sql.and_(columns.trial_id == trial_id, columns.owner == owner, columns.attempt == attempt)


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
            except SQLAlchemyError:  # when the database is back, this has to precede another worker's claim
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

    `reported` has the iterations already reported to Optuna: they are not reported twice. `asked` has what a person
    asked for: the values that were `enqueued`, or the trial that it `retries`. `promoted` is the iteration at which the
    trial was pruned before it was promoted; it is not pruned again. `seed_offset` is added to each
    seed of the study.
    """

    cell: Cell
    number: int
    trial_id: int
    sampled: dict[str, Any]
    attempt: int
    trial: optuna.Trial = field(repr=False)
    reported: set[int]
    asked: dict[str, Any]
    promoted: int | None = None
    seed_offset: int = 0


class Report(NamedTuple):
    """A trial's value at an iteration."""

    claim: Claim
    iteration: int
    value: float


class Verdicts(NamedTuple):
    """The outcome of reports, as trial ids: trials to be pruned (`behind`), and trials that others hold by now."""

    behind: set[int]
    lost: set[int]
