"""The next runs: within the budget, where they tell most, with a promise that their refit keeps."""

import numpy as np
import pytest
from laws.planted_laws import GOOD, TRUTHS, losses, plant
from laws.planted_paths import plant_path

from sweeplab.errors import BadInput
from sweeplab.laws.assessment import assess, law_for
from sweeplab.laws.fitting import fit
from sweeplab.laws.forms import LAWS
from sweeplab.laws.next_runs import MOST_EACH, MOST_RUNS, find_quantity, next_runs, of_points
from sweeplab.laws.points import EACH, Points

CHINCHILLA = LAWS["chinchilla"]


def pilot(seed=0):
    return plant("steep", GOOD["12 points, 4 x 3"], 0.005, np.random.default_rng(seed))


def chosen(points, name=None):
    assessed = assess(points, CHINCHILLA)
    return next_runs(assessed, name=name), assessed


def test_limits_hold_and_the_interval_narrows():
    points = pilot()
    found, _ = chosen(points)
    said = found.as_dict()
    assert said["quantity"] == "N_opt exponent"
    assert said["spent_flops"] <= said["budget_flops"] == points.columns["flops"].sum() / 2
    assert (
        0 < said["n_runs"] <= MOST_RUNS
        and max(run["times"] for run in said["runs"]) <= MOST_EACH
    )
    assert said["half_width"]["then"] < said["half_width"]["now"]
    of_d, _ = chosen(points, "beta")
    assert of_d.as_dict()["runs"] != said["runs"]


@pytest.mark.slow
def test_a_promise_is_kept():
    """Losses of the chosen runs are drawn from the planted truth; the refit is rarely wider than promised."""
    kept = []
    for seed in range(12):
        points, random = pilot(seed), np.random.default_rng([seed, 8])
        found, assessed = chosen(points)
        rows = np.repeat(np.arange(len(found.counts)), found.counts.astype(int))
        new = {name: column[rows] for name, column in found.candidates.columns.items()}
        new["loss"] = losses(TRUTHS["steep"], new["params"], new["tokens"])
        new["loss"] = new["loss"] * np.exp(0.005 * random.standard_normal(len(rows)))
        columns = {
            name: np.append(column, new[name]) for name, column in points.columns.items()
        }
        refitted = fit(Points(columns, np.ones(points.n + len(rows)), tuned=EACH), CHINCHILLA)
        quantity = find_quantity(assessed, None)
        low, high = np.quantile(quantity.measure(refitted.values), [0.05, 0.95])
        kept.append((high - low) / 2 <= 1.25 * found.then)
    assert np.mean(kept) >= 0.7


def test_along_a_path_candidates_follow_it():
    points = plant_path(8, 0.0, (1.8, 40.0, 0.35), np.random.default_rng(1))
    law = law_for(points)
    assessed, budget = assess(points, law), points.columns["flops"].sum()
    candidates = of_points(assessed.points, budget)
    ratio = candidates.columns["tokens"] / candidates.columns["params"]
    assert np.ptp(np.log(ratio)) < 1e-9
    assert next_runs(assessed, candidates, flops=budget).as_dict()["quantity"] == "alpha"


def test_bad_input():
    points = pilot()
    assessed = assess(points, CHINCHILLA)
    with pytest.raises(
        BadInput,
        match=r"chinchilla has no number 'bta'; allowed: E, A, alpha, .* did you mean 'beta'",
    ):
        find_quantity(assessed, "bta")
    with pytest.raises(
        BadInput, match="1 FLOPs are too few for any candidate: the least costs"
    ):
        next_runs(assessed, flops=1.0)
    without = Points(
        {name: points.columns[name] for name in ("params", "loss")}, points.weights
    )
    with pytest.raises(BadInput, match="the table has no tokens"):
        of_points(without, 1e18)
