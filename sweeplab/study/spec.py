"""A typed study: what a study file says once it has been read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import defaults
from sweeplab.records.folders import NAMES, is_name
from sweeplab.study.expressions import Expression
from sweeplab.study.places import SECTIONS, Location, Places
from sweeplab.study.written import AUTO, Count, PluginFile, Positive, Refusal, Replicate, Seconds, Seed

DEFAULT_TRIALS_PER_CELL = 10
# A warm start of this name is a table, any other a study of the lab.
TABLE_SUFFIX = ".csv"
# Where a problem stands that no line of the file is to blame for.
NOWHERE: Location = ("name",)


@dataclass(frozen=True)
class Range:
    """Every number (or whole number) from `min` to `max`, both included."""

    min: float
    max: float
    log: bool = False
    step: float | None = None
    when: Expression | None = None
    integer: bool = False


@dataclass(frozen=True)
class Choices:
    """One of a list of values."""

    values: tuple[Any, ...]
    when: Expression | None = None


@dataclass(frozen=True)
class Divisors:
    """The divisors of another hyperparameter, from `min` to `max`."""

    of: str
    min: int
    max: int
    when: Expression | None = None


@dataclass(frozen=True)
class Derived:
    """Computed from the others, never sampled."""

    expr: Expression


SearchSpec = Range | Choices | Divisors | Derived


class Section(BaseModel):
    """A part of the study file: no other keys, no values of another type, never changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSpec(Section):
    """Which text is learned, and how it is cut into tokens."""

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


class Objective(Section):
    """What a trial is valued by."""

    metric: str = Field(default="val_loss", description="Number of an evaluation that values a trial")
    goal: Literal["minimize"] = Field(default="minimize", description="Which way is better")
    at: Literal["best", "final"] = Field(
        default="best", description="The best of a run's evaluations, or its last"
    )

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, name: str) -> str:
        from sweeplab.train.metrics import METRICS

        return _known(name, list(METRICS))


class Budget(Section):
    """How much is spent: totals, so that running again adds nothing. The first one used up is the end."""

    trials_per_cell: int | None = Field(
        default=None, ge=1, description="Trials of each cell that ended in any state"
    )
    time: Seconds | None = Field(default=None, description="Wall time: seconds, or such as 30m, 2h, 1h30m")
    flops: Positive | None = Field(default=None, description="Floating-point operations of all training")

    @model_validator(mode="before")
    @classmethod
    def _some_end(cls, written: Any) -> Any:
        """Give a study that says nothing of its end a number of trials."""
        if isinstance(written, dict) and all(value is None for value in written.values()):
            return {**written, "trials_per_cell": DEFAULT_TRIALS_PER_CELL}
        return written


class Algorithm(Section):
    """A sampler or a pruner and Optuna's options of it; in the file the options stand beside the type."""

    type: str
    options: dict[str, Any] = Field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """Return the algorithm as a study file writes it."""
        options = {
            name: value.written() if isinstance(value, Algorithm) else value
            for name, value in self.options.items()
        }
        return {"type": self.type, **options}


class Sampler(Algorithm):
    """What proposes the next trial of a cell."""

    type: str = "tpe"


class Pruner(Algorithm):
    """What ends a trial that falls behind the others of its cell."""

    type: str = "none"


class Engine(Section):
    """What starts the processes that train."""

    type: Literal["local"] = Field(default="local", description="Processes on this machine")
    workers: Count = Field(default=AUTO, description="How many processes; auto: one a GPU, or one a core")
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
    objective: Objective = Objective()
    budget: Budget = Budget()
    sampler: Sampler = Sampler()
    pruner: Pruner = Pruner()
    seeds: list[Seed] = Field(default=[0], min_length=1, description="A trial trains once a seed")
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
    plugins: list[PluginFile] = Field(
        default=[], description="Python files of yours with parts that the study names"
    )
    notify: list[str] = Field(
        default=[],
        description="Environment variables with Apprise URLs that hear when the study ends or idles",
    )

    _places: Places = PrivateAttr(default_factory=Places)

    @field_validator("name")
    @classmethod
    def _fit_for_a_folder(cls, name: str) -> str:
        if not is_name(name):
            raise Refusal("is no name of a study", NAMES)
        return name

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int | Replicate]) -> list[int | Replicate]:
        numbers = [each.seed if isinstance(each, Replicate) else each for each in seeds]
        if repeated := {number for number in numbers if numbers.count(number) > 1}:
            raise Refusal(f"has {', '.join(map(str, sorted(repeated)))} more than once")
        if isinstance(seeds[0], Replicate):
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

    @property
    def first_seed(self) -> int:
        """Return the seed that every trial is trained with."""
        first = self.seeds[0]
        return first.seed if isinstance(first, Replicate) else first

    @property
    def written_seeds(self) -> list[Any]:
        """Return the seeds as a study file writes them, fit for JSON."""
        return [
            {"seed": each.seed, "when": each.when.text} if isinstance(each, Replicate) else each
            for each in self.seeds
        ]

    @property
    def source(self) -> Path | None:
        """Return the study file, or None where there is none."""
        return self._places.file

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
        return self._places.problem(path, what, allowed, nearest)

    def canonical(self) -> dict[str, Any]:
        """Return all that decides results, fit for JSON.

        `identity` makes the study what it is: another identity is another study. `rest` may change between
        two runs of the command.
        """
        plain = self.model_dump(mode="json", include={"data", "objective", "budget", "engine", "track"})
        return {
            "identity": {
                "data": plain["data"],
                "fixed": _jsonable(self.fixed),
                "search": {name: searched(entry) for name, entry in self.search.items()},
                "objective": plain["objective"],
                "seeds": self.written_seeds,
                "constraints": list(self.constraints),
                **({"init_from": str(self.init_folder)} if self.init_from else {}),
                **({"plugins": [each.written() for each in self.plugins]} if self.plugins else {}),
            },
            "rest": {
                "grid": _jsonable(self.grid),
                **({"cells": _jsonable(self.cells)} if self.cells else {}),
                "budget": plain["budget"],
                "sampler": self.sampler.written(),
                "pruner": self.pruner.written(),
                "engine": plain["engine"],
                "track": plain["track"],
                **({"warm_start": self.warm_starts} if self.warm_start else {}),
                **({"notify": list(self.notify)} if self.notify else {}),
            },
        }


def beside(file: Path | None, path: str) -> Path:
    """Return a path that a study file names, made absolute: a relative one starts at the file's folder."""
    folder = file.absolute().parent if file else Path.cwd()
    return folder / Path(path).expanduser()


def searched(entry: SearchSpec) -> dict[str, Any]:
    """Return an entry of `search` as a study file writes it, fit for JSON."""
    if isinstance(entry, Derived):
        return {"expr": entry.expr.text}
    if isinstance(entry, Choices):
        written: dict[str, Any] = {"choices": _jsonable(entry.values)}
    elif isinstance(entry, Divisors):
        written = {"divides": entry.of, "min": entry.min, "max": entry.max}
    else:
        written = {"min": entry.min, "max": entry.max}
        written |= {"log": True} if entry.log else {}
        written |= {"step": entry.step} if entry.step is not None else {}
    return written | ({"when": entry.when.text} if entry.when else {})


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(each) for key, each in value.items()}
    return [_jsonable(each) for each in value] if isinstance(value, list | tuple) else value
