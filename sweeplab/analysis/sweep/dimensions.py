"""A hyperparameter as an axis of the space that was searched: from 0 to 1, or one of a few values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pandas import DataFrame, Series

from sweeplab.analysis.trials import finite, grid_of, searched_of
from sweeplab.hyperparameters import TABLE
from sweeplab.study.rules import wanted
from sweeplab.study.spec import Choices, Derived, Divisors, Range

if TYPE_CHECKING:
    from sweeplab.study.spec import SearchSpec

# A number with no more values than these, such as a size, is laid out by its logarithm: they tend to be doublings.
FEW = 6


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter: a range from `low` to `high`, or `choices`, each as it is written in a table."""

    name: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[str, ...] = ()

    def coordinates(self, column: Series) -> Series:
        """Return the values as places from 0 to 1, choices at equal distances; NaN where there is none."""
        if self.choices:
            places = {choice: at / max(1, len(self.choices) - 1) for at, choice in enumerate(self.choices)}
            return column.map(lambda value: places.get(str(value), np.nan)).astype(float)
        numbers = finite(column.to_frame(self.name), self.name)
        low, high = self.low, self.high
        if self.log:
            numbers, low, high = np.log(numbers.where(numbers > 0)), np.log(low), np.log(high)
        return ((numbers - low) / (high - low)).clip(0.0, 1.0)

    def value_at(self, place: float) -> float:
        """Return the number at a place from 0 to 1 of a range."""
        if self.log:
            return float(self.low * (self.high / self.low) ** place)
        return float(self.low + place * (self.high - self.low))


def searched_dimensions(runs: DataFrame, search: Mapping[str, SearchSpec] | None = None) -> list[Dimension]:
    """Return what was sampled inside of the cells and came out differently.

    `search` is the study's own; without it ranges are those of the values that came out.
    """
    if search is None:
        names = [name for name in searched_of(runs) if name not in grid_of(runs)]
        return [dimension_of(name, runs[name]) for name in names]
    return [
        _dimension(name, entry, runs[name])
        for name, entry in search.items()
        if not isinstance(entry, Derived) and name in runs and runs[name].astype(str).nunique() > 1
    ]


def grid_dimensions(runs: DataFrame) -> list[Dimension]:
    """Return the hyperparameters of the grid that have several values."""
    return [dimension_of(name, runs[name]) for name in grid_of(runs) if runs[name].astype(str).nunique() > 1]


def dimension_of(name: str, column: Series) -> Dimension:
    """Return a dimension as wide as the values of a column."""
    numbers = finite(column.to_frame(name), name).dropna()
    if len(numbers) < column.notna().sum() or numbers.nunique() <= 1:
        return Dimension(name, choices=tuple(sorted({str(each) for each in column.dropna()})))
    low, high = float(numbers.min()), float(numbers.max())
    return Dimension(name, low, high, low > 0 and (numbers.nunique() <= FEW or _is_drawn_by_log(name)))


def merged(dimensions: Iterable[Dimension]) -> dict[str, Dimension]:
    """Return each hyperparameter once, as wide as all studies have it."""
    found: dict[str, Dimension] = {}
    for each in dimensions:
        known = found.get(each.name, each)
        found[each.name] = replace(
            known,
            low=min(known.low, each.low),
            high=max(known.high, each.high),
            choices=tuple(dict.fromkeys((*known.choices, *each.choices))),
        )
    return found


def _is_drawn_by_log(name: str) -> bool:
    suggested = TABLE[name].suggested if name in TABLE else None
    return isinstance(suggested, Mapping) and bool(suggested.get("log"))


def _dimension(name: str, entry: SearchSpec, column: Series) -> Dimension:
    if isinstance(entry, Range):
        return Dimension(name, float(entry.min), float(entry.max), entry.log)
    if isinstance(entry, Choices):
        there = {str(each) for each in column.dropna()}
        return Dimension(name, choices=tuple(text for text in map(str, entry.values) if text in there))
    return dimension_of(name, column)


def sampled(runs: DataFrame, name: str, entry: SearchSpec | None) -> Series:
    """Say of each run whether it drew the hyperparameter: where its `when` does not hold it has its default."""
    if isinstance(entry, Range | Choices | Divisors) and entry.when is not None:
        rows: Sequence[dict[Any, Any]] = runs.to_dict("records")
        return Series([wanted(entry, row) for row in rows], index=runs.index)
    return Series(True, index=runs.index)
