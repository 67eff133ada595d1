"""The importance of each hyperparameter by Optuna's PED-ANOVA, beside its level under chance.

An importance says nothing by itself: with ten trials and five hyperparameters one of them always looks important. So
the importance under shuffled losses stands beside it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.sweep import Sweep, optuna_study

ABOVE_CHANCE, WITHIN_CHANCE = "above chance", "within chance"
FEWEST_TRIALS = 10
BEST_SHARE, FEWEST_BEST = 0.1, 5  # as in Optuna, but never fewer than its documentation asks for
N_SHUFFLES = 39  # of 39 shuffles the second largest is exceeded by a fresh one in one case of twenty
CHANCE = 0.95


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
    """Return the importances of what was searched, each trial by its rank in its cell; none of too few trials.

    Trials of one point count as one, with their mean: copies would make any of their values look important.
    """
    from optuna.importance import PedAnovaImportanceEvaluator  # loads scikit-learn

    trials = sweep.trials[sweep.trials["standing"].notna()]
    point = trials[["cell", *sweep.space]].astype(str).T.agg("|".join)
    mean = trials["standing"].groupby(point).transform("mean")
    points = trials.assign(value=mean)[~point.duplicated()]
    n = len(points)
    if n < FEWEST_TRIALS or not sweep.space:
        return []
    evaluator = PedAnovaImportanceEvaluator(target_quantile=min(0.5, max(BEST_SHARE, FEWEST_BEST / n)))
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
