"""MLflow's own tables in an SQLite file, which MLflow does not document: what its public functions cannot do.

They create an empty database from a copy, and point a moved lab's runs to its files. With SWEEPLAB_PUBLIC_ONLY nothing
is changed: `Experiment.find` begins another experiment, to which all runs are sent again.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sweeplab.files import cache_folder, database_url, make_folder, write_whole
from sweeplab.processes import switched_off

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


def folder_at(location: str) -> Path:
    """Return the folder that a file:// URI names."""
    return Path(unquote(urlsplit(location).path))


def point_files_at(location: str, database: Path) -> None:
    """Update the file locations in a database that still has other ones, unless private ways are switched off."""
    if switched_off():
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for (old,) in connection.execute(_ELSEWHERE, [location]).fetchall():
            if folder_at(old).resolve() == folder_at(location).resolve():  # the same folder by another path
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
    except ImportError:  # MLflow's client creates it as well, but not safely beside another process
        return
    # In a folder of its own: a journal that a killed process left beside the file would spoil the next attempt.
    folder = database.with_name(f".{database.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    new, kept = folder / database.name, kept_tables()
    with suppress(OSError):  # no tables are kept yet, or there is no cache
        shutil.copyfile(kept, new)
    is_first = not new.exists()
    store = SqlAlchemyStore(database_url(new), location)  # type: ignore[no-untyped-call]
    store.engine.dispose()
    if is_first:
        _keep(new, kept)
    new.replace(database)
    folder.rmdir()


def kept_tables() -> Path:
    """Return the cached database with the empty tables of this MLflow version, which the first database creates."""
    return cache_folder() / f"mlflow-{version('mlflow')}.db"


def _keep(database: Path, kept: Path) -> None:
    """Keep the tables of a fresh database in the cache, without the default experiment, which has the lab's path."""
    from filelock import FileLock

    copy = database.with_name("kept")
    shutil.copyfile(database, copy)
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.execute("DELETE FROM experiments")
    with suppress(OSError):
        make_folder(kept.parent)
        with FileLock(f"{kept}.lock"):
            write_whole(kept, copy.read_bytes())
    copy.unlink()
