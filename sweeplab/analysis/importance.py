"""The importance of each hyperparameter by Optuna's evaluators, with its spread and its level under chance.

An importance says nothing by itself: with ten trials and five hyperparameters one of them always looks important. So
each has its spread over the trials, and the importance under shuffled losses beside it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState
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
LEVEL = 0.9
CHANCE = 0.95
# The best tenth, as in Optuna, but never fewer than its documentation asks for.
BEST_SHARE, FEWEST_BEST = 0.1, 5
# Repeats of either kind: of 19 the largest is exceeded by a fresh one in one case of twenty, of 39 the second largest.
# fANOVA grows a forest each time: Optuna's own of 64 full trees takes seconds for 200 trials.
N_REPEATS: Mapping[Evaluator, int] = {"ped-anova": 39, "fanova": 19}
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
    """A hyperparameter's share of all importance in one scope, with its interval and its level under chance.

    `scope` is a cell, WITHIN (each trial by its rank in its cell) or OVER_ALL (the losses themselves, with the grid's
    hyperparameters beside the others). `chance` is exceeded by one shuffle in twenty; `verdict` says whether the
    importance is higher.
    """

    study: str
    scope: str
    hyperparameter: str
    importance: float
    low: float
    high: float
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
    random = np.random.default_rng(len(table))
    trials = _frozen(table, dimensions)
    n, repeats = len(trials), N_REPEATS[evaluator]
    everything = np.arange(n)
    study = _Memory()

    def by_name(chosen: NDArray[np.int_], losses: Array, seed: int) -> dict[str, float]:
        study.held = [trials[at] for at in chosen]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the spread already shows that few trials say little
            made: BaseImportanceEvaluator
            if evaluator == "fanova":
                from optuna.importance import FanovaImportanceEvaluator

                made = FanovaImportanceEvaluator(n_trees=N_TREES, max_depth=DEPTH, seed=seed)
            else:
                share = min(0.5, max(BEST_SHARE, FEWEST_BEST / len(chosen)))
                made = _ped_anova()(target_quantile=share)
            return dict(made.evaluate(study, target=lambda trial: losses[trial.number]))

    whole = by_name(everything, losses, 0)
    names = [each.name for each in dimensions if each.name in whole]

    def evaluate(chosen: NDArray[np.int_], losses: Array, seed: int) -> Array:
        importance = by_name(chosen, losses, seed)
        return np.array([importance.get(name, 0.0) for name in names])

    raw = np.array([whole[name] for name in names])
    # Half of the trials, drawn without repetition, scatter around the whole as the whole does around the truth
    # (the delete-half jackknife); repeated trials, as in a bootstrap, would look like a peak in the density.
    halves = [random.permutation(n)[: max(2, n // 2)] for _ in range(repeats)]
    shares = np.array([_share(evaluate(half, losses, at)) for at, half in enumerate(halves)])
    shuffled = [evaluate(everything, losses[random.permutation(n)], at) for at in range(repeats)]
    value, total = _share(raw), max(float(raw.sum()), 1e-12)
    around = np.quantile(shares, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0) - np.median(shares, axis=0)
    low, high = np.clip(value + around, 0.0, 1.0)
    chance = np.sort(np.array(shuffled), axis=0)[-round((1 - CHANCE) * (repeats + 1))] / total
    verdicts = np.where(value > chance, ABOVE_CHANCE, WITHIN_CHANCE)
    columns = (each.tolist() for each in (value, low, high, chance))
    rows = zip(names, *columns, [n] * len(names), verdicts.tolist(), strict=True)
    return [Importance(*of, *row) for row in rows]


@cache
def _ped_anova() -> Callable[..., BaseImportanceEvaluator]:
    """Optuna's PED-ANOVA without importing its package, which takes a second to load scikit-learn for fANOVA."""
    package = "optuna.importance"
    module = f"{package}._ped_anova.evaluator"
    spec = find_spec(package)
    if package in sys.modules or not spec:
        return import_module(module).PedAnovaImportanceEvaluator  # type: ignore[no-any-return]
    sys.modules[package] = module_from_spec(spec)  # as it is before its own imports
    try:
        return import_module(module).PedAnovaImportanceEvaluator  # type: ignore[no-any-return]
    finally:
        del sys.modules[package]  # later imports get the whole package


def _share(raw: Array) -> Array:
    if raw.sum() > 0:
        return np.asarray(raw / raw.sum())
    return np.full(len(raw), 1 / len(raw))


class _Memory(optuna.Study):
    """A study of given trials for the evaluators, which stores nothing."""

    def __init__(self) -> None:
        storage = optuna.storages.InMemoryStorage()
        storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "given")
        super().__init__("given", storage)
        self.held: list[FrozenTrial] = []

    def get_trials(self, *_: Any, **__: Any) -> list[FrozenTrial]:
        return self.held


def _frozen(table: DataFrame, dimensions: Sequence[Dimension]) -> list[FrozenTrial]:
    """The rows as Optuna trials; their numbers are their row indices."""
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
    now, complete, nothing = datetime.now(), TrialState.COMPLETE, dict[Any, Any]()
    known = [{name: distributions[name] for name in row} for row in rows]
    # A trial's number and id are its place; it has no attributes and no intermediate values.
    return [
        FrozenTrial(at, complete, 0.0, now, now, row, known[at], nothing, nothing, nothing, at)
        for at, row in enumerate(rows)
    ]
