"""The columns of a surrogate: the values of cells and of trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from sweeplab.hyperparameters import is_number
from sweeplab.laws.surrogate import Columns, Floats

Values = Mapping[str, Any]


@dataclass(frozen=True)
class SearchAxis:
    """One value of a trial as columns: a number in one column, or a choice in one indicator for each value.

    A number's column is (transformed - middle) / half; `is_log` transforms it. A missing value is the middle.
    """

    name: str
    is_searched: bool
    choices: tuple[Any, ...] = ()
    is_log: bool = False
    middle: float = 0.0
    half: float = 1.0

    @classmethod
    def of_numbers(cls, name: str, low: float, high: float, is_searched: bool, is_log: bool) -> Self:
        """Return the axis of a range."""
        if is_log:
            low, high = math.log(low), math.log(high)
        return cls(name, is_searched, (), is_log, (low + high) / 2, max((high - low) / 2, 1e-12))

    def columns(self, values: Sequence[Any]) -> Floats:
        """Return the columns of some values [n, …]; None is missing."""
        if self.choices:
            return np.array([[float(value == choice) for choice in self.choices] for value in values])
        transform = math.log if self.is_log else float
        shares = [value is not None and (transform(value) - self.middle) / self.half for value in values]
        return np.array(shares, float)[:, None]


class Axes:
    """The axes of a table of trials, searched ones and those of the cells' sizes."""

    def __init__(self, axes: Sequence[SearchAxis]) -> None:
        self._axes = axes
        widths = [len(axis.choices) or 1 for axis in axes]
        is_searched = np.repeat([axis.is_searched for axis in axes], widths)
        is_number = np.repeat([not axis.choices for axis in axes], widths)
        self.columns = Columns(is_searched.astype(bool), is_number.astype(bool))

    @classmethod
    def of_trials(cls, sizes: Sequence[Values], searched: Sequence[Values]) -> Self:
        """Return the axes of what varies among trials, as wide as their values."""
        names = dict.fromkeys(name for values in searched for name in values)
        by_name = {name: [values[name] for values in searched if name in values] for name in names}
        axes = [axis for name, values in by_name.items() for axis in axes_of_values(name, values, True)]
        return cls([*axes, *size_axes(sizes)])

    def rows(self, sizes: Sequence[Values], searched: Sequence[Values]) -> Floats:
        """Return the rows [n, d] of trials, by the values of their cells and their searched values."""
        columns = [
            axis.columns([of_trial.get(axis.name) for of_trial in (searched if axis.is_searched else sizes)])
            for axis in self._axes
        ]
        return np.hstack([np.empty((len(sizes), 0)), *columns])


def size_axes(cells: Sequence[Values]) -> Iterator[SearchAxis]:
    """Yield the axes of the values by which cells differ."""
    for name in dict.fromkeys(name for cell in cells for name in cell):
        yield from axes_of_values(name, [cell.get(name) for cell in cells], False)


def axes_of_values(name: str, values: Sequence[Any], is_searched: bool) -> Iterator[SearchAxis]:
    """Yield the axis of a list of values: numbers stay numbers; none if there is only one value."""
    unlike = list(dict.fromkeys(values))
    if len(unlike) < 2:
        return
    if not all(map(is_number, unlike)):
        yield SearchAxis(name, is_searched, tuple(unlike))
        return
    is_log = min(unlike) > 0
    numbers = np.log(unlike) if is_log else np.array(unlike, dtype=float)
    if is_searched:
        yield SearchAxis.of_numbers(name, min(unlike), max(unlike), True, is_log)
    else:
        yield SearchAxis(name, False, (), is_log, float(numbers.mean()), float(numbers.std()))
