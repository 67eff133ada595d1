"""A study's experiment in MLflow: find, create, rename or delete it; write and read its runs in few calls.

If tracking is a database, operations on many runs or many numbers use its tables directly.
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
    check_location,
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
    STUDY,
    count_in_file,
    engine_of,
    read_keys,
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


class Experiment:
    """One study's experiment, through a client of its own: MLflow's global state is not touched."""

    def __init__(self, lab: Path, study: str, uri: str | None = None) -> None:
        self.lab = lab.absolute()
        self.study = study
        self.uri = tracking_uri(self.lab, uri)
        self.place = without_password(self.uri)
        self._id = ""

    @property
    def may_exist(self) -> bool:
        """Return whether the experiment may exist: not if its database file does not exist yet."""
        database = database_file(self.uri)
        return database is None or database.exists()

    @cached_property
    def client(self) -> MlflowClient:
        """Return the client; the first call connects, and creates a missing database."""
        return connect(self.lab, self.uri)

    def find(self) -> str:
        """Return the experiment's id, or an empty text if there is none.

        Raises:
            BadInput: it was deleted in MLflow, or the lab's own database keeps its files outside of the lab.
        """
        if not self._id and (found := self.client.get_experiment_by_name(self.study)):
            if found.lifecycle_stage != "active":
                restore = f"mlflow experiments restore -x {found.experiment_id}"
                what = f"experiment {self.study!r} was deleted in MLflow: {restore}, or give another --name"
                raise BadInput(what)
            check_location(self.lab, self.uri, found.artifact_location)
            self._id = str(found.experiment_id)
        return self._id

    def find_or_create(self) -> str:
        """Return the experiment's id; create the experiment if it is missing."""
        from mlflow.exceptions import MlflowException

        if not self.find():
            location = artifact_location(self.lab, self.uri)
            try:
                self._id = self.client.create_experiment(self.study, location, dict([KIND]))
            except MlflowException:
                if not self.find():  # otherwise another machine was faster
                    raise
        return self._id

    def run(self, key: str) -> Run | None:
        """Return the run with a key: the study's name for its parent run, else study/cell/trial/seed."""
        # The first one, in case two machines have created the same run at the same time.
        return next(self.runs(f"tags.`{KEY}` = {quoted(key)}"), None)

    def runs(self, condition: str = "", experiment: str = "") -> Iterator[Run]:
        """Yield the runs that meet an MLflow filter `condition`, the earliest first, reading page by page."""
        token = None
        while True:
            where, order = [experiment or self._id], ["attributes.start_time"]
            found = self.client.search_runs(where, condition, order_by=order, page_token=token)
            for run in found:
                check_location(self.lab, self.uri, run.info.artifact_uri)
                yield run
            token = found.token
            if not token:
                return

    def keys(self) -> set[str] | None:
        """Return the keys of all runs, or None for a server, where all runs would have to be read page by page."""
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
        """Write points and params that a run lacks, its tags, and its status; in a database, in one transaction."""
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
        """Log a file, or all files of a folder, as artifacts of the run whose artifacts are at `artifact_uri`.

        MLflow's client would read the run again to find the location, and caches it by run id, which a copy of the lab
        shares. Locations on this machine's disk need no MLflow.
        """
        check_location(self.lab, self.uri, artifact_uri)
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
        """Write points, params and tags in as few calls as MLflow's limits allow: almost always one."""
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
    """Return the number of sweeplab's studies in the tracking at `uri`, up to 1,000.

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
    """Return a text quoted for MLflow's filters."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def _batches(points: Iterable[Sequence[Measure]]) -> Iterator[list[Measure]]:
    """Yield points in batches of a size that MLflow accepts; the numbers of one point stay together."""
    batch: list[Measure] = []
    for point in points:
        if len(batch) + len(point) > METRICS_A_BATCH:
            yield batch
            batch = []
        batch.extend(point)
    if batch:
        yield batch


def search_runs(experiment: Experiment) -> Iterator[TrackedRun]:
    """Yield the nested runs of an experiment's study, the earliest first, where tables cannot be reached."""
    for run in experiment.runs(f"tags.`{STUDY}` = {quoted(experiment.study)}"):
        if "sweeplab.trial" in run.data.tags:
            yield tracked_run(
                run.info.run_id, run.data.tags, run.data.params, run.data.metrics, run.info.status
            )


def search_points(client: MlflowClient, run_ids: Sequence[str], name: str) -> dict[str, list[Measure]]:
    """Return the points of a metric for each run, ordered by step, where tables cannot be reached."""
    found = {}
    for run_id in run_ids:
        points = sorted(client.get_metric_history(run_id, name), key=lambda each: each.step)
        found[run_id] = [Measure(name, each.value, each.timestamp, each.step) for each in points]
    return found


def _named(there: Experiment, name: str) -> Entity | None:
    return there.client.get_experiment_by_name(name) if there.may_exist else None


def delete_experiment(lab: Path, study: str, uri: str | None, kept_as: str) -> None:
    """Delete a study's experiment in MLflow, if it has one, after renaming it so that its name is free.

    It can be repeated after a failure; `restore_experiment` undoes it.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """
    there = Experiment(lab, study, uri)
    with reaching(there.uri):
        found, begun = _named(there, study), _named(there, kept_as)  # `begun`: renamed by an earlier attempt
        if begun is None:
            if found is None or found.lifecycle_stage != "active":
                return
            there.client.rename_experiment(found.experiment_id, kept_as)
            begun = found
        if begun.lifecycle_stage == "active":
            there.client.delete_experiment(begun.experiment_id)


def restore_experiment(lab: Path, study: str, uri: str | None, kept_as: str) -> None:
    """Undo `delete_experiment`; it can be repeated after a failure.

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
    """Give a study's experiment and its runs the study's new name; it can be repeated after a failure.

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
        found = ours or taken  # if only `taken` exists, an earlier attempt has renamed it
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
