"""A typed study: the content of a study file after it has been read and checked, and its values' own notations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import (
    Field,
    SerializeAsAny,
    TypeAdapter,
    field_validator,
    model_validator,
)

from sweeplab import plugins
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.expressions import Expression
from sweeplab.formatting import duration
from sweeplab.hyperparameters import AUTO, TABLE, defaults
from sweeplab.permissions import RAY, TRACKING, WANDB, Kind, mirror_address
from sweeplab.records.folders import NAMES, is_name
from sweeplab.study.options import Pruner, Sampler
from sweeplab.study.problems import SECTIONS, Location, Problems, Refusal
from sweeplab.study.values import (
    ENTRY,
    Condition,
    Count,
    Place,
    Positive,
    SearchSpec,
    Seconds,
    Section,
    SeedNumber,
    Value,
    Values,
    key,
    of_rows,
    optional,
    seed_number,
)

if TYPE_CHECKING:
    from sweeplab.data.batches import DataKind

DEFAULT_TRIALS_PER_CELL = 10
# The most trials per cell that a study may ask for.
MOST_TRIALS = 10**12
# Every draw is checked against all constraints: more of them take minutes before the first trial.
MOST_CELLS, MOST_CONSTRAINTS = 1000, 100
PRESETS = Path(__file__).parents[1] / "presets"
# The place of a problem that no line of the file causes.
NOWHERE: Location = ("name",)
# The keys that identify a study: where one differs, it is another study. All others may change between two runs.
IDENTITY = (
    "data",
    "fixed",
    "search",
    "objective",
    "seeds",
    "constraints",
    "init_from",
    "plugins",
)
# Seconds before its time limit at which a job saves and exits, and the shortest time limit allowed.
LEAVE_BEFORE, SHORTEST_JOB = 90, 120


ALWAYS = Expression("True")


class ConditionalSeed(Section):
    """A seed that is trained in the cells where `when` holds."""

    seed: SeedNumber
    when: Condition = Field(
        default_factory=lambda: ALWAYS, description="Trained only in cells where this holds"
    )


def seed_parts(seed: int | ConditionalSeed) -> tuple[int, Expression]:
    """Return a seed's number and its condition."""
    if isinstance(seed, ConditionalSeed):
        return seed.seed, seed.when
    return seed, ALWAYS


def _seed(written: Any) -> Any:
    if isinstance(written, Mapping):
        written = ConditionalSeed.model_validate(written)
    if not isinstance(written, ConditionalSeed):
        return seed_number(written)
    if written.when == ALWAYS:
        return written.seed
    return written


Seed = Annotated[Any, pydantic.PlainValidator(_seed, int | ConditionalSeed)]


class Plugin(Section):
    """A Python file of the user; a study that was run keeps its digest and the names that it registered."""

    file: str = Field(min_length=1)
    sha256: str = key("", "Expected SHA-256 of the file; a file with another one is refused")
    provides: dict[str, list[str]] = key(
        {}, "Names that it registered when it was imported, by kind"
    )
    rows: dict[str, dict[str, Any]] = optional({}, "The rows that it has added to the table")

    @model_validator(mode="before")
    @classmethod
    def _of_file(cls, written: Any) -> Any:
        if isinstance(written, str):
            return {"file": written}
        if not isinstance(written, dict | Plugin):
            raise Refusal("", "a Python file such as my_parts.py, or {file, sha256}")
        return written


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, in alphabetical order."""
    return tuple(sorted(file.stem for file in PRESETS.glob("*.yaml")))


def _known(name: str, field: pydantic.ValidationInfo) -> str:
    kind = str(field.field_name)
    if kind == "tokenizer" and (name.endswith(TOKENIZER_SUFFIXES) or name == "ids"):
        return name
    if kind == "preset":
        known = preset_names()
    elif kind == "encoding":
        from sweeplab.data.formats import ENCODINGS

        known = tuple(ENCODINGS)
    else:
        known = tuple(plugins.table_of(kind))
    if name not in known:
        raise Refusal("", " | ".join(known), nearest(name, known))
    return name


# The name of a preset or part; the name of its key says which kind it is.
Part = Annotated[str, pydantic.AfterValidator(_known)]
TOKENIZER_SUFFIXES = (".json", ".model")
# The keys of data that name files.
DATA_FILES = ("path", "train", "val", "test", "tokens")


class DataSpec(Section):
    """The corpus that runs learn from, and its tokenizer."""

    corpus: Part = Field(
        description="Name of the corpus; default where files are named: by what they have"
    )
    tokenizer: Part = Field(
        description="Name of the tokenizer, or its file: a tokenizer.json, a SentencePiece .model; default where files "
        "are named: char below 1 MB, else bpe"
    )
    path: Place | None = key(
        None, "File, folder or glob of the corpus, relative to the study file's folder"
    )
    vocab_size: int | None = key(
        None, "Size of the vocabulary that a tokenizer learns, such as bpe or word"
    )
    train: Place | None = optional(
        None, "File, folder or glob of the training split, instead of path"
    )
    val: Place | None = optional(None, "That of the validation split; default: cut from train")
    test: Place | None = optional(None, "That of the test split; default: cut from val")
    tokens: Place | None = optional(
        None, "Folder with train.bin and val.bin, or a .bin or .npy, of token ids"
    )
    field: str | list[str] | None = optional(
        None, "Field of the text in rows; of pairs and labels two: [from, to]"
    )
    encoding: Part | None = optional(
        None, "Encoding of the texts; default: UTF-8, or what a byte order mark says"
    )

    @model_validator(mode="after")
    def _one_place(self) -> DataSpec:
        places = [name for name in ("path", "train", "tokens") if getattr(self, name)]
        wrong = f"has {' and '.join(places)}" if len(places) > 1 else ""
        if not self.train and (self.val or self.test):
            wrong = "has val or test but no train"
        if self.tokenizer == "ids" and not self.tokens:
            wrong = "has tokenizer ids without tokens"
        if wrong:
            raise Refusal(wrong, "one of path, train (with val and test) and tokens")
        return self


class ObjectiveSpec(Section):
    """The value of a trial, by which Optuna compares trials."""

    metric: Part = key("val_loss", "Metric of an evaluation that gives a trial its value")
    goal: Literal["minimize", "maximize"] = key("minimize", "Which direction is better")
    at: Literal["best", "final"] = key(
        "best", "Take the best of a run's evaluations, or its last one"
    )

    @model_validator(mode="after")
    def _losses_are_minimized(self) -> ObjectiveSpec:
        if self.goal == "maximize" and self.metric == "val_loss":
            raise Refusal("maximizes val_loss", "goal: minimize, or the metric of a plugin")
        return self

    @property
    def label(self) -> str:
        """Return what a trial's value is, of which less is better: minus the metric if that is maximized."""
        return ("-" if self.goal == "maximize" else "") + self.metric


class Budget(Section):
    """How much a study may spend: totals, so that running again adds nothing. The first one used up ends the study."""

    trials_per_cell: int | None = key(
        None,
        "Ended trials of each cell: complete, stopped, pruned or diverged",
        ge=1,
        le=MOST_TRIALS,
    )
    time: Seconds | None = key(None, "Wall time: seconds, or such as 30m, 2h, 1h30m")
    flops: Positive | None = key(None, "Floating-point operations of all training")

    @model_validator(mode="before")
    @classmethod
    def _some_end(cls, written: Any) -> Any:
        if isinstance(written, dict) and all(
            written.get(name) is None for name in cls.model_fields
        ):
            return {**written, "trials_per_cell": DEFAULT_TRIALS_PER_CELL}
        return written


class Engine(Section):
    """The engine, which starts the worker processes: where, how many, with which resources; never what they train.

    A key of another engine is ignored, so that one file serves all.
    """

    type: Literal["local", "slurm", "ray"] = key(
        "local",
        "Processes on this machine, jobs of a Slurm cluster, or actors of a Ray cluster",
    )
    workers: Count = key(AUTO, "How many processes; auto: one per GPU, or one per core")
    stack: Count = key(
        AUTO, "How many runs of one shape train as one program; auto: what pays and fits"
    )
    threads: Count = key(
        AUTO, "Threads of each process; auto: the cores divided among them, not local: 1"
    )
    gpus_per_worker: float = key(
        0, "slurm, ray: GPUs of each process; on ray also a fraction", ge=0
    )
    time: Seconds | None = key(
        None, "slurm: how long a job may take before it is queued again, such as 4h"
    )
    partition: str | None = key(
        None, "slurm: partition for the jobs; default: the cluster's", min_length=1
    )
    address: str = key(
        "auto", "ray: address of the cluster; auto: the one that this machine belongs to"
    )

    @property
    def threads_elsewhere(self) -> int:
        """Return the threads of a process on a machine of a cluster."""
        if self.threads == AUTO:
            return 1
        return int(self.threads)

    @field_validator("gpus_per_worker")
    @classmethod
    def _whole_on_slurm(cls, count: float, field: pydantic.ValidationInfo) -> float:
        if field.data.get("type") == "slurm" and count % 1:
            raise Refusal("", "whole GPUs; engine ray also accepts fractions")
        return count

    @field_validator("time")
    @classmethod
    def _long_enough(cls, seconds: float | None) -> float | None:
        if seconds is not None and seconds < SHORTEST_JOB:
            what = f"is too short: a job stops {duration(LEAVE_BEFORE)} before its time limit"
            raise Refusal(what, "2m or more")
        return seconds


class Track(Section):
    """What a run records, and where."""

    checkpoints: Literal["best", "last", "none"] = key("best", "Which weights to keep")
    snapshots: int = key(
        3,
        "Best pruned trials of each cell that keep a snapshot to be promoted from; others start anew",
        ge=0,
    )
    gradients: bool = key(
        False,
        "Keep the norms of each layer's gradient, update and weights at the points of the curves; takes one more "
        "forward and backward pass at each",
    )
    diff: bool = key(
        True,
        "Send MLflow what is not committed in the repositories of the study file and of sweeplab",
    )
    uri: str | None = key(None, "MLflow's tracking URI; default: the lab's own database")


Literals = Annotated[dict[str, Any], of_rows(TypeAdapter(Value))]
Lists = Annotated[dict[str, list[Any]], of_rows(TypeAdapter(Values))]
Entries = Annotated[dict[str, SearchSpec], of_rows(ENTRY), SerializeAsAny()]


class StudySpec(Section):
    """A study. Its values have been checked against the hyperparameter table and against each other."""

    name: str = Field(description="Name of the study and of its folder in the lab")
    data: DataSpec
    preset: Part | None = key(
        None,
        "Published model whose values are used as fixed where the file sets none",
        exclude=True,
    )
    fixed: Literals = key({}, "Hyperparameters with one value")
    grid: Lists = key({}, "Hyperparameters whose every combination is a cell")
    cells: list[Literals] = optional(
        [],
        "Cells, each given by what it changes in fixed, such as one thing at a time",
        max_length=MOST_CELLS,
    )
    search: Entries = key({}, "Hyperparameters that are tuned inside each cell")
    first_trial: Literals = optional(
        {}, "Values of searched names in the first trial of each cell"
    )
    constraints: list[Condition] = key(
        [], "Expressions that must hold for every cell and trial", max_length=MOST_CONSTRAINTS
    )
    objective: ObjectiveSpec = ObjectiveSpec()
    budget: Budget = Budget()
    sampler: Sampler = Sampler.model_construct(type=AUTO)
    pruner: Pruner = Pruner.model_construct(type="none")
    seeds: list[Seed] = key([0], "A trial trains once per seed", min_length=1)
    engine: Engine = Engine()
    track: Track = Track()
    warm_start: list[str] = optional(
        [], "Studies of the lab whose trials the sampler begins with"
    )
    init_from: Place | None = optional(
        None,
        "Run, or folder with a checkpoint, whose weights, tokenizer and sizes runs start from",
    )
    plugins: list[Plugin] = optional(
        [],
        "Your Python files with corpora, tokenizers, activations or metrics that the study names",
    )
    notify: list[str] = optional(
        [],
        "Environment variables with Apprise URLs to notify when the study ends or has nothing to do",
    )

    _read_from: Problems = pydantic.PrivateAttr(default_factory=Problems)

    @field_validator("name")
    @classmethod
    def _fit_for_a_folder(cls, name: str) -> str:
        if not is_name(name):
            raise Refusal("", NAMES)
        return name

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int | ConditionalSeed]) -> list[int | ConditionalSeed]:
        numbers = [number for number, _ in map(seed_parts, seeds)]
        repeated = sorted({number for number in numbers if numbers.count(number) > 1})
        if repeated:
            raise Refusal(f"has {', '.join(map(str, repeated))} more than once")
        if isinstance(seeds[0], ConditionalSeed):
            allowed = "a first seed without a condition, such as [0, {seed: 1, when: …}]"
            raise Refusal("has a `when` on its first seed", allowed)
        return seeds

    @field_validator("notify")
    @classmethod
    def _variables(cls, names: list[str]) -> list[str]:
        if not all(name.isidentifier() for name in names):
            what = "has an entry that is not the name of an environment variable"
            allowed = "names such as MY_PHONE; put the URLs, which may hold secrets, into the variables"
            raise Refusal(what, allowed)
        return names

    @property
    def seed_numbers(self) -> list[int]:
        """Return all seeds, including those that only some cells are trained with."""
        return [number for number, _ in map(seed_parts, self.seeds)]

    @property
    def first_seed(self) -> int:
        """Return the seed that every trial is trained with."""
        return self.seed_numbers[0]

    @property
    def source(self) -> Path | None:
        """Return the study file, or None where there is none."""
        return self._read_from.file

    @property
    def text(self) -> str:
        """Return the text of the study file."""
        return self._read_from.text

    @property
    def n_points(self) -> int:
        """Return the number of cells, those that break a rule among them."""
        return math.prod(map(len, self.grid.values())) * max(1, len(self.cells))

    @property
    def changed(self) -> dict[str, list[Any]]:
        """Return the hyperparameters that any of the `cells` changes, each with its values over all cells."""
        whole = [{**defaults(), **self.fixed, **changes} for changes in self.cells]
        names = dict.fromkeys(name for changes in self.cells for name in changes)
        return {name: list(dict.fromkeys(each[name] for each in whole)) for name in names}

    @property
    def kind(self) -> DataKind | None:
        """Return the kind of data of the corpus; None where a plugin's corpus is not imported."""
        from sweeplab.data.corpora import CORPORA, AnyCorpus

        corpus = CORPORA[self.data.corpus]
        return corpus.kind if isinstance(corpus, AnyCorpus) else None

    @property
    def data_files(self) -> dict[str, str]:
        """Return the paths that `data` names, by key; absolute ones in a study that was read."""
        named = self.data.model_dump(include={*DATA_FILES}, exclude_none=True)
        if self.data.tokenizer.endswith(TOKENIZER_SUFFIXES):
            named["tokenizer"] = self.data.tokenizer
        return named

    @property
    def addresses(self) -> Iterator[tuple[Location, Kind, str]]:
        """Yield the addresses that the study names, each with its place and kind."""
        if self.track.uri:
            yield ("track", "uri"), TRACKING, self.track.uri
        if self.engine.type == "ray" and self.engine.address != AUTO:
            yield ("engine", "address"), RAY, self.engine.address
        if self.fixed.get("wandb_project") and (address := mirror_address()):
            yield ("fixed", "wandb_project"), WANDB, address

    @property
    def devices(self) -> set[str]:
        """Return the devices that the study asks for, `auto` among them."""
        fixed = [self.fixed.get("device", TABLE["device"].default)]
        return {*(self.grid.get("device") or self.changed.get("device") or fixed)}

    def place(self, *names: str, default: Location = NOWHERE) -> Location:
        """Return the place of the first of these hyperparameters that the study sets."""
        for name in names:
            for section in SECTIONS:
                if name in getattr(self, section):
                    return section, name
        for name in names:
            for index, cell in enumerate(self.cells):
                if name in cell:
                    return "cells", index, name
        return default

    @contextmanager
    def blaming(self, place: Location | None) -> Iterator[None]:
        """Add this place to every problem raised inside, unless it is None or the problem already names a file."""
        try:
            yield
        except BadInput as error:
            if place is None or any(each.file for each in error.problems):
                raise
            raise BadInput(
                *(
                    self.problem(place, each.what, each.allowed, each.nearest)
                    for each in error.problems
                )
            ) from error

    def problem(
        self, path: Location, what: str, allowed: str = "", nearest: str = ""
    ) -> Problem:
        """Return a problem with the file, line and column of `path`, such as `("data", "corpus")`."""
        return self._read_from.problem(path, what, allowed, nearest)

    def is_overridden(self, place: Location) -> bool:
        """Return whether the command line set the value at a place."""
        places = self._read_from.places
        return any(isinstance(places.get(place[:end]), str) for end in range(len(place) + 1))

    def as_written(self) -> dict[str, Any]:
        """Return the content of a study file for this study, as JSON values."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """Return the parts of the study that identify it."""
        written = self.as_written()
        return {name: written[name] for name in IDENTITY if name in written}
