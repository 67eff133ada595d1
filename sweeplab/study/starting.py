"""What the runs of a study start from instead of random weights: another run's, and its tokenizer (no torch)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.data.tokenizers import Tokenizer, load_tokenizer
from sweeplab.errors import BadInput
from sweeplab.model.shape import FIELDS, ModelShape
from sweeplab.study.places import shown

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.study.spec import StudySpec

# Of a model's hyperparameters what says nothing of a model that is trained already.
_FREE = {"init"}


@dataclass(frozen=True)
class Start:
    """The run in a folder with a checkpoint; `digest` is that of its weights' file."""

    folder: Path
    file: Path
    shape: ModelShape
    description: Mapping[str, Any]
    digest: str

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return what the run cuts texts by."""
        return load_tokenizer(self.description)

    def differences(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return in which hyperparameters a trial's model is another one than the run's, with words."""
        theirs, ours = vars(self.shape), vars(ModelShape.of(values))
        # Only learned positions have a weight for each place; others take any length.
        free = _FREE if self.shape.positions == "learned" else _FREE | {"block_size"}
        return {
            name: f"{name} {shown(theirs[name])}, not {shown(ours[name])}"
            for name in FIELDS
            if name not in free and theirs[name] != ours[name]
        }


def read_start(spec: StudySpec) -> Start | None:
    """Return what a study's runs start from, or None for random weights.

    Raises:
        BadInput: the folder has no checkpoint, or its tokenizer is not the one that the study names.
    """
    if (folder := spec.init_folder) is None:
        return None
    try:
        facts = json.loads((folder / "model.json").read_bytes())
        start = Start(
            folder,
            folder / facts["tensors"],
            ModelShape.of(facts["values"]),
            facts["tokenizer"],
            facts["sha256"],
        )
        kind = start.tokenizer.name
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"init_from: there is no checkpoint in {folder}"
        raise BadInput(spec.problem(("init_from",), what, "a folder with model.json")) from error
    if kind != spec.data.tokenizer:
        what = f"the run in {folder} cuts texts by {kind}"
        raise BadInput(spec.problem(("data", "tokenizer"), what, f"tokenizer: {kind}"))
    if spec.data.vocab_size is not None:
        what = f"vocab_size is the tokenizer's, which is that of the run in {folder}"
        raise BadInput(spec.problem(("data", "vocab_size"), what, "none beside init_from"))
    return start


def check_start(spec: StudySpec, start: Start | None, trials: Iterable[Mapping[str, Any]]) -> None:
    """Make sure that every trial's model is the one that it starts from, and that its weights are whole.

    Raises:
        BadInput: one is not; says in what.
    """
    if start is None:
        return
    content = start.file.read_bytes() if start.file.exists() else b""
    if hashlib.sha256(content).hexdigest() != start.digest:
        what = f"init_from: {start.file} is not what was written there: its hash differs"
        raise BadInput(spec.problem(("init_from",), what))
    for values in trials:
        if different := start.differences(values):
            given = {"fixed": spec.fixed, "grid": spec.grid, "search": spec.search}
            places = [(part, name) for name in different for part, held in given.items() if name in held]
            what = f"init_from: the run in {start.folder} has {'; '.join(different.values())}"
            raise BadInput(
                spec.problem(places[0] if places else ("init_from",), what, "a model as the run's")
            )


def start_weights(spec: StudySpec) -> Mapping[str, Tensor] | None:
    """Return the weights that a study's runs start from, or None where they are drawn from their seeds."""
    from sweeplab.train.checkpoint import read_checkpoint

    return None if spec.init_folder is None else read_checkpoint(spec.init_folder, "model")[0]
