"""The values in a study file as pydantic checks them and describes them for editors, and the names of expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple, TypeVar

import pydantic
from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails

from sweeplab.errors import nearest
from sweeplab.expressions import ALLOWED, Expression, in_table_names
from sweeplab.files import DOWNLOAD_FIRST, is_address
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameter, is_number
from sweeplab.model.shape import FIELDS
from sweeplab.study.problems import Refusal

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
    {"objective", "family", "block_size", "mask_share", "span_length", "max_iters", "batch_size"}
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
    "tokens_per_param": (_SIZES | _TOKENS | {"tokens_per_param", "params_counted"}) - {"max_iters"},
}


def is_of_machine(row: Hyperparameter) -> bool:
    """Return whether a row may differ between the runs of a trial, or between machines: no expression uses it."""
    return row.name == "seed" or row.category == "precision"


def details(error: ValidationError, *place: str | int) -> list[InitErrorDetails]:
    """Return what pydantic detail wrong, for another error, below a place."""
    return [
        InitErrorDetails(
            type=detail["type"],
            loc=(*place, *detail["loc"]),
            input=detail["input"],
            ctx=detail.get("ctx", {}),
        )
        for detail in error.errors(include_url=False)
    ]


def refusal_at(refusal: Refusal, written: Any, *place: str | int) -> InitErrorDetails:
    """Return a refusal of a value at a place, as one of the details of an error."""
    return InitErrorDetails(type="value_error", loc=place, input=written, ctx={"error": refusal})


class Section(pydantic.BaseModel):
    """A part of the study file: refuses unknown keys and values of another type, and is immutable."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _known_keys(cls, written: Any, validate: pydantic.ModelWrapValidatorHandler[Any]) -> Any:
        known = [*cls.model_fields]
        for field in cls.model_fields.values():
            if isinstance(field.validation_alias, pydantic.AliasChoices):
                known += [alias for alias in field.validation_alias.choices if isinstance(alias, str)]
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
    """Declare an optional key of the file, with the description that editors show; a type as default is called."""
    defaults = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return Field(**defaults, description=meaning, **bounds)


def _seconds(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    amount = "([0-9.]+)"
    parts = re.fullmatch(rf"(?:{amount}d)?(?:{amount}h)?(?:{amount}m)?(?:{amount}s)?", written.strip())
    with suppress(ValueError):  # a part with two points
        amounts = [float(part or 0.0) for part in parts.groups()] if parts else []
        if any(amounts):
            return sum(amount * unit for amount, unit in zip(amounts, (86400, 3600, 60, 1), strict=True))
    raise Refusal("", "30m, 2h, 90s, 1h30m, or a number of seconds")


def _count(written: Any) -> Any:
    is_whole = isinstance(written, int) and not isinstance(written, bool)
    if written == AUTO or (is_whole and 1 <= written <= MOST_COUNTED):
        return written
    raise Refusal("", f"auto, or a whole number from 1 to {MOST_COUNTED}")


def _seed_number(written: Any) -> Any:
    try:
        return TABLE["seed"].check(written)
    except ValueError:
        raise Refusal("", TABLE["seed"].allowed) from None


def local(place: str) -> str:
    """Return a place of the user's files.

    Raises:
        Refusal: it is an address.
    """
    if is_address(place):
        raise Refusal("", DOWNLOAD_FIRST)
    return place


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
        if name in TABLE and is_of_machine(TABLE[name]):
            raise Refusal(f"uses {name}, which may differ between the runs of a trial")
    return expression


def _literal(written: Any, place: pydantic.ValidationInfo) -> Any:
    row: Hyperparameter | None = place.context
    if row is None:
        return written
    try:
        return row.check(written)
    except ValueError:
        allowed = row.allowed
        if isinstance(written, Mapping):
            allowed += "; put ranges and expressions under search"
        raise Refusal("", allowed, nearest(written, row.choices)) from None


def _end(written: Any, place: pydantic.ValidationInfo) -> Any:
    if not is_number(written):
        raise Refusal("", place.context.allowed if place.context else "a number")
    return _literal(written, place)


_Some = TypeVar("_Some", list[Any], tuple[Any, ...])


def _distinct(values: _Some) -> _Some:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise Refusal("is given twice", at=(index,))
    return values


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[
    Positive, BeforeValidator(_seconds, Positive | Annotated[str, Field(pattern="^[0-9.dhms]+$")])
]
_COUNT = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_COUNTED}, {"const": AUTO}]}
Place = Annotated[str, Field(min_length=1), pydantic.AfterValidator(local)]
Count = Annotated[int | str, PlainValidator(_count), pydantic.WithJsonSchema(_COUNT)]
SeedNumber = Annotated[int, PlainValidator(_seed_number, Annotated[int, Field(ge=0, le=TABLE["seed"].high)])]
Condition = Annotated[
    Expression,
    PlainValidator(expression_of, str),
    pydantic.PlainSerializer(lambda expression: expression.text),
]
# The values of a row of the table, which is the context of their validation.
Value = Annotated[Any, PlainValidator(_literal)]
Values = Annotated[list[Value], Field(min_length=1), pydantic.AfterValidator(_distinct)]
Options = Annotated[tuple[Value, ...], Field(min_length=1, strict=False), pydantic.AfterValidator(_distinct)]
End = Annotated[int | float, PlainValidator(_end, int | float)]
WholeEnd = Annotated[int, PlainValidator(_end, int)]


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
