"""The importance of each hyperparameter by Optuna's evaluators, beside its level under chance.

An importance says nothing by itself: with ten trials and five hyperparameters one of them always looks important. So
the importance under shuffled losses stands beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, create_trial
from pandas import DataFrame

from sweeplab.analysis.sweep import Dimension, Sweep
from sweeplab.analysis.trials import tasks_of

if TYPE_CHECKING:
    from optuna.importance import BaseImportanceEvaluator


optuna.logging.set_verbosity(optuna.logging.WARNING)

Array = NDArray[np.float64]
Evaluator = Literal["ped-anova", "fanova"]
ABOVE_CHANCE, WITHIN_CHANCE = "above chance", "within chance"
FEWEST_TRIALS = 10
CHANCE = 0.95
# The best tenth, as in Optuna, but never fewer than its documentation asks for.
BEST_SHARE, FEWEST_BEST = 0.1, 5
# Of 19 shuffles the largest is exceeded by a fresh one in one case of twenty, of 39 the second largest. fANOVA grows a
# forest each time: Optuna's own of 64 full trees takes seconds for 200 trials.
N_SHUFFLES: Mapping[Evaluator, int] = {"ped-anova": 39, "fanova": 19}
N_TREES, DEPTH = 16, 6
EVALUATORS: Mapping[Evaluator, str] = {
    "ped-anova": "PED-ANOVA (Watanabe et al. 2023): how far the distribution of the best tenth of trials (at least 5) "
    "differs from that of all. Trials without a final loss rank below those of their cell that ended.",
    "fanova": f"fANOVA (Hutter et al. 2014): the share of the losses' variance, in a forest of {N_TREES} trees; "
    "trials without a final loss are left out.",
}
WITHIN, OVER_ALL = "within cells", "over all, sizes too"


@dataclass(frozen=True)
class Importance:
    """A hyperparameter's share of all importance in one scope, and its level under chance.

    `scope` is a cell, WITHIN (each trial by its rank in its cell) or OVER_ALL (the losses themselves, with the grid's
    hyperparameters beside the others). `chance` is exceeded by one shuffle in twenty; `verdict` says whether the
    importance is higher.
    """

    study: str
    scope: str
    hyperparameter: str
    importance: float
    chance: float
    n_trials: int
    verdict: str


def importances(sweep: Sweep, evaluator: Evaluator = "ped-anova") -> list[Importance]:
    """Return the importances of every scope with enough trials: within all cells, over all, and each cell.

    fANOVA needs values in every trial of a scope, so it leaves out hyperparameters with a condition. Trials of one
    point count as one, with their mean: copies would make any of their values look important.
    """
    # Trials are compared by their losses, or by their rank if some did not end.
    by, trials = "standing", sweep.trials[sweep.trials["standing"].notna()]
    if evaluator == "fanova":
        by, trials = "loss", sweep.ended
    scopes = [(cell, trials[trials["cell"] == cell], [*sweep.dimensions], by) for cell in sweep.cells]
    if len(scopes) > 1:
        if tasks_of(sweep.runs).nunique() <= 1:  # losses of different tasks have no common scale
            both = {each.name: each for each in (*sweep.grid, *sweep.dimensions)}
            scopes.insert(0, (OVER_ALL, sweep.ended, [*both.values()], "loss"))
        scopes.insert(0, (WITHIN, trials, [*sweep.dimensions], "standing"))
    rows: list[Importance] = []
    for scope, table, dimensions, by in scopes:
        points = _points(table, dimensions, by)
        if len(points) >= FEWEST_TRIALS and dimensions:
            losses = points[by].to_numpy(float)
            rows += _importances((sweep.name, scope), points, dimensions, losses, evaluator)
    return rows


def _points(trials: DataFrame, dimensions: Sequence[Dimension], by: str) -> DataFrame:
    if trials.empty:
        return trials
    point = trials[["cell", *(each.name for each in dimensions)]].astype(str).agg("|".join, axis=1)
    return trials.assign(**{by: trials[by].groupby(point).transform("mean")})[~point.duplicated()]


def _importances(
    of: tuple[str, str],
    table: DataFrame,
    dimensions: Sequence[Dimension],
    losses: Array,
    evaluator: Evaluator,
) -> list[Importance]:
    study = optuna.create_study()
    study.add_trials(_trials(table, dimensions))
    n = len(table)

    def by_name(losses: Array) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of a target, which is the loss, and of few trials, which chance shows
            return _evaluator(evaluator, n).evaluate(study, target=lambda trial: losses[trial.number])

    random = np.random.default_rng(n)
    raw = by_name(losses)
    shuffled = [by_name(random.permutation(losses)) for _ in range(N_SHUFFLES[evaluator])]
    total = sum(raw.values())
    rows = []
    for name in (each.name for each in dimensions if each.name in raw):
        share, chance = 1 / len(raw), np.inf
        if total > 0:
            share = raw[name] / total
            levels = sorted(importance.get(name, 0.0) for importance in shuffled)
            chance = levels[-round((1 - CHANCE) * (len(levels) + 1))] / total
        verdict = ABOVE_CHANCE if share > chance else WITHIN_CHANCE
        rows.append(Importance(*of, name, share, chance, n, verdict))
    return rows


def _evaluator(name: Evaluator, n_trials: int) -> BaseImportanceEvaluator:
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator  # load scikit-learn

    if name == "fanova":
        return FanovaImportanceEvaluator(n_trees=N_TREES, max_depth=DEPTH, seed=0)
    share = min(0.5, max(BEST_SHARE, FEWEST_BEST / n_trials))
    return PedAnovaImportanceEvaluator(target_quantile=share)


def _trials(table: DataFrame, dimensions: Sequence[Dimension]) -> list[FrozenTrial]:
    """Return the rows as Optuna trials, without the values that are missing."""
    rows: list[dict[str, Any]] = [{} for _ in range(len(table))]
    distributions: dict[str, BaseDistribution] = {}
    for dimension in dimensions:
        name, places = dimension.name, dimension.coordinates(table[dimension.name])
        values = places.tolist()
        distributions[name] = FloatDistribution(0.0, 1.0)
        if dimension.choices:
            values = table[name].astype(str).tolist()
            distributions[name] = CategoricalDistribution(dimension.choices)
        for row, value, is_there in zip(rows, values, places.notna(), strict=True):
            if is_there:
                row[name] = value
    return [
        create_trial(params=row, distributions={name: distributions[name] for name in row}, value=0.0)
        for row in rows
    ]
