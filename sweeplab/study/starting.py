"""What the runs of a study start from instead of random weights: another run's, and its tokenizer (no torch)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.data.objectives import n_special, special_tokens
from sweeplab.data.tokenizers import Tokenizer, load_tokenizer
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE
from sweeplab.model.shape import FIELDS, SETTLED, ModelShape
from sweeplab.study.places import shown
from sweeplab.study.rules import follows

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
    values: Mapping[str, Any]
    description: Mapping[str, Any]
    digest: str

    @cached_property
    def shape(self) -> ModelShape:
        """Return the run's model."""
        return ModelShape.of(self.values)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return what the run cuts texts by."""
        return load_tokenizer(self.description)

    @property
    def _bound(self) -> list[str]:
        """Return the hyperparameters of a model that a trial's has to share."""
        # Only learned positions have a weight for each place; others take any length.
        free = _FREE if self.shape.positions == "learned" else _FREE | {"block_size"}
        return [name for name in FIELDS if name not in free]

    @property
    def model_values(self) -> dict[str, Any]:
        """Return what a study has to say for its model to be the run's: all that does not follow by itself."""
        theirs = vars(self.shape)
        auto = {name for name in SETTLED if follows(name, theirs)}
        if theirs["vocab_size"] == self.tokenizer.vocab_size + n_special(self.values):
            auto.add("vocab_size")
        return {
            name: theirs[name]
            for name in self._bound
            if name not in auto and theirs[name] != TABLE[name].default
        }

    @property
    def why_not(self) -> str | None:
        """Say why a study cannot go on from the run: it would learn by another special token; None where it can."""
        theirs, ours = self.values.get("special") or {}, special_tokens({**self.values, "special": None})
        moved = (name for name in ours.names if theirs.get(name, ours[name]) != ours[name])
        if name := next(moved, None):
            return f"has its special token {name} at {theirs[name]}, and a study's come last: at {ours[name]}"
        return None

    def differences(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return in which hyperparameters a trial's model is another one than the run's, with words.

        What follows from others in both is left out.
        """
        theirs, ours = vars(self.shape), vars(ModelShape.of(values))
        return {
            name: f"{name} {shown(theirs[name])}, not {shown(ours[name])}"
            for name in self._bound
            if theirs[name] != ours[name] and not (follows(name, theirs) and follows(name, ours))
        }


# What a folder without a checkpoint, or with what is none, makes of `open_start`.
NO_CHECKPOINT = (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError)


def open_start(folder: Path) -> Start:
    """Return the run in a folder; what is not there or is no run's raises one of NO_CHECKPOINT."""
    facts = json.loads((folder / "model.json").read_bytes())
    start = Start(folder, folder / facts["tensors"], facts["values"], facts["tokenizer"], facts["sha256"])
    _ = start.shape, start.tokenizer  # raise here what they raise
    return start


def read_start(spec: StudySpec) -> Start | None:
    """Return what a study's runs start from, or None for random weights.

    Raises:
        BadInput: the folder has no checkpoint, its tokenizer is not the one that the study names, or its special
            tokens are not where those of a study's runs are.
    """
    if (folder := spec.init_folder) is None:
        return None
    try:
        start = open_start(folder)
    except NO_CHECKPOINT as error:
        what = f"init_from: there is no checkpoint in {folder}"
        raise BadInput(spec.problem(("init_from",), what, "a folder with model.json")) from error
    if why_not := start.why_not:
        raise BadInput(spec.problem(("init_from",), f"init_from: the run in {folder} {why_not}"))
    if (kind := start.tokenizer.name) != spec.data.tokenizer:
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
            what = f"init_from: the run in {start.folder} has {'; '.join(different.values())}"
            place = spec.place(*different, default=("init_from",))
            raise BadInput(spec.problem(place, what, "a model as the run's"))


def start_weights(spec: StudySpec) -> Mapping[str, Tensor] | None:
    """Return the weights that a study's runs start from, or None where they are drawn from their seeds."""
    from sweeplab.train.checkpoint import read_checkpoint

    return None if spec.init_folder is None else read_checkpoint(spec.init_folder, "model")[0]
