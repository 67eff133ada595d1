"""The best model of each cell as an MLflow model: logged with a signature, registered, loaded as a function."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING

from sweeplab.data.batches import DataKind
from sweeplab.data.objectives import objective_of
from sweeplab.errors import BadInput
from sweeplab.files import read_bytes
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.records.runs import RunFolder
from sweeplab.tracking.connection import SERVERS, check_location, reaching
from sweeplab.tracking.experiment import Experiment
from sweeplab.tracking.tracker import rounded

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.models import ModelSignature

CELL, WEIGHTS = "sweeplab.cell", "sweeplab.weights"  # tags of a logged model: its cell, its weights' digest
LOADER = "sweeplab.runs.run"  # the module whose function MLflow calls with the checkpoint's folder
CHECKPOINT = "checkpoint"
ALIAS = "best"
WRITTEN: Sequence[DataKind] = ("text", "pairs")  # kinds of objectives whose runs generate text
_PARAMS = {"max_new_tokens": "integer", "temperature": "float", "top_k": "integer", "top_p": "float"}
# What models return that do not generate text, by the kind of their objective.
RETURNED: Mapping[DataKind, Mapping[str, str]] = {"labels": {"label": "string", "probability": "double"}}
_EXAMPLES: Mapping[DataKind, str] = {"labels": '["A film to remember."]'}
_NOT_IN_NAMES = re.compile(r"[^\w=,+-]")


@dataclass(frozen=True)
class Published:
    """A model in MLflow's registry: `uri` is for `mlflow.pyfunc.load_model`, with tracking at `place`.

    `example` is an example argument of the model's `predict`, as Python code.
    """

    name: str
    version: str
    uri: str
    place: str
    run_id: str
    is_new: bool
    example: str


def publish_model(lab: Path, study: str, uri: str | None, run: RunFolder, name: str) -> Published:
    """Register a run's model as the newest version of a name, with the alias `best`, unless it already is.

    Raises:
        BadInput: tracking has no such run.
        TrackingUnavailable: MLflow does not answer.
    """
    from mlflow.exceptions import MlflowException

    experiment, start, checkpoint = Experiment(lab, study, uri), run.read_start(), run.checkpoint()
    assert checkpoint
    digest = str(json.loads(read_bytes(checkpoint / "model.json")).get("sha256", ""))
    client, tags = experiment.client, {CELL: start.cell, WEIGHTS: digest}
    with reaching(experiment.uri):
        if not experiment.find():
            raise BadInput(f"no study {study!r} in {experiment.place}")
        try:
            newest = client.get_model_version_by_alias(name, ALIAS)
        except MlflowException:  # no such model, or no version with the alias
            newest = None
        is_new = newest is None or newest.tags.get(WEIGHTS) != digest
        if is_new:
            model = _logged(experiment, run, checkpoint, tags)
            if not client.search_registered_models(f"name = '{name}'"):
                client.create_registered_model(name)
            # A database's registry looks up a model's id in MLflow's global tracking, a server's in its own.
            source, model_id = model.artifact_location, None
            if experiment.uri.startswith(SERVERS):
                source, model_id = f"models:/{model.model_id}", model.model_id
            newest = client.create_model_version(name, source, model.source_run_id, tags, model_id=model_id)
            client.set_registered_model_alias(name, ALIAS, newest.version)
    assert newest
    example = _EXAMPLES.get(objective_of(start.values).learns, '["The "]')
    uri = f"models:/{name}@{ALIAS}"
    return Published(name, str(newest.version), uri, experiment.place, str(newest.run_id), is_new, example)


def _logged(experiment: Experiment, run: RunFolder, checkpoint: Path, tags: dict[str, str]) -> LoggedModel:
    """Log a run's checkpoint as a model of the run, unless a model of the same weights is logged already.

    Raises:
        BadInput: tracking has no such run.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    client, start, end = experiment.client, run.read_start(), run.read_end()
    run_id = run.tracked_id
    if not run_id or not end:
        raise BadInput(f"{experiment.place} has no complete run {start.key} of {experiment.study}")
    same = f"source_run_id = '{run_id}' and tags.`{WEIGHTS}` = '{tags[WEIGHTS]}'"
    if known := client.search_logged_models([experiment.find()], same):
        return known[0]
    params = {name: str(start.values.as_dict()[name]) for name in start.sampled if name in TABLE}
    name = _NOT_IN_NAMES.sub("-", f"{experiment.study}-{start.cell}")
    model = client.create_logged_model(
        experiment.find(), name, run_id, tags, params | rounded(start), model_type=start.values.family
    )
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), checkpoint, start.values, run_id, model.model_id)
        check_location(experiment.lab, experiment.uri, model.artifact_location)
        client.log_model_artifacts(model.model_id, folder)
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, end.iteration)])
    return client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def write_model(
    folder: Path, checkpoint: Path, values: Hyperparameters, run_id: str = "", model_id: str | None = None
) -> None:
    """Write a checkpoint as a folder that `mlflow.pyfunc.load_model` can load."""
    from mlflow.models import Model

    shutil.copytree(checkpoint, folder / CHECKPOINT)
    described = Model(run_id=run_id, signature=_signature(values), model_id=model_id)
    # As mlflow.pyfunc.add_to_model does; that module takes seconds to import, and warns about its own types.
    described.add_flavor(
        "python_function",
        loader_module=LOADER,
        data=CHECKPOINT,
        env={"virtualenv": "python_env.yaml"},
        python_version=python_version(),
    )
    described.save(str(folder / "MLmodel"))
    needed = "".join(f"{package}=={version(package)}\n" for package in ("sweeplab", "torch"))
    (folder / "requirements.txt").write_text(needed, encoding="utf-8")
    environment = "dependencies:\n- -r requirements.txt\n"
    (folder / "python_env.yaml").write_text(environment, encoding="utf-8")


def _signature(values: Hyperparameters) -> ModelSignature:
    """Describe the model's inputs and outputs; for a model that generates text, with sampling params."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    kind, text = objective_of(values).learns, Schema([ColSpec("string")])
    if kind not in WRITTEN:
        columns = RETURNED.get(kind, {}).items()
        returned = columns and Schema([ColSpec(type_, name) for name, type_ in columns])
        return ModelSignature(text, returned or None)
    defaults = {name: getattr(values, name) for name in _PARAMS}
    specs = [ParamSpec(name, _PARAMS[name], value) for name, value in defaults.items() if value is not None]
    return ModelSignature(text, text, ParamSchema(specs))
