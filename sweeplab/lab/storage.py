"""The database of a study's trials: opened so that several processes may write to it, and counted without Optuna.

Optuna's own reading loads every trial whole; a list of many studies shows a few sums of each.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.files import read_only_uri
from sweeplab.formatting import without_password, without_passwords
from sweeplab.records.runs import RunState

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from sweeplab.records.folders import StudyFolder

# Where the trials of new studies are stored, if not in files.
VARIABLE = "SWEEPLAB_STORAGE"

BUSY_SECONDS = 60
# An execution option: what is asked under it only reads, and waits for no writer.
READS = {"sweeplab_reads": True}

# What marks a trial in Optuna's storage that came from elsewhere; its value there says where it is from.
WARM_START = "warm_start"
# What marks one whose values another trial of its cell has: its value is that trial's number.
REPEATS = "repeats"
# Trials of Optuna's that are none of the study's own: known from elsewhere, or left over of what came to nothing.
VOID = ("infeasible", REPEATS, "withdrawn", WARM_START)

_QUERY = f"""
SELECT study_name, state, outcome.value_json, COUNT(*), MIN(value)
FROM trials
JOIN studies USING (study_id)
LEFT JOIN trial_values USING (trial_id)
LEFT JOIN trial_user_attributes AS outcome ON outcome.trial_id = trials.trial_id AND outcome.key = 'outcome'
WHERE trials.trial_id NOT IN (SELECT trial_id FROM trial_user_attributes WHERE key IN {VOID})
GROUP BY study_name, state, outcome.value_json
"""
_Row = tuple[str, str, str | None, int, float | None]


@dataclass
class TrialCounts:
    """Trials by outcome, or `enqueued`, or the state of what has not ended, and the lowest value of each outcome."""

    states: Counter[str] = field(default_factory=Counter)
    lowest: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> float | None:
        """Return the lowest value of a trial that came to an end of its own."""
        return min((value for state, value in self.lowest.items() if RunState(state).has_value), default=None)


def count_trials(folder: StudyFolder) -> dict[str, TrialCounts]:
    """Return the counts of every cell that has a trial.

    Raises:
        BadInput: the storage cannot be read.
    """
    unfinished = {"RUNNING": str(folder.unfinished), "WAITING": "enqueued"}
    found: dict[str, TrialCounts] = {}
    for name, state, outcome, count, value in _rows(folder):
        counts = found.setdefault(name.partition("/")[2], TrialCounts())
        how = json.loads(outcome) if outcome else unfinished.get(state, state)
        counts.states[how] += count
        if value is not None and outcome:
            counts.lowest[how] = min(value, counts.lowest.get(how, value))
    return found


def _rows(folder: StudyFolder) -> list[_Row]:
    if folder.storage_file.exists():
        return _rows_elsewhere(folder)
    import sqlite3

    try:
        with closing(sqlite3.connect(read_only_uri(folder.database), uri=True)) as connection:
            return connection.execute(_QUERY).fetchall()
    except sqlite3.Error as error:
        raise folder.damaged(folder.database, error) from error


def _rows_elsewhere(folder: StudyFolder) -> list[_Row]:
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        engine = open_database(folder.storage_url)
        with engine.connect() as connection:
            rows = [(*row,) for row in connection.execute(text(_QUERY))]
        engine.dispose()
    except SQLAlchemyError as error:
        raise BadInput(f"the storage of study {folder.name} does not answer: {reason_of(error)}") from error
    return rows


def choose_storage(folder: StudyFolder) -> None:
    """Settle where a new study's trials are stored: where SWEEPLAB_STORAGE says, else in a file of its own.

    In PostgreSQL a study has a schema of its own: what is done to one touches no other.

    Raises:
        BadInput: SWEEPLAB_STORAGE names no such database, or it does not answer.
    """
    asked = os.environ.get(VARIABLE)
    if not asked or folder.storage_file.exists() or folder.database.exists():
        return
    import uuid

    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
    from sqlalchemy.schema import CreateSchema

    try:
        url = make_url(asked)
    except (ArgumentError, ValueError):
        url = None
    # An @ in the host is one of a password that is not escaped.
    if url is None or url.get_backend_name() != "postgresql" or "@" in (url.host or ""):
        shown = without_password(asked) if url else "what it holds"
        allowed = "postgresql://USER:PASSWORD@HOST/DATABASE, an @ of the password as %40"
        raise BadInput(Problem(f"{VARIABLE}: {shown} is no storage", allowed))
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
        what = f"{without_password(asked)} does not answer: {reason_of(error)}"
        raise BadInput(f"{VARIABLE}: {what}") from error
    own = url.update_query_dict({"options": f'-csearch_path="{schema}"'})
    # It may hold a password.
    folder.storage_file.touch(mode=0o600)
    folder.storage_file.write_text(own.render_as_string(hide_password=False), encoding="utf-8")


def reason_of(error: Exception) -> str:
    """Return in one line why a database does not answer."""
    return without_passwords(str(error.__cause__ or error).strip().partition("\n")[0])


def engine_arguments(url: str) -> dict[str, Any]:
    """Return what SQLAlchemy is to be told besides the URL."""
    return {"connect_args": {"timeout": BUSY_SECONDS}} if url.startswith("sqlite") else {}


def open_database(url: str) -> Engine:
    """Open a storage without Optuna, for what stands beside its tables."""
    from sqlalchemy import create_engine

    return serialize(create_engine(url, **engine_arguments(url)))


def is_read_only(engine: Engine) -> bool:
    """Say whether this process may only read what the engine opens: an SQLite file that it may not write."""
    return "uri" in engine.url.query


def serialize(engine: Engine) -> Engine:
    """Let the processes that write to an SQLite file take turns; other databases do by themselves.

    A transaction that starts by reading and goes on to write gives SQLite no way to wait for its turn, and two
    workers would run one trial: every transaction takes the write lock first, but for those that only read.
    Write-ahead log, so readers never wait. What may only be read is left as it is.
    """
    if engine.dialect.name != "sqlite" or is_read_only(engine):
        return engine
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        reads = connection.get_execution_options().keys() & READS
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    engine.dispose()
    return engine
