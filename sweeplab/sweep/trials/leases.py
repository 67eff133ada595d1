"""Who holds which trial: leases, in a table of our own beside Optuna's.

A lease belongs to a process and lasts LEASE_SECONDS by the database's clock, so no machine's own matters; a thread
of the holder renews it. On its own machine a process that has died is noticed at once, elsewhere when its lease has
run out. `attempt` grows each time a trial is taken over: owner and attempt together say whether a write may still be
made. SQLite and PostgreSQL serve the same statements.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import psutil
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles

from sweeplab.files import process_space

LEASE_SECONDS = 15.0
RENEW_SECONDS = 4.0
RETRY_SECONDS = 0.5

# Our own tables: leases, and the commands that a study was given.
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
_MINE = (
    sql.select(_LEASES.c.trial_id, _LEASES.c.attempt)
    .where(_LEASES.c.owner == sql.bindparam("who"))
    .with_for_update()
)
_DROP = sql.delete(_LEASES).where(
    _LEASES.c.trial_id == sql.bindparam("trial"),
    _LEASES.c.owner == sql.bindparam("who"),
    _LEASES.c.attempt == sql.bindparam("which"),
)


@dataclass(frozen=True)
class Owner:
    """A process that holds leases, and the kernel and the container that its number counts in."""

    host: str
    pid: int
    created: float
    unique: str
    boot: str = ""
    pid_namespace: str = ""

    def __str__(self) -> str:
        return "|".join(map(str, vars(self).values()))

    @classmethod
    @lru_cache(maxsize=10_000)  # every claim looks at the owners of all leases
    def read(cls, text: str) -> Owner:
        """Read an owner as a lease has it; those of earlier versions lack kernel and container."""
        host, pid, created, unique, *place = text.split("|")
        return cls(host, int(pid), float(created), unique, *place)

    @classmethod
    def of_this_process(cls) -> Owner:
        """Return a new owner, unique on all machines, that lives as long as this process."""
        process = psutil.Process()
        unique = uuid.uuid4().hex[:8]
        return cls(socket.gethostname(), process.pid, process.create_time(), unique, *process_space())

    @classmethod
    def nobody(cls) -> Owner:
        """Return the owner of a trial that was given back."""
        return cls(socket.gethostname(), 0, 0.0, "", *process_space())

    @property
    def is_nobody(self) -> bool:
        """Say whether the trial was given back."""
        return self.pid == 0

    @property
    def is_here(self) -> bool:
        """Say whether the process, if it lives, is one that this machine and container has a number of."""
        place = (self.boot, self.pid_namespace)
        return self.host == socket.gethostname() and (place == process_space() or not any(place))

    @property
    def is_gone(self) -> bool:
        """Say whether the process is known to have ended.

        A process of its number that started at another time may be it, after the clock was set, or may not.
        """
        if not self.is_here:
            return False
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


class Lease(NamedTuple):
    """Who holds a trial, as the owner's text; `expires` in seconds of the database's clock, `is_over` by then."""

    trial_id: int
    holder: str
    attempt: int
    expires: float
    is_over: bool

    @property
    def owner(self) -> Owner:
        """Return who holds the trial."""
        return Owner.read(self.holder)

    @property
    def is_dead(self) -> bool:
        """Say whether the trial may be taken over: whoever held it can write nothing of it from then on."""
        return self.is_over or self.owner.is_nobody or self.owner.is_gone


class Leases:
    """The leases of one database, as one owner sees them; but for `renew` in a transaction of the caller's."""

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
        """Take a trial from its dead holder, if it had one; return the attempt, None if another was faster."""
        if lease is None:  # a worker of an earlier version died between asking for it and taking its lease
            self.take(connection, [trial_id])
            return 1
        held = self._held(lease.trial_id, lease.holder, lease.attempt)
        taken = {"owner": str(self.owner), "attempt": lease.attempt + 1, "expires": now() + LEASE_SECONDS}
        found = connection.execute(sql.update(_LEASES).where(held).values(**taken)).rowcount
        return lease.attempt + 1 if found else None

    def held(self, connection: sql.Connection, attempts: Mapping[int, int]) -> set[int]:
        """Return which trials, given with their attempts, are this owner's, and stay so until the transaction ends."""
        rows = connection.execute(_MINE, {"who": str(self.owner)})
        return {row.trial_id for row in rows if attempts.get(row.trial_id) == row.attempt}

    def give_back(self, connection: sql.Connection, trial_id: int, attempt: int) -> None:
        """Let the next claim take up a trial that has not ended; it counts as no attempt."""
        mine = self._held(trial_id, str(self.owner), attempt)
        nobody = {"owner": str(Owner.nobody()), "expires": 0.0, "attempt": attempt - 1}
        connection.execute(sql.update(_LEASES).where(mine).values(**nobody))

    def drop(self, connection: sql.Connection, trial_id: int, attempt: int) -> bool:
        """Remove the lease of a trial that ends; False where it is not this owner's any more."""
        values = {"trial": trial_id, "who": str(self.owner), "which": attempt}
        return bool(connection.execute(_DROP, values).rowcount)

    def renew(self, trial_ids: Collection[int]) -> set[int]:
        """Extend the leases of these trials and return those that this owner still holds."""
        columns = _LEASES.c
        mine = sql.and_(columns.owner == str(self.owner), columns.trial_id.in_(trial_ids))
        renewed = sql.update(_LEASES).where(mine).values(expires=now() + LEASE_SECONDS)
        with self._engine.begin() as connection:
            return set(connection.execute(renewed.returning(columns.trial_id)).scalars())

    @staticmethod
    def _held(trial_id: int, owner: str, attempt: int) -> sql.ColumnElement[bool]:
        columns = _LEASES.c
        return sql.and_(columns.trial_id == trial_id, columns.owner == owner, columns.attempt == attempt)


class Renewal:
    """A thread that renews leases while the process lives."""

    def __init__(self, renew: Callable[[], object]) -> None:
        self._renew = renew
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Renewal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        wait = RENEW_SECONDS
        while not self._ended.wait(wait):
            try:
                self._renew()
                wait = RENEW_SECONDS
            except (
                SQLAlchemyError
            ):  # once the database is back this has to come before another worker's claim
                wait = RETRY_SECONDS
