"""Read many runs and their metrics from MLflow, in as few calls as its store allows.

A database answers for many runs at once. MLflow's own search makes an object of every parameter, which takes half
a minute for 20,000 runs; its tables are read here as they are. A server's client has no such calls.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sweeplab.tracking.measures import Measure
from sweeplab.tracking.tracker import TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from sweeplab.tracking.experiment import Experiment

# Databases limit how many values a query may name.
RUNS_A_QUERY = 500
MOST_POINTS = 2**31 - 1


def read_runs(experiment: Experiment, condition: str, tag: tuple[str, str]) -> Iterator[TrackedRun]:
    """Yield an experiment's trainings that have a tag, also written as MLflow's own condition; the earliest first."""
    if hasattr(experiment.client._tracking_client.store, "engine"):
        yield from _from_tables(experiment, tag)
        return
    for run in experiment.runs(condition):
        if "sweeplab.trial" in run.data.tags:
            yield _tracked(run.info.run_id, run.data.tags, run.data.params, run.data.metrics)


def _tracked(run_id: str, tags: Any, params: Any, metrics: Any) -> TrackedRun:
    place = tags["sweeplab.cell"], int(tags["sweeplab.trial"]), int(tags["sweeplab.seed"])
    return TrackedRun(run_id, *place, tags["sweeplab.state"], params, metrics)


def _from_tables(experiment: Experiment, tag: tuple[str, str]) -> Iterator[TrackedRun]:
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlParam, SqlRun, SqlTag
    from sqlalchemy import select

    marked: Any = select(SqlTag.run_uuid).where(SqlTag.key == tag[0], SqlTag.value == tag[1])
    chosen: Any = (
        select(SqlRun.run_uuid)
        .where(SqlRun.experiment_id == int(experiment.find() or -1), SqlRun.lifecycle_stage == "active")
        .where(SqlRun.run_uuid.in_(marked))
    )
    tables: list[dict[str, dict[str, Any]]] = []
    with experiment.client._tracking_client.store.engine.connect() as connection:
        order = [
            run_id for (run_id,) in connection.execute(chosen.order_by(SqlRun.start_time, SqlRun.run_uuid))
        ]
        for table in (SqlTag, SqlParam):
            rows: dict[str, dict[str, Any]] = defaultdict(dict)
            query = select(table.run_uuid, table.key, table.value).where(table.run_uuid.in_(chosen))
            for run_id, name, value in connection.execute(query):
                rows[run_id][name] = value
            tables.append(rows)
        latest, metrics = SqlLatestMetric, defaultdict[str, dict[str, float]](dict)
        numbers = select(latest.run_uuid, latest.key, latest.value, latest.is_nan)
        for run_id, name, value, is_nan in connection.execute(numbers.where(latest.run_uuid.in_(chosen))):
            metrics[run_id][name] = math.nan if is_nan else value
    tags, params = tables
    for run_id in order:
        if "sweeplab.trial" in tags[run_id]:
            yield _tracked(run_id, tags[run_id], params[run_id], metrics[run_id])


def read_histories(client: MlflowClient, run_ids: Sequence[str], name: str) -> dict[str, list[Measure]]:
    """Return the points of a metric of each run, by step."""
    found: dict[str, list[Measure]] = {run_id: [] for run_id in run_ids}
    bulk = getattr(client._tracking_client.store, "get_metric_history_bulk", None)
    for first in range(0, len(run_ids), RUNS_A_QUERY):
        some = run_ids[first : first + RUNS_A_QUERY]
        if bulk is None:
            points = [(run_id, point) for run_id in some for point in client.get_metric_history(run_id, name)]
        else:
            points = [(each.run_id, each) for each in bulk(some, name, MOST_POINTS)]
        for run_id, point in points:
            found[run_id].append(Measure(name, point.value, point.timestamp, point.step))
    return {run_id: sorted(points, key=lambda each: each.step) for run_id, points in found.items()}
