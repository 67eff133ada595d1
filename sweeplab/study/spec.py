"""A typed study: what a study file says once it has been read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import AUTO, TABLE, defaults
from sweeplab.records.folders import NAMES, is_name
from sweeplab.study.expressions import ALLOWED, Expression
from sweeplab.study.problems import SECTIONS, Location, SourceMap
from sweeplab.study.search import SearchSpec

DEFAULT_TRIALS_PER_CELL = 10
# A warm start of this name is a table, any other a study of the lab.
TABLE_SUFFIX = ".csv"
# Where a problem stands that no line of the file is to blame for.
NOWHERE: Location = ("name",)
# What makes a study the one it is: another one of these is another study. All else may change between two runs of it.
IDENTITY = ("data", "fixed", "search", "objective", "seeds", "constraints", "init_from", "plugins")
# What a study that has none of it does not mention.
OPTIONAL = ("cells", "warm_start", "init_from", "plugins", "notify")


class Refusal(ValueError):  # noqa: N818 - what it says is said to a person
    """Says of one value what is wrong with it, what is allowed and which name was probably meant.

    A value that `is_secret` is not repeated.
    """

    def __init__(self, what: str, allowed: str = "", nearest: str = "", is_secret: bool = False) -> None:
        super().__init__(what)
        self.what, self.allowed, self.nearest, self.is_secret = what, allowed, nearest, is_secret


# ------------------------------------------------------------------ values that are written in a way of their own


def _seconds(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    parts = re.fullmatch(r"\s*(?:(\S+?)d)?(?:(\S+?)h)?(?:(\S+?)m)?(?:(\S+?)s)?\s*", written)
    try:
        amounts = [float(part) if part else 0.0 for part in parts.groups()] if parts else []
    except ValueError:
        amounts = []
    if not any(amounts):
        raise Refusal("is no length of time", "30m, 2h, 90s, 1h30m, or a number of seconds")
    return sum(amount * unit for amount, unit in zip(amounts, (86400, 3600, 60, 1), strict=True))


def _count(written: Any) -> Any:
    if written != AUTO and (isinstance(written, bool) or not isinstance(written, int) or written < 1):
        raise Refusal("is no count", "auto, or a whole number, at least 1")
    return written


def _seed_number(written: Any) -> Any:
    try:
        return TABLE["seed"].check(written)
    except ValueError:
        raise Refusal("is no seed", "a whole number, at least 0") from None


def _expression(written: Any) -> Expression:
    if isinstance(written, Expression):
        return written
    try:
        return Expression(str(written))
    except ValueError as error:
        raise Refusal(str(error), ALLOWED) from None


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[
    Positive,
    BeforeValidator(_seconds),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": "^[0-9.dhms]+$"}]}
    ),
]
Count = Annotated[
    int | str,
    PlainValidator(_count),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": AUTO}]}),
]
SeedNumber = Annotated[
    int,
    PlainValidator(_seed_number),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": TABLE["seed"].high}),
]
Condition = Annotated[
    Expression,
    PlainValidator(_expression),
    PlainSerializer(lambda expression: expression.text),
    WithJsonSchema({"type": "string"}),
]


class Section(BaseModel):
    """A part of the study file: no other keys, no values of another type, never changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


ALWAYS = Expression("True")


class ConditionalSeed(Section):
    """A seed that is trained in the cells where `when` holds."""

    seed: SeedNumber
    when: Condition = Field(
        default_factory=lambda: ALWAYS, description="Trained only in cells where this holds"
    )


# The forms of a seed, as pydantic's errors name them in a place.
SEED_FORMS = ("number", "conditional")
Seed = Annotated[
    Annotated[SeedNumber, Tag("number")] | Annotated[ConditionalSeed, Tag("conditional")],
    Discriminator(lambda each: SEED_FORMS[isinstance(each, dict | ConditionalSeed)]),
]


class Plugin(Section):
    """A Python file of the user's; a study that was run keeps its digest, and the names that it registered."""

    file: str = Field(min_length=1)
    sha256: str = Field(default="", description="Refuse the file where it is another")
    provides: dict[str, list[str]] = Field(
        default={}, description="What it registered when it was imported, by kind"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_file(cls, written: Any) -> Any:
        """Take the name of a file alone."""
        if isinstance(written, str):
            return {"file": written}
        if not isinstance(written, dict | Plugin):
            raise Refusal("is no plugin", "a Python file such as my_parts.py, or {file, sha256}")
        return written


class DataSpec(Section):
    """Which text is learned, and by which tokenizer."""

    corpus: str = Field(description="Name of the corpus")
    tokenizer: str = Field(description="Name of the tokenizer")
    path: str | None = Field(
        default=None,
        description="File or glob of the corpus, relative to the study file's folder",
        min_length=1,
    )
    vocab_size: int | None = Field(
        default=None, description="How many tokens a tokenizer learns, where it learns them: bpe, word"
    )

    @field_validator("corpus")
    @classmethod
    def _known_corpus(cls, name: str) -> str:
        from sweeplab.data.corpora import CORPORA

        return _known(name, list(CORPORA))

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, name: str) -> str:
        from sweeplab.data.tokenizers import TOKENIZERS

        return _known(name, list(TOKENIZERS))


def _known(name: str, known: list[str]) -> str:
    if name not in known:
        raise Refusal("is unknown", " | ".join(known), nearest(name, known))
    return name


class ObjectiveSpec(Section):
    """What a trial is valued by."""

    metric: str = Field(default="val_loss", description="Number of an evaluation that values a trial")
    goal: Literal["minimize"] = Field(default="minimize", description="Which way is better")
    at: Literal["best", "final"] = Field(
        default="best", description="The best of a run's evaluations, or its last"
    )

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, name: str) -> str:
        from sweeplab.train.run import METRICS

        return _known(name, list(METRICS))


class Budget(Section):
    """How much is spent: totals, so that running again adds nothing. The first one used up ends the study."""

    trials_per_cell: int | None = Field(
        default=None,
        ge=1,
        description="Trials of each cell that ended: complete, stopped, pruned or diverged",
    )
    time: Seconds | None = Field(default=None, description="Wall time: seconds, or such as 30m, 2h, 1h30m")
    flops: Positive | None = Field(default=None, description="Floating-point operations of all training")

    @model_validator(mode="before")
    @classmethod
    def _some_end(cls, written: Any) -> Any:
        """Give a study without a budget a number of trials."""
        if isinstance(written, dict) and all(value is None for value in written.values()):
            return {**written, "trials_per_cell": DEFAULT_TRIALS_PER_CELL}
        return written


class Algorithm(Section):
    """A sampler or a pruner and Optuna's options of it; in the file the options stand beside the type."""

    type: str
    options: dict[str, Any] = Field(default_factory=dict)

    @model_serializer
    def _written(self) -> dict[str, Any]:
        return {"type": self.type, **self.options}


class Sampler(Algorithm):
    """What proposes the next trial of a cell."""

    type: str = "tpe"


class Pruner(Algorithm):
    """What ends a trial that falls behind the others of its cell."""

    type: str = "none"


class Engine(Section):
    """What starts the processes that train."""

    type: Literal["local"] = Field(default="local", description="Processes on this machine")
    workers: Count = Field(default=AUTO, description="How many processes; auto: one per GPU, or one per core")
    stack: Count = Field(
        default=AUTO, description="How many runs of one shape train as one program; auto: what pays"
    )
    threads: Count = Field(
        default=AUTO, description="Threads of each process; auto: the cores divided among them"
    )


class Track(Section):
    """What is kept of a run, and where."""

    checkpoints: Literal["best", "last", "none"] = Field(default="best", description="Which weights are kept")
    uri: str | None = Field(
        default=None, description="MLflow's tracking URI; the lab's own database if missing"
    )


class StudySpec(Section):
    """A study. Its values have been checked against the hyperparameter table and against each other."""

    name: str = Field(description="Name of the study and of its folder in the lab")
    data: DataSpec
    preset: str | None = Field(
        default=None, description="Published model whose values stand under fixed where the file says nothing"
    )
    fixed: dict[str, Any] = Field(default_factory=dict, description="Hyperparameters with one value")
    grid: dict[str, list[Any]] = Field(
        default_factory=dict, description="Hyperparameters whose every combination is a cell"
    )
    cells: list[dict[str, Any]] = Field(
        default_factory=list, description="Cells by what each changes of fixed, such as one thing at a time"
    )
    search: dict[str, SearchSpec] = Field(
        default_factory=dict, description="Hyperparameters that are tuned inside each cell"
    )
    constraints: list[str] = Field(
        default_factory=list, description="Expressions that hold for every cell and trial"
    )
    objective: ObjectiveSpec = ObjectiveSpec()
    budget: Budget = Budget()
    sampler: Sampler = Sampler()
    pruner: Pruner = Pruner()
    seeds: list[Seed] = Field(default=[0], min_length=1, description="A trial trains once per seed")
    engine: Engine = Engine()
    track: Track = Track()
    warm_start: list[str] = Field(
        default=[], description="Studies of the lab and .csv tables whose trials the sampler begins with"
    )
    init_from: str | None = Field(
        default=None,
        description="Folder with a checkpoint whose weights, tokenizer and sizes runs start from",
        min_length=1,
    )
    plugins: list[Plugin] = Field(
        default=[],
        description="Your Python files with corpora, tokenizers, activations or metrics that the study names",
    )
    notify: list[str] = Field(
        default=[],
        description="Environment variables with Apprise URLs to notify when the study ends or has nothing to do",
    )

    _source_map: SourceMap = PrivateAttr(default_factory=SourceMap)

    @field_validator("name")
    @classmethod
    def _fit_for_a_folder(cls, name: str) -> str:
        if not is_name(name):
            raise Refusal("is no name of a study", NAMES)
        return name

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int | ConditionalSeed]) -> list[int | ConditionalSeed]:
        numbers = _numbers(seeds)
        if repeated := {number for number in numbers if numbers.count(number) > 1}:
            raise Refusal(f"has {', '.join(map(str, sorted(repeated)))} more than once")
        seeds = [
            each.seed if isinstance(each, ConditionalSeed) and each.when == ALWAYS else each for each in seeds
        ]
        if isinstance(seeds[0], ConditionalSeed):
            raise Refusal(
                "has a `when` for its first seed",
                "a first seed for every cell, such as [0, {seed: 1, when: …}]",
            )
        return seeds

    @field_validator("warm_start")
    @classmethod
    def _named_once(cls, sources: list[str]) -> list[str]:
        if repeated := [each for each in sources if sources.count(each) > 1]:
            raise Refusal(f"has {repeated[0]} more than once")
        return sources

    @field_validator("notify")
    @classmethod
    def _variables(cls, names: list[str]) -> list[str]:
        for name in names:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise Refusal(
                    "has what is no name of an environment variable",
                    "names such as MY_PHONE; URLs, which may hold secrets, stand in the variables",
                    is_secret=True,
                )
        return names

    @field_serializer("search")
    def _written_search(self, search: dict[str, SearchSpec]) -> dict[str, Any]:
        return {name: entry.written() for name, entry in search.items()}

    @property
    def seed_numbers(self) -> list[int]:
        """Return all seeds, whether every cell is trained with them or some are."""
        return _numbers(self.seeds)

    @property
    def first_seed(self) -> int:
        """Return the seed that every trial is trained with."""
        return self.seed_numbers[0]

    @property
    def source(self) -> Path | None:
        """Return the study file, or None where there is none."""
        return self._source_map.file

    @property
    def changed(self) -> dict[str, list[Any]]:
        """Return the hyperparameters that some of the `cells` change, each with its values in all of them."""
        whole = [{**defaults(), **self.fixed, **changes} for changes in self.cells]
        names = dict.fromkeys(name for changes in self.cells for name in changes)
        return {name: list(dict.fromkeys(each[name] for each in whole)) for name in names}

    @property
    def of_pairs(self) -> bool | None:
        """Say whether the corpus is one of pairs; None where the file's data are wrong, and its space is checked."""
        from sweeplab.data.corpora import CORPORA, PairCorpus

        data = getattr(self, "data", None)
        return None if data is None else isinstance(CORPORA[data.corpus], PairCorpus)

    @property
    def data_path(self) -> str | None:
        """Return the corpus' path made absolute: a relative one starts at the study file's folder."""
        return None if self.data.path is None else str(beside(self.source, self.data.path))

    @property
    def init_folder(self) -> Path | None:
        """Return the folder of the run that the study's runs start from, made absolute as the corpus' path is."""
        return None if self.init_from is None else beside(self.source, self.init_from)

    @property
    def warm_starts(self) -> list[str]:
        """Return what the study starts from: names of studies, and tables' paths made absolute as the corpus' is."""
        return [
            str(beside(self.source, each)) if each.endswith(TABLE_SUFFIX) else each
            for each in self.warm_start
        ]

    def place(self, *names: str, default: Location = NOWHERE) -> Location:
        """Return where the study gives the first of these hyperparameters that it gives."""
        sections: list[Location] = [
            (section, name) for name in names for section in SECTIONS if name in getattr(self, section)
        ]
        changes: list[Location] = [
            ("cells", index, name) for name in names for index, each in enumerate(self.cells) if name in each
        ]
        return next(iter(sections + changes), default)

    def place_of(self, name: str, value: Any) -> Location | None:
        """Return where the study gives a hyperparameter this value, or None where it does not."""
        if value in self.grid.get(name, ()):
            return ("grid", name, self.grid[name].index(value))
        for index, changes in enumerate(self.cells):
            if name in changes and changes[name] == value:
                return ("cells", index, name)
        return next(
            ((section, name) for section in ("fixed", "search") if name in getattr(self, section)), None
        )

    @contextmanager
    def blaming(self, place: Location | None) -> Iterator[None]:
        """Give every problem raised inside this place in the file; None, or a file of its own, leaves it as it is."""
        try:
            yield
        except BadInput as error:
            if place is None or any(each.file for each in error.problems):
                raise
            placed = [self.problem(place, each.what, each.allowed, each.nearest) for each in error.problems]
            raise BadInput(*placed) from error

    def problem(self, path: Location, what: str, allowed: str = "", nearest: str = "") -> Problem:
        """Return a problem with the file, line and column of `path`, such as `("data", "corpus")`."""
        return self._source_map.problem(path, what, allowed, nearest)

    def as_written(self) -> dict[str, Any]:
        """Return the study as a study file would say it, with its paths made absolute; fit for JSON."""
        written = self.model_dump(mode="json", exclude={"preset"})
        written["data"]["path"] = self.data_path
        written["init_from"] = None if self.init_folder is None else str(self.init_folder)
        written["warm_start"] = self.warm_starts
        return {name: value for name, value in written.items() if value or name not in OPTIONAL}

    def identity(self) -> dict[str, Any]:
        """Return what of the study makes it the one it is."""
        written = self.as_written()
        return {name: written[name] for name in IDENTITY if name in written}


def beside(file: Path | None, path: str) -> Path:
    """Return a path that a study file names, made absolute: a relative one starts at the file's folder."""
    folder = file.absolute().parent if file else Path.cwd()
    return folder / Path(path).expanduser()


def _numbers(seeds: list[int | ConditionalSeed]) -> list[int]:
    return [each.seed if isinstance(each, ConditionalSeed) else each for each in seeds]
