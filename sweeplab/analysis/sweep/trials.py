"""A study's trials as a sweep sees them: their values, where they stand in their cell, what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pandas import DataFrame, Series

from sweeplab.analysis.sweep.dimensions import (
    Dimension,
    grid_dimensions,
    sampled,
    searched_dimensions,
)
from sweeplab.analysis.trials import ENDED, TRIAL, finite, grid_of, plain, trials_table
from sweeplab.train.counting import row_flops, train_flops

if TYPE_CHECKING:
    from sweeplab.study.spec import SearchSpec

COSTS = ("train_flops", "wall_seconds", "planned_flops")
# Trials that did not come to their end stand behind those that did, in this order.
_BEHIND = {"pruned": 1, "diverged": 2, "failed": 2}


@dataclass(frozen=True)
class Sweep:
    """The trials of one study, a row a trial, and the space that they were drawn from.

    Columns of `trials`: cell, trial, state, seeds; `loss`, the trial's value as Optuna was told it, in nats a token;
    `above`, that minus the best of its cell; `standing`, its rank in the cell from 0 (best) to 1; the sums over its
    seeds of train_flops, wall_seconds and planned_flops; `share`, how much of its iterations it was trained; the
    grid's hyperparameters and each dimension's, missing where it was not sampled.
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
    """Say of each trial whether it came to its end with a value."""
    return trials["state"].isin(ENDED) & trials["loss"].notna()


def sweep_of(runs: DataFrame, search: Mapping[str, SearchSpec] | None = None) -> Sweep:
    """Return the sweep that a study's runs are; `search` is what its file says of the space."""
    runs = plain(runs, ("study", *TRIAL, "seed", "state", "value", "iterations", "max_iters"))
    runs["planned_flops"] = _counted(runs, lambda run: train_flops(run, run["max_iters"]))
    runs["row_flops"] = _counted(runs, row_flops)
    dimensions = searched_dimensions(runs, search)
    for dimension in dimensions:
        drawn = sampled(runs, dimension.name, (search or {}).get(dimension.name))
        runs[dimension.name] = runs[dimension.name].where(drawn)
    trials = trials_table(runs, "value").drop(columns=["loss_low", "loss_high", "best"])
    sums = runs.assign(**{name: finite(runs, name) for name in COSTS}).groupby(TRIAL, sort=False)
    costs = sums[list(COSTS)].sum(min_count=1).reset_index()
    trials = trials.drop(columns=[name for name in COSTS if name in trials]).merge(costs, on=TRIAL)
    trials["share"] = (finite(trials, "iterations") / finite(trials, "max_iters")).clip(0, 1)
    ended = trials["loss"].where(has_ended(trials))
    trials["above"] = trials["loss"] - ended.groupby(trials["cell"]).transform("min")
    trials["standing"] = _standing(trials)
    name = str(runs["study"].iloc[0]) if len(runs) else "no study"
    kept = [
        *TRIAL, "state", "seeds", "loss", "above", "standing", *COSTS, "share",
        *grid_of(runs), *(each.name for each in dimensions if each.name not in grid_of(runs)),
    ]  # fmt: skip
    return Sweep(name, runs, trials[kept], tuple(dimensions), tuple(grid_dimensions(runs)))


def _standing(trials: DataFrame) -> Series:
    """Rank the trials of each cell that have ended in any state; those cut short share the last places."""
    order = trials["loss"].where(has_ended(trials))
    behind = trials["state"].map(_BEHIND)
    worst = float(order.max()) if order.notna().any() else 0.0
    order = order.fillna(worst + behind)
    by_cell = order.groupby(trials["cell"])
    return (by_cell.rank() - 0.5) / by_cell.transform("count")


def _counted(runs: DataFrame, count: Callable[[Mapping[Any, Any]], float]) -> list[float]:
    """Count for each run; a table from elsewhere may lack what that follows from."""

    def of(run: Mapping[Any, Any]) -> float:
        try:
            return float(count(run))
        except (KeyError, TypeError, ValueError):
            return np.nan

    return [of(run) for run in runs.to_dict("records")]
