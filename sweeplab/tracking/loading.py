"""Load a trained run: its model and its tokenizer, from a checkpoint's folder or one that MLflow keeps."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sweeplab.data.batches import Batch
from sweeplab.data.objectives import OBJECTIVES, special_tokens
from sweeplab.data.objectives.base import SpecialTokens
from sweeplab.data.tokenizers import OTHERS, TOKENIZERS, Tokenizer, load_tokenizer
from sweeplab.errors import BadInput
from sweeplab.formatting import without_password
from sweeplab.hyperparameters import AUTO, TRANSFORMER, Hyperparameters
from sweeplab.model.shape import ACTIVATIONS, MODELS, ModelShape
from sweeplab.model.transformer import model_of
from sweeplab.permissions import name_address
from sweeplab.plugins import import_allowed
from sweeplab.train.checkpoint import read_checkpoint


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
        """Return the names of a classifier's labels in the order of their numbers; numbers if it has no names."""
        n_labels = self.values.n_labels or 0
        return [*self.facts.get("labels", ()), *map(str, range(n_labels))][:n_labels]

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


def load_run(run_id: str, lab: Path, uri: str | None = None) -> LoadedRun:
    """Load a run by its MLflow run id.

    `uri`, or by default the lab, gives MLflow's address, as for a study.

    Raises:
        BadInput: there is no such run, or it kept no checkpoint.
    """
    from sweeplab.tracking.connection import check_location, connect, database_file, tracking_uri

    if uri:
        name_address(uri)
    uri = tracking_uri(lab, uri)
    where = without_password(uri)
    database = database_file(uri)
    if database and not database.exists():
        raise BadInput(f"no run {run_id}: {where} does not exist; give another lab or uri")
    client = connect(lab, uri)
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory() as place:
        try:
            check_location(lab, uri, client.get_run(run_id).info.artifact_uri)
            if not client.list_artifacts(run_id, "checkpoint"):
                raise BadInput(f"run {run_id} kept no checkpoint; track: {{checkpoints: best}} keeps one")
            return load_checkpoint(Path(client.download_artifacts(run_id, "checkpoint", place)), run_id)
        except MlflowException as error:
            raise BadInput(f"no run {run_id} at {where}: {error.message}") from error
