"""The columns of a surrogate, and what a person believes of the best value of a range.

piBO (Hvarfner et al. 2022, arXiv 2204.11051) multiplies the acquisition of a point by its density to the power of
BETA / n after n trials. Two departures: half of the density is even over the range, so that a wrong belief costs
little, and n counts the trials of all cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from sweeplab.hyperparameters import is_number
from sweeplab.laws.surrogate import Columns, Floats
from sweeplab.study.search import CONFIDENCES, MEDIUM, Range

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


BETA = 10.0
EVEN = 0.5
_GRID = np.linspace(0.0, 1.0, 1025)


@dataclass(frozen=True)
class Prior:
    """A normal density over the shares of a range from 0 to 1, cut off at its ends, and an even one."""

    center: float
    sd: float

    @classmethod
    def of(cls, entry: Range) -> Self | None:
        """Return the prior of a range; None where it has none."""
        if entry.prior is None:
            return None
        return cls(entry.share(entry.prior), CONFIDENCES[entry.confidence or MEDIUM])

    def density(self, shares: Floats) -> Floats:
        """Return the density at some shares."""
        ends = [math.erf((end - self.center) / self.sd / math.sqrt(2)) / 2 for end in (0.0, 1.0)]
        inside = self.sd * math.sqrt(2 * math.pi) * (ends[1] - ends[0])
        bell = np.exp(-0.5 * ((shares - self.center) / self.sd) ** 2) / inside
        return np.asarray(EVEN + (1 - EVEN) * bell)

    def quantile(self, share: float) -> float:
        """Return the share of the range below which this share of the density lies."""
        return float(np.interp(share, self._cumulated, _GRID))

    @cached_property
    def _cumulated(self) -> Floats:
        density = self.density(_GRID)
        sums = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
        return np.asarray(sums / sums[-1])
