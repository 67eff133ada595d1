"""The samplers and pruners with their options: Optuna's own, as a study file has them, and Optuna's objects.

Options have Optuna's names; Optuna's resource is an iteration here, and such options have a second name that says so.

Optuna's objects are written as a study file has them, because every worker makes its own, and a study records them. An
object does not tell the arguments that it was made with: they are taken from its attributes of their names, and hold if
an object made of them has the same.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import pydantic
from pydantic import AliasChoices, Field

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import AUTO
from sweeplab.study.problems import Refusal
from sweeplab.study.values import Section

# Our own option of halving pruners: pruned trials continue if budget is left when all trials have ended.
PROMOTE = "promote"
# Our own option of samplers: how many trials that it models together may run at once.
BATCH = "batch"
# The sampler of all cells together.
JOINT = "joint"

# The largest value of an option; an early-stopping rate is lower, because it is an exponent.
LARGEST = 10**9
MOST = {"min_early_stopping_rate": 30}
# Our names of Optuna's options.
ALIASES = {
    "min_resource": "min_iters",
    "max_resource": "max_iters",
    "reduction_factor": "factor",
    "min_early_stopping_rate": "early_stopping_rate",
}


@dataclass(frozen=True)
class AlgorithmRow:
    """A sampler or pruner: Optuna's class, and its meaning.

    `own` options are not Optuna's, each with its type and default.
    """

    optuna: str
    meaning: str
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def halves(self) -> bool:
        """Return whether a pruner decides at rungs, iterations that grow by a factor."""
        return PROMOTE in self.own

    @property
    def optuna_class(self) -> type[Any]:
        """Return Optuna's class."""
        import optuna

        room = optuna.samplers if self.optuna.endswith("Sampler") else optuna.pruners
        return getattr(room, self.optuna)  # type: ignore[no-any-return]

    @property
    def optuna_defaults(self) -> dict[str, Any]:
        """Return Optuna's defaults of its arguments; `inspect.Parameter.empty` is that of a required one."""
        parameters = inspect.signature(self.optuna_class).parameters
        return {name: parameter.default for name, parameter in parameters.items()}

    @functools.cached_property
    def options(self) -> type[Section]:
        """Return the options that a study file can set, by Optuna's names: those whose values YAML can express."""
        fields = dict(self.own)
        for name, parameter in inspect.signature(self.optuna_class).parameters.items():
            kind = _type_of(name, inspect.formatannotation(parameter.annotation))
            if kind is None or name == "seed":
                continue
            default = ... if parameter.default is parameter.empty else None
            alias = AliasChoices(name, ALIASES[name]) if name in ALIASES else None
            fields[name] = kind, Field(default, validation_alias=alias)
        return pydantic.create_model(f"{self.optuna}Options", __base__=Section, **fields)


def _type_of(name: str, annotation: str) -> Any:
    """Return the type of an option from the words of its annotation; None where YAML cannot express a value."""
    most = MOST.get(name, LARGEST)
    bounds = Field(ge=-most, le=most)
    types: dict[str, Any] = {
        "int": Annotated[int, bounds], "float": Annotated[float, bounds], "bool": bool, "str": str, "None": None,
    }  # fmt: skip
    words = re.findall(r"\w+", annotation)
    if not words or not types.keys() >= {*words}:
        return None
    return functools.reduce(operator.or_, (types[word] for word in words))


_OF_HALVING = {PROMOTE: (bool, False)}
_COUNT = Annotated[int, Field(ge=1, le=LARGEST)]
_OF_ALL = {BATCH: (_COUNT, None)}
_OF_JOINT = {"n_startup_trials": (_COUNT, 1), **_OF_ALL}

SAMPLERS: dict[str, AlgorithmRow] = {
    # What a joint search does not propose is drawn at random.
    AUTO: AlgorithmRow(
        "RandomSampler",
        "joint where a study searches numbers in several cells; else tpe",
        _OF_JOINT,
    ),
    JOINT: AlgorithmRow(
        "RandomSampler",
        "One Gaussian process over all cells: sizes learn from each other",
        _OF_JOINT,
    ),
    "tpe": AlgorithmRow(
        "TPESampler", "Tree-structured Parzen estimator: the best all-rounder", _OF_ALL
    ),
    "gp": AlgorithmRow(
        "GPSampler", "Gaussian process: for few trials of few numeric parameters", _OF_ALL
    ),
    "cmaes": AlgorithmRow(
        "CmaEsSampler",
        "Covariance matrix adaptation: for many trials of numeric parameters",
        _OF_ALL,
    ),
    "qmc": AlgorithmRow("QMCSampler", "Evenly spread points, whatever the results", _OF_ALL),
    "random": AlgorithmRow("RandomSampler", "Independent random points", _OF_ALL),
    "grid": AlgorithmRow(
        "GridSampler", "Every combination of the choices, in random order", _OF_ALL
    ),
}
PRUNERS: dict[str, AlgorithmRow] = {
    "none": AlgorithmRow("NopPruner", "Every trial runs to its end"),
    "median": AlgorithmRow(
        "MedianPruner", "Ends a trial that is worse than the median of the others"
    ),
    "percentile": AlgorithmRow(
        "PercentilePruner", "Ends a trial that is not within the best share of the others"
    ),
    "asha": AlgorithmRow(
        "SuccessiveHalvingPruner",
        "Successive halving: at growing iterations only the best 1/factor of the trials continue",
        _OF_HALVING,
    ),
    "hyperband": AlgorithmRow(
        "HyperbandPruner", "Several successive halvings with different first rungs", _OF_HALVING
    ),
    "threshold": AlgorithmRow("ThresholdPruner", "Ends a trial whose value leaves an interval"),
}


class Algorithm(Section):
    """A sampler or pruner with Optuna's options for it; in the file the options are written beside the type."""

    rows: ClassVar[dict[str, AlgorithmRow]] = SAMPLERS
    type: str
    options: dict[str, Any] = Field(default_factory=dict)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_file(cls, written: Any) -> Any:
        if isinstance(written, cls):
            return written
        named = {"type": written} if isinstance(written, str) else written
        has_default = AUTO in cls.rows
        if not isinstance(named, Mapping) or not (has_default or "type" in named):
            raise Refusal(
                "", f"{' | '.join(cls.rows)}, or {{type: …}} with Optuna's options beside it"
            )
        held = dict(named)
        kind = str(held.pop("type", AUTO))
        if kind not in cls.rows:
            at = () if isinstance(written, str) else ("type",)
            raise Refusal("", " | ".join(cls.rows), nearest(kind, cls.rows), at=at)
        options = cls.rows[kind].options.model_validate(held.get("options", held))
        return {"type": kind, "options": options.model_dump(exclude_unset=True)}

    @pydantic.model_validator(mode="after")
    def _accepted_by_optuna(self) -> Self:
        if self.type != "grid":
            try:
                build(self)
            except (ValueError, TypeError) as error:
                raise Refusal(f": Optuna refuses these options: {error}") from None
        return self

    @pydantic.model_serializer
    def _written(self) -> dict[str, Any]:
        return {"type": self.type, **self.options}


class Sampler(Algorithm):
    """The sampler, which proposes the next trial of a cell."""


class Pruner(Algorithm):
    """The pruner, which ends a trial that falls behind the others of its cell."""

    rows = PRUNERS


def build(algorithm: Algorithm, **unasked: Any) -> Any:
    """Return Optuna's sampler or pruner, with arguments that the study does not give.

    Raises:
        ValueError: Optuna refuses an option.
    """
    row, arguments = algorithm.rows[algorithm.type], unasked
    # Parameters that a sampler cannot model are drawn at random; Optuna would warn of it at every trial.
    if "warn_independent_sampling" in row.optuna_defaults:
        arguments["warn_independent_sampling"] = False
    arguments |= {
        name: value for name, value in algorithm.options.items() if name not in row.own
    }
    return _made(row.optuna_class, arguments)


_PLAIN = (bool, int, float, str, tuple, list, dict, type(None))


def as_written(algorithm: Any) -> Any:
    """Return a sampler or pruner as a study file has it; what is not Optuna's is returned as it is.

    It may be given as an object, as a class, or as a functools.partial of a class.

    Raises:
        BadInput: its class is none of those here, or its arguments are unknown.
    """
    kind: Any = type(algorithm)
    arguments: Mapping[str, Any] | None = None
    if isinstance(algorithm, partial | type):
        made = partial(algorithm)  # joins a partial's arguments
        kind, arguments = made.func, made.keywords
    if not kind.__module__.startswith("optuna."):
        return algorithm
    types = {row.optuna: name for name, row in {**SAMPLERS, **PRUNERS}.items()}
    if kind.__name__ not in types:
        raise BadInput(
            Problem(
                f"a {kind.__name__} cannot be made in each worker", ", ".join(sorted(types))
            )
        )
    if arguments is None:
        arguments = _arguments(algorithm)
    return {"type": types[kind.__name__], **arguments}


def _arguments(algorithm: Any) -> dict[str, Any]:
    held, kind = _held(algorithm), type(algorithm)
    parameters = inspect.signature(kind).parameters
    arguments = {
        name: held[name]
        for name, row in parameters.items()
        if row.default is row.empty and name in held
    }
    usual = dict.fromkeys(held, -math.inf)
    with suppress(TypeError, ValueError):  # one of several arguments may be required
        usual = _held(_made(kind, arguments))
    arguments |= {
        name: held[name]
        for name in parameters
        if name in held and held[name] not in (usual[name], math.inf)
    }
    again = _held(_made(kind, arguments))
    lost = ", ".join(name for name in held if held[name] != again.get(name))
    if lost:
        what = f"this {kind.__name__} does not tell the argument behind its {lost}"
        raise BadInput(
            Problem(what, f"functools.partial(optuna.….{kind.__name__}, …) with its arguments")
        )
    return arguments


def _made(kind: type[Any], arguments: Mapping[str, Any]) -> Any:
    """Make an object without warnings, such as that it is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**arguments)


def _held(algorithm: Any) -> dict[str, Any]:
    """Return what an object was made with, by name; of what cannot be compared only the type."""
    held = dict[str, Any]()
    for name, value in vars(algorithm).items():
        held |= value._asdict() if hasattr(value, "_asdict") else {name.lstrip("_"): value}
    held.pop("seed", None)
    return {
        name: value if isinstance(value, _PLAIN) or callable(value) else type(value)
        for name, value in held.items()
    }
