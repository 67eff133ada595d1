"""A study's trials as a sweep: their values, their rank in their cell, their search space, and what pruning saved."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
import pandas as pd
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState
from pandas import DataFrame, Series

from sweeplab.analysis.trials import (
    COUNTED,
    LOST,
    TRIAL,
    VALUED,
    StudyDesign,
    finite,
    grid_of,
    plain,
    searched_of,
    trials_table,
)
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.laws.sentences import Plain
from sweeplab.study.rules import holds
from sweeplab.study.values import Choices, Derived, Range, SearchSpec
from sweeplab.train.run import train_flops

# A number with at most this many values, such as a size, gets a log scale: the values tend to be doublings.
FEW = 6
COSTS = ("train_flops", "wall_seconds", "planned_flops")
ABOVE_CHANCE, WITHIN_CHANCE = "above chance", "within chance"
FEWEST_TRIALS = 10
# As in Optuna, but never fewer than its documentation asks for.
BEST_SHARE, FEWEST_BEST = 0.1, 5
# Of 39 shuffles the second largest is exceeded by a fresh one in one case of twenty.
N_SHUFFLES = 39
CHANCE = 0.95

optuna.logging.set_verbosity(optuna.logging.WARNING)


def searched_space(
    runs: DataFrame, design: StudyDesign | None = None
) -> dict[str, BaseDistribution]:
    """Return the distributions of the searched hyperparameters that vary within cells, by name.

    Without the study's own design, ranges are those of the observed values.
    """
    search: Mapping[str, SearchSpec | None] = dict.fromkeys(searched_of(runs))
    if design is not None:
        search = design.search
    return {
        name: distribution_of(name, runs[name], entry)
        for name, entry in search.items()
        if not isinstance(entry, Derived) and _has_several(runs, name)
    }


def distribution_of(
    name: str, column: Series, entry: SearchSpec | None = None
) -> BaseDistribution:
    """Return a distribution as wide as the range in the study file, else as the values of a column.

    Choices are texts, as a table has them.
    """
    if isinstance(entry, Range):
        return FloatDistribution(float(entry.min), float(entry.max), log=entry.log)
    there = {str(each) for each in column.dropna()}
    if isinstance(entry, Choices):
        return CategoricalDistribution(
            [text for text in map(str, entry.choices) if text in there]
        )
    numbers = finite(column.to_frame(name), name).dropna()
    if len(numbers) < column.notna().sum() or numbers.nunique() <= 1:
        return CategoricalDistribution(sorted(there))
    low, high = float(numbers.min()), float(numbers.max())
    return FloatDistribution(low, high, log=low > 0 and numbers.nunique() <= FEW)


def _has_several(runs: DataFrame, name: str) -> bool:
    return name in runs and runs[name].astype(str).nunique() > 1


@dataclass(frozen=True)
class Sweep:
    """The trials of one study, one row per trial, and the space that they were drawn from.

    Columns of `trials`: cell, trial, state, seeds; `loss`, the trial's value as reported to Optuna; `standing`, its
    rank in the cell from 0 (best) to 1; n_params; the sums over its seeds of train_flops, wall_seconds and
    planned_flops; the hyperparameters of the grid and of the search space, missing where not sampled.
    """

    name: str
    runs: DataFrame
    trials: DataFrame
    space: Mapping[str, BaseDistribution]
    grid: Mapping[str, BaseDistribution]

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
    runs = plain(runs, ("study", *TRIAL, "seed", "state", "value", "max_iters", "n_params"))
    rows: Sequence[dict[Any, Any]] = runs.to_dict("records")
    # What a run would take to its end.
    runs["planned_flops"] = [
        float(train_flops(Hyperparameters.of(row), row["max_iters"])) for row in rows
    ]
    grid, space = grid_of(runs, design), searched_space(runs, design)
    search = design.search if design else {}
    for name in (name for name in space if name in search):
        entry = search[name]
        if isinstance(entry, Range | Choices) and entry.when is not None:
            # A hyperparameter whose condition does not hold was not sampled and has its default.
            runs[name] = runs[name].where(
                Series([holds(entry.when, row) for row in rows], index=runs.index)
            )
    trials = trials_table(runs, "value")
    sums = runs.assign(**{name: finite(runs, name) for name in COSTS}).groupby(
        TRIAL, sort=False
    )
    costs = sums[list(COSTS)].sum(min_count=1).reset_index()
    trials = trials.drop(columns=[name for name in COSTS if name in trials]).merge(
        costs, on=TRIAL
    )
    trials["standing"] = _standing(trials)
    kept = [
        *TRIAL,
        "state",
        "seeds",
        "loss",
        "standing",
        "n_params",
        *COSTS,
        *dict.fromkeys([*grid, *space]),
    ]
    in_grid = {
        name: distribution_of(name, runs[name]) for name in grid if _has_several(runs, name)
    }
    return Sweep(next(map(str, runs["study"]), "no study"), runs, trials[kept], space, in_grid)


def _standing(trials: DataFrame) -> Series:
    """Rank the trials of each cell that ended in any state; those without a final loss share the last places."""
    order = trials["loss"].where(has_ended(trials))
    behind = trials["state"].map({"pruned": 1} | dict.fromkeys(LOST, 2))
    by_cell = order.fillna(np.nan_to_num(order.max()) + behind).groupby(trials["cell"])
    return (by_cell.rank() - 0.5) / by_cell.transform("count")


def optuna_study(
    trials: DataFrame,
    space: Mapping[str, BaseDistribution] | None = None,
    name: str | None = None,
) -> optuna.Study:
    """Return an in-memory study of Optuna's with a table of trials; one without a `value` is pruned.

    A hyperparameter that a trial did not sample is left out of that trial.
    """
    study = optuna.create_study(study_name=name)
    for row in trials.to_dict("records"):
        params: Plain = {}
        for parameter, distribution in (space or {}).items():
            if pd.isna(row[parameter]):
                continue
            params[parameter] = str(row[parameter])
            if isinstance(distribution, FloatDistribution):
                number = float(row[parameter])
                params[parameter] = min(max(number, distribution.low), distribution.high)
        state, value = TrialState.COMPLETE, row["value"]
        if pd.isna(value):
            state, value = TrialState.PRUNED, None
        sampled = {
            each: distribution for each, distribution in (space or {}).items() if each in params
        }
        study.add_trial(
            optuna.create_trial(state=state, value=value, params=params, distributions=sampled)
        )
    return study


def saved(sweep: Sweep) -> DataFrame:
    """Return what each cell's counted trials cost and what pruning saved of that, one row per cell.

    Saved are the FLOPs that pruned trials would still have taken. `share` is their share of the FLOPs that the cell
    would have cost without pruning.
    """
    trials = sweep.trials[sweep.trials["state"].isin(COUNTED)]
    is_pruned = trials["state"] == "pruned"
    flops = (
        (trials["planned_flops"] - trials["train_flops"].fillna(0))
        .clip(lower=0)
        .where(is_pruned)
    )
    costs: Plain = {
        "n_trials": 1,
        "n_pruned": is_pruned.astype(int),
        "flops_spent": trials["train_flops"],
        "flops_saved": flops,
    }
    cells = trials.assign(**costs).groupby("cell", sort=False)[list(costs)].sum().reset_index()
    whole = (cells["flops_spent"] + cells["flops_saved"]).clip(lower=1.0)
    return cells.assign(share=cells["flops_saved"] / whole, study=sweep.name)


@dataclass(frozen=True)
class Importance:
    """A hyperparameter's share of all importance, and its level under chance.

    `chance` is exceeded by one shuffle in twenty; `verdict` says whether the importance is higher.
    """

    hyperparameter: str
    importance: float
    chance: float
    n_trials: int
    verdict: str


def importances(sweep: Sweep) -> list[Importance]:
    """Return the importances of what was searched by Optuna's PED-ANOVA, beside their levels under chance.

    Each trial counts by its rank in its cell; too few trials have none. With ten trials and five hyperparameters one
    of them always looks important: so the importance under shuffled losses stands beside each.

    Trials of one point count as one, with their mean: copies would make any of their values look important.
    """
    from optuna.importance import PedAnovaImportanceEvaluator  # loads scikit-learn

    trials = sweep.trials[sweep.trials["standing"].notna()]
    point = trials[["cell", *sweep.space]].map(str).T.agg("|".join)
    mean = trials["standing"].groupby(point).transform("mean")
    points = trials.assign(value=mean)[~point.duplicated()]
    n = len(points)
    if n < FEWEST_TRIALS or not sweep.space:
        return []
    evaluator = PedAnovaImportanceEvaluator(
        target_quantile=min(0.5, max(BEST_SHARE, FEWEST_BEST / n))
    )
    study = optuna_study(points, sweep.space)

    def by_name(ranks: NDArray[np.float64]) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a target, which is the rank, and of few trials
            return evaluator.evaluate(study, target=lambda trial: ranks[trial.number])

    ranks, random = points["value"].to_numpy(float), np.random.default_rng(n)
    raw = by_name(ranks)
    shuffled = [by_name(random.permutation(ranks)) for _ in range(N_SHUFFLES)]
    total = sum(raw.values())
    rows = []
    for name in (name for name in sweep.space if name in raw):
        share, chance, verdict = 1 / len(raw), np.inf, WITHIN_CHANCE
        if total > 0:
            share = raw[name] / total
            chance = sorted(each.get(name, 0.0) for each in shuffled)[-2] / total
        if share > chance:
            verdict = ABOVE_CHANCE
        rows.append(Importance(name, share, chance, n, verdict))
    return rows
