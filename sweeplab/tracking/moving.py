"""Rename a study's experiment in MLflow, or move it to those that are deleted; both can be undone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput
from sweeplab.tracking.connection import connect, database_file, reaching, tracking_uri, without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment


class Moving:
    """A study's experiment, if MLflow has one.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """

    def __init__(self, lab: Path, study: str, uri: str | None = None) -> None:
        self._study = study
        self._uri = tracking_uri(lab.absolute(), uri)
        database = database_file(self._uri)
        with reaching(self._uri):
            self._client: MlflowClient | None = None
            if database is None or database.exists():
                self._client = connect(lab, self._uri)
            self._experiment = self._find(study)

    def _find(self, name: str) -> Experiment | None:
        return self._client.get_experiment_by_name(name) if self._client else None

    def delete(self, name: str) -> list[str]:
        """Move the experiment to the deleted ones as `name`, so that its own is free; return what takes it back."""
        if self._client is None or self._experiment is None or self._experiment.lifecycle_stage != "active":
            return []
        number = self._experiment.experiment_id
        with reaching(self._uri):
            self._client.rename_experiment(number, name)
            self._client.delete_experiment(number)
        place = os.environ.get("MLFLOW_TRACKING_URI")
        prefix = "" if place == self._uri else f"MLFLOW_TRACKING_URI={without_password(self._uri)} "
        return [
            f"{prefix}mlflow experiments restore -x {number}",
            f"{prefix}mlflow experiments rename -x {number} --new-name {self._study}",
        ]

    def rename(self, new: str) -> None:
        """Give the experiment and its runs the study's new name; called again after a failure it goes on.

        Raises:
            BadInput: MLflow has another experiment of that name, deleted or not.
        """
        from mlflow.entities import RunTag

        with reaching(self._uri):
            taken = self._find(new)
            if taken and self._experiment:
                kind = "an experiment" if taken.lifecycle_stage == "active" else "a deleted experiment"
                raise BadInput(f"{without_password(self._uri)} has {kind} {new!r}; give another name")
            found = self._experiment or taken  # which an earlier attempt has renamed
            if self._client is None or found is None:
                return
            if found.name != new:
                self._client.rename_experiment(found.experiment_id, new)
            token = None
            while True:
                runs = self._client.search_runs([found.experiment_id], page_token=token, max_results=1000)
                for run in runs:
                    key = run.data.tags.get("sweeplab.key", "")
                    if key.partition("/")[0] == self._study:
                        tags = {"study": new, "key": new + key[len(self._study) :]}
                        entities = [RunTag(f"sweeplab.{name}", text) for name, text in tags.items()]
                        self._client.log_batch(run.info.run_id, tags=entities)
                        if key == self._study:
                            self._client.update_run(run.info.run_id, name=new)
                token = runs.token
                if not token:
                    return
