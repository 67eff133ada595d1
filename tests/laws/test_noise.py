"""Noise that is not equal is found, and intervals and tests of the form allow for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from laws.planted_laws import EQUAL, FALLS, GOOD, HEAVY, TRUTHS, plant, vector

from sweeplab.laws.assessment import assess
from sweeplab.laws.fitting import LEAST_SQUARES, fit
from sweeplab.laws.forms import LAWS, parameters_of
from sweeplab.laws.intervals import noise_of, profiles, shared_of

CHINCHILLA = LAWS["chinchilla"]
SCATTERED, GRID, TWELVE = GOOD["245 scattered"], GOOD["30 points, 6 x 5"], GOOD["12 points, 4 x 3"]


def table(where, kind: str, seed: int = 1, noise: float = 0.01):
    return plant("steep", where, noise, np.random.default_rng(seed), kind=kind)


def test_a_planted_variance_function_is_found() -> None:
    falls = noise_of(fit(table(SCATTERED, FALLS), CHINCHILLA))
    assert falls.slopes["tokens"] == pytest.approx(-0.25, abs=0.06)
    assert falls.slopes["params"] == pytest.approx(0.0, abs=0.06)
    tokens = falls.fit.rows.logs["tokens"]
    expected = np.exp(-0.25 * tokens)
    np.testing.assert_allclose(falls.relative / expected * expected.mean(), falls.relative.mean(), rtol=0.35)
    for kind in (EQUAL, HEAVY):
        assert np.ptp(np.log(noise_of(fit(table(SCATTERED, kind), CHINCHILLA)).relative)) < 0.4


def test_beyond_the_table_noise_is_that_of_its_ends() -> None:
    noise = noise_of(fit(table(SCATTERED, FALLS), CHINCHILLA))
    logs = noise.fit.rows.logs
    ends = {name: np.array([column.max(), column.max() + 5]) for name, column in logs.items()}
    near, far = noise.at(ends)
    assert near == far < noise.relative.mean()


def test_with_equal_noise_the_modelled_error_is_the_classical_one() -> None:
    found = fit(table(GRID, EQUAL), CHINCHILLA, LEAST_SQUARES)
    equal = replace(noise_of(found), slopes=dict.fromkeys(found.rows.logs, 0.0))
    slopes = np.eye(len(found.theta))
    np.testing.assert_allclose(equal.modelled(slopes)[0], found.variance, rtol=1e-6)
    _, freedom = equal.robust(slopes)
    assert ((freedom >= 1) & (freedom < found.freedom)).all()


def test_the_robust_error_is_the_sandwich() -> None:
    found = fit(table(GRID, FALLS), CHINCHILLA, LEAST_SQUARES)
    noise, jacobian = noise_of(found), found.jacobian
    inverse = np.linalg.inv(jacobian @ jacobian.T)
    hat = np.einsum("pn,pq,qn->n", jacobian, inverse, jacobian)
    meat = (jacobian * found.residuals() ** 2 / (1 - hat)) @ jacobian.T
    hc2 = np.diag(inverse @ meat @ inverse)
    sizes, _ = noise.robust(np.eye(len(found.theta)))
    np.testing.assert_allclose(sizes * np.diag(inverse), hc2, rtol=1e-6)


def test_an_interval_leans_on_the_noise_of_its_own_rows() -> None:
    """Small D decide beta: where the noise falls with D, its interval has to be wider than equal noise makes it."""
    points = table(SCATTERED, FALLS)
    found = assess(points, CHINCHILLA)
    equal = profiles(found.fit, parameters_of(CHINCHILLA, found.fit.center), found.shared)[4]
    beta = found.estimates[4].interval
    assert beta.high - beta.low > 1.25 * (equal.high - equal.low)
    assert any(each.startswith("noise ") and "falls with tokens" in each for each in found.warnings)
    assert not any(
        "falls with tokens" in each for each in assess(table(SCATTERED, EQUAL), CHINCHILLA).warnings
    )


@pytest.mark.slow
@pytest.mark.parametrize("n_points", [9, 12])
def test_points_of_unlike_numbers_of_seeds_have_no_noise_that_falls_with_anything(n_points: int) -> None:
    points = table(GOOD["9 points, 3 x 3"] if n_points == 9 else TWELVE, EQUAL)
    seeds = np.where(np.arange(points.n) % 2, 9.0, 1.0)
    found = assess(replace(points, weights=seeds), CHINCHILLA)
    assert not any(each.startswith("noise ") for each in found.warnings)


def test_rows_that_are_worse_than_the_model_widen_an_interval_with_a_warning() -> None:
    points = table(SCATTERED, EQUAL, noise=0.003)
    loss = points.columns["loss"].copy()
    decide = np.argsort(points.columns["tokens"])[[0, 1, 2, 3, 4, 5, 6, 7]]
    loss[decide] *= np.exp(0.03 * np.array([1, -1, 1, -1, 1, -1, 1, -1]))
    found = assess(points.with_loss(loss), CHINCHILLA, "least-squares")
    assert found.estimates[4].interval.robust_ratio > 1.2
    equal = profiles(found.fit, parameters_of(CHINCHILLA, found.fit.center), found.shared)[4]
    beta = found.estimates[4].interval
    assert beta.high - beta.low > equal.high - equal.low


@pytest.mark.slow
@pytest.mark.parametrize("where", [TWELVE, GRID, SCATTERED], ids=["12", "30", "245"])
@pytest.mark.parametrize(("kind", "shared"), [(EQUAL, 0.0), (FALLS, 0.0), (HEAVY, 0.0), (EQUAL, 0.36)])
def test_intervals_cover_whatever_the_noise(where, kind: str, shared: float) -> None:
    held = []
    for k in range(60):
        truth = list(TRUTHS)[k % 2]
        points = plant(truth, where, 0.01, np.random.default_rng([k, 9]), shared, kind)
        found = fit(points, CHINCHILLA)
        theta = vector(CHINCHILLA, TRUTHS[truth], found.center)
        quantities = parameters_of(CHINCHILLA, found.center)
        ends = profiles(found, quantities, shared_of(points, found), noise_of(found))
        true = [each.at(theta) for each in quantities]
        held.append([end.low <= value <= end.high for end, value in zip(ends, true, strict=True)])
    assert 0.8 <= np.mean(held) <= 0.99, np.mean(held, axis=0)
