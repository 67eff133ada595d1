"""A storage's database, opened so that several processes may write to it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event

BUSY_SECONDS = 60
# An execution option: what is asked under it only reads, and waits for no writer.
READS = {"sweeplab_reads": True}


def engine_arguments(url: str) -> dict[str, Any]:
    """Return what SQLAlchemy is to be told besides the URL."""
    return {"connect_args": {"timeout": BUSY_SECONDS}} if url.startswith("sqlite") else {}


def open_database(url: str) -> Engine:
    """Open a storage without Optuna, for what stands beside its tables."""
    return serialise(create_engine(url, **engine_arguments(url)))


def serialise(engine: Engine) -> Engine:
    """Let the processes that write to an SQLite file take turns; other databases do by themselves.

    A transaction that starts by reading and goes on to write gives SQLite no way to wait for its turn, and two
    workers would run one trial: every transaction takes the write lock first, but for those that only read.
    Write-ahead log, so readers never wait.
    """
    if engine.dialect.name != "sqlite":
        return engine

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        reads = connection.get_execution_options().keys() & READS
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    engine.dispose()
    return engine
