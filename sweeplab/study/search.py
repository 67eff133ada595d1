"""The entries of `search`: ranges and choices that Optuna samples, and derived values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.dataclasses import dataclass

from sweeplab.errors import nearest
from sweeplab.hyperparameters import Hyperparameter
from sweeplab.study.problems import Refusal
from sweeplab.study.values import Condition, End, Options, refusal_at

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial

Scalar = str | int | float | bool | None
# A float cannot distinguish more steps than this.
MOST_STEPS = 2**53
_CHECKED = ConfigDict(extra="forbid")
_WHEN = Field(description="Sampled only where this holds; else the default is used")


class Entry:
    """An entry of `search`, whose fields are the keys of the study file."""

    def written(self) -> dict[str, Any]:
        """Return the entry as in a study file, as JSON values."""
        adapter = _ADAPTERS[type(self)]
        return dict(adapter.dump_python(self, mode="json", by_alias=True, exclude_defaults=True))


@dataclass(frozen=True, config=_CHECKED)
class Range(Entry):
    """Every number from `min` to `max`, both included; every whole number where these are whole."""

    min: End
    max: End
    log: Annotated[bool, Field(strict=True, description="Sample evenly over the logarithm")] = False
    step: Annotated[float | None, Field(strict=True, gt=0, allow_inf_nan=False)] = None
    when: Annotated[Condition | None, _WHEN] = None

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        low, high = self.min, self.max
        if low > high:
            raise Refusal(f"is inverted: min {low:g} is above max {high:g}", "min below max")
        if low == high:
            raise Refusal("is empty", "a max above min; put a single value under fixed")
        if self.log and low <= 0:
            raise Refusal("", "a min above 0, or no log", at=("min",))
        if self.step is not None:
            self._check_step(self.step)
        return self

    def _check_step(self, step: float) -> None:
        allowed = ""
        steps = (Fraction(str(self.max)) - Fraction(str(self.min))) / Fraction(str(step))
        if self.log:
            allowed = "either log or step"
        elif self.integer and step % 1:
            allowed = "a whole number above 0"
        elif steps % 1 or steps > MOST_STEPS:
            allowed = "one that divides the range from min to max, or no step"
        if allowed:
            raise Refusal("", allowed, at=("step",))

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

        if self.integer:
            return IntDistribution(**self._optuna)
        return FloatDistribution(**self._optuna)

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
        if self.min <= value <= self.max:
            near = self.stored_at(round((value - self.min) / self._step)) if self._step else value
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
            return int(min(max(round(value), self.min), self.max))
        return min(max(value, self.min), self.max)

    @property
    def _step(self) -> float | None:
        return self.step or (1 if self.integer else None)

    @property
    def _optuna(self) -> dict[str, Any]:
        kind: type = int if self.integer else float
        step = self._step and kind(self._step)
        return {"low": kind(self.min), "high": kind(self.max), "step": step, "log": self.log}


@dataclass(frozen=True, config=_CHECKED)
class Choices(Entry):
    """One of a list of values. Optuna keeps scalars only: a tuple is stored as its JSON text."""

    values: Annotated[Options, Field(validation_alias="choices", serialization_alias="choices")]
    when: Annotated[Condition | None, _WHEN] = None

    @property
    def count(self) -> int:
        """Return how many values there are."""
        return len(self.values)

    def distribution(self) -> BaseDistribution:
        """Return the choices as Optuna's distribution."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self._stored)

    def suggest(self, trial: BaseTrial, name: str) -> Any:
        """Ask Optuna for a value; return it as the hyperparameter's own type."""
        return self.decoded(trial.suggest_categorical(name, self._stored))

    def decoded(self, stored: Any) -> Any:
        """Return a value that Optuna stores as the hyperparameter's own type."""
        return self.values[self._stored.index(stored)]

    def stored(self, value: Any) -> Scalar:
        """Return a value as Optuna stores it.

        Raises:
            ValueError: it is not one of the choices; the message lists them.
        """
        if value in self.values:
            return self._stored[self.values.index(value)]
        raise ValueError(" | ".join(json.dumps(each) for each in self.values))

    def stored_at(self, index: int) -> Scalar:
        """Return the value of an index, from 0, as Optuna stores it."""
        return self._stored[index]

    def at(self, share: float) -> Scalar:
        """Return the stored value at a share from 0 to 1 of the way through the choices."""
        return self._stored[min(int(share * self.count), self.count - 1)]

    @property
    def _stored(self) -> tuple[Scalar, ...]:
        if any(isinstance(each, tuple) for each in self.values):
            return tuple(json.dumps(each) for each in self.values)
        return self.values


@dataclass(frozen=True, config=_CHECKED)
class Derived(Entry):
    """Computed from the others, never sampled."""

    expr: Annotated[Condition, Field(description="Arithmetic over hyperparameters and model facts")]


Sampled = Range | Choices
SearchSpec = Range | Choices | Derived


SUGGESTED = "suggested"
# All runs of a study are evaluated on the same targets, because their losses are compared.
EVALUATED = ("eval_tokens", "eval_iters", "eval_full", "eval_train")
# The key that identifies the form of an entry of `search`, and the form's keys.
FORMS: dict[str, tuple[type[Entry], tuple[str, ...]]] = {
    "expr": (Derived, ("expr",)),
    "choices": (Choices, ("choices", "when")),
    "min": (Range, ("min", "max", "log", "step", "when")),
}
FORMS["max"] = FORMS["min"]
_KEYS = (*FORMS["min"][1], "choices", "expr")
_ADAPTERS = {form: TypeAdapter[Any](form) for form, _ in FORMS.values()}
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
    key = next((key for key in FORMS if key in written), "")
    form, keys = FORMS.get(key, (None, _KEYS))
    unknown = [
        refusal_at(Refusal("key", known=keys), written[key], key) for key in written if key not in keys
    ]
    if unknown:
        raise ValidationError.from_exception_data("entry", unknown)
    if form is None:
        raise _no_form(row, written)
    if form is Range and row.kind not in ("int", "float"):
        raise Refusal(f"is a range, and {row.name} takes no range", f"a list of choices: {row.allowed}")
    typed: SearchSpec = _ADAPTERS[form].validate_python(written, context=row)
    return typed


_FORMS_IN_WORDS = f"{{{', '.join(FORMS['min'][1])}}} | [a, list] | {{choices, when}} | {{expr}}"


def _no_form(row: Hyperparameter, written: Any) -> Refusal:
    what, allowed = "", _FORMS_IN_WORDS
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
    """Yield every value as Optuna stores it, in order.

    Raises:
        ValueError: they cannot be counted.
    """
    if entry.count is None:
        raise ValueError("a continuous range has no list of values")
    return (entry.stored_at(index) for index in range(entry.count))
