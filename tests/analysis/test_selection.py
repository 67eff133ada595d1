"""Which trials are points, what is left out and why, and how far seeds are apart."""

import numpy as np
import pytest
from analysis.planted_study import FIRST_LAW, ITERATIONS, SIZES, like_the_first, plant

from sweeplab.analysis.studies import study_points
from sweeplab.laws.columns import Conventions, Counting

CELLS = len(SIZES) * len(ITERATIONS)


@pytest.mark.slow
def test_a_point_is_the_best_trial_of_its_cell():
    points = study_points(plant(seeds=1))
    assert points.n == CELLS
    assert all(name.endswith("/1") for name in points.names), "the middle rate is the best"
    assert points.dropped == {"not the best of its model and length": 2 * CELLS}
    np.testing.assert_array_equal(np.unique(points.columns["n_layer"]), [1, 2, 4, 6])
    assert points.seed_spread is None


@pytest.mark.slow
def test_a_points_loss_is_the_mean_of_its_trials_and_keeps_their_noise():
    """The surrogate over all sizes is smooth: its levels would hide the noise, and a law seem not to fit."""
    errors, weights = [], []
    for seed in range(12):
        runs = like_the_first(0.005, seed)
        points = study_points(runs, Counting(Conventions(params="non-embedding")))
        rates = {f"{run.cell}/{run.trial}": run.learning_rate for run in runs.itertuples()}
        worse = 0.04 * np.log(np.array([rates[name] for name in points.names]) / 0.035) ** 2
        params, is_of_law = points.columns["params"], points.columns["n_layer"] == 2
        law = FIRST_LAW["E"] + FIRST_LAW["A"] / params ** FIRST_LAW["alpha"]
        errors.append((np.log(points.columns["loss"] / law) - worse)[is_of_law])
        weights.append(points.weights[is_of_law])
        assert (points.weights[is_of_law] > [3, 3, 1.5, *[1] * 5]).all(), (
            "trials that cost little count, too"
        )
    around = np.array(errors) - np.mean(errors, axis=1, keepdims=True)
    noise = np.sqrt(np.mean(around**2 * np.array(weights)) * 8 / 7)
    assert 0.004 < noise < 0.0065
    neighbors = np.corrcoef(around[:, :-1].ravel(), around[:, 1:].ravel())[0, 1]
    assert neighbors < 0.2, "errors of neighboring sizes have nothing in common"


def test_a_trial_with_a_seed_that_has_no_end_is_no_point():
    def change(run):
        if (run["trial"], run["seed"], run["max_iters"]) == (1, 2, 100):
            return {"state": "diverged", "best_val_loss": np.nan}
        return {"best_val_loss": np.nan} if (run["trial"], run["seed"]) == (2, 0) else {}

    points = study_points(plant(change=change))
    assert points.n == CELLS
    assert points.dropped == {
        "diverged": 5, "not finite": CELLS, "another seed of its trial has no end": 10 + 2 * CELLS,
        "not the best of its model and length": 3 * (CELLS - 5),
    }  # fmt: skip
    trials = {name: name[-1] for name in points.names}
    assert {trial for name, trial in trials.items() if "max_iters=100/" in name} == {"0"}


@pytest.mark.slow
def test_cells_that_differ_in_their_training_are_one_model():
    def change(run):
        return {"cell": f"{run['cell']},learning_rate={run['learning_rate']}", "trial": 0}

    points = study_points(plant(change=change))
    assert points.n == CELLS
    assert all(",learning_rate=0.001/0" in name for name in points.names)

    def apart(run):
        activation = ("relu", "gelu", "silu")[run["trial"]]
        return {"cell": f"{run['cell']},activation={activation}", "activation": activation}

    assert study_points(plant(change=apart)).n == 3 * CELLS
    searched = plant(change=lambda run: {"activation": ("relu", "gelu", "silu")[run["trial"]]})
    assert study_points(searched).n == CELLS


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_the_spread_of_seeds_is_pooled(noise):
    points = study_points(plant(seeds=3, noise=noise))
    # The trials beside the best cost 5.5% of the loss: six runs at 1 / (1 + 5.5**2) each.
    least = (3 + 6 / 31.2) ** 2 / (3 + 6 / 31.2**2)
    np.testing.assert_allclose(points.weights, least, rtol=0.04)
    # 40 degrees of freedom: 11% a sigma.
    assert points.seed_spread == pytest.approx(noise, rel=0.3)
    part = points.only(points.columns["params"] > 1e4)
    assert len(part.names) == part.n == len(part.columns["n_embd"]) < points.n
    assert part.seed_spread == points.seed_spread
