"""A study's experiment in MLflow: found or made, renamed or deleted; its runs written and read in few calls.

Where tracking is a database, what touches many runs, or many numbers, goes to its tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.formatting import without_password
from sweeplab.tracking.connection import (
    artifact_location,
    connect,
    database_file,
    folder_at,
    kept_tables,
    point_files_here,
    reaching,
    tracking_uri,
)
from sweeplab.tracking.tables import (
    KEY,
    KIND,
    RUNS_A_QUERY,
    STUDY,
    count_in_file,
    engine_of,
    read_keys,
    read_tables,
    rename_in_tables,
    tracked_run,
    write_new,
)
from sweeplab.tracking.tracker import Measure, TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment as Entity
    from mlflow.entities import Run

METRICS_A_BATCH, PARAMS_A_BATCH = 1000, 100
TAG_CHARACTERS = 5000
MOST_POINTS = 2**31 - 1


class Experiment:
    """One study's experiment, through a client of its own: MLflow's global state is left alone."""

    def __init__(self, lab: Path, study: str, uri: str | None = None) -> None:
        self.lab = lab.absolute()
        self.study = study
        self.uri = tracking_uri(self.lab, uri)
        self.place = without_password(self.uri)
        self._id = ""

    @property
    def may_exist(self) -> bool:
        """Return whether there is somewhere to look for it: a database that is no file yet has nothing."""
        database = database_file(self.uri)
        return database is None or database.exists()

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
                what = f"experiment {self.study!r} was deleted in MLflow: {restore}, or another --name"
                raise BadInput(what)
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
        return next(self.runs(f"tags.`{KEY}` = {quoted(key)}"), None)

    def runs(self, condition: str = "", experiment: str = "") -> Iterator[Run]:
        """Yield the runs that meet a condition in MLflow's own words, the earliest first, a page at a time."""
        token = None
        while True:
            where, order = [experiment or self._id], ["attributes.start_time"]
            found = self.client.search_runs(where, condition, order_by=order, page_token=token)
            yield from found
            token = found.token
            if not token:
                return

    def keys(self) -> set[str] | None:
        """Return the keys of all runs, or None where that would take a page of whole runs after another."""
        engine = engine_of(self.client)
        return read_keys(engine, self.find()) if engine else None

    def write_new(
        self,
        run_id: str,
        points: Iterable[Sequence[Measure]] = (),
        params: Mapping[str, str] = MappingProxyType({}),
        tags: Mapping[str, str] = MappingProxyType({}),
        status: str = "",
        ended_ms: int | None = None,
    ) -> None:
        """Write points and params that a run lacks, its tags, and its status, in one transaction where that can be."""
        if engine := engine_of(self.client):
            columns = {"status": status or None, "end_time": ended_ms}
            info = {name: value for name, value in columns.items() if value is not None}
            measures = [each for point in points for each in point]
            write_new(engine, run_id, measures, params, _cut(tags), info)
            return
        self.log(run_id, points, params, tags)
        if ended_ms:
            self.client.set_terminated(run_id, status, ended_ms)
        elif status:
            self.client.update_run(run_id, status)

    def log_artifacts(self, artifact_uri: str, files: Path, folder: str) -> None:
        """Keep a file, or all that lies in a folder, with a run whose files are at `artifact_uri`.

        MLflow's client would read the run again to know where; and it remembers where a run's files are, by an id
        that a copy of the lab has too. What lies on this machine's disk needs no MLflow.
        """
        if urlsplit(artifact_uri).scheme == "file":
            there = folder_at(artifact_uri) / folder
            for file in [each for each in files.rglob("*") if each.is_file()] if files.is_dir() else [files]:
                target = there / (file.relative_to(files) if files.is_dir() else file.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                write_whole(target, file.read_bytes())
            return
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository as reached
        from mlflow.utils.uri import add_databricks_profile_info_to_artifact_uri as in_profile

        uri = in_profile(artifact_uri, self.uri)  # type: ignore[no-untyped-call]
        repository: Any = reached(uri, self.uri)
        log = repository.log_artifacts if files.is_dir() else repository.log_artifact
        log(str(files), folder)

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
            [[RunTag(name, text) for name, text in _cut(tags).items()]],
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
        point_files_here(lab, uri)
        if (file := database_file(uri)) and (count := count_in_file(file, kept_tables())) is not None:
            return count
        ours = f"tags.`{KIND[0]}` = '{KIND[1]}'"
        return len(connect(lab, uri).search_experiments(filter_string=ours, max_results=1000))


def _cut(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: text[:TAG_CHARACTERS] for name, text in tags.items()}


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


def read_runs(experiment: Experiment) -> Iterator[TrackedRun]:
    """Yield the trainings of an experiment's study, the earliest first."""
    if engine := engine_of(experiment.client):
        yield from read_tables(engine, experiment.find(), experiment.study)
        return
    for run in experiment.runs(f"tags.`{STUDY}` = {quoted(experiment.study)}"):
        if "sweeplab.trial" in run.data.tags:
            yield tracked_run(
                run.info.run_id, run.data.tags, run.data.params, run.data.metrics, run.info.status
            )


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


def _named(there: Experiment, name: str) -> Entity | None:
    return there.client.get_experiment_by_name(name) if there.may_exist else None


def delete_experiment(lab: Path, study: str, uri: str | None, kept_as: str) -> None:
    """Move a study's experiment, if MLflow has one, to the deleted ones, and give its name free.

    Called again after a failure it goes on; `restore_experiment` takes it back.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """
    there = Experiment(lab, study, uri)
    with reaching(there.uri):
        found, begun = _named(there, study), _named(there, kept_as)  # which an earlier attempt has renamed
        if begun is None:
            if found is None or found.lifecycle_stage != "active":
                return
            there.client.rename_experiment(found.experiment_id, kept_as)
            begun = found
        if begun.lifecycle_stage == "active":
            there.client.delete_experiment(begun.experiment_id)


def restore_experiment(lab: Path, study: str, uri: str | None, kept_as: str) -> None:
    """Take back what `delete_experiment` did; called again after a failure it goes on.

    Raises:
        BadInput: MLflow has another experiment of that name.
        TrackingUnavailable: MLflow does not answer.
    """
    there = Experiment(lab, study, uri)
    with reaching(there.uri):
        if (kept := _named(there, kept_as)) is None:
            return
        if _named(there, study):
            raise BadInput(f"{there.place} has another experiment {study!r}; rename it first")
        if kept.lifecycle_stage != "active":
            there.client.restore_experiment(kept.experiment_id)
        there.client.rename_experiment(kept.experiment_id, study)


def rename_experiment(lab: Path, study: str, uri: str | None, new: str) -> None:
    """Give a study's experiment and its runs the study's new name; called again after a failure it goes on.

    Raises:
        BadInput: MLflow has another experiment of that name, deleted or not.
        TrackingUnavailable: MLflow does not answer.
    """
    there = Experiment(lab, study, uri)
    with reaching(there.uri):
        ours, taken = _named(there, study), _named(there, new)
        if taken and ours:
            kind = "an experiment" if taken.lifecycle_stage == "active" else "a deleted experiment"
            raise BadInput(f"{there.place} has {kind} {new!r}; give another name")
        found = ours or taken  # which an earlier attempt has renamed
        if found is None:
            return
        if found.name != new:
            there.client.rename_experiment(found.experiment_id, new)
        if engine := engine_of(there.client):
            rename_in_tables(engine, found.experiment_id, study, new)
        else:
            _rename_by_runs(there, found.experiment_id, new)
        for parent in there.runs(f"tags.`{KEY}` = {quoted(new)}", found.experiment_id):
            there.client.update_run(parent.info.run_id, name=new)


def _rename_by_runs(there: Experiment, experiment: str, new: str) -> None:
    from mlflow.entities import RunTag

    for run in there.runs(experiment=experiment):
        key = run.data.tags.get("sweeplab.key", "")
        if key.partition("/")[0] == there.study:
            tags = {"study": new, "key": new + key[len(there.study) :]}
            entities = [RunTag(f"sweeplab.{name}", text) for name, text in tags.items()]
            there.client.log_batch(run.info.run_id, tags=entities)
