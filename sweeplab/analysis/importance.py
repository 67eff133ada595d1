"""The importance of each hyperparameter by Optuna's PED-ANOVA, beside its level under chance.

An importance says nothing by itself: with ten trials and five hyperparameters one of them always looks important. So
the importance under shuffled losses stands beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, create_trial
from pandas import DataFrame

from sweeplab.analysis.sweep import Dimension, Sweep
from sweeplab.analysis.trials import tasks_of

optuna.logging.set_verbosity(optuna.logging.WARNING)

Array = NDArray[np.float64]
ABOVE_CHANCE, WITHIN_CHANCE = "above chance", "within chance"
FEWEST_TRIALS = 10
BEST_SHARE, FEWEST_BEST = 0.1, 5  # as in Optuna, but never fewer than its documentation asks for
N_SHUFFLES = 39  # of 39 shuffles the second largest is exceeded by a fresh one in one case of twenty
CHANCE = 0.95
EVALUATOR = (
    "PED-ANOVA (Watanabe et al. 2023): how far the distribution of the best tenth of trials (at least 5) "
    "differs from that of all. Trials without a final loss rank below those of their cell that ended."
)
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


def importances(sweep: Sweep) -> list[Importance]:
    """Return the importances of every scope with enough trials: within all cells, over all, and each cell.

    Trials of one point count as one, with their mean: copies would make any of their values look important.
    """
    trials, searched = sweep.trials[sweep.trials["standing"].notna()], [*sweep.dimensions]
    scopes = [(cell, trials[trials["cell"] == cell], searched, "standing") for cell in sweep.cells]
    if len(scopes) > 1:
        if tasks_of(sweep.runs).nunique() <= 1:  # losses of different tasks have no common scale
            both = {each.name: each for each in (*sweep.grid, *searched)}
            scopes.insert(0, (OVER_ALL, sweep.ended, [*both.values()], "loss"))
        scopes.insert(0, (WITHIN, trials, searched, "standing"))
    rows: list[Importance] = []
    for scope, table, dimensions, by in scopes:
        names = [each.name for each in dimensions]
        point = table[["cell", *names]].astype(str).T.agg("|".join)
        mean = table[by].groupby(point).transform("mean")
        points = table.assign(**{by: mean})[~point.duplicated()]
        if len(points) >= FEWEST_TRIALS and dimensions:
            losses = points[by].to_numpy(float)
            rows += _importances(sweep.name, scope, points, dimensions, losses)
    return rows


def _importances(
    study: str, scope: str, points: DataFrame, dimensions: Sequence[Dimension], losses: Array
) -> list[Importance]:
    from optuna.importance import PedAnovaImportanceEvaluator  # loads scikit-learn

    n = len(points)
    evaluator = PedAnovaImportanceEvaluator(target_quantile=min(0.5, max(BEST_SHARE, FEWEST_BEST / n)))
    trials = optuna.create_study()
    trials.add_trials(_trials(points, dimensions))

    def by_name(losses: Array) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a target, which is the loss, and of few trials
            return evaluator.evaluate(trials, target=lambda trial: losses[trial.number])

    random, raw = np.random.default_rng(n), by_name(losses)
    shuffled = [by_name(random.permutation(losses)) for _ in range(N_SHUFFLES)]
    total = sum(raw.values())
    rows = []
    for name in (each.name for each in dimensions if each.name in raw):
        share, chance, verdict = 1 / len(raw), np.inf, WITHIN_CHANCE
        if total > 0:
            share = raw[name] / total
            chance = sorted(each.get(name, 0.0) for each in shuffled)[-2] / total
        if share > chance:
            verdict = ABOVE_CHANCE
        rows.append(Importance(study, scope, name, share, chance, n, verdict))
    return rows


def _trials(points: DataFrame, dimensions: Sequence[Dimension]) -> list[FrozenTrial]:
    """Return the rows as Optuna trials, without the values that are missing."""
    places = {each.name: each.coordinates(points[each.name]).to_numpy(float) for each in dimensions}
    trials = []
    for at in range(len(points)):
        known = [each for each in dimensions if np.isfinite(places[each.name][at])]
        values = {each.name: each.suggested(places[each.name][at]) for each in known}
        distributions = {each.name: each.distribution for each in known}
        trials.append(create_trial(params=values, distributions=distributions, value=0.0))
    return trials
