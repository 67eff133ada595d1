"""Find where tracking is, and connect to it."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.files import cache_folder, database_url, make_folder, write_whole
from sweeplab.formatting import without_password, without_passwords
from sweeplab.permissions import TRACKING, check_address, is_given, place_of
from sweeplab.processes import switched_off
from sweeplab.records.folders import check_inside

if TYPE_CHECKING:
    from mlflow import MlflowClient

SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")
SERVERS = ("http", "https", "databricks")
_REASON = re.compile(
    r"Connection refused|Connection reset|No route to host|Name or service not known|Failed to resolve '[^']*'"
    r"|timed out|Connection aborted|certificate verify failed"
)

SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Otherwise a server's client prints two links per run to standard output, which programs read.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # With retries MLflow blocks for minutes if no server answers, and creates a run twice if only the answer was lost.
    # Here the next ship is the retry.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "GIT_PYTHON_REFRESH": "quiet",
}
# MLflow reads some of these when it is imported, so they are set before any function here can import it.
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)


def tracking_uri(lab: Path, uri: str | None = None) -> str:
    """Return the absolute tracking URI, as `planned_uri` does, of a place that may be contacted.

    Raises:
        BadInput: as `planned_uri` does, or only a study file or the lab names the place.
    """
    address = planned_uri(lab, uri)
    database = database_file(address)
    if uri and not (database and database.resolve().is_relative_to(lab.resolve())):
        check_address(TRACKING, address)
    elif database and is_of_lab(lab, address):
        check_inside(lab, database)
    return address


def planned_uri(lab: Path, uri: str | None = None) -> str:
    """Return the absolute tracking URI: `uri`, else $MLFLOW_TRACKING_URI, else a database in the lab.

    `uri` comes from a study; if the environment names the same place with a password, the environment's is used.

    Raises:
        BadInput: MLflow does not know the scheme.
    """
    named = os.environ.get(TRACKING.variable)
    if not uri or (named and place_of(named) == place_of(uri)):
        uri = named or uri or database_url(lab / "mlflow.db")
    if _scheme(uri) not in SCHEMES:
        allowed = "sqlite:///FILE, postgresql://…, mysql://…, or a server's http(s)://…"
        raise BadInput(
            f"tracking URI {without_password(uri)!r} is unknown to MLflow; allowed: {allowed}"
        )
    if _scheme(uri) in SERVERS and not _is_escaped(uri):
        # Otherwise a part of the password would be taken for the host.
        allowed = "%2F for /, %23 for #, %3F for ?, %40 for @"
        raise BadInput(
            f"tracking URI {without_password(uri)!r} has unescaped characters; allowed: {allowed}"
        )
    database = database_file(uri)
    if database:
        return database_url(database)
    return uri


def _is_escaped(uri: str) -> bool:
    try:
        return urlsplit(uri).hostname == urlsplit(without_password(uri)).hostname
    except ValueError:  # an unclosed bracket
        return False


def database_file(uri: str) -> Path | None:
    """Return the absolute path of the SQLite file at `uri`, or None if it is something else."""
    if _scheme(uri) != "sqlite":
        return None
    if "%" not in uri and "?" not in uri:
        return Path(uri.partition("://")[2].partition("/")[2]).absolute()
    from sqlalchemy import make_url  # slow to import

    return Path(make_url(uri).database or "").absolute()


def artifact_location(lab: Path, uri: str) -> str | None:
    """Return where a new experiment's files go: into the lab, or None if a server decides."""
    if _scheme(uri) in SERVERS:
        return None
    return (lab / "artifacts").absolute().as_uri()


def check_location(lab: Path, uri: str, location: str) -> None:
    """Make sure that the place of a run's files is in the lab, if a database names it that the user has not named.

    Raises:
        BadInput: it is elsewhere.
    """
    if is_of_lab(lab, uri) or (database_file(uri) and not is_given(TRACKING, uri)):
        check_inside(
            lab, folder_at(location) if location.startswith("file:") else Path(f"/{location}")
        )


@contextmanager
def reaching(uri: str) -> Iterator[None]:
    """Turn errors of calls to the tracking at `uri` into TrackingUnavailable, in one line.

    Raises:
        TrackingUnavailable: MLflow does not answer, or refuses a call.
    """
    try:
        yield
    except Exception as error:
        # Slow to import, so not before it is needed.
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError  # such as for a file that is no database

        if not isinstance(error, MlflowException | SQLAlchemyError | OSError):
            raise
        place = without_password(uri)
        text = without_passwords(str(error).replace(uri, place))
        # When a connection fails, the libraries add long messages around the reason.
        reason, message = _REASON.search(text), text.partition("\n")[0]
        if reason and _scheme(uri) in SERVERS:
            message = f"no answer ({reason[0]})"
        raise TrackingUnavailable(f"{place}: {message}") from error


def connect(lab: Path, uri: str) -> MlflowClient:
    """Return a client of the tracking at `uri`; create its SQLite database if the file does not exist yet.

    Creating a database takes seconds, and fails if two processes do it at the same time: it is created once, under a
    lock and a temporary name. Its empty tables are kept in the user's cache, for the next lab.
    """
    with warnings.catch_warnings():
        # MLflow's use of SQLAlchemy is not our caller's concern, who may treat warnings as errors.
        warnings.simplefilter("ignore", DeprecationWarning)
        from filelock import FileLock
        from mlflow import MlflowClient

        # Errors are raised and shown in one line anyway; these loggers would print a page each time.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        database = database_file(uri)
        if database and not database.exists():
            make_folder(database.parent)
            with FileLock(database.with_name(f"{database.name}.lock")):
                if not database.exists():
                    create_database(database, str(artifact_location(lab, uri)))
        point_files_here(lab, uri)
        return MlflowClient(uri)


def is_of_lab(lab: Path, uri: str) -> bool:
    """Return whether tracking is the lab's own database."""
    return uri == database_url((lab / "mlflow.db").absolute())


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].partition("+")[0]


# ------------------------------------------------------------------ MLflow's own tables
# MLflow does not document them. What its public functions cannot do: create an empty database from a copy, and point a
# moved lab's runs to its files. With SWEEPLAB_PUBLIC_ONLY nothing is changed: `Experiment.find` begins another
# experiment, to which all runs are sent again.


def folder_at(location: str) -> Path:
    """Return the folder that a file:// URI names."""
    return Path(unquote(urlsplit(location).path))


# The locations of studies' files, if not here.
_ELSEWHERE = """
SELECT DISTINCT artifact_location FROM experiments
WHERE artifact_location != ? AND artifact_location LIKE 'file://%/artifacts' AND experiment_id IN
    (SELECT experiment_id FROM runs JOIN tags USING (run_uuid) WHERE tags.key = 'sweeplab.study')
"""
_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)
_MOVE = """
UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1)
WHERE {column} = :old OR substr({column}, 1, length(:old) + 1) = :old || '/'
"""


def point_files_here(lab: Path, uri: str) -> None:
    """Update the file locations in a lab's own database: MLflow stores them as they were when it was created.

    Nothing is done where private ways are switched off.
    """
    location, database = str(artifact_location(lab, uri)), lab / "mlflow.db"
    # SQLite would create a missing one.
    if switched_off() or not is_of_lab(lab, uri) or not database.exists():
        return
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(database, isolation_level=None)) as connection,
    ):
        for (old,) in connection.execute(_ELSEWHERE, [location]).fetchall():
            # The same folder by another path.
            if folder_at(old).resolve() == folder_at(location).resolve():
                continue
            connection.execute("BEGIN IMMEDIATE")
            for table, column in _PLACES:
                move = _MOVE.format(table=table, column=column)
                connection.execute(move, {"old": old, "new": location})
            connection.execute("COMMIT")


def create_database(database: Path, location: str) -> None:
    """Create a database whose artifacts are at `location`: complete, or not at all."""
    try:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    # MLflow's client creates it as well, but not safely beside another process.
    except ImportError:
        return
    # In a folder of its own: a journal that a killed process left beside the file would spoil the next attempt.
    folder = database.with_name(f".{database.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    new, kept = folder / database.name, cache_folder() / f"mlflow-{version('mlflow')}.db"
    with suppress(OSError):  # no tables are kept yet, or there is no cache
        shutil.copyfile(kept, new)
    is_first = not new.exists()
    store = SqlAlchemyStore(database_url(new), location)  # type: ignore[no-untyped-call]
    store.engine.dispose()
    if is_first:  # its tables are kept for the next one, without the default experiment, which has the lab's path
        copy = folder / "kept"
        shutil.copyfile(new, copy)
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.execute("DELETE FROM experiments")
        with suppress(OSError):
            make_folder(kept.parent)
            write_whole(kept, copy.read_bytes())
    new.replace(database)
    shutil.rmtree(folder)
