"""Where tokens follow params a law holds along one path, and says so."""

import numpy as np
import pytest
from laws.planted_laws import GOOD, plant
from laws.planted_paths import RATIO, plant_path

from sweeplab.errors import BadInput
from sweeplab.laws.assessment import assess, law_for, predict
from sweeplab.laws.points import Points, path_of

TRUTH = (1.2, 60.0, 0.45)


@pytest.mark.parametrize("jitter", [0.0, 0.06])
@pytest.mark.parametrize("slope", [1.0, 1.3])
def test_a_path_is_found_and_said(jitter, slope):
    points = plant_path(6, jitter, TRUTH, np.random.default_rng(0), slope)
    path = path_of(points)
    assert path is not None and path.slope == pytest.approx(slope, abs=0.1)
    law = law_for(points)
    assert law.name == "power-n"
    assessed = assess(points, law)
    (said,) = [warning for warning in assessed.warnings if "path" in warning]
    assert said.startswith("power-n holds along one path, tokens = ") and path.words in said
    assert not [name for name in assessed.misfit.powers if "tokens" in name], (
        "no trend with tokens can be told"
    )


@pytest.mark.slow
def test_a_ratio_that_rows_have_nearly_is_the_path_of_larger_runs_too():
    larger = {"params": 5e5, "tokens": RATIO * 5e5}
    paths = [
        path_of(plant_path(6, 0.06, TRUTH, np.random.default_rng(seed))) for seed in range(300)
    ]
    assert sum(path is not None and path.misses(larger) for path in paths) < 5


def test_scattered_runs_lie_on_no_path():
    points = plant("hoffmann", GOOD["12 points, 4 x 3"], 0.005, np.random.default_rng(0))
    assert path_of(points) is None and law_for(points).name == "chinchilla"
    far = plant_path(6, 0.3, TRUTH, np.random.default_rng(0))
    assert path_of(far) is None


@pytest.mark.parametrize(("n_sizes", "kept"), [(7, 7), (4, 6)], ids=["enough", "too few"])
def test_a_law_of_params_is_of_one_depth_where_a_table_has_enough_of_it(n_sizes, kept):
    family = plant_path(n_sizes, 0.0, TRUTH, np.random.default_rng(2))
    others = plant_path(2, 0.0, TRUTH, np.random.default_rng(3)).columns
    columns = {name: np.append(values, others[name]) for name, values in family.columns.items()}
    columns["loss"][n_sizes:] *= [1.03, 0.97]  # what another depth does at equal parameters
    columns["n_layer"] = np.array([2.0] * n_sizes + [1.0, 3.0])
    columns["n_embd"] = np.sqrt(columns["params"] / 24)
    points = Points(columns=columns, weights=np.full(n_sizes + 2, 4.0))
    assessed = assess(points, law_for(points, "power-n"))
    assert assessed.points.n == kept
    if kept < points.n:
        (why,) = assessed.raw.dropped
        alpha = next(
            each for each in assessed.estimates if each.quantity.name == "alpha"
        ).as_dict()
        assert "of another depth (n_layer)" in why and alpha["low"] < TRUTH[2] < alpha["high"]


def test_a_forecast_holds_on_the_path_only():
    points = plant_path(8, 0.0, TRUTH, np.random.default_rng(1))
    assessed = assess(points, law_for(points))
    larger = {"params": 5e5, "tokens": RATIO * 5e5}
    there = predict(assessed, larger)
    assert there.low < TRUTH[0] + TRUTH[1] * 5e5 ** -TRUTH[2] < there.high
    assert there.verdict.identified
    with pytest.raises(BadInput, match="this run lies off it"):
        predict(assessed, larger | {"tokens": 2 * RATIO * 5e5})
    assert predict(assessed, {"params": 5e5}).loss == there.loss, (
        "tokens follow params where none are given"
    )
