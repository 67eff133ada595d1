import itertools
import math

import numpy as np
import pytest
from optuna.trial import TrialState, create_trial
from tiny_study import study_of_parts

from sweeplab.data import DataSizes
from sweeplab.laws.surrogate import Posterior
from sweeplab.study.joint import (
    JointModel,
    _last_fit,
    _stride,
    expected_improvement,
    knowledge_gradient,
)
from sweeplab.study.space import spaces_of

SEARCH = {
    "learning_rate": {"min": 1e-3, "max": 1e-1, "log": True},
    "dropout": {"min": 0, "max": 0.4, "step": 0.1},
    "activation": ["relu", "gelu", "swiglu"],
    "lr_decay": [True, False],
    "min_lr": {"min": 1e-6, "max": 1e-4, "log": True, "when": "lr_decay"},
    "n_head": [2, 4, 8],
    "batch_size": [8, 16, 32],
}
GRID = {"n_embd": [32, 64, 128], "norm": ["layernorm", "rmsnorm"]}


def spaces(search=SEARCH, grid=GRID, **parts):
    heads = {} if "n_head" in search else {"fixed": {"n_head": 2}}
    spec = study_of_parts(search=search, grid=grid, **heads, **parts)
    return spaces_of(spec, DataSizes(65))[0]


class Trials:
    def __init__(self):
        self.trials, self.pending = [], []

    def ended(self):
        return self.trials

    def running(self):
        return self.pending

    def twin(self, parameters, number):
        same = [trial.number for trial in self.trials if trial.params == parameters]
        return min(same, default=None)


def trial_of(
    space, point, number, value=None, state=TrialState.COMPLETE, curve=(), diverged=False
):
    kinds = {name: space.parameters[name].distribution() for name in point}
    trial = create_trial(
        state=state,
        value=value,
        params=point,
        distributions=kinds,
        intermediate_values=dict(curve),
        user_attrs={},
        system_attrs={"constraints": [1.0]} if diverged else {},
    )
    trial.number = number
    if diverged:
        trial.constraints["diverged"] = 1.0
    return trial


def loss_of(values):
    """The best learning rate falls with the width; relu is 3% worse."""
    best = 0.02 * (values.n_embd / 32) ** -1
    return (2.0 - 0.1 * np.log2(values.n_embd / 32)) * float(
        np.exp(
            0.03 * np.log(values.learning_rate / best) ** 2
            + 0.03 * (values.activation == "relu")
        )
    )


def searched(spaces, n_trials, seed=0):
    """Search all cells in turn; return the model and the trials of each cell."""
    trials = [Trials() for _ in spaces]
    model = JointModel(spaces, lambda cell: trials[cell], seed)
    for number in range(n_trials):
        for cell, space in enumerate(spaces):
            point = model.propose(cell, number, {}) if number else model.first(cell, number)
            values = space.resolve(
                {name: space.parameters[name].decoded(point[name]) for name in point}, 0
            )
            trials[cell].trials.append(trial_of(space, point, number, loss_of(values)))
    return model, trials


def test_the_same_trials_give_the_same_proposal_whatever_was_asked_before():
    search = {"learning_rate": SEARCH["learning_rate"], "activation": ["relu", "gelu"]}
    all_spaces = spaces(search, {"n_embd": [32, 64, 128]})
    model, trials = searched(all_spaces, 3)
    again = JointModel(all_spaces, lambda cell: trials[cell], 0)
    late = trials[0].trials.pop(0)
    again.propose(2, 3, {})
    trials[0].trials.insert(0, late)
    assert again.propose(2, 3, {}) == model.propose(2, 3, {})
    assert again.surrogate(2).scales.noise == model.surrogate(2).scales.noise
    assert JointModel(all_spaces, lambda cell: trials[cell], 1).propose(
        2, 3, {}
    ) != model.propose(2, 3, {})


def test_few_trials_a_cell_find_an_optimum_that_moves_with_the_size():
    all_spaces = spaces(
        {"learning_rate": SEARCH["learning_rate"], "activation": ["relu", "gelu"]},
        {"n_embd": [32, 64, 128, 256]},
    )
    model, _ = searched(all_spaces, 4)
    for cell, width in enumerate((32, 64, 128, 256)):
        best = model.propose(cell, 99, {}, exploits=True)
        assert best["activation"] == "gelu"
        assert best["learning_rate"] == pytest.approx(0.02 * 32 / width, rel=0.35)


def test_values_decided_already_are_kept():
    model, _ = searched(spaces(grid={"n_embd": [32, 64]}), 2)
    assert model.propose(0, 2, {"dropout": 0.3})["dropout"] == 0.3


def test_a_small_space_of_lists_is_tried_whole():
    of = spaces(
        {"activation": SEARCH["activation"], "lr_decay": [True, False]}, {"n_embd": [32, 64]}
    )
    for of_cell in searched(of, 6)[1]:
        assert len({tuple(trial.params.items()) for trial in of_cell.trials}) == 6


def test_the_best_of_many_values_is_sought_near_the_best_of_those_drawn():
    of = spaces(grid={"n_embd": [32, 64]})
    model, _ = searched(of, 2)
    drawn = np.random.default_rng(0).random((1000, len(SEARCH)))
    points = [
        model.propose(0, 99, {}, exploits=True),
        *(of[0].point(place.tolist(), {}) for place in drawn),
    ]
    mean, _ = model.surrogate(0).marginal(model.rows(0, points))
    assert mean[0] < mean[1:].min()


def test_a_running_trial_is_not_proposed_again():
    search = {"learning_rate": SEARCH["learning_rate"]}
    all_spaces = spaces(search, {"n_embd": [32, 64]})
    model, trials = searched(all_spaces, 4)
    first = model.propose(1, 4, {})
    own = math.log(first["learning_rate"] / 1e-3) / math.log(100)
    for shares, least in (([own], 0.1), ([0.0999, 0.29995, 0.5, 0.70005, 0.9001], 0.5 / 6)):
        points = [all_spaces[1].point([share], {}) for share in shares]
        trials[1].pending = [
            trial_of(all_spaces[1], point, number, state=TrialState.RUNNING)
            for number, point in enumerate(points, 4)
        ]
        found = math.log(
            model.propose(1, 9, {}, exploits=True)["learning_rate"] / 1e-3
        ) / math.log(100)
        assert min(abs(found - share) for share in shares) >= least
    assert len(model.surrogate(1).x) == 8 + 5


def test_pruned_and_diverged_trials_are_learned_from():
    search = {"learning_rate": SEARCH["learning_rate"]}
    all_spaces = spaces(search, {"n_embd": [32, 64, 128]})
    model, trials = searched(all_spaces, 3)
    curve = {100: 3.0}
    for factor, of_cell in zip((1.5, 3.0, 3.0), trials, strict=True):
        for trial in of_cell.trials:
            trial.intermediate_values = {25: -1.0, 50: 0.0, 100: factor * trial.value}
    before = model.surrogate(0)
    space = all_spaces[0]
    trials[0].trials += [
        trial_of(space, {"learning_rate": 0.05}, 3, state=TrialState.PRUNED, curve=curve),
        trial_of(
            space,
            {"learning_rate": 0.09},
            4,
            state=TrialState.PRUNED,
            curve={0: 4.0},
            diverged=True,
        ),
    ]
    after = model.surrogate(0)
    assert len(after.y) == len(before.y) + 2
    x = model.rows(0, [{"learning_rate": 0.05}, {"learning_rate": 0.09}])
    (pruned, diverged), _ = after.marginal(x)
    assert pruned == pytest.approx(np.log(2.0), abs=0.1)
    assert diverged > pruned
    assert after.y[-2] == pytest.approx(np.log(2.0)) and list(
        after.extra[-2:]
    ) == pytest.approx([0.02**2, 0.2**2])
    assert np.isclose(after.y[:-1], after.y[-1] - 0.2).any()


def test_many_trials_are_fitted_again_when_a_fifth_more_have_ended():
    of, trials, fitted = (
        spaces({"learning_rate": SEARCH["learning_rate"]}, {"n_embd": [32]}),
        Trials(),
        [],
    )
    model = JointModel(of, lambda cell: trials, 0)
    for number in range(48):
        point = model.first(0, number)
        trials.trials.append(
            trial_of(of[0], point, number, 2.0 + np.log(point["learning_rate"]) ** 2)
        )
        if number >= 39:
            fitted.append(model.surrogate(0).scales)
    assert [scales is fitted[0] for scales in fitted] == [True] * 8 + [False]
    assert [_last_fit(n_rows) for n_rows in (40, 48, 58)] == [40, 48, 57]


def test_the_knowledge_gradient_is_the_expected_drop_of_the_lowest_mean():
    draws = np.random.default_rng(0)
    root = draws.standard_normal((4, 4)) * 0.1
    points = Posterior(np.array([1.0, 1.02, 0.99, 1.1]), root @ root.T)
    noise = np.full(4, 0.05)
    gains = knowledge_gradient(points, noise)
    for at in range(4):
        moved = points.covariance[:, at] / np.sqrt(points.covariance[at, at] + noise[at] ** 2)
        results = draws.standard_normal(200_000)
        lowest = (points.mean[:, None] + moved[:, None] * results).min(axis=0)
        assert gains[at] == pytest.approx(points.mean.min() - lowest.mean(), abs=0.003)
        below = np.maximum(1.0 - points.mean[at] - 0.05 * results, 0).mean()
        assert expected_improvement(points.mean, noise, 1.0)[at] == pytest.approx(
            below, abs=0.0005
        )


@pytest.mark.parametrize("n_cells", [2, 5, 8, 21, 55])
@pytest.mark.parametrize("names", [("learning_rate",), ("learning_rate", "dropout")])
def test_first_points_lie_apart_in_each_cell_and_fill_the_range_together(n_cells, names):
    of = spaces(
        {name: SEARCH[name] for name in names},
        {"n_embd": [8 * k for k in range(1, n_cells + 1)]},
    )
    model = JointModel(of, lambda cell: Trials(), 0)
    low, high = (math.log(SEARCH["learning_rate"][end]) for end in ("min", "max"))
    shares = []
    for cell in range(n_cells):
        points = [model.first(cell, number) for number in range(3)]
        rates = [(math.log(point["learning_rate"]) - low) / (high - low) for point in points]
        for one, other in itertools.combinations(rates, 2) if len(names) == 1 else ():
            assert min(abs(one - other), 1 - abs(one - other)) > 0.15
        assert len({tuple(point.values()) for point in points}) == 3
        shares += rates
    assert [_stride(each, 1) for each in (15, 16, 25)] == [15, 23, 32]
    assert _stride(4, 5) == 11  # with 8 the first of five values would hardly differ
    gaps = np.diff(np.sort([*shares, min(shares) + 1]))
    assert gaps.max() < 4 / len(shares) + 0.05
