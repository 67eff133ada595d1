"""The database of a study's trials: opened so that several processes may write to it, and counted without Optuna.

Optuna would load every trial in full, while a list of many studies needs only a few counts of each.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.files import write_whole
from sweeplab.formatting import without_password
from sweeplab.lab.server import EVERYWHERE, Server, connected, is_loopback, reason_of
from sweeplab.lab.tables import counts
from sweeplab.permissions import STORAGE, allow, place_of
from sweeplab.processes import switched_off
from sweeplab.records.folders import (
    OWN_SERVER,
    StudyFolder,
    schema_url,
    service_url,
)
from sweeplab.records.runs import RunState

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

# The environment variable that names the database for new studies, if they are not to be in files.
VARIABLE = STORAGE.variable

BUSY_SECONDS = 60
# An execution option of SQLAlchemy: statements under it only read, and wait for no writer.
READS = {"sweeplab_reads": True}
READ_ONLY = "the storage may only be read: its folder or its file cannot be written"

# User attributes of Optuna trials. This one marks a trial that came from another study: its value names the source.
WARM_START = "warm_start"
# This one marks a trial with the same values as an earlier trial of its cell: its value is that trial's number.
REPEATS = "repeats"
# A trial that measures the values of an earlier one on other seeds; its value is what is added to each seed.
SEED_OFFSET = "seed_offset"
# A pruned trial that continues to its end; its value is the iteration at which it was pruned.
PROMOTED = "promoted"
# Optuna trials with one of these are not the study's own: they came from elsewhere, or were never trained.
VOID = ("infeasible", REPEATS, "withdrawn", WARM_START)

_LAST_START = """
SELECT kind, value
FROM sweeplab_order
WHERE revision >= (SELECT MAX(revision) FROM sweeplab_order WHERE kind = 'start')
AND kind IN ('start', 'wanted', 'budget', 'ended')
ORDER BY revision
"""


@dataclass
class TrialCounts:
    """How many trials are in each state: outcome, `enqueued`, or not ended.

    `last` is when the last of them ended or started, such as 2026-01-31 12:00:00, in this machine's time.
    """

    states: Counter[str] = field(default_factory=Counter)
    last: str = ""

    @property
    def counted(self) -> int:
        """Return how many of them count towards the budget."""
        return sum(self.states[state] for state in RunState if state.counts_towards_budget)


def count_trials(folder: StudyFolder) -> dict[str, TrialCounts]:
    """Return the counts of every cell that has a trial: by Optuna's tables, else by its public calls.

    Raises:
        BadInput: the storage cannot be read.
    """
    unfinished = {"RUNNING": str(folder.unfinished), "WAITING": "enqueued"}
    try:
        rows = _rows_by_optuna(folder) if switched_off() else _rows(folder, counts(VOID))
    except BadInput as error:  # it is damaged, or another version of Optuna has other tables
        rows = _rows_by_optuna(folder, error)
    cells: dict[str, TrialCounts] = {}
    for name, state, outcome, count, last in rows:
        of_cell = cells.setdefault(name.partition("/")[2], TrialCounts())
        of_cell.states[json.loads(outcome) if outcome else unfinished.get(state, state)] += (
            count
        )
        of_cell.last = max(of_cell.last, str(last or "")[:19])
    return cells


def _rows_by_optuna(folder: StudyFolder, problem: BadInput | None = None) -> list[Any]:
    """Make a row as of `counts` for each trial by Optuna's public calls; a failure is the earlier `problem`."""
    import optuna  # slow to import
    from sqlalchemy.exc import SQLAlchemyError

    rows = []
    try:
        url = folder.storage_url
        storage = optuna.storages.RDBStorage(url, engine_kwargs=engine_arguments(url))
        for name in optuna.get_all_study_names(storage):
            for trial in optuna.load_study(study_name=name, storage=storage).get_trials(
                deepcopy=False
            ):
                if not trial.user_attrs.keys() & {*VOID}:
                    outcome = trial.user_attrs.get("outcome")
                    last = trial.datetime_complete or trial.datetime_start
                    rows.append(
                        (name, trial.state.name, outcome and json.dumps(outcome), 1, last)
                    )
    except (optuna.exceptions.OptunaError, SQLAlchemyError, RuntimeError) as error:
        what = f"the storage of study {folder.name} does not answer: {reason_of(error)}"
        raise problem or BadInput(what) from error
    return rows


def last_start(folder: StudyFolder) -> list[tuple[str, Any]]:
    """Return kind and value of the last start of a study and of the commands after it that concern all of it.

    Raises:
        BadInput: the storage cannot be read.
    """
    return [(kind, json.loads(value)) for kind, value in _rows(folder, _LAST_START)]


def _rows(folder: StudyFolder, query: str) -> list[Any]:
    if not folder.storage_file.exists():
        folder.check_is_here()
        return folder.query(query)
    from sqlalchemy import text

    with connected(folder.storage_url, f"the storage of study {folder.name}") as connection:
        return [(*row,) for row in connection.execute(text(query))]


def rename_studies(url: str, old: str, new: str) -> None:
    """Rename the Optuna studies of a database whose names begin with a text.

    Optuna has no call for it: they are copied, by which their trials get other ids.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name in optuna.get_all_study_names(url):
        if name.startswith(old):
            renamed = new + name.removeprefix(old)
            with suppress(KeyError):  # there may be an earlier copy, perhaps of a part only
                optuna.delete_study(study_name=renamed, storage=url)
            optuna.copy_study(
                from_study_name=name, from_storage=url, to_storage=url, to_study_name=renamed
            )
            optuna.delete_study(study_name=name, storage=url)


def choose_storage(folder: StudyFolder, is_shared: bool = False) -> None:
    """Decide, for good, where a new study's trials are stored.

    They go to the database of SWEEPLAB_STORAGE, else to the lab's own server, else to a file. In PostgreSQL
    each study has its own schema, so that operations on one touch no other. If several machines share the study
    (`is_shared`) a file will not do.

    Raises:
        BadInput: SWEEPLAB_STORAGE names no PostgreSQL, or the database does not answer, or serves one machine only.
    """
    asked, server = os.environ.get(VARIABLE), Server(folder.lab)
    if is_shared and folder.database.exists():
        what = f"the trials of study {folder.name} are in an SQLite file, which only one machine may open"
        raise BadInput(
            f"{what}: continue with --engine local, or begin in PostgreSQL with a new --name"
        )
    is_new = not (folder.storage_file.exists() or folder.database.exists())
    if folder.is_on_own_server or (is_new and not asked and (is_shared or server.exists)):
        if is_shared and is_loopback(server.listens_on):
            start = f"{server.command('start')} --host {EVERYWHERE[0]}, on a machine that outlives the study"
            if server.is_running:
                start = f"{server.command('stop')}, then {start}"
            what = "several machines share the study, and the lab's storage serves one at most"
            raise BadInput(f"{what}: {start}; or {VARIABLE} names a database")
        server.check()
    if not is_new:
        return
    schema = f"{folder.name}-{uuid.uuid4().hex[:8]}"
    if asked:
        url, what = _asked_url(asked), f"{VARIABLE}: {without_password(asked)}"
        storage = schema_url(url, schema)
        allow(place_of(asked))
    elif server.exists:
        url, what = service_url(server.service), "the lab's storage"
        storage = f"{OWN_SERVER}{schema}"
    else:
        return
    from sqlalchemy.schema import CreateSchema

    with connected(url, what) as connection:
        connection.execute(CreateSchema(schema))
    write_whole(folder.storage_file, storage.encode(), mode=0o600)  # it may hold a password


def _asked_url(asked: str) -> URL:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    shown = "its value"
    with suppress(ArgumentError, ValueError):
        url, shown = make_url(asked), without_password(asked)
        # An @ in the host belongs to a password that is not escaped.
        if url.get_backend_name() == "postgresql" and "@" not in (url.host or ""):
            return url.set(drivername="postgresql+psycopg")
    allowed = "postgresql://USER:PASSWORD@HOST/DATABASE, an @ in the password as %40"
    raise BadInput(Problem(f"{VARIABLE}: {shown} is not a PostgreSQL address", allowed))


def engine_arguments(url: str) -> dict[str, Any]:
    """Return SQLAlchemy's arguments for an engine besides the URL."""
    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": BUSY_SECONDS}}
    return {}


def open_database(url: str) -> Engine:
    """Open a storage without Optuna, for tables besides Optuna's."""
    from sqlalchemy import create_engine

    return serialize(create_engine(url, **engine_arguments(url)))


def is_read_only(engine: Engine) -> bool:
    """Return whether the engine opens an SQLite file that this process may not write."""
    return "uri" in engine.url.query


def serialize(engine: Engine) -> Engine:
    """Let the processes that write to an SQLite file take turns; other databases do so by themselves.

    SQLite cannot let a transaction wait that reads first and then writes, and two workers would run the same trial.
    So every transaction takes the write lock first, except those that only read. With a write-ahead log readers
    never wait. A read-only file is left as it is.
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
