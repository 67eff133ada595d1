"""Trained runs, loaded from a checkpoint's folder or one that MLflow keeps; and the best of them as MLflow's models.

A model is logged with a signature, registered, and loaded by MLflow as a function.
"""

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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sweeplab.data.batches import Batch, DataKind
from sweeplab.data.objectives import OBJECTIVES, objective_of, special_tokens
from sweeplab.data.objectives.base import SpecialTokens
from sweeplab.data.tokenizers import OTHERS, TOKENIZERS, Tokenizer, load_tokenizer
from sweeplab.errors import BadInput
from sweeplab.files import read_bytes
from sweeplab.formatting import without_password
from sweeplab.hyperparameters import AUTO, TABLE, TRANSFORMER, Hyperparameters
from sweeplab.model.shape import ACTIVATIONS, MODELS, ModelShape
from sweeplab.model.transformer import model_of
from sweeplab.plugins import import_allowed
from sweeplab.records.runs import RunFolder
from sweeplab.tracking.connection import (
    SERVERS,
    check_location,
    connect,
    database_file,
    reaching,
    tracking_uri,
)
from sweeplab.tracking.experiment import Experiment
from sweeplab.tracking.tracker import rounded
from sweeplab.train.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.models import ModelSignature


class Model:
    """A single trained model: a stack of one, with its weights."""

    def __init__(self, values: Hyperparameters, weights: Mapping[str, Tensor]) -> None:
        self.transformer = model_of(values)
        self.stacked = {name: weight[None] for name, weight in weights.items()}

    @property
    def shape(self) -> ModelShape:
        """Return the model's sizes."""
        return self.transformer.shape

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return the model's weights by name, on the CPU."""
        return {name: weight[0].cpu() for name, weight in self.stacked.items()}

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Return logits [B, T, V] for tokens [B, T], T at most block_size."""
        batch = Batch(tokens[None], tokens[None])
        return self.transformer.logits(self.stacked, batch)[0].view(*tokens.shape, -1)


@dataclass(frozen=True)
class LoadedRun:
    """A trained run: its model, its tokenizer, its hyperparameters, and facts from its checkpoint."""

    run_id: str
    model: Model
    tokenizer: Tokenizer
    values: Hyperparameters
    facts: dict[str, Any]
    own_special: Mapping[str, int] | None = None

    @property
    def special_tokens(self) -> SpecialTokens:
        """Return the special tokens: those of its hyperparameters, or those of an imported run."""
        return special_tokens(self.values, self.own_special)

    @property
    def labels(self) -> list[str]:
        """Return the names of a classifier's labels in their order; a label without one has its number."""
        n_labels = self.values.n_labels or 0
        names = list(self.facts.get("labels", ()))[:n_labels]
        for number in range(len(names), n_labels):
            names.append(str(number))
        return names

    @property
    def special(self) -> dict[str, int]:
        """Return the ids of the special tokens by name."""
        return self.special_tokens.ids


def load_checkpoint(folder: Path, run_id: str = "") -> LoadedRun:
    """Load a run from its checkpoint's folder.

    Raises:
        FileNotFoundError: there is no checkpoint.
        DamagedCheckpoint: its tensors differ from those that were written.
        BadInput: it needs a tokenizer, an activation or an objective of a plugin that is not allowed, or raises.
    """
    weights, facts = read_checkpoint(folder, "model")
    for plugin in facts.pop("plugins", ()):
        import_allowed(plugin["file"], plugin["sha256"])
    own_special, tokenizer = facts.pop("special", None) or None, facts.pop("tokenizer")
    values = Hyperparameters.from_json(facts.pop("values"))
    for kind, name, known in (
        ("tokenizer", tokenizer["name"], TOKENIZERS | OTHERS),
        ("activation", values.activation, ACTIVATIONS),
        ("model", values.model, {TRANSFORMER, *MODELS}),
        ("objective", values.objective, {AUTO, *OBJECTIVES}),
    ):
        if name not in known:
            cure = "allow the plugin that registers it: --allow-plugins, once, if you trust it"
            raise BadInput(f"the run uses the {kind} {name!r}: {cure}")
    model = Model(values, weights)
    return LoadedRun(run_id, model, load_tokenizer(tokenizer), values, facts, own_special)


def load_run(run_id: str, lab: Path) -> LoadedRun:
    """Load a run by its MLflow run id.

    Raises:
        BadInput: there is no such run, or it kept no checkpoint.
    """
    uri = tracking_uri(lab)
    where = without_password(uri)
    database = database_file(uri)
    if database and not database.exists():
        raise BadInput(f"no run {run_id}: {where} does not exist; give another lab")
    client = connect(lab, uri)
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory() as place:
        try:
            check_location(lab, uri, client.get_run(run_id).info.artifact_uri)
            if not client.list_artifacts(run_id, "checkpoint"):
                raise BadInput(
                    f"run {run_id} kept no checkpoint; track: {{checkpoints: best}} keeps one"
                )
            return load_checkpoint(
                Path(client.download_artifacts(run_id, "checkpoint", place)), run_id
            )
        except MlflowException as error:
            raise BadInput(f"no run {run_id} at {where}: {error.message}") from error


# ------------------------------------------------------------------ models in MLflow


# Tags of a logged model: its cell, its weights' digest.
CELL, WEIGHTS = "sweeplab.cell", "sweeplab.weights"
# The module whose function MLflow calls with the checkpoint's folder.
LOADER = "sweeplab.runs.serving"
CHECKPOINT = "checkpoint"
ALIAS = "best"
WRITTEN: Sequence[DataKind] = ("text", "pairs")  # kinds of objectives whose runs generate text
_PARAMS = {
    "max_new_tokens": "integer",
    "temperature": "float",
    "top_k": "integer",
    "top_p": "float",
}
# What models return that do not generate text, by the kind of their objective.
RETURNED: Mapping[DataKind, Mapping[str, str]] = {
    "labels": {"label": "string", "probability": "double"}
}
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


def publish_model(lab: Path, name: str, uri: str | None, run: RunFolder) -> Published:
    """Register a run's model as the newest version of its study's name, with the alias `best`, unless it already is.

    Raises:
        BadInput: tracking has no such run.
        TrackingUnavailable: MLflow does not answer.
    """
    from mlflow.exceptions import MlflowException

    experiment, start, checkpoint = (
        Experiment(lab, name, uri),
        run.read_start(),
        run.checkpoint(),
    )
    assert checkpoint
    digest = str(json.loads(read_bytes(checkpoint / "model.json")).get("sha256", ""))
    client, tags = experiment.client, {CELL: start.cell, WEIGHTS: digest}
    with reaching(experiment.uri):
        if not experiment.find():
            raise BadInput(f"no study {name!r} in {experiment.place}")
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
            newest = client.create_model_version(
                name, source, model.source_run_id, tags, model_id=model_id
            )
            client.set_registered_model_alias(name, ALIAS, newest.version)
    assert newest
    example = _EXAMPLES.get(objective_of(start.values).learns, '["The "]')
    uri = f"models:/{name}@{ALIAS}"
    return Published(
        name, str(newest.version), uri, experiment.place, str(newest.run_id), is_new, example
    )


def _logged(
    experiment: Experiment, run: RunFolder, checkpoint: Path, tags: dict[str, str]
) -> LoggedModel:
    """Log a run's checkpoint as a model of the run, unless a model of the same weights is logged already.

    Raises:
        BadInput: tracking has no such run.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    client, start, end = experiment.client, run.read_start(), run.read_end()
    run_id = run.tracked_id
    if not run_id or not end:
        raise BadInput(
            f"{experiment.place} has no complete run {start.key} of {experiment.study}"
        )
    same = f"source_run_id = '{run_id}' and tags.`{WEIGHTS}` = '{tags[WEIGHTS]}'"
    if known := client.search_logged_models([experiment.find()], same):
        return known[0]
    params = {
        name: str(start.values.as_dict()[name]) for name in start.sampled if name in TABLE
    }
    name = _NOT_IN_NAMES.sub("-", f"{experiment.study}-{start.cell}")
    model = client.create_logged_model(
        experiment.find(),
        name,
        run_id,
        tags,
        params | rounded(start),
        model_type=start.values.family,
    )
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), checkpoint, start.values, run_id, model.model_id)
        check_location(experiment.lab, experiment.uri, model.artifact_location)
        client.log_model_artifacts(model.model_id, folder)
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, end.iteration)])
    return client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def write_model(
    folder: Path,
    checkpoint: Path,
    values: Hyperparameters,
    run_id: str = "",
    model_id: str | None = None,
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
    specs = [
        ParamSpec(name, _PARAMS[name], value)
        for name, value in defaults.items()
        if value is not None
    ]
    return ModelSignature(text, text, ParamSchema(specs))
