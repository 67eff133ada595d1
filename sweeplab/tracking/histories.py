"""Read metrics of many runs from MLflow, in as few calls as its store allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweeplab.tracking.tracker import Measure

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Databases limit how many values a query may name.
RUNS_A_QUERY = 500
MOST_POINTS = 2**31 - 1


def read_histories(client: MlflowClient, run_ids: Sequence[str], name: str) -> dict[str, list[Measure]]:
    """Return the points of a metric of each run, by step.

    A database answers for many runs at once: 2,000 runs one by one take ten times as long. A server's client has no
    such call.
    """
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
