"""A typed study: what a study file says once it has been read and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from sweeplab.errors import Problem, nearest
from sweeplab.hyperparameters import TABLE
from sweeplab.study.expressions import ALLOWED, Expression
from sweeplab.study.places import Location, Places

DEFAULT_TRIALS_PER_CELL = 10
SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
AUTO: Final = "auto"


class Refusal(ValueError):  # noqa: N818 - what it says is said to a person
    """Says of one value what is wrong with it, what is allowed and which name was probably meant."""

    def __init__(self, what: str, allowed: str = "", nearest: str = "") -> None:
        super().__init__(what)
        self.what, self.allowed, self.nearest = what, allowed, nearest


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


@dataclass(frozen=True)
class Replicate:
    """A seed that is trained in the cells where `when` holds."""

    seed: int
    when: Expression


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
    return sum(amount * unit for amount, unit in zip(amounts, SECONDS.values(), strict=True))


def _count(written: Any) -> Any:
    if written != AUTO and (isinstance(written, bool) or not isinstance(written, int) or written < 1):
        raise Refusal("is no count", "auto, or a whole number, at least 1")
    return written


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[
    Positive,
    BeforeValidator(_seconds),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": "^[0-9.dhms]+$"}]}
    ),
]
Count = Annotated[
    int | Literal["auto"],
    BeforeValidator(_count),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": AUTO}]}),
]


def _seed(written: Any) -> int | Replicate:
    entry = written if isinstance(written, dict) else {"seed": written}
    if unknown := sorted(entry.keys() - {"seed", "when"}):
        raise Refusal(
            f"has {unknown[0]!r}", "a number, or {seed, when}", nearest(unknown[0], ["seed", "when"])
        )
    try:
        number: int = TABLE["seed"].check(entry.get("seed"))
    except ValueError:
        raise Refusal("is no seed", "a whole number, at least 0") from None
    if "when" not in entry:
        return number
    try:
        return Replicate(number, Expression(str(entry["when"])))
    except ValueError as error:
        raise Refusal(str(error), ALLOWED) from None


Seed = Annotated[
    int | Replicate,
    PlainValidator(_seed),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": TABLE["seed"].high},
                {
                    "type": "object",
                    "properties": {
                        "seed": {"type": "integer", "minimum": 0, "maximum": TABLE["seed"].high},
                        "when": {"type": "string", "description": "Trained only in cells where this holds"},
                    },
                    "required": ["seed", "when"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


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

    metric: Literal["val_loss"] = Field(default="val_loss", description="Metric of a run that values it")
    goal: Literal["minimize"] = Field(default="minimize", description="Which way is better")
    at: Literal["best", "final"] = Field(
        default="best", description="The best of a run's evaluations, or its last"
    )


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
    fixed: dict[str, Any] = Field(default_factory=dict, description="Hyperparameters with one value")
    grid: dict[str, list[Any]] = Field(
        default_factory=dict, description="Hyperparameters whose every combination is a cell"
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

    _places: Places = PrivateAttr(default_factory=Places)

    @field_validator("name")
    @classmethod
    def _fit_for_a_folder(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) or not name.strip("."):
            raise Refusal("is no name of a study", "letters, digits, . _ and -, at most 100")
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
    def data_path(self) -> str | None:
        """Return the corpus' path made absolute: a relative one starts at the study file's folder."""
        if self.data.path is None:
            return None
        folder = self.source.absolute().parent if self.source else Path.cwd()
        return str(folder / Path(self.data.path).expanduser())

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
            },
            "rest": {
                "grid": _jsonable(self.grid),
                "budget": plain["budget"],
                "sampler": self.sampler.written(),
                "pruner": self.pruner.written(),
                "engine": plain["engine"],
                "track": plain["track"],
            },
        }


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
