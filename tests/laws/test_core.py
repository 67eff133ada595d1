"""The posterior's draws against a slow plain version of its density, and against textbook intervals."""

import numpy as np
import pytest
from laws.planted_laws import GOOD, TRUTHS, plant

from sweeplab.laws.core import (
    MOST_SHARED,
    TILT_SD,
    RowErrors,
    _cholesky,
    _next_temperature,
    _weights,
    fit_law,
    interval,
    logistic,
    uniform,
)

LOW, HIGH = 0.01, 2.0


def design(x):
    return lambda a: np.stack([np.ones((len(a), len(x))), np.exp(-a[:, :1] * x)], 2)


def plain(n):
    return RowErrors(np.zeros(n), None, np.ones(n))


def log_density(loss, x, z, groups, a, c, r):
    """Return the density of one vector with whole matrices, as the head of core.py writes it."""
    n = len(loss)
    columns = np.stack([np.ones(n), np.exp(-a * x)], 1) / loss[:, None]
    tilt = np.diag(np.exp(c * z))
    v = tilt @ ((1 - r) * np.eye(n) + r * (groups[:, None] == groups)) @ tilt
    inverse = np.linalg.inv(v)
    m = columns.T @ inverse @ columns
    b = np.linalg.solve(m, columns.T @ inverse @ np.ones(n))
    rest = 1 - columns @ b
    if (b <= 0).any():
        return -np.inf
    rss = rest @ inverse @ rest
    logs = [np.linalg.slogdet(each)[1] for each in (v, m, columns.T @ columns)]
    return (
        -(n - 2) / 2 * np.log(rss)
        - logs[0] / 2
        - logs[1] / 2
        + logs[2] / 2
        - (c / TILT_SD) ** 2 / 2
    )


def test_the_draws_have_the_moments_of_the_density():
    random = np.random.default_rng(0)
    x = np.repeat(np.linspace(-1.5, 1.5, 4), 3)
    z = np.tile([-1.0, 0.0, 1.0], 4)
    groups = np.repeat(np.arange(4), 3)
    loss = (2 + np.exp(-0.5 * x)) * np.exp(0.01 * random.standard_normal(12))
    draws = fit_law(loss, design(x), [uniform(LOW, HIGH)], RowErrors(z, groups, np.ones(12)))
    grids = (
        np.linspace(0.02, 1.4, 90),
        np.linspace(-0.6, 0.6, 25),
        np.linspace(0.01, MOST_SHARED, 12),
    )
    logs = np.array(
        [
            [[log_density(loss, x, z, groups, a, c, r) for r in grids[2]] for c in grids[1]]
            for a in grids[0]
        ]
    )
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    for axis, seen in enumerate((draws.shapes[:, 0], draws.tilt, draws.shared)):
        share = weights.sum(tuple(each for each in range(3) if each != axis))
        mean = share @ grids[axis]
        sd = np.sqrt(share @ (grids[axis] - mean) ** 2)
        assert abs(seen.mean() - mean) < 0.1 * sd and seen.std() == pytest.approx(sd, rel=0.1)
    assert draws.effective >= 1000
    error, other = (draws.error(np.random.default_rng(3), *each) for each in ((), (1.5, 4.0)))
    assert error.std() == pytest.approx(np.sqrt(np.mean(draws.sigma**2)), rel=0.05)
    np.testing.assert_allclose(other, error * np.exp(1.5 * draws.tilt) / 2)


def test_a_departure_of_which_the_rows_say_nothing_keeps_its_prior():
    loss, x = np.array([3.0, 2.5, 2.2, 2.0]), np.linspace(-1, 1, 4)
    draws = fit_law(
        loss, lambda a: design(x)(np.full((len(a), 1), 0.5)), [logistic(0.2)], plain(4)
    )
    assert abs(draws.shapes.mean()) < 0.02 and draws.shapes.std() == pytest.approx(0.2, rel=0.1)


def test_a_row_of_weight_four_counts_as_four():
    random = np.random.default_rng(2)
    x, weights = np.linspace(-2, 2, 8), np.array([4.0, 1, 1, 1, 1, 1, 1, 4])
    y = (1.5 + 0.7 * np.exp(-0.5 * x)) * np.exp(0.05 * random.standard_normal(8))
    draws = fit_law(y, design(x), [uniform(0.4999, 0.5001)], plain(8)._replace(weights=weights))
    columns, root = np.stack([np.ones(8), np.exp(-0.5 * x)], 1) / y[:, None], np.sqrt(weights)
    expected = np.linalg.lstsq(columns * root[:, None], root, rcond=None)[0]
    np.testing.assert_allclose(draws.scales.mean(0), expected, atol=0.01)


def test_exact_losses():
    x = np.linspace(-2, 2, 9)
    draws = fit_law(1.5 + 0.7 * np.exp(-0.4 * x), design(x), [uniform(LOW, HIGH)], plain(9))
    assert draws.shapes[:, 0] == pytest.approx(0.4, abs=1e-3)


def test_the_next_target_leaves_three_tenths_of_the_draws_and_alike_columns_have_a_root():
    base, likelihood = np.zeros(1000), -1e4 * np.linspace(0, 1, 1000) ** 2
    least = 0.0
    for expected in (300, 180):  # or six tenths of those that count now, where they are few
        least = _next_temperature(base, likelihood, least)
        assert 1 / (_weights(base, likelihood, least) ** 2).sum() == pytest.approx(
            expected, rel=0.01
        )
    assert _cholesky(np.ones((1, 2, 2)))[0, 1, 1] == pytest.approx(2**0.5 * 1e-6, rel=0.01)


def test_an_interval_leaves_a_twentieth_on_either_side():
    assert interval(np.arange(101.0)) == pytest.approx((50, 5, 95))


def test_the_same_seed_gives_the_same_draws():
    points = plant(next(iter(TRUTHS)), GOOD["12 points, 4 x 3"], 0.01, np.random.default_rng(0))
    x = np.log(points.columns["params"])
    one, other = (
        fit_law(points.columns["loss"], design(x - x.mean()), [uniform(LOW, HIGH)], plain(12))
        for _ in range(2)
    )
    np.testing.assert_array_equal(one.shapes, other.shapes)
