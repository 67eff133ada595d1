"""Values with a notation of their own in a study file: durations, counts, seeds, conditions."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Any

import pydantic
from pydantic import BeforeValidator, Field, PlainValidator

from sweeplab.expressions import ALLOWED, Expression, in_table_names
from sweeplab.hyperparameters import AUTO, TABLE

MOST_COUNTED = 2**16


class Refusal(ValueError):  # noqa: N818 - its text is shown to the user
    """Report what is wrong with one value, what is allowed and which name was probably meant.

    The message does not repeat a value that `is_secret`.
    """

    def __init__(self, what: str, allowed: str = "", nearest: str = "", is_secret: bool = False) -> None:
        super().__init__(what)
        self.what, self.allowed, self.nearest, self.is_secret = what, allowed, nearest, is_secret


def _seconds(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    amount = "([0-9.]+)"
    parts = re.fullmatch(rf"(?:{amount}d)?(?:{amount}h)?(?:{amount}m)?(?:{amount}s)?", written.strip())
    amounts: list[float] = []
    with suppress(ValueError):
        amounts = [float(part or 0.0) for part in (parts and parts.groups()) or ()]
    if not any(amounts):
        raise Refusal("is not a duration", "30m, 2h, 90s, 1h30m, or a number of seconds")
    return sum(amount * unit for amount, unit in zip(amounts, (86400, 3600, 60, 1), strict=True))


def _count(written: Any) -> Any:
    if written != AUTO and (
        isinstance(written, bool) or not isinstance(written, int) or not 1 <= written <= MOST_COUNTED
    ):
        raise Refusal("is not a valid count", f"auto, or a whole number from 1 to {MOST_COUNTED}")
    return written


def _seed_number(written: Any) -> Any:
    try:
        return TABLE["seed"].check(written)
    except ValueError:
        raise Refusal("is not a valid seed", TABLE["seed"].allowed) from None


def _expression(written: Any) -> Expression:
    if isinstance(written, Expression):
        return written
    try:
        return Expression(in_table_names(str(written)))
    except ValueError as error:
        raise Refusal(str(error), ALLOWED) from None


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[
    Positive, BeforeValidator(_seconds, Positive | Annotated[str, Field(pattern="^[0-9.dhms]+$")])
]
_COUNT = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_COUNTED}, {"const": AUTO}]}
Count = Annotated[int | str, PlainValidator(_count), pydantic.WithJsonSchema(_COUNT)]
SeedNumber = Annotated[int, PlainValidator(_seed_number, Annotated[int, Field(ge=0, le=TABLE["seed"].high)])]
Condition = Annotated[
    Expression, PlainValidator(_expression, str), pydantic.PlainSerializer(lambda expression: expression.text)
]
