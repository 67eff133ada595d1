"""The inputs of a study's runs: its data, and the weights of another run that they start from (no torch)."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.data.baselines import find_baseline
from sweeplab.data.corpora import CORPORA
from sweeplab.data.corpora.splits import MOST_OVERLAP, WINDOW
from sweeplab.data.dataset import Dataset, WrongVocabulary, prepare
from sweeplab.data.objectives import SETTINGS, n_special, objective_of, special_tokens
from sweeplab.data.source import Source
from sweeplab.data.tokenizers import Tokenizer, load_tokenizer
from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.model.shape import FIELDS, SETTLED, ModelShape
from sweeplab.records.folders import DataDescription, StudyFolder
from sweeplab.study.problems import shown
from sweeplab.study.rules import follows
from sweeplab.study.space import Space
from sweeplab.study.spec import DATA_FILES, StudySpec
from sweeplab.train.checkpoint import DamagedCheckpoint, read_checkpoint, read_content
from sweeplab.train.run import train_tokens

if TYPE_CHECKING:
    from torch import Tensor

# The exceptions of `open_start` for a folder without a valid checkpoint.
NO_CHECKPOINT = (
    DamagedCheckpoint, OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError
)  # fmt: skip

# ------------------------------------------------------------------ data


def study_dataset(spec: StudySpec) -> Dataset:
    """Return a study's data, from the cache if possible; with the tokenizer of the run in init_from, if any.

    Raises:
        BadInput: the data or the run cannot be read; points at the line of the study that names them.
    """
    data, start = spec.data, read_start(spec)
    trained = start.tokenizer if start else None
    places = data.model_dump(include={*DATA_FILES})
    fields = (data.field,) if isinstance(data.field, str) else tuple(data.field or ())
    source = Source(**places, fields=fields, encoding=data.encoding or "")
    try:
        return prepare(
            data.corpus, data.tokenizer, source, vocab_size=data.vocab_size, trained=trained
        )
    except BadInput as error:
        name = next(iter(spec.data_files), "corpus")
        if isinstance(error, WrongVocabulary):
            name = "vocab_size"
        with spec.blaming(("data", name)):
            raise


def recorded_dataset(folder: StudyFolder, spec: StudySpec) -> Dataset:
    """Return a study's data, checked to be the same as when it was run.

    Raises:
        BadInput: the data have changed since.
    """
    dataset = study_dataset(spec)
    if dataset.token_digest != folder.data.token_digest:
        raise BadInput(f"the text of study {folder.name} has changed since it was trained on")
    return dataset


def describe_data(spec: StudySpec, dataset: Dataset) -> DataDescription:
    """Return the description that a study records of its data and of the weights that its runs start from."""
    start = read_start(spec)
    return DataDescription(
        corpus=spec.data.corpus,
        tokenizer=Path(spec.data.tokenizer).name,
        vocab_size=dataset.tokenizer.vocab_size,
        train_tokens=len(dataset.train),
        val_tokens=len(dataset.val),
        text_digest=dataset.text_digest,
        token_digest=dataset.token_digest,
        test_tokens=len(dataset.test),
        val_overlap=dataset.val_overlap,
        test_overlap=dataset.test_overlap,
        n_duplicates=dataset.n_duplicates,
        init_digest=start.digest if start else None,
        train_pairs=dataset.sizes.train_pairs,
        labels=list(dataset.labels) or None,
        notes=[*dataset.notes] or None,
    )


def overlap_warnings(data: DataDescription) -> list[str]:
    """Return a warning for each split that shares much of its text with the training split."""
    shares = {"validation": data.val_overlap, "test": data.test_overlap}
    return [
        f"{share:.1%} of the {split} split's windows of {WINDOW} characters occur verbatim in the training "
        f"split (above {MOST_OVERLAP:.0%}): a loss there is partly memorization"
        for split, share in shares.items()
        if share > MOST_OVERLAP
    ]


def write_baselines(folder: StudyFolder, spaces: Sequence[Space], dataset: Dataset) -> None:
    """Write the n-gram baseline of each cell, for a typical trial of it, into the study's folder.

    All count as many tokens as the longest of these trials reads: cells are compared with one baseline.
    """
    baselines = {}
    longest = max(train_tokens(space.typical, space.typical.max_iters) for space in spaces)
    for space in spaces:
        if baseline := find_baseline(dataset, space.typical, n_read=longest):
            baselines[space.cell.key] = asdict(baseline)
    write_whole(folder.baselines_file, json.dumps(baselines, indent=1).encode())


def check_rows(
    spec: StudySpec, dataset: Dataset, trials: Iterable[Hyperparameters]
) -> list[str]:
    """Check that every split has rows of block_size tokens; return warnings about text that rows cut off.

    Raises:
        BadInput: a split is too short, or rows cut off text that targets need; points at the line to change.
    """
    problems = dict[str, None]()
    settings = operator.attrgetter(*SETTINGS, "data_limit")
    unlike = {settings(values): values for values in trials}.values()
    for values in sorted(unlike, key=lambda values: -values.block_size):
        with spec.blaming(spec.place("data_limit", "block_size", default=("data",))):
            dataset.check_fits(values)
            share = objective_of(values).share_cut(dataset.training(values), values)
            # The room for a source depends on the family: a decoder's source shares block_size with the target.
            size = f"block_size {values.block_size} of family {values.family}"
            what = f"{size} cuts the source of {share:.0%} of the pairs"
            if share and CORPORA[spec.data.corpus].needs_whole:
                raise BadInput(f"{what}, but their targets depend on the whole source")
            if share:
                problems[what] = None
    return [*problems]


# ------------------------------------------------------------------ weights to start from


@dataclass(frozen=True)
class Start:
    """The run in a folder with a checkpoint; `digest` is that of its file of weights."""

    folder: Path
    values: Hyperparameters
    shape: ModelShape
    special: Mapping[str, int] | None
    tokenizer: Tokenizer
    digest: str

    @property
    def bound(self) -> list[str]:
        """Return the model hyperparameters that must be the same in every trial."""
        # Trained weights need no init, and a vocabulary may grow.
        free = {"init", "vocab_size", "block_size"}
        # Which of its weights have a row per token or position is unknown.
        if self.shape.is_plugin:
            free = {"init"}
        # Others have no weight per position, and allow any length.
        elif self.shape.positions == "learned":
            free = {"init", "vocab_size"}
        return [*(name for name in FIELDS if name not in free), *dict(self.shape.own)]

    @property
    def bound_values(self) -> dict[str, Any]:
        """Return the values of the run's model by name, those of a plugin's own rows among them."""
        return vars(self.shape) | dict(self.shape.own)

    @property
    def model_values(self) -> dict[str, Any]:
        """Return the values that a study has to set to train the run on: those that are not its defaults."""
        theirs = self.bound_values
        auto = {name for name in SETTLED if follows(name, theirs)}
        values = {
            name: theirs[name]
            for name in (*self.bound, "block_size")
            if name not in auto and theirs[name] != TABLE[name].default
        }
        ours = special_tokens(self.values)
        has_own = any(
            (self.special or {}).get(name, ours[name]) != ours[name] for name in ours.names
        )
        is_auto = theirs["vocab_size"] == self.tokenizer.vocab_size + n_special(self.values)
        if has_own or is_auto:
            return values
        return values | {"vocab_size": theirs["vocab_size"]}

    def vocabulary(self, values: Hyperparameters) -> list[int | None]:
        """Map each token of a run that starts here to its id in this run, or None where it is new.

        A study's special tokens come last; each is looked up by its name, wherever its id is in this run.
        """
        new, old = special_tokens(values), special_tokens(self.values, self.special)
        n_kept = min(new.n_ordinary, old.n_ordinary)
        ordinary = [*range(n_kept), *[None] * (new.n_ordinary - n_kept)]
        return [*ordinary, *(old.ids.get(name) for name in new.names)]


def no_start(folder: Path) -> tuple[str, str]:
    """Say that a folder has no checkpoint, and what may be named instead."""
    return (
        f"init_from: there is no checkpoint in {folder}",
        "a run's name, or a folder with model.json",
    )


def open_start(folder: Path) -> Start:
    """Return the run in a folder; raise one of NO_CHECKPOINT if it is missing, damaged or not a run."""
    if not (described := folder / "model.json").is_file():  # reading a pipe would block
        raise FileNotFoundError(described)
    content, facts = read_content(folder, "model")
    values = Hyperparameters.from_json(facts["values"])
    return Start(
        folder,
        values,
        ModelShape.of(values),
        facts.get("special") or None,
        load_tokenizer(facts["tokenizer"]),
        hashlib.sha256(content).hexdigest(),
    )


def read_start(spec: StudySpec) -> Start | None:
    """Return the run that a study's runs start from, or None for random weights.

    Raises:
        BadInput: the folder has no checkpoint, or a damaged one, or the study names another tokenizer.
    """
    if spec.init_from is None:
        return None
    folder = Path(spec.init_from)
    try:
        start = open_start(folder)
    except DamagedCheckpoint as error:
        raise BadInput(spec.problem(("init_from",), f"init_from: {error}")) from error
    except NO_CHECKPOINT as error:
        raise BadInput(spec.problem(("init_from",), *no_start(folder))) from error
    name = start.tokenizer.name
    if name != spec.data.tokenizer:
        what = f"the run in {folder} has tokenizer {name}"
        raise BadInput(spec.problem(("data", "tokenizer"), what, f"tokenizer: {name}"))
    if spec.data.vocab_size is not None:
        what = f"vocab_size cannot be set: the tokenizer is that of the run in {folder}"
        raise BadInput(
            spec.problem(("data", "vocab_size"), what, "no vocab_size together with init_from")
        )
    return start


def check_start(
    spec: StudySpec, start: Start | None, trials: Iterable[Hyperparameters]
) -> None:
    """Check that every trial has the model of the run that it starts from.

    Raises:
        BadInput: a trial's model differs; the message says in which values.
    """
    if start is None:
        return
    theirs = start.bound_values
    for values in trials:
        ours = values.as_dict() | vars(ModelShape.of(values))
        changed = [
            name
            for name in start.bound
            if theirs[name] != ours[name]
            and not (follows(name, theirs) and follows(name, ours))
        ]
        if changed:
            differences = "; ".join(
                f"{name} {shown(theirs[name])}, not {shown(ours[name])}" for name in changed
            )
            place = spec.place(*changed, default=("init_from",))
            what = f"init_from: the run in {start.folder} has {differences}"
            raise BadInput(spec.problem(place, what, "the run's values"))


# The weights with one row per token.
OF_VOCABULARY = {"token_embedding", "source_embedding", "head.weight", "head.bias"}


def start_weights(spec: StudySpec) -> Callable[[Hyperparameters], Mapping[str, Tensor] | None]:
    """Return a function that gives the weights, by name, from which a run starts; None for weights from its seed.

    Rows of tokens that the earlier run did not have are NaN.
    """
    if (start := read_start(spec)) is None:
        return lambda values: None
    import torch

    weights, _ = read_checkpoint(start.folder, "model")

    def taken(values: Hyperparameters) -> Mapping[str, Tensor]:
        rows = start.vocabulary(values)
        if rows == [*range(start.values.vocab_size)]:
            return weights
        at = torch.tensor([-1 if row is None else row for row in rows])
        moved = {}
        for name in OF_VOCABULARY & weights.keys():
            is_new = (at < 0).view(-1, *[1] * (weights[name].ndim - 1))
            moved[name] = weights[name][at.clamp(min=0)].masked_fill(is_new, math.nan)
        return {**weights, **moved}

    return taken
