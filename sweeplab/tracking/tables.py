"""MLflow's own tables, if tracking is a database: read and write runs in few statements.

MLflow's search creates an object for every parameter, which takes half a minute for 20,000 runs, and its `log_batch`
takes five transactions and ten times as long as the one here. Through a server the tables cannot be reached.
"""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeplab.tracking.connection import Answer, asked
from sweeplab.tracking.tracker import Measure, TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from sqlalchemy import Engine

# Databases limit how many values a query may name.
RUNS_A_QUERY = 500
KEY, STUDY = "sweeplab.key", "sweeplab.study"  # tags of all our runs: the run's key, and its study
# The tag of our experiments: it makes the UI open with runs and charts instead of traces.
KIND = ("mlflow.experimentKind", "custom_model_development")


class ParentRun(NamedTuple):
    """A study's parent run: its ids, and the location of its files."""

    experiment_id: str
    run_id: str
    artifact_uri: str


def engine_of(client: MlflowClient) -> Engine | None:
    """Return the SQLAlchemy engine of the client's database, or None if tracking is a server."""
    return getattr(client._tracking_client.store, "engine", None)


def tracked_run(run_id: str, tags: Any, params: Any, metrics: Any, status: str) -> TrackedRun:
    """Return a run from its tags, its params and its latest metrics."""
    place = tags["sweeplab.cell"], int(tags["sweeplab.trial"]), int(tags["sweeplab.seed"])
    return TrackedRun(run_id, *place, tags["sweeplab.state"], params, metrics, status)


# Columns are qualified by their tables: `key` alone is a reserved word in MySQL.
_CHOSEN = """
SELECT runs.run_uuid FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
WHERE runs.experiment_id = :experiment AND runs.lifecycle_stage = 'active'
    AND tags.key = 'sweeplab.study' AND tags.value = :study
"""
_ORDER = f"""
SELECT runs.run_uuid, runs.status FROM runs WHERE runs.run_uuid IN ({_CHOSEN})
ORDER BY runs.start_time, runs.run_uuid
"""
_VALUES = {
    table: f"SELECT {table}.run_uuid, {table}.key, {table}.value, {is_nan} FROM {table} "
    f"WHERE {table}.run_uuid IN ({_CHOSEN})"
    for table, is_nan in (("tags", "0"), ("params", "0"), ("latest_metrics", "latest_metrics.is_nan"))
}
_PARENT = """
SELECT runs.experiment_id, runs.run_uuid, runs.artifact_uri FROM experiments
JOIN runs ON runs.experiment_id = experiments.experiment_id
JOIN tags ON tags.run_uuid = runs.run_uuid
WHERE experiments.name = :study AND experiments.lifecycle_stage = 'active' AND runs.lifecycle_stage = 'active'
    AND tags.key = 'sweeplab.key' AND tags.value = :study
ORDER BY runs.start_time
"""
_VERSION = "SELECT version_num FROM alembic_version"
_COUNT = """
SELECT COUNT(*) FROM experiments JOIN experiment_tags USING (experiment_id)
WHERE lifecycle_stage = 'active' AND key = ? AND value = ?
"""
_POINTS = """
SELECT metrics.run_uuid, metrics.value, metrics.timestamp, metrics.step, metrics.is_nan FROM metrics
WHERE metrics.key = :name AND metrics.run_uuid IN ({})
ORDER BY metrics.timestamp, metrics.step, metrics.value
"""
Ask = Callable[[str, Mapping[str, Any]], Iterable[Any]]


def _answer(tables: Path | Engine, answer: Callable[[Ask], Answer]) -> Answer | None:
    """Return what `answer` finds with SQL; in an SQLite file without SQLAlchemy, and None if it cannot be read."""
    if isinstance(tables, Path):
        return asked(tables, lambda connection: answer(connection.execute))
    from sqlalchemy import text  # slow to import

    with tables.connect() as connection:
        return answer(lambda sql, given: connection.execute(text(sql), given))


def read_parent(tables: Path | Engine, study: str) -> ParentRun | None:
    """Return a study's parent run; None if there is no such study, or the file cannot be read."""
    rows = _answer(tables, lambda ask: [*ask(_PARENT, {"study": study})])
    return ParentRun(str(rows[0][0]), *rows[0][1:]) if rows else None


def read_runs(tables: Path | Engine, study: str) -> list[TrackedRun] | None:
    """Return the nested runs of a study, the earliest first; None if `read_parent` returns None."""
    if (parent := read_parent(tables, study)) is None:
        return None
    given = {"experiment": int(parent.experiment_id), "study": study}

    def runs(ask: Ask) -> list[TrackedRun]:
        order = list(ask(_ORDER, given))
        found: list[dict[str, dict[str, Any]]] = []
        for query in _VALUES.values():
            rows: dict[str, dict[str, Any]] = defaultdict(dict)
            for run_id, name, value, is_nan in ask(query, given):
                rows[run_id][name] = math.nan if is_nan else value
            found.append(rows)
        tags, params, metrics = found
        return [
            tracked_run(run_id, tags[run_id], params[run_id], metrics[run_id], status)
            for run_id, status in order
            if "sweeplab.trial" in tags[run_id]
        ]

    return _answer(tables, runs)


def read_points(tables: Path | Engine, run_ids: Sequence[str], name: str) -> dict[str, list[Measure]] | None:
    """Return the points of a metric of each run, ordered by step; None if the file cannot be read."""

    def points(ask: Ask) -> dict[str, list[Measure]]:
        found: dict[str, list[Measure]] = {run_id: [] for run_id in run_ids}
        for first in range(0, len(run_ids), RUNS_A_QUERY):
            some = {f"run{i}": each for i, each in enumerate(run_ids[first : first + RUNS_A_QUERY])}
            rows = ask(_POINTS.format(", ".join(f":{each}" for each in some)), {"name": name, **some})
            for run_id, value, timestamp, step, is_nan in rows:
                found[run_id].append(Measure(name, math.nan if is_nan else value, timestamp, step))
        return {run_id: sorted(points, key=lambda each: each.step) for run_id, points in found.items()}

    return _answer(tables, points)


def count_in_file(file: Path, tables: Path) -> int | None:
    """Count our studies in an SQLite file; None if its schema has another version than the file `tables`."""
    current = asked(tables, lambda connection: connection.execute(_VERSION).fetchall())

    def count(connection: sqlite3.Connection) -> int | None:
        if not current or connection.execute(_VERSION).fetchall() != current:
            return None
        return int(connection.execute(_COUNT, KIND).fetchone()[0])

    return asked(file, count)


def read_keys(engine: Engine, experiment: str) -> set[str]:
    """Return the keys of all runs that an experiment has or had."""
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
    from sqlalchemy import select

    own: Any = select(SqlRun.run_uuid).where(SqlRun.experiment_id == int(experiment))
    with engine.connect() as connection:
        return set(
            connection.scalars(select(SqlTag.value).where(SqlTag.key == KEY, SqlTag.run_uuid.in_(own)))
        )


def write_new(
    engine: Engine,
    run_id: str,
    measures: Sequence[Measure],
    params: Mapping[str, str],
    tags: Mapping[str, str],
    info: Mapping[str, Any],
) -> None:
    """Write measures and params that a run lacks, its tags, and columns of its row (`info`), in one transaction.

    Raises:
        MlflowException: the run was deleted.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam, SqlRun, SqlTag
    from sqlalchemy import bindparam, delete, insert, select, update

    # Use the plain tables: statements on the ORM classes take longer to build.
    runs, metrics, latest, own_params, own_tags = (
        each.__table__ for each in (SqlRun, SqlMetric, SqlLatestMetric, SqlParam, SqlTag)
    )
    own = {"run_uuid": run_id}
    points = [own | _row(each) for each in measures]
    last = {each["key"]: each for each in sorted(points, key=_recency)}
    with engine.begin() as connection:
        is_run = runs.c.run_uuid == run_id
        if connection.scalar(select(runs.c.lifecycle_stage).where(is_run)) != "active":
            raise MlflowException(f"run {run_id} was deleted")
        known = select(latest).where(latest.c.run_uuid == run_id)
        for row in connection.execute(known).mappings() if last else ():
            if row["key"] in last and _recency(row) >= _recency(last[row["key"]]):
                del last[row["key"]]
        for table, rows in (
            (latest, [*last.values()]),
            (metrics, points),
            (own_params, [own | {"key": name, "value": text} for name, text in params.items()]),
            (own_tags, [own | {"key": name, "value": text} for name, text in tags.items()]),
        ):
            if rows and table in (latest, own_tags):  # rows with the same key are replaced
                same = table.c.run_uuid == run_id, table.c.key == bindparam("name")
                connection.execute(delete(table).where(*same), [{"name": row["key"]} for row in rows])
            if rows:
                connection.execute(insert(table), rows)
        if info:
            connection.execute(update(runs).where(is_run).values(info))


def _row(measure: Measure) -> dict[str, Any]:
    name, value, timestamp, step = measure
    is_nan = math.isnan(value)  # MLflow stores it as a zero with a flag
    return {
        "key": name,
        "value": 0.0 if is_nan else value,
        "timestamp": timestamp,
        "step": step,
        "is_nan": is_nan,
    }


def _recency(row: Any) -> tuple[int, int, float]:
    return row["step"], row["timestamp"], row["value"]


def rename_in_tables(engine: Engine, experiment: str, old: str, new: str) -> None:
    """Rename a study in all runs of its experiment at once: one call per run would take 8 ms each."""
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
    from sqlalchemy import func, literal, or_, select, update

    own: Any = select(SqlRun.run_uuid).where(SqlRun.experiment_id == int(experiment))
    value: Any = SqlTag.value
    is_named = or_(value == old, value.startswith(f"{old}/", autoescape=True))
    renamed = literal(new).concat(func.substr(value, len(old) + 1))
    tags = update(SqlTag).where(SqlTag.run_uuid.in_(own), SqlTag.key.in_((STUDY, KEY)), is_named)
    with engine.begin() as connection:
        connection.execute(tags.values(value=renamed))
