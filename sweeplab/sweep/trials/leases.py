"""Who holds which trial: leases and one lock, in tables of our own beside Optuna's.

A lease belongs to a process. On its own machine a process that has died is noticed at once, elsewhere when the
lease runs out. SQLite and PostgreSQL serve the same statements.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

LEASE_SECONDS = 120.0
LOCK_SECONDS = 60.0
_LOCK_POLL_SECONDS = 0.003

# Our own tables: leases and the lock, and the commands that a study was given.
TABLES = sql.MetaData()
_LEASES = sql.Table(
    "sweeplab_lease",
    TABLES,
    sql.Column("trial_id", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("owner", sql.String(200), nullable=False),
    sql.Column("expires", sql.Float, nullable=False),
    sql.Column("attempt", sql.Integer, nullable=False),
)
_LOCKS = sql.Table(
    "sweeplab_lock",
    TABLES,
    sql.Column("name", sql.String(50), primary_key=True),
    sql.Column("owner", sql.String(200), nullable=False),
    sql.Column("expires", sql.Float, nullable=False),
)
_LOCK = sql.select(_LOCKS).where(_LOCKS.c.name == "storage")


def owner_of_this_process() -> str:
    """Return a new holder of leases, unique on all machines, that lives as long as this process."""
    process = psutil.Process()
    created, unique = repr(process.create_time()), uuid.uuid4().hex[:8]
    return f"{socket.gethostname()}|{process.pid}|{created}|{unique}"


def is_dead(owner: str, expires: float) -> bool:
    """Say whether a holder is dead: its process on this machine is, or its lease has run out.

    A process of its number that started at another time may be it, after the clock was set, or may not:
    then too its lease decides.
    """
    host, pid, created, _ = owner.split("|")
    is_over = expires < time.time()
    if host != socket.gethostname():
        return is_over
    try:
        process = psutil.Process(int(pid))
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return is_over and process.create_time() != float(created)
    except psutil.NoSuchProcess:
        return True


class Leases:
    """The leases of one storage, as one owner sees them."""

    def __init__(self, engine: sql.Engine) -> None:
        self._engine = engine
        self.owner = owner_of_this_process()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the storage's one lock; claims and endings take turns under it."""
        while not self._try_lock():
            time.sleep(_LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            with self._engine.begin() as connection:
                connection.execute(sql.delete(_LOCKS).where(_LOCKS.c.owner == self.owner))

    def _try_lock(self) -> bool:
        expires = time.time() + LOCK_SECONDS
        try:
            with self._engine.begin() as connection:
                held = connection.execute(_LOCK).first()
                if held and not is_dead(held.owner, held.expires):
                    return False
                if held:
                    connection.execute(sql.delete(_LOCKS).where(_LOCKS.c.owner == held.owner))
                values = {"name": "storage", "owner": self.owner, "expires": expires}
                connection.execute(sql.insert(_LOCKS).values(**values))
        except IntegrityError:  # another process was faster
            return False
        return True

    def all(self) -> dict[int, sql.Row[tuple[int, str, float, int]]]:
        """Return the leases by trial id."""
        with self._engine.begin() as connection:
            return {row.trial_id: row for row in connection.execute(sql.select(_LEASES))}

    def lock_holder(self) -> sql.Row[tuple[str, str, float]] | None:
        """Return who holds the lock and until when, or None."""
        with self._engine.begin() as connection:
            return connection.execute(_LOCK).first()

    def take(self, trial_id: int, attempt: int) -> None:
        """Take a trial's lease, from its dead holder if it had one; under the lock."""
        row = {"trial_id": trial_id, "owner": self.owner, "attempt": attempt}
        with self._engine.begin() as connection:
            connection.execute(sql.delete(_LEASES).where(_LEASES.c.trial_id == trial_id))
            connection.execute(sql.insert(_LEASES).values(**row, expires=time.time() + LEASE_SECONDS))

    def requeue(self, trial_id: int, attempt: int) -> None:
        """Requeue a trial that has not ended: the next claim takes it up, and this counts as no attempt."""
        mine = sql.and_(_LEASES.c.trial_id == trial_id, _LEASES.c.owner == self.owner)
        nobody = {"owner": f"{socket.gethostname()}|0|0|", "expires": 0.0, "attempt": attempt - 1}
        with self._engine.begin() as connection:
            connection.execute(sql.update(_LEASES).where(mine).values(**nobody))

    def drop(self, trial_id: int) -> None:
        """Remove the lease of a trial that has ended."""
        with self._engine.begin() as connection:
            connection.execute(sql.delete(_LEASES).where(_LEASES.c.trial_id == trial_id))

    def renew(self) -> set[int]:
        """Extend all of the owner's leases and return the trials it still holds."""
        with self._engine.begin() as connection:
            mine = _LEASES.c.owner == self.owner
            connection.execute(sql.update(_LEASES).where(mine).values(expires=time.time() + LEASE_SECONDS))
            return set(connection.execute(sql.select(_LEASES.c.trial_id).where(mine)).scalars())
