"""A study's experiment in MLflow: find, create, rename or delete it, and write its runs in few calls."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from sweeplab.errors import BadInput
from sweeplab.files import make_folder, read_bytes, write_whole
from sweeplab.formatting import without_password
from sweeplab.processes import switched_off
from sweeplab.tracking.connection import (
    artifact_location,
    check_location,
    connect,
    database_file,
    folder_at,
    is_of_lab,
    reaching,
    tracking_uri,
)
from sweeplab.tracking.tracker import Measure

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")
# Tags of all our runs: the run's key, and its study.
KEY, STUDY = "sweeplab.key", "sweeplab.study"
# The tag of our experiments: it makes the UI open with runs and charts instead of traces.
KIND = ("mlflow.experimentKind", "custom_model_development")
NOTE = "mlflow.note.content"  # the documented tag of a description
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
        if not self._id and (entity := self.client.get_experiment_by_name(self.study)):
            if entity.lifecycle_stage != "active":
                restore = f"mlflow experiments restore -x {entity.experiment_id}"
                what = f"experiment {self.study!r} was deleted in MLflow: {restore}, or give another --name"
                raise BadInput(what)
            here, there = (
                folder_at(place).resolve()
                for place in (
                    str(artifact_location(self.lab, self.uri)),
                    entity.artifact_location,
                )
            )
            # As of a moved lab.
            if switched_off() and is_of_lab(self.lab, self.uri) and here != there:
                # An experiment keeps its place: it makes room for another, to which the records are sent again.
                kept_as = f"{self.study}-{entity.experiment_id}"
                self.client.rename_experiment(entity.experiment_id, kept_as)
                self.client.delete_experiment(entity.experiment_id)
                return ""
            check_location(self.lab, self.uri, entity.artifact_location)
            self._id = str(entity.experiment_id)
        return self._id

    def find_or_create(self) -> str:
        """Return the experiment's id; create the experiment if it is missing."""
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
        """Return the run with a key: the study's name for its parent run, else study/cell/trial/seed."""
        # The first one, in case two machines have created the same run at the same time.
        return next(self.runs(f"tags.`{KEY}` = {quoted(key)}"), None)

    def runs(self, condition: str = "") -> Iterator[Run]:
        """Yield the runs that meet an MLflow filter `condition`, the earliest first, reading page by page."""
        token = None
        while True:
            order = ["attributes.start_time"]
            page = self.client.search_runs(
                [self._id], condition, order_by=order, page_token=token
            )
            for run in page:
                check_location(self.lab, self.uri, run.info.artifact_uri)
                yield run
            token = page.token
            if not token:
                return

    def log_artifacts(self, run_id: str, files: Path, folder: str, artifact_uri: str) -> None:
        """Log all files of a folder as artifacts of a run, whose place is `artifact_uri`.

        The lab's own artifacts are written without MLflow, which is slow to import. Its client would also remember the
        place by the run's id, which a copy of the lab shares.
        """
        check_location(self.lab, self.uri, artifact_uri)
        if urlsplit(artifact_uri).scheme != "file":
            self.client.log_artifacts(run_id, str(files), folder)
            return
        there = folder_at(artifact_uri) / folder
        for file in files.rglob("*"):
            if file.is_file():
                place = there / file.relative_to(files)
                make_folder(place.parent)
                write_whole(place, read_bytes(file, is_large=True))

    def log_text(self, run_id: str, text: str, name: str, artifact_uri: str) -> None:
        """Log a text as `log_artifacts` does: MLflow itself would write through a link at its name."""
        with tempfile.TemporaryDirectory() as folder:
            write_whole(Path(folder) / name, text.encode())
            self.log_artifacts(run_id, Path(folder), "", artifact_uri)

    def log(
        self,
        run_id: str,
        points: Iterable[Sequence[Measure]] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        status: str = "",
        ended_ms: int | None = None,
    ) -> None:
        """Write points, params that a run lacks and its tags in as few calls as MLflow allows, then its status."""
        from mlflow.entities import Metric, Param, RunTag

        log = partial(self.client.log_batch, run_id, synchronous=True)
        if tags:
            log(tags=[RunTag(name, text[:TAG_CHARACTERS]) for name, text in tags.items()])
        missing = [Param(name, text) for name, text in (params or {}).items()]
        for some_params in _batches(missing, PARAMS_A_BATCH):
            log(params=some_params)
        measures = [Metric(*measure) for point in points for measure in point]
        for some_measures in _batches(measures, METRICS_A_BATCH):
            log(metrics=some_measures)
        if ended_ms:
            self.client.set_terminated(run_id, status, ended_ms)
        elif status:
            self.client.update_run(run_id, status)


def count_studies(lab: Path, uri: str) -> int:
    """Return the number of sweeplab's studies in the tracking at `uri`, up to 1,000.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """
    with reaching(uri):
        ours = f"tags.`{KIND[0]}` = '{KIND[1]}'"
        return len(connect(lab, uri).search_experiments(filter_string=ours, max_results=1000))


def quoted(text: str) -> str:
    """Return a text quoted for MLflow's filters."""
    if "'" in text:
        return f'"{text}"'
    return f"'{text}'"


def _batches(entities: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield entities in batches of a size that MLflow accepts."""
    for first in range(0, len(entities), size):
        yield entities[first : first + size]


def rename_experiment(
    lab: Path, study: str, uri: str | None, new: str, is_deleted: bool = False
) -> None:
    """Give a study's experiment, if it has one, another name, and mark it as deleted in MLflow or as no longer deleted.

    The parent run gets the new name too, unless the experiment is deleted. It can be repeated after a failure.

    Raises:
        BadInput: MLflow has another experiment of that name.
        TrackingUnavailable: MLflow does not answer.
    """
    there = Experiment(lab, study, uri)
    if not there.may_exist:
        return
    with reaching(there.uri):
        client = there.client
        ours, taken = client.get_experiment_by_name(study), client.get_experiment_by_name(new)
        if taken and ours:
            kind = (
                "an experiment" if taken.lifecycle_stage == "active" else "a deleted experiment"
            )
            raise BadInput(f"{there.place} has {kind} {new!r}; give another name")
        if ours:  # else there is none, or an earlier attempt has renamed it
            if ours.lifecycle_stage != "active":
                client.restore_experiment(ours.experiment_id)
            client.rename_experiment(ours.experiment_id, new)
            taken = client.get_experiment_by_name(new)
        if is_deleted and taken and taken.lifecycle_stage == "active":
            client.delete_experiment(taken.experiment_id)
        renamed = Experiment(lab, new, uri)
        parent = not is_deleted and renamed.find() and renamed.run(study)
        if parent:
            names = {KEY: new, STUDY: new, "mlflow.runName": new}
            renamed.log(parent.info.run_id, tags=names)
