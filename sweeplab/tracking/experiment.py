"""A study's experiment in MLflow: found or made, its runs found by key, written to in few calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput
from sweeplab.tracking.connection import artifact_location, connect, reaching, tracking_uri, without_password
from sweeplab.tracking.measures import Measure

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

METRICS_A_BATCH, PARAMS_A_BATCH = 1000, 100
TAG_CHARACTERS = 5000
# The kind makes the UI open with runs and charts instead of traces.
KIND = ("mlflow.experimentKind", "custom_model_development")


class Experiment:
    """One study's experiment, through a client of its own: MLflow's global state is left alone."""

    def __init__(self, lab: Path, study: str, uri: str | None = None) -> None:
        self.lab = lab.absolute()
        self.study = study
        self.uri = tracking_uri(self.lab, uri)
        self.place = without_password(self.uri)
        self._id = ""

    @cached_property
    def client(self) -> MlflowClient:
        """Return the client; the first call connects, and makes a database that is not there yet."""
        return connect(self.lab, self.uri)

    def find(self) -> str:
        """Return the experiment's id, or an empty text where there is none.

        Raises:
            BadInput: it was deleted in MLflow.
        """
        if not self._id and (found := self.client.get_experiment_by_name(self.study)):
            if found.lifecycle_stage != "active":
                restore = f"mlflow experiments restore -x {found.experiment_id}"
                raise BadInput(
                    f"experiment {self.study!r} was deleted in MLflow: {restore}, or another --name"
                )
            self._id = str(found.experiment_id)
        return self._id

    def find_or_create(self) -> str:
        """Return the experiment's id; make it where it is missing."""
        from mlflow.exceptions import MlflowException

        if not self.find():
            location = artifact_location(self.lab, self.uri)
            try:
                self._id = self.client.create_experiment(self.study, location, dict([KIND]))
            except MlflowException:
                if not self.find():  # else another machine was faster
                    raise
        return self._id

    def run(self, key: str) -> Run | None:
        """Return the run of a key: the study's name for its parent run, else study/cell/trial/seed."""
        # The first, should two machines ever have made the same run at once.
        return next(self.runs(f"tags.`sweeplab.key` = {quoted(key)}"), None)

    def runs(self, condition: str) -> Iterator[Run]:
        """Yield the runs that meet a condition in MLflow's own words, the earliest first, a page at a time."""
        token = None
        while True:
            order = ["attributes.start_time"]
            found = self.client.search_runs([self._id], condition, order_by=order, page_token=token)
            yield from found
            token = found.token
            if not token:
                return

    def log(
        self,
        run_id: str,
        points: Iterable[Sequence[Measure]],
        params: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> None:
        """Write everything in as few calls as MLflow's limits allow: almost always one."""
        from mlflow.entities import Metric, Param, RunTag

        all_params = [Param(name, text) for name, text in params.items()]
        calls = zip_longest(
            _batches(points),
            [all_params[first : first + PARAMS_A_BATCH] for first in range(0, len(params), PARAMS_A_BATCH)],
            [[RunTag(name, text[:TAG_CHARACTERS]) for name, text in tags.items()]],
            fillvalue=(),
        )
        for measures, some_params, some_tags in calls:
            metrics = [Metric(*measure) for measure in measures]
            self.client.log_batch(run_id, metrics, some_params, some_tags, synchronous=True)


def count_studies(lab: Path, uri: str) -> int:
    """Return how many of our studies the tracking at `uri` has, up to 1,000.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """
    with reaching(uri):
        ours = f"tags.`{KIND[0]}` = '{KIND[1]}'"
        return len(connect(lab, uri).search_experiments(filter_string=ours, max_results=1000))


def quoted(text: str) -> str:
    """Write a text as MLflow's conditions have it."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def _batches(points: Iterable[Sequence[Measure]]) -> Iterator[list[Measure]]:
    """Gather points into batches of a size that MLflow takes; the numbers of one point stay together."""
    batch: list[Measure] = []
    for point in points:
        if len(batch) + len(point) > METRICS_A_BATCH:
            yield batch
            batch = []
        batch.extend(point)
    if batch:
        yield batch
