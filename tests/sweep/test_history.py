"""TPE on a bounded history draws what it draws on a whole study, and never loses the best trials."""

import random
import warnings

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from sweeplab.sweep.trials import cells
from sweeplab.sweep.trials.cells import CachedTrials, CellTally, with_history

SPACE = {
    "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
    "warmup_iters": IntDistribution(0, 50),
    "activation": CategoricalDistribution(("relu", "gelu", None)),
    "dropout": FloatDistribution(0.0, 0.5, step=0.1),
}


def drawn_trial(draw):
    """Return a trial that has ended in any of the ways there are."""
    sampler, nothing = RandomSampler(draw.randrange(2**31)), None
    params = {
        name: sampler.sample_independent(nothing, nothing, name, each)
        for name, each in SPACE.items()
    }
    state = draw.choice(
        [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]
    )
    reports = {10 * step: draw.random() for step in range(1, draw.randrange(5))}
    value = draw.random() if state == TrialState.COMPLETE else None
    given = {"params": params, "distributions": SPACE, "intermediate_values": reports}
    trial = create_trial(state=state, value=value, **given)
    if draw.random() < 0.1:
        trial.set_constraint("diverged", 1.0)
    return trial


def points_of(options, n_trials):
    """Return the point of Optuna's sampler on a whole study, and that of the sampler on a history of it."""
    draw, cached = random.Random(str(options)), CachedTrials()
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    study.add_trials([drawn_trial(draw) for _ in range(n_trials)])
    for _ in range(3):  # trials that run
        study.ask(SPACE)
    cached.trials = study.get_trials(deepcopy=False)
    cached.ended = [trial for trial in cached.trials if trial.state.is_finished()]
    draw.shuffle(cached.ended)
    cached.unended = {
        trial.number: trial for trial in cached.trials if not trial.state.is_finished()
    }
    points = []
    for is_bounded in (False, True):
        with warnings.catch_warnings(action="ignore"):  # of options that are experimental
            tpe = TPESampler(seed=7, n_startup_trials=1, **options)
            study.sampler = tpe
            asked = (
                with_history(study, study._storage, CellTally(cached)) if is_bounded else study
            )
            trial = asked.ask(SPACE)
        points.append(trial.params)
        study.tell(trial, state=TrialState.FAIL)
    return points


@pytest.mark.parametrize(
    "options", [{}, {"constant_liar": False}, {"group": True}, {"multivariate": False}], ids=str
)
@pytest.mark.parametrize("n_trials", [0, 1, 40, 200])
def test_points_are_those_of_the_whole_study_to_the_bit(options, n_trials):
    whole, bounded = points_of(options, n_trials)
    assert whole == bounded


def test_a_long_history_keeps_the_newest_and_the_best_trials(monkeypatch):
    monkeypatch.setattr(cells, "NEWEST", 20)
    monkeypatch.setattr(cells, "BEST", 30)
    draw, cached = random.Random(0), CachedTrials()
    kept = CellTally(cached)
    for number in range(300):
        trial = drawn_trial(draw)
        trial.number = number
        cached.trials.append(trial)
        cached.ended.append(trial)
        if number % 7 == 0:
            kept.history()
    modelled = [trial for trial in cached.trials if trial.state != TrialState.FAIL]
    complete = [trial for trial in modelled if trial.state == TrialState.COMPLETE]
    best = sorted(complete, key=lambda trial: trial.value or 0.0)[:30]
    expected = {trial.number for trial in [*modelled[-20:], *best]}
    assert [trial.number for trial in kept.history()] == sorted(expected)
