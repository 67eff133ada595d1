"""A study in a few sentences: how many runs ended how, what was compared, which was best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pandas import DataFrame

from sweeplab.report.panels import ENDED, counted, grid_of, searched_of, trials_table


@dataclass(frozen=True)
class Summary:
    """What stands on top of a report; `best` is the trial of the lowest loss that ended, if any has."""

    study: str
    sentences: tuple[str, ...]
    states: dict[str, int] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)


def summarise(runs: DataFrame) -> Summary:
    """Put the runs of a study, a row a run, into words."""
    study = str(runs["study"].iloc[0]) if len(runs) else "no study"
    if runs.empty:
        return Summary(study, ("There are no runs yet.",))
    states = {str(state): int(count) for state, count in runs["state"].value_counts().items()}
    grid, searched = grid_of(runs), searched_of(runs)
    tuned = [name for name in searched if name not in grid]
    sentences = [_extent(runs, states), *_compared(runs, grid, tuned)]
    trials = trials_table(runs)
    ended = trials[trials["state"].isin(ENDED) & trials["loss"].notna()]
    if ended.empty:
        return Summary(study, (*sentences, "No trial has ended with a loss yet."), states)
    row = ended.loc[ended["loss"].idxmin()]
    best = {
        "cell": row["cell"],
        "trial": int(row["trial"]),
        "loss": float(row["loss"]),
        "n_params": int(row["n_params"]),
        "hyperparameters": {name: row[name] for name in (*grid, *tuned)},
    }
    return Summary(study, (*sentences, _best(best, int(row["seeds"]), tuned)), states, best)


def written(value: Any) -> str:
    """Write a value for reading: numbers to four digits, 27,008 with commas, lists as they are."""
    if isinstance(value, bool | str) or value is None:
        return str(value)
    if isinstance(value, Iterable):
        return f"({', '.join(written(each) for each in value)})"
    number = float(value)
    if number.is_integer() and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:.4g}"


def _extent(runs: DataFrame, states: dict[str, int]) -> str:
    n_cells, n_trials = runs["cell"].nunique(), len(runs[["cell", "trial"]].drop_duplicates())
    seeds = f" ({_several(n_trials, 'trial')} of {_several(runs['seed'].nunique(), 'seed')})"
    return (
        f"{_several(len(runs), 'run')}{seeds if n_trials < len(runs) else ''} in {_several(n_cells, 'cell')}: "
        f"{counted(states)}."
    )


def _compared(runs: DataFrame, grid: Sequence[str], tuned: Sequence[str]) -> list[str]:
    sentences = []
    smallest, largest = runs["n_params"].min(), runs["n_params"].max()
    sizes = (
        f"{written(smallest)} parameters"
        if smallest == largest
        else f"{written(smallest)} to {written(largest)} parameters"
    )
    if grid:
        values = (
            f"{name} {', '.join(written(each) for each in sorted(runs[name].unique(), key=_order))}"
            for name in grid
        )
        sentences.append(f"Cells: {' by '.join(values)}; {sizes}.")
    else:
        sentences.append(f"One cell, {sizes}.")
    if tuned:
        ranges = (f"{name} ({_range(runs[name].tolist())})" for name in tuned)
        sentences.append(f"Varied within a cell: {', '.join(ranges)}.")
    return sentences


def _best(best: dict[str, Any], seeds: int, tuned: Sequence[str]) -> str:
    values = ", ".join(f"{name} {written(best['hyperparameters'][name])}" for name in tuned)
    mean = f", the mean of {seeds} seeds" if seeds > 1 else ""
    cell = str(best["cell"]).replace(",", ", ")
    return (
        f"Lowest validation loss: {best['loss']:.4f} nats/token{mean}, by trial {best['trial']} of cell {cell} "
        f"({written(best['n_params'])} parameters){f' with {values}' if values else ''}."
    )


def _range(values: Sequence[Any]) -> str:
    numbers = [
        value
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and value == value
    ]
    if len(numbers) == len(values) and len(set(numbers)) > 4:
        return f"{written(min(numbers))} to {written(max(numbers))}"
    return ", ".join(dict.fromkeys(written(value) for value in sorted(values, key=_order)))


def _order(value: Any) -> tuple[bool, Any, str]:
    number = isinstance(value, int | float) and value == value
    return (not number, value if number else 0, str(value))


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
