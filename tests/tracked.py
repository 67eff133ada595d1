"""What MLflow has of a study, read by its public client: sweeplab itself only writes it."""

from collections.abc import Mapping
from typing import NamedTuple

from sweeplab.tracking.connection import connect, tracking_uri


class TrackedRun(NamedTuple):
    """A nested run in MLflow; `state` is sweeplab's, `status` MLflow's own."""

    run_id: str
    cell: str
    trial: int
    seed: int
    state: str
    status: str
    values: Mapping[str, str]
    metrics: Mapping[str, float]


class Tracked:
    """A study in MLflow."""

    def __init__(self, lab, study, uri=None):
        self.client = connect(lab, tracking_uri(lab, uri))
        self.study = study

    def runs(self):
        """Return the nested runs."""
        experiment = self.client.get_experiment_by_name(self.study)
        found = self.client.search_runs(
            [experiment.experiment_id], "tags.`sweeplab.trial` LIKE '%'"
        )
        return [
            TrackedRun(
                run.info.run_id,
                run.data.tags["sweeplab.cell"],
                int(run.data.tags["sweeplab.trial"]),
                int(run.data.tags["sweeplab.seed"]),
                run.data.tags["sweeplab.state"],
                run.info.status,
                run.data.params,
                run.data.metrics,
            )
            for run in found
        ]

    def points(self, run_id, name):
        """Return the points of a metric of a run, by step."""
        return sorted(
            self.client.get_metric_history(run_id, name), key=lambda point: point.step
        )

    def steps(self, run_id, name):
        """Return the steps of a metric's points."""
        return [point.step for point in self.points(run_id, name)]
