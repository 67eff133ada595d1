"""A study's trials as a sweep: their values, their rank in their cell, and their search space; and its cost.

The cost is where compute and time went, and what pruning saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from pandas import DataFrame, Series

from sweeplab.analysis.trials import (
    COUNTED,
    LOST,
    TRIAL,
    VALUED,
    WORST_FIRST,
    StudyDesign,
    finite,
    grid_of,
    plain,
    searched_of,
    trials_table,
    values_of,
)
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE
from sweeplab.study.rules import wanted
from sweeplab.study.search import Choices, Derived, Divisors, Range, SearchSpec
from sweeplab.train.run import row_flops, train_flops

# A number with at most this many values, such as a size, gets a log scale: the values tend to be doublings.
FEW = 6
COSTS = ("train_flops", "wall_seconds", "planned_flops")


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter as an axis: a range from `low` to `high`, or `choices`, each as it is written in a table."""

    name: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[str, ...] = ()

    def coordinates(self, column: Series) -> Series:
        """Return the values as places from 0 to 1, choices at equal distances; NaN where missing."""
        if self.choices:
            places = {choice: at / max(1, len(self.choices) - 1) for at, choice in enumerate(self.choices)}
            return column.map(lambda value: places.get(str(value), np.nan)).astype(float)
        numbers = finite(column.to_frame(self.name), self.name)
        low, high = self.low, self.high
        if self.log:
            numbers, low, high = np.log(numbers.where(numbers > 0)), np.log(low), np.log(high)
        return ((numbers - low) / (high - low)).clip(0.0, 1.0)

    @property
    def distribution(self) -> BaseDistribution:
        """Return the distribution of its places, or of its choices, as Optuna has it."""
        if self.choices:
            return CategoricalDistribution(self.choices)
        return FloatDistribution(0.0, 1.0)

    def suggested(self, place: float) -> float | str:
        """Return what Optuna stores for a place: the place itself, or the choice that is there."""
        if self.choices:
            return self.choices[round(place * max(1, len(self.choices) - 1))]
        return float(place)

    def value_at(self, place: float) -> float:
        """Return the number at a place from 0 to 1 of a range."""
        if self.log:
            return float(self.low * (self.high / self.low) ** place)
        return float(self.low + place * (self.high - self.low))


def searched_dimensions(runs: DataFrame, design: StudyDesign | None = None) -> list[Dimension]:
    """Return the searched hyperparameters that vary within cells.

    Without the study's own design, ranges are those of the observed values.
    """
    if design is None:
        grid = grid_of(runs)
        return [dimension_of(name, runs[name]) for name in searched_of(runs) if name not in grid]
    return [
        dimension_of(name, runs[name], entry)
        for name, entry in design.search.items()
        if not isinstance(entry, Derived) and _has_several(runs, name)
    ]


def dimension_of(name: str, column: Series, entry: SearchSpec | None = None) -> Dimension:
    """Return a dimension as wide as its range in the study file, else as the values of a column."""
    if isinstance(entry, Range):
        return Dimension(name, float(entry.min), float(entry.max), entry.log)
    if isinstance(entry, Choices):
        there = {str(each) for each in column.dropna()}
        return Dimension(name, choices=tuple(text for text in map(str, entry.values) if text in there))
    numbers = finite(column.to_frame(name), name).dropna()
    if len(numbers) < column.notna().sum() or numbers.nunique() <= 1:
        return Dimension(name, choices=tuple(sorted({str(each) for each in column.dropna()})))
    low, high, is_log = float(numbers.min()), float(numbers.max()), numbers.nunique() <= FEW
    suggested = TABLE[name].suggested if name in TABLE else None
    if isinstance(suggested, Mapping):
        is_log = is_log or bool(suggested.get("log"))
    return Dimension(name, low, high, low > 0 and is_log)


def merged(dimensions: Iterable[Dimension]) -> dict[str, Dimension]:
    """Return each hyperparameter once, with the range of all studies."""
    by_name: dict[str, Dimension] = {}
    for dimension in dimensions:
        known = by_name.get(dimension.name, dimension)
        choices = tuple(dict.fromkeys((*known.choices, *dimension.choices)))
        low, high = min(known.low, dimension.low), max(known.high, dimension.high)
        by_name[dimension.name] = replace(known, low=low, high=high, choices=choices)
    return by_name


def _has_several(runs: DataFrame, name: str) -> bool:
    return name in runs and runs[name].astype(str).nunique() > 1


@dataclass(frozen=True)
class Sweep:
    """The trials of one study, one row per trial, and the space that they were drawn from.

    Columns of `trials`: cell, trial, state, seeds; `loss`, the trial's value as reported to Optuna;
    `above`, that minus the best of its cell; `standing`, its rank in the cell from 0 (best) to 1; the sums over its
    seeds of train_flops, wall_seconds and planned_flops; `share`, the share of its iterations that was trained; the
    hyperparameters of the grid and of each dimension, missing where not sampled.
    """

    name: str
    runs: DataFrame
    trials: DataFrame
    dimensions: tuple[Dimension, ...]
    grid: tuple[Dimension, ...]

    @property
    def cells(self) -> list[str]:
        """Return the cells in the order of the table."""
        return list(dict.fromkeys(self.trials["cell"]))

    @property
    def ended(self) -> DataFrame:
        """Return the trials that came to their end with a value."""
        return self.trials[has_ended(self.trials)]


def has_ended(trials: DataFrame) -> Series:
    """Return whether each trial ended with a value."""
    return trials["state"].isin(VALUED) & trials["loss"].notna()


def sweep_of(runs: DataFrame, design: StudyDesign | None = None) -> Sweep:
    """Return a study's runs as a sweep; `design` has the grid and search space of its file."""
    runs = plain(runs, ("study", *TRIAL, "seed", "state", "value", "iterations", "max_iters"))
    runs["planned_flops"] = _counted(runs, lambda run: train_flops(values_of(run), run["max_iters"]))
    runs["row_flops"] = _counted(runs, lambda run: row_flops(values_of(run)))
    grid, dimensions = grid_of(runs, design), searched_dimensions(runs, design)
    search = design.search if design else {}
    for name in (each.name for each in dimensions if each.name in search):
        entry = search[name]
        if isinstance(entry, Range | Choices | Divisors) and entry.when is not None:
            # A hyperparameter whose condition does not hold was not sampled and has its default.
            rows: Sequence[dict[Any, Any]] = runs.to_dict("records")
            runs[name] = runs[name].where(Series([wanted(entry, row) for row in rows], index=runs.index))
    trials = trials_table(runs, "value").drop(columns=["loss_low", "loss_high", "best"])
    sums = runs.assign(**{name: finite(runs, name) for name in COSTS}).groupby(TRIAL, sort=False)
    costs = sums[list(COSTS)].sum(min_count=1).reset_index()
    trials = trials.drop(columns=[name for name in COSTS if name in trials]).merge(costs, on=TRIAL)
    trials["share"] = (finite(trials, "iterations") / finite(trials, "max_iters")).clip(0, 1)
    ended = trials["loss"].where(has_ended(trials))
    trials["above"] = trials["loss"] - ended.groupby(trials["cell"]).transform("min")
    trials["standing"] = _standing(trials)
    sizes = dict.fromkeys([*grid, *(each.name for each in dimensions)])
    kept = [*TRIAL, "state", "seeds", "loss", "above", "standing", *COSTS, "share", *sizes]
    in_grid = tuple(dimension_of(name, runs[name]) for name in grid if _has_several(runs, name))
    name = next(map(str, runs["study"]), "no study")
    return Sweep(name, runs, trials[kept], tuple(dimensions), in_grid)


def _standing(trials: DataFrame) -> Series:
    """Rank the trials of each cell that ended in any state; those without a final loss share the last places."""
    order = trials["loss"].where(has_ended(trials))
    behind = trials["state"].map({"pruned": 1} | dict.fromkeys(LOST, 2))
    by_cell = order.fillna(np.nan_to_num(order.max()) + behind).groupby(trials["cell"])
    return (by_cell.rank() - 0.5) / by_cell.transform("count")


def _counted(runs: DataFrame, count: Callable[[Mapping[Any, Any]], float]) -> list[float]:
    """Count for each run; NaN if the table lacks the columns needed, or an older version counted the run."""
    counts = []
    for run in runs.to_dict("records"):
        try:
            counts.append(float(count(run)))
        except (KeyError, TypeError, ValueError, BadInput):
            counts.append(np.nan)
    return counts


PHASES = ("training", "evaluation")
_RUN = [*TRIAL, "seed"]


@dataclass(frozen=True)
class Spent:
    """The cost of the runs that ended in one state, in one phase; NaN if unknown."""

    study: str
    state: str
    phase: str
    n_runs: int
    flops: float
    seconds: float


def spent(sweep: Sweep, speeds: DataFrame, val_tokens: int | None = None) -> list[Spent]:
    """Return the cost of each state's runs in training and in evaluation.

    Seconds are the worker time of a run; runs of one stack share them. Training seconds follow from `speeds`, curves of
    tokens_per_second; the rest of a run's time is evaluation. `val_tokens` is the size of the validation text, which
    `eval_full` reads whole.
    """
    runs = sweep.runs
    if runs.empty:
        return []
    seconds = finite(runs, "wall_seconds")
    training = _training_seconds(runs, speeds).clip(upper=seconds)
    amounts = {
        "training": (finite(runs, "train_flops"), training),
        "evaluation": (_evaluation_flops(runs, val_tokens), seconds - training),
    }
    costs = []
    for state in reversed(WORST_FIRST):
        ended = runs["state"] == state
        if not ended.any():
            continue
        for phase, (flops, took) in amounts.items():
            totals = (float(flops[ended].sum()), float(took[ended].sum(min_count=1)))
            costs.append(Spent(sweep.name, state, phase, int(ended.sum()), *totals))
    return costs


def occupancy(sweep: Sweep) -> float | None:
    """Return the share of stack slots occupied by a study's runs, the mean over all steps; None if unknown."""
    runs = sweep.runs
    if "slot_steps" not in runs:
        return None
    slots = finite(runs, "slot_steps")
    n_steps = float(finite(runs, "iterations")[slots > 0].sum())
    if n_steps:
        return n_steps / float(slots.sum())
    return None


def _training_seconds(runs: DataFrame, speeds: DataFrame) -> Series:
    """The seconds of each run's steps, from the speed over each stretch of its curve; NaN without one."""
    speeds = speeds.sort_values([*_RUN, "iteration"])
    tokens = speeds.groupby(_RUN)["train_tokens"].diff().fillna(speeds["train_tokens"])
    stretches = speeds.assign(seconds=tokens.astype(float) / speeds["value"].astype(float))
    sums = stretches.groupby(_RUN)["seconds"].sum()
    keys = list(runs[_RUN].itertuples(index=False, name=None))
    return Series([float(sums.get(key, np.nan)) for key in keys], index=runs.index)


def _evaluation_flops(runs: DataFrame, val_tokens: int | None) -> Series:
    """The FLOPs of each run's evaluations: at iteration 0, at every interval, and at its end."""
    iterations, interval = finite(runs, "iterations"), finite(runs, "eval_interval")
    n_evaluations = iterations // interval + 1 + (iterations % interval > 0)
    reads_all = runs.get("eval_full", Series(False, index=runs.index)).astype(str) == "True"
    tokens = finite(runs, "eval_tokens").mask(reads_all, np.nan if val_tokens is None else val_tokens)
    rows = tokens / finite(runs, "block_size")
    return n_evaluations * rows * finite(runs, "row_flops") / 3  # backward is twice forward


@dataclass(frozen=True)
class Saved:
    """The cost of a cell's trials, and what its pruned trials would still have cost at their own speed.

    `share` is the saved share of the FLOPs that the cell would have cost without pruning.
    """

    study: str
    cell: str
    n_trials: int
    n_pruned: int
    flops_spent: float
    flops_saved: float
    seconds_spent: float
    seconds_saved: float
    share: float


def saved(sweep: Sweep) -> list[Saved]:
    """Return what pruning saved in each cell where trials were counted, in the order of the cells."""
    trials = sweep.trials[sweep.trials["state"].isin(COUNTED)]
    pace = trials["wall_seconds"].sum() / max(float(trials["train_flops"].sum()), 1.0)
    cells = []
    for cell in sweep.cells:
        cell_trials = trials[trials["cell"] == cell]
        pruned = cell_trials[cell_trials["state"] == "pruned"]
        flops = (pruned["planned_flops"] - pruned["train_flops"].fillna(0)).clip(lower=0)
        # A trial that was pruned before its first step has no speed of its own.
        paces = (pruned["wall_seconds"] / pruned["train_flops"].replace(0, np.nan)).fillna(pace)
        took, rest = float(cell_trials["train_flops"].sum()), float(flops.sum())
        seconds = (float(cell_trials["wall_seconds"].sum()), float((flops * paces).sum()))
        share = rest / max(took + rest, 1e-300)
        cells.append(Saved(sweep.name, cell, len(cell_trials), len(pruned), took, rest, *seconds, share))
    return [cost for cost in cells if cost.n_trials]
