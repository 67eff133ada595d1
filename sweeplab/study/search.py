"""The entries of `search`: ranges and choices that Optuna samples, divisors, and derived values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeplab.expressions import Expression

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial

Scalar = str | int | float | bool | None
# How far the best value may lie from a range's prior: a standard deviation, as a share of the range.
CONFIDENCES = {"low": 0.5, "medium": 0.25, "high": 0.125}
MEDIUM = "medium"


class Entry:
    """An entry of `search`; its fields are the keys of the study file, except for two."""

    def written(self) -> dict[str, Any]:
        """Return the entry as in a study file, as JSON values."""
        names = {"values": "choices", "of": "divides"}
        held = {names.get(name, name): value for name, value in vars(self).items() if name != "integer"}
        keys = {name: value for name, value in held.items() if value is not None and value is not False}
        return dict(json.loads(json.dumps(keys, default=lambda expression: expression.text)))


@dataclass(frozen=True)
class Range(Entry):
    """Every number (or whole number) from `min` to `max`, both included.

    `prior` is where a person believes the best value to be, with one of CONFIDENCES, by default MEDIUM.
    """

    min: float
    max: float
    log: bool = False
    step: float | None = None
    when: Expression | None = None
    integer: bool = False
    prior: float | None = None
    confidence: str | None = None

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

    def share(self, value: float) -> float:
        """Return how far through the range a value lies, from 0 to 1."""
        low, high, place = self.min, self.max, value
        if self.log:
            low, high, place = math.log(low), math.log(high), math.log(value)
        return (place - low) / (high - low)

    @property
    def _step(self) -> float | None:
        return self.step or (1 if self.integer else None)

    @property
    def _optuna(self) -> dict[str, Any]:
        kind: type = int if self.integer else float
        step = self._step and kind(self._step)
        return {"low": kind(self.min), "high": kind(self.max), "step": step, "log": self.log}


@dataclass(frozen=True)
class Choices(Entry):
    """One of a list of values. Optuna keeps scalars only: a tuple is stored as its JSON text."""

    values: tuple[Any, ...]
    when: Expression | None = None

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


@dataclass(frozen=True)
class Divisors(Entry):
    """The divisors of another hyperparameter, from `min` to `max`."""

    of: str
    min: int
    max: int
    when: Expression | None = None

    def choices(self, of: int) -> Choices:
        """Return the divisors of a value of the other hyperparameter."""
        return Choices(tuple(n for n in range(self.min, min(self.max, of) + 1) if of % n == 0))


@dataclass(frozen=True)
class Derived(Entry):
    """Computed from the others, never sampled."""

    expr: Expression


Sampled = Range | Choices
SearchSpec = Range | Choices | Divisors | Derived


def needs(entry: SearchSpec) -> frozenset[str]:
    """Return the names that an entry depends on."""
    if isinstance(entry, Derived):
        return entry.expr.names
    names = frozenset[str]()
    if entry.when:
        names |= entry.when.names
    if isinstance(entry, Divisors):
        names |= {entry.of}
    return names


def stored_values(entry: Sampled) -> Iterator[Scalar]:
    """Yield every value as Optuna stores it, in order.

    Raises:
        ValueError: they cannot be counted.
    """
    if entry.count is None:
        raise ValueError("a continuous range has no list of values")
    return (entry.stored_at(index) for index in range(entry.count))
