"""The values in a study file as pydantic checks them, the names of expressions, and the entries of `search`."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import InitErrorDetails

from sweeplab.errors import nearest
from sweeplab.expressions import ALLOWED, Expression, in_table_names
from sweeplab.hyperparameters import TABLE, Hyperparameter, is_number
from sweeplab.model.shape import FIELDS
from sweeplab.study.problems import FORMS_IN_WORDS, Refusal

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial

MOST_COUNTED = 2**16  # workers, runs of a stack or threads


class Facts(NamedTuple):
    """Numbers computed from a run's hyperparameters: parameters of its model, tokens and FLOPs of its training."""

    n_params: int
    n_params_active: int
    n_params_non_embedding: int
    train_tokens: int
    train_flops: int


# The hyperparameters that each fact depends on.
_SIZES = frozenset(FIELDS)
_TOKENS = frozenset(
    {
        "objective",
        "family",
        "block_size",
        "mask_share",
        "span_length",
        "max_iters",
        "batch_size",
    }
)
FACTS: dict[str, frozenset[str]] = {
    "n_params": _SIZES,
    "n_params_active": _SIZES,
    "n_params_non_embedding": _SIZES - {"block_size"},
    "train_tokens": _TOKENS,
    "train_flops": _TOKENS | _SIZES,
}
# The hyperparameters that determine the number of steps of a run whose length these set.
LENGTHS_OF = {
    "epochs": frozenset({"epochs", "batch_size", "block_size", "data_limit"}),
    "tokens_per_param": (_SIZES | _TOKENS | {"tokens_per_param", "params_counted"})
    - {"max_iters"},
}


def details(error: ValidationError, *place: str | int) -> list[Any]:
    """Return what pydantic found wrong, for another error, below a place."""
    return [
        {**detail, "loc": (*place, *detail["loc"])}
        for detail in error.errors(include_url=False)
    ]


def refusal_at(refusal: Refusal, written: Any, *place: str | int) -> InitErrorDetails:
    """Return a refusal of a value at a place, as one of the details of an error."""
    return InitErrorDetails(
        type="value_error", loc=place, input=written, ctx={"error": refusal}
    )


class Section(pydantic.BaseModel):
    """A part of the study file: refuses unknown keys and values of another type, and is immutable."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="wrap")
    @classmethod
    def _known_keys(
        cls, written: Any, validate: pydantic.ModelWrapValidatorHandler[Any]
    ) -> Any:
        known = [
            alias
            for name, field in cls.model_fields.items()
            for alias in getattr(field.validation_alias, "choices", [name])
        ]
        try:
            return validate(written)
        except ValidationError as error:
            wrong = details(error)
        for index, detail in enumerate(wrong):
            if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
                refusal = Refusal("key", known=known)
                if detail["loc"][0] in known:
                    refusal = Refusal("is given twice, by two names")
                wrong[index] = refusal_at(refusal, detail["input"], *detail["loc"])
        raise ValidationError.from_exception_data(cls.__name__, wrong)


def key(default: Any, meaning: str, **bounds: Any) -> Any:
    """Declare an optional key of the file, with the description that editors show."""
    return Field(default, description=meaning, **bounds)


def optional(default: Any, meaning: str, **bounds: Any) -> Any:
    """Declare a key that is left out of a written study where it is empty."""
    return key(default, meaning, exclude_if=operator.not_, **bounds)


_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def _seconds(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    number = r"\d+(?:\.\d+)?"
    parts = re.fullmatch(f"({number}d)?({number}h)?({number}m)?({number}s)?", written.strip())
    if not parts or not parts[0]:
        raise Refusal("", "30m, 2h, 90s, 1h30m, or a number of seconds")
    return sum(float(part[:-1]) * _SECONDS[part[-1]] for part in parts.groups() if part)


def expression_of(written: Any) -> Expression:
    """Return the expression that is written.

    Raises:
        Refusal: it is none, or uses a name that no expression may use.
    """
    if isinstance(written, Expression):
        return written
    if not isinstance(written, str):
        raise Refusal("", "an expression, such as max_iters // 10")
    try:
        expression = Expression(in_table_names(written))
    except ValueError as error:
        raise Refusal(str(error), ALLOWED) from None
    known = [*TABLE, *FACTS]
    for name in sorted(expression.names):
        if name not in known:
            near = nearest(name, [*known, "True", "False", "None"])
            raise Refusal(f"uses the unknown name {name!r}", "", near)
        if name == "seed" or (name in TABLE and TABLE[name].category == "precision"):
            raise Refusal(f"uses {name}, which may differ between the runs of a trial")
    return expression


def _literal(written: Any, place: ValidationInfo) -> Any:
    if place.context is None:
        return written
    return _checked(place.context, written)


def _checked(row: Hyperparameter, written: Any) -> Any:
    try:
        return row.check(written)
    except ValueError:
        allowed = row.allowed
        if isinstance(written, Mapping):
            allowed += "; put ranges and expressions under search"
        raise Refusal("", allowed, nearest(written, row.choices)) from None


# Returns a seed that is written.
seed_number = partial(_checked, TABLE["seed"])


def _end(written: Any, place: ValidationInfo) -> Any:
    if not is_number(written):
        raise Refusal("", place.context.allowed if place.context else "a number")
    return _literal(written, place)


def _distinct(values: Sequence[Any]) -> Sequence[Any]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise Refusal("is given twice", at=(index,))
    return values


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[
    Positive,
    BeforeValidator(_seconds, Positive | Annotated[str, Field(pattern="^[0-9.dhms]+$")]),
]
Place = Annotated[str, Field(min_length=1)]
_COUNT = Hyperparameter("count", "", "int", 1, "", low=1, high=MOST_COUNTED, automatic=True)
Count = Annotated[
    int | str,
    PlainValidator(
        partial(_checked, _COUNT),
        Annotated[int, Field(ge=1, le=MOST_COUNTED)] | Literal["auto"],
    ),
]
SeedNumber = Annotated[
    int, PlainValidator(seed_number, Annotated[int, Field(ge=0, le=TABLE["seed"].high)])
]
Condition = Annotated[
    Expression,
    PlainValidator(expression_of, str),
    pydantic.PlainSerializer(lambda expression: expression.text),
]
# The values of a row of the table, which is the context of their validation.
Value = Annotated[Any, PlainValidator(_literal)]
Values = Annotated[list[Value], Field(min_length=1), AfterValidator(_distinct)]
Options = Annotated[
    tuple[Value, ...], Field(min_length=1, strict=False), AfterValidator(_distinct)
]
End = Annotated[int | float, PlainValidator(_end, int | float)]


def of_rows(kind: TypeAdapter[Any]) -> PlainValidator:
    """Return a validator of a mapping of hyperparameters to values of a kind."""

    def validate(written: Any) -> dict[str, Any]:
        if not isinstance(written, Mapping):
            raise Refusal("", "a mapping of hyperparameters")
        typed, wrong = dict[str, Any](), list[InitErrorDetails]()
        for name, value in written.items():
            if name not in TABLE:
                wrong.append(refusal_at(Refusal("hyperparameter", known=[*TABLE]), value, name))
                continue
            try:
                typed[name] = kind.validate_python(value, context=TABLE[name])
            except ValidationError as error:
                wrong += details(error, name)
        if wrong:
            raise ValidationError.from_exception_data("hyperparameters", wrong)
        return typed

    return PlainValidator(validate, dict[str, Any])


# ------------------------------------------------------------------ the entries of `search`


Scalar = str | int | float | bool | None
# A float cannot distinguish more steps than this.
MOST_STEPS = 2**53
_CHECKED = pydantic.ConfigDict(extra="forbid")
_WHEN = "Sampled only where this holds; else the default is used"


@dataclass(frozen=True, config=_CHECKED)
class Range:
    """Every number from `min` to `max`, both included; every whole number where these are whole."""

    min: End
    max: End
    log: bool = optional(False, "Sample evenly over the logarithm", strict=True)
    step: float | None = optional(
        None, "Distance between two values", strict=True, gt=0, allow_inf_nan=False
    )
    when: Condition | None = optional(None, _WHEN)

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        low, high = self.min, self.max
        if low > high:
            raise Refusal(f"is inverted: min {low:g} is above max {high:g}", "min below max")
        if low == high:
            raise Refusal("is empty", "a max above min; put a single value under fixed")
        if self.log and low <= 0:
            raise Refusal("", "a min above 0, or no log", at=("min",))
        if self.step is None:
            return self
        if self.log:
            raise Refusal("", "either log or step", at=("step",))
        if self.integer and self.step % 1:
            raise Refusal("", "a whole number above 0", at=("step",))
        steps = (Fraction(str(high)) - Fraction(str(low))) / Fraction(str(self.step))
        if steps % 1 or steps > MOST_STEPS:
            raise Refusal(
                "", "one that divides the range from min to max, or no step", at=("step",)
            )
        return self

    @property
    def integer(self) -> bool:
        """Return whether the values are whole numbers."""
        return isinstance(self.min, int)

    @property
    def count(self) -> int | None:
        """Return how many values there are; None where they cannot be counted."""
        return round((self.max - self.min) / self._step) + 1 if self._step else None

    def distribution(self) -> BaseDistribution:
        """Return the range as Optuna's distribution."""
        from optuna.distributions import FloatDistribution, IntDistribution

        kind = IntDistribution if self.integer else FloatDistribution
        return kind(**self._optuna)

    def suggest(self, trial: BaseTrial, name: str) -> Any:
        """Ask Optuna for a value; return it as the hyperparameter's own type."""
        if self.integer:
            return trial.suggest_int(name, **self._optuna)
        # From a very narrow range some samplers return a NumPy number.
        return self.decoded(float(trial.suggest_float(name, **self._optuna)))

    def decoded(self, stored: Any) -> Any:
        """Return a value that Optuna stores as the hyperparameter's own type."""
        # 3 * 0.05 is 0.15000000000000002; the user means 0.15.
        if self.step and not self.integer:
            return float(f"{stored:.12g}")
        return stored

    def stored(self, value: Any) -> Scalar:
        """Return a value as Optuna stores it.

        Raises:
            ValueError: the value is not in the range; the message describes the range.
        """
        if is_number(value) and self.min <= value <= self.max:
            near = (
                self.stored_at(round((value - self.min) / self._step)) if self._step else value
            )
            if math.isclose(near, value, rel_tol=1e-9):
                return near
        steps = f" in steps of {self._step or 0:g}" if self._step else ""
        raise ValueError(f"{self.min:g} to {self.max:g}{steps}")

    def stored_at(self, index: int) -> float:
        """Return the value of an index, from 0, as Optuna stores it."""
        value = self.min + index * (self._step or 1)
        if self.integer:
            return int(value)
        return min(value, self.max)

    def at(self, share: float) -> float:
        """Return the stored value at a share from 0 to 1 of the way through the range."""
        if self.count is not None and not self.log:
            return self.stored_at(min(int(share * self.count), self.count - 1))
        # As in Optuna, a whole number represents the interval around it.
        margin = 0.5 if self.integer else 0.0
        low, high = self.min - margin, self.max + margin
        value = low * (high / low) ** share if self.log else low + share * (high - low)
        if self.integer:
            value = round(value)
        return min(max(value, self.min), self.max)

    @property
    def _step(self) -> float | None:
        return self.step or (1 if self.integer else None)

    @property
    def _optuna(self) -> dict[str, Any]:
        return {"low": self.min, "high": self.max, "step": self._step, "log": self.log}


@dataclass(frozen=True, config=_CHECKED)
class Choices:
    """One of a list of values. Optuna keeps scalars only: a tuple is stored as its JSON text."""

    choices: Options
    when: Condition | None = optional(None, _WHEN)

    @property
    def count(self) -> int:
        """Return how many values there are."""
        return len(self.choices)

    def distribution(self) -> BaseDistribution:
        """Return the choices as Optuna's distribution."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self._stored)

    def suggest(self, trial: BaseTrial, name: str) -> Any:
        """Ask Optuna for a value; return it as the hyperparameter's own type."""
        return self.decoded(trial.suggest_categorical(name, self._stored))

    def decoded(self, stored: Any) -> Any:
        """Return a value that Optuna stores as the hyperparameter's own type."""
        return self.choices[self._stored.index(stored)]

    def stored(self, value: Any) -> Scalar:
        """Return a value as Optuna stores it.

        Raises:
            ValueError: it is not one of the choices; the message lists them.
        """
        if value in self.choices:
            return self._stored[self.choices.index(value)]
        raise ValueError(" | ".join(map(json.dumps, self.choices)))

    def stored_at(self, index: int) -> Scalar:
        """Return the value of an index, from 0, as Optuna stores it."""
        return self._stored[index]

    def at(self, share: float) -> Scalar:
        """Return the stored value at a share from 0 to 1 of the way through the choices."""
        return self._stored[min(int(share * self.count), self.count - 1)]

    @property
    def _stored(self) -> tuple[Scalar, ...]:
        if any(isinstance(each, tuple) for each in self.choices):
            return tuple(map(json.dumps, self.choices))
        return self.choices


@dataclass(frozen=True, config=_CHECKED)
class Derived:
    """Computed from the others, never sampled."""

    expr: Annotated[
        Condition, Field(description="Arithmetic over hyperparameters and model facts")
    ]


Sampled = Range | Choices
SearchSpec = Range | Choices | Derived


SUGGESTED = "suggested"
# All runs of a study are evaluated on the same targets, because their losses are compared.
EVALUATED = ("eval_tokens", "eval_iters", "eval_full", "eval_train")
# The forms of an entry of `search`, by a key that only one has.
FORMS: dict[str, type[SearchSpec]] = {
    "expr": Derived,
    "choices": Choices,
    "min": Range,
    "max": Range,
}
_ADAPTERS = {form: TypeAdapter[Any](form) for form in FORMS.values()}
_OPTIONS = TypeAdapter(Options)


def is_searched(row: Hyperparameter) -> bool:
    """Return whether a hyperparameter may be searched: those that depend on the machine may not."""
    return row.name not in ("seed", *EVALUATED) and row.category != "precision"


def read_entry(written: Any, place: ValidationInfo) -> SearchSpec:
    """Return the typed entry of a row of the table, which is the context of the validation.

    Raises:
        Refusal: it has none of the forms that the row may have.
        ValidationError: lists what is wrong with it.
    """
    row: Any = place.context
    if isinstance(written, SearchSpec):
        return written
    if written == SUGGESTED and row.suggested is not None:
        written = row.suggested
    if isinstance(written, list | tuple):
        return Choices(_OPTIONS.validate_python(written, context=row))
    if not isinstance(written, Mapping):
        raise _no_form(row, written)
    form = next((FORMS[key] for key in FORMS if key in written), None)
    known = [field.name for field in fields(form or Range)]
    if form is None:
        known += ["choices", "expr"]
    unknown = [
        refusal_at(Refusal("key", known=known), written[key], key)
        for key in written
        if key not in known
    ]
    if unknown:
        raise ValidationError.from_exception_data("entry", unknown)
    if form is None:
        raise _no_form(row, written)
    if form is Range and row.kind not in ("int", "float"):
        raise Refusal(
            f"is a range, and {row.name} takes no range", f"a list of choices: {row.allowed}"
        )
    typed: SearchSpec = _ADAPTERS[form].validate_python(written, context=row)
    return typed


def _no_form(row: Hyperparameter, written: Any) -> Refusal:
    what, allowed = "", FORMS_IN_WORDS
    if row.suggested is not None:
        allowed = f"{SUGGESTED} | {allowed}"
    if written == SUGGESTED:
        what = f"is {SUGGESTED}, but the table suggests no range for {row.name}"
    elif not isinstance(written, str | Mapping):
        allowed += "; put a single value under fixed"
    return Refusal(what, allowed, nearest(written, [SUGGESTED]))


ENTRY = TypeAdapter[Any](Annotated[Any, PlainValidator(read_entry)])


def needs(entry: SearchSpec) -> frozenset[str]:
    """Return the names that an entry depends on."""
    if isinstance(entry, Derived):
        return entry.expr.names
    return entry.when.names if entry.when else frozenset()


def stored_values(entry: Sampled) -> Iterator[Scalar]:
    """Yield every value as Optuna stores it, in order; none of a range without steps."""
    return map(entry.stored_at, range(entry.count or 0))
