"""A storage's database, opened so that several processes may write to it."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from sweeplab.errors import BadInput, Problem

if TYPE_CHECKING:
    from sweeplab.records.folders import StudyFolder

# Where the trials of new studies are stored, if not in files.
VARIABLE = "SWEEPLAB_STORAGE"

BUSY_SECONDS = 60
# An execution option: what is asked under it only reads, and waits for no writer.
READS = {"sweeplab_reads": True}


def choose_storage(folder: StudyFolder) -> None:
    """Settle where a new study's trials are stored: where SWEEPLAB_STORAGE says, else in a file of its own.

    In PostgreSQL a study has a schema of its own: what is done to one touches no other.

    Raises:
        BadInput: SWEEPLAB_STORAGE names no such database, or it does not answer.
    """
    asked = os.environ.get(VARIABLE)
    if not asked or folder.storage_file.exists() or folder.database.exists():
        return
    try:
        url = make_url(asked)
    except ArgumentError:
        url = None
    if url is None or url.get_backend_name() != "postgresql":
        shown = url.render_as_string() if url else "what it holds"
        raise BadInput(
            Problem(f"{VARIABLE}: {shown} is no storage", "postgresql://USER:PASSWORD@HOST/DATABASE")
        )
    schema = f"{folder.name}-{uuid.uuid4().hex[:8]}"
    url = url.set(drivername="postgresql+psycopg")
    try:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(CreateSchema(schema))
        engine.dispose()
    except ModuleNotFoundError as error:
        raise BadInput(f"{VARIABLE} needs psycopg: pip install 'sweeplab[postgres]'") from error
    except SQLAlchemyError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise BadInput(f"{VARIABLE}: {url.render_as_string()} does not answer: {reason}") from error
    own = url.update_query_dict({"options": f'-csearch_path="{schema}"'})
    # It may hold a password.
    folder.storage_file.touch(mode=0o600)
    folder.storage_file.write_text(own.render_as_string(hide_password=False), encoding="utf-8")


def engine_arguments(url: str) -> dict[str, Any]:
    """Return what SQLAlchemy is to be told besides the URL."""
    return {"connect_args": {"timeout": BUSY_SECONDS}} if url.startswith("sqlite") else {}


def open_database(url: str) -> Engine:
    """Open a storage without Optuna, for what stands beside its tables."""
    return serialize(create_engine(url, **engine_arguments(url)))


def serialize(engine: Engine) -> Engine:
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
