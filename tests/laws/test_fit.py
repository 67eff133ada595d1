"""The optimum is the optimum, whatever the design; and what a fit refuses."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest
from laws.planted_laws import BAD, GOOD, TRUTHS, plant
from laws.random_tables import random_table, scipys_gain

from sweeplab.errors import BadInput
from sweeplab.laws import fitting
from sweeplab.laws.fitting import LEAST_SQUARES, LITERATURE, fit, robust_sigma
from sweeplab.laws.forms import LAWS, parameters_of
from sweeplab.laws.intervals import bootstrap, profiles, student

CHINCHILLA = LAWS["chinchilla"]


OBJECTIVES = {"auto": None, "1e-3": LITERATURE, "squares": LEAST_SQUARES}


@pytest.mark.slow
@pytest.mark.parametrize(("design", "objective"), list(zip([*GOOD, *BAD], cycle(OBJECTIVES), strict=False)))
def test_scipy_finds_no_lower_objective(design: str, objective: str) -> None:
    points = plant("steep", (GOOD | BAD)[design], 0.01, np.random.default_rng(11))
    assert scipys_gain(fit(points, CHINCHILLA, OBJECTIVES[objective]), 10, 10) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("law", ["chinchilla", "kaplan", "joint"])
def test_scipy_finds_no_lower_objective_on_random_tables(law: str) -> None:
    gains = {}
    for seed, delta in zip(range(3), OBJECTIVES.values(), strict=True):
        gains[seed] = scipys_gain(fit(random_table(seed), LAWS[law], delta), 3, 10)
    assert {seed: gain for seed, gain in gains.items() if gain > 1e-9} == {}


FADING = [*product((61, 73, 82), (None, LITERATURE, LEAST_SQUARES))]


@pytest.mark.parametrize(
    ("seed", "delta"),
    [  # each seed and each objective once; the whole product is slow
        pytest.param(*pair, marks=() if at % 4 == 0 else pytest.mark.slow) for at, pair in enumerate(FADING)
    ],
)
def test_a_fit_comes_to_rest_where_terms_fade_out(seed: int, delta: float | None) -> None:
    found = fit(random_table(seed), CHINCHILLA, delta)
    assert found.converged
    assert scipys_gain(found, 2, 3) < 1e-9


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("noise", [0.003, 0.02])
def test_planted_exponents_are_near(truth: str, noise: float) -> None:
    points = plant(truth, GOOD["245 scattered"], noise, np.random.default_rng(2))
    found = fit(points, CHINCHILLA)
    assert found.sigma == pytest.approx(noise, rel=0.2)
    assert found.rows.delta == pytest.approx(1.345 * found.sigma, rel=0.05)
    natural = found.minimizer()
    for name in ("alpha", "beta"):
        assert natural[name] == pytest.approx(TRUTHS[truth][name], abs=5 * noise), name
    assert found.n_reached >= found.n_starts / 2


def test_outliers_hardly_move_it() -> None:
    points = plant("steep", GOOD["30 points, 6 x 5"], 0.005, np.random.default_rng(4))
    loss = points.columns["loss"].copy()
    loss[[3, 17, 28]] *= 1.3
    spoilt = points.with_loss(loss)
    robust, squares = (fit(spoilt, CHINCHILLA, delta).minimizer()["alpha"] for delta in (None, LEAST_SQUARES))
    right = fit(points, CHINCHILLA).minimizer()["alpha"]
    assert abs(robust - right) < 0.02 < abs(squares - right)


def test_a_row_that_weighs_two_is_two_rows() -> None:
    points = plant("steep", GOOD["12 points, 4 x 3"], 0.01, np.random.default_rng(6))
    twice = np.r_[np.arange(12), 4]
    doubled = replace(
        points,
        columns={name: column[twice] for name, column in points.columns.items()},
        weights=np.ones(13),
    )
    weighted = replace(points, weights=np.where(np.arange(12) == 4, 2.0, 1.0))
    one, other = fit(doubled, CHINCHILLA, LITERATURE), fit(weighted, CHINCHILLA, LITERATURE)
    assert one.objective == pytest.approx(other.objective, rel=1e-9)
    assert one.minimizer() == pytest.approx(other.minimizer(), rel=1e-5)


def test_units_do_not_matter() -> None:
    points = plant("steep", GOOD["12 points, 4 x 3"], 0.01, np.random.default_rng(8))
    scaled = replace(points, columns=points.columns | {"params": points.columns["params"] * 1e-6})
    one, other = fit(points, CHINCHILLA), fit(scaled, CHINCHILLA)
    # Huber's delta follows from the residuals of starts that converge to 1e-8 of their objective.
    assert one.objective == pytest.approx(other.objective, rel=1e-7)
    assert one.minimizer()["alpha"] == pytest.approx(other.minimizer()["alpha"], rel=1e-6)


def test_the_robust_sigma_looks_past_the_rows_that_a_fit_goes_through() -> None:
    residuals = np.r_[np.zeros(5), np.random.default_rng(0).normal(0, 0.01, 2000)]
    assert robust_sigma(residuals, 5) == pytest.approx(0.01, rel=0.05)


@pytest.mark.slow
def test_refits_find_their_optimum_and_their_spread_is_that_of_new_tables() -> None:
    where, random = GOOD["30 points, 6 x 5"], np.random.default_rng(9)
    refits = bootstrap(fit(plant("steep", where, 0.005, random), CHINCHILLA), 300)
    fresh = [fit(plant("steep", where, 0.005, random), CHINCHILLA).theta for _ in range(60)]
    assert refits.missed < 0.02
    ratio = refits.theta.std(0) / np.std(fresh, axis=0)
    assert np.all((ratio > 0.55) & (ratio < 1.8)), ratio
    again = bootstrap(fit(plant("steep", where, 0.005, np.random.default_rng(1)), CHINCHILLA), 20, seed=3)
    same = bootstrap(fit(plant("steep", where, 0.005, np.random.default_rng(1)), CHINCHILLA), 20, seed=3)
    np.testing.assert_array_equal(again.theta, same.theta)


@pytest.mark.parametrize(
    ("law", "change", "said"),
    [
        ("chinchilla", lambda table, n: {k: c[:5] for k, c in table.items()}, "5 rows for the 5 parameters"),
        ("power-n", lambda table, n: table | {"params": np.full(n, 1e6)}, "all rows have params 1e+06"),
        ("power-d", lambda table, n: table | {"loss": np.full(n, 3.0)}, "all losses are 3"),
        (
            "kaplan",
            lambda table, n: {k: c for k, c in table.items() if k != "tokens"},
            "kaplan needs 'tokens'",
        ),
    ],
)
def test_what_is_refused(law: str, change, said: str) -> None:
    points = plant("steep", GOOD["9 points, 3 x 3"], 0.01, np.random.default_rng(0))
    table = change(points.columns, points.n)
    with pytest.raises(BadInput, match=said.replace("+", r"\+")):
        fit(replace(points, columns=table, weights=np.ones(len(table["loss"]))), LAWS[law])


def test_least_squares_is_least_squares() -> None:
    points = plant("steep", GOOD["30 points, 6 x 5"], 0.01, np.random.default_rng(3))
    found = fit(points, CHINCHILLA, LEAST_SQUARES)
    assert math.isclose(found.objective, 0.5 * float(found.residuals() @ found.residuals()))


@pytest.mark.slow
def test_many_rows_take_little_memory_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are looked at in blocks: the vectors that are tried at once do not multiply what a table takes."""
    random = np.random.default_rng(0)
    n = np.exp(random.uniform(np.log(1e6), np.log(1e10), 6000))
    points = plant("steep", (n, n * np.exp(random.uniform(0, 5, 6000))), 0.01, random)
    student(3)  # imports SciPy before memory is counted
    tracemalloc.start()
    found = fit(points, CHINCHILLA, LEAST_SQUARES)
    interval = profiles(found, parameters_of(CHINCHILLA, found.center))[2]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 * 6000 * 8, "numbers a row"
    monkeypatch.setattr(fitting, "_AT_ONCE", 10**9)
    fitting._fitted.cache_clear()
    whole = fit(points, CHINCHILLA, LEAST_SQUARES)
    np.testing.assert_allclose(found.theta, whole.theta, rtol=1e-7)
    same = profiles(whole, parameters_of(CHINCHILLA, whole.center))[2]
    assert (interval.low, interval.high) == pytest.approx((same.low, same.high), rel=1e-5)
