"""One parameter as Optuna knows it: a name, and a range or choices of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeplab.study.spec import Choices, Range

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Parameter:
    """What is sampled for a hyperparameter, under the name that Optuna stores.

    Optuna keeps scalars only: a tuple is stored as its JSON text.
    """

    name: str
    entry: Range | Choices

    def suggest(self, trial: BaseTrial) -> Any:
        """Ask Optuna for a value; return it as the hyperparameter's own type."""
        entry = self.entry
        if isinstance(entry, Choices):
            return self.decoded(trial.suggest_categorical(self.name, self._stored))
        if entry.integer:
            return trial.suggest_int(
                self.name, int(entry.min), int(entry.max), step=int(entry.step or 1), log=entry.log
            )
        # From a range of hardly any width some samplers draw a number of NumPy's.
        return self.decoded(
            float(trial.suggest_float(self.name, entry.min, entry.max, step=entry.step, log=entry.log))
        )

    def distribution(self) -> BaseDistribution:
        """Return the parameter as Optuna's distribution."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        entry = self.entry
        if isinstance(entry, Choices):
            return CategoricalDistribution(self._stored)
        if entry.integer:
            return IntDistribution(int(entry.min), int(entry.max), log=entry.log, step=int(entry.step or 1))
        return FloatDistribution(entry.min, entry.max, log=entry.log, step=entry.step)

    @property
    def count(self) -> int | None:
        """Return how many values there are; None where they cannot be counted."""
        entry = self.entry
        if isinstance(entry, Choices):
            return len(entry.values)
        step = entry.step or (1 if entry.integer else None)
        return round((entry.max - entry.min) / step) + 1 if step else None

    def stored_values(self) -> Iterator[Scalar]:
        """Yield every value as Optuna stores it, in order.

        Raises:
            ValueError: they cannot be counted.
        """
        if self.count is None:
            raise ValueError(f"{self.name} is continuous")
        return (self._stored_at(index) for index in range(self.count))

    def decoded(self, stored: Any) -> Any:
        """Return a stored value as the hyperparameter's own type."""
        if isinstance(self.entry, Choices):
            return self.entry.values[self._stored.index(stored)]
        # 3 * 0.05 is 0.15000000000000002: nobody wrote that.
        return float(f"{stored:.12g}") if self.entry.step and not self.entry.integer else stored

    def at(self, share: float) -> Scalar:
        """Return the stored value at a share from 0 to 1 of the way through the parameter's values."""
        entry = self.entry
        if self.count is not None and not (isinstance(entry, Range) and entry.log):
            return self._stored_at(min(int(share * self.count), self.count - 1))
        assert isinstance(entry, Range)
        # As Optuna does: a whole number stands for the interval around it.
        margin = 0.5 if entry.integer else 0.0
        low, high = entry.min - margin, entry.max + margin
        value = low * (high / low) ** share if entry.log else low + share * (high - low)
        value = min(max(round(value) if entry.integer else value, entry.min), entry.max)
        return int(value) if entry.integer else value

    def _stored_at(self, index: int) -> Scalar:
        entry = self.entry
        if isinstance(entry, Choices):
            return self._stored[index]
        value = entry.min + index * (entry.step or 1)
        return int(value) if entry.integer else min(value, entry.max)

    @property
    def _stored(self) -> tuple[Scalar, ...]:
        assert isinstance(self.entry, Choices)
        values = self.entry.values
        if any(isinstance(each, tuple) for each in values):
            return tuple(json.dumps(each) for each in values)
        return values
