"""Points of ObservedTPE beside those of Optuna's own TPE, over histories drawn at random."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import TPESampler
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeplab.sweep.trials.storage import CellTrials
from sweeplab.sweep.trials.tpe import Observations, ObservedTPE, _Density

SPACE: dict[str, BaseDistribution] = {
    "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
    "warmup_iters": IntDistribution(0, 50),
    "activation": CategoricalDistribution(("relu", "gelu", None)),
    "dropout": FloatDistribution(0.0, 0.5, step=0.1),
}
CONDITIONAL: dict[str, BaseDistribution] = {"min_lr": FloatDistribution(1e-6, 1e-4, log=True)}


def drawn_trial(draw: random.Random, is_conditional: bool) -> FrozenTrial:
    """Return a trial that has ended in any of the ways there are."""
    space = SPACE | CONDITIONAL if is_conditional and draw.random() < 0.6 else SPACE
    independent = optuna.samplers.RandomSampler(draw.randrange(2**31))
    study: Any = None
    params = {name: independent.sample_independent(study, study, name, each) for name, each in space.items()}
    state = draw.choice([TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL])
    steps = [10 * step for step in range(1, draw.randrange(5))]
    reports = {step: draw.choice([draw.random(), 0.5, float("nan")]) for step in steps}
    value = draw.choice([draw.random(), 0.5]) if state == TrialState.COMPLETE else None
    given = {"params": params, "distributions": space, "intermediate_values": reports}
    trial = create_trial(state=state, value=value, **given)
    if draw.random() < 0.1:
        trial.set_constraint("diverged", draw.choice([-1.0, 1.0, 2.0]))
    return trial


def sampled(seed: int, options: dict[str, Any]) -> TPESampler:
    with warnings.catch_warnings(action="ignore"):  # of options that are new, or old
        return TPESampler(seed=seed, n_startup_trials=1, warn_independent_sampling=False, **options)


@pytest.mark.parametrize(
    "options", [{}, {"constant_liar": False}, {"group": True}, {"multivariate": False}, {"prior_weight": 2.0}]
)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in range(2, 6))]
)
def test_points_are_those_of_optuna_to_the_bit(seed: int, options: dict[str, Any]) -> None:
    draw, trials = random.Random(seed), CellTrials()
    study = optuna.create_study()
    observations = Observations(trials)
    for n_trials in (1, 2, 7, 40, 90):
        new = [drawn_trial(draw, "group" in options) for _ in range(n_trials)]
        study.add_trials(new)
        ended = study.get_trials(deepcopy=False)[-n_trials:]
        draw.shuffle(ended)  # trials end out of order
        for _ in range(3):  # trials that run
            study.sampler = sampled(draw.randrange(2**31), options)
            running = study.ask()
            for name in draw.sample([*SPACE], 2):
                running._suggest(name, SPACE[name])
        trials.ended += ended
        running_now = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        trials.unended = {each.number: each for each in running_now}
        points = []
        for observed in (False, True):
            with warnings.catch_warnings(action="ignore"):
                sampler = TPESampler(
                    seed=seed, n_startup_trials=1, warn_independent_sampling=False, **options
                )
                study.sampler = ObservedTPE.of(sampler, observations) if observed else sampler
                trial = study.ask()
            space = SPACE | CONDITIONAL if "group" in options else SPACE
            points.append({name: trial._suggest(name, each) for name, each in space.items()})
            study.tell(trial, state=TrialState.FAIL)
        assert points[0] == points[1]


def test_a_choice_that_is_written_otherwise_is_read_anew() -> None:
    trials, given = CellTrials(), {"n_head": IntDistribution(1, 4)}
    trials.ended = [create_trial(value=1.0, params={"n_head": 2}, distributions=given)]
    observations = Observations(trials)
    for choices, index in (((1, 2), 1), ((2, 1), 0)):
        below, above = observations.split(1, {"n_head": CategoricalDistribution(choices)}, {})
        assert (below["n_head"].tolist(), above["n_head"].tolist()) == ([index], [])


@pytest.mark.parametrize("n_trials", [0, 1, 30, 300])
@pytest.mark.parametrize("reach", [1.0, 3.0])
def test_densities_are_those_of_optuna(n_trials: int, reach: float) -> None:
    """Also where trials were given values outside of the range."""
    draw = np.random.default_rng(n_trials)
    observed = {
        "learning_rate": 10 ** draw.uniform(-4, 3 * reach - 4, n_trials),
        "warmup_iters": draw.integers(0, int(50 * reach), n_trials).astype(float),
        "activation": draw.integers(0, 3, n_trials).astype(float),
        "dropout": draw.integers(0, 6, n_trials) * 0.1 * reach,
    }
    options = TPESampler(seed=0)._parzen_estimator_parameters
    theirs, ours = (kind(observed, SPACE, options) for kind in (_ParzenEstimator, _Density))
    points = theirs.sample(np.random.RandomState(0), 50)
    np.testing.assert_allclose(ours.log_pdf(points), theirs.log_pdf(points), rtol=1e-9)
