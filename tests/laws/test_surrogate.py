import numpy as np
import pytest

from sweeplab.laws.surrogate import Columns, condition, fit_scales

# A searched number, and two sizes.
COLUMNS = Columns(np.array([True, False, False]), np.array([True, True, True]))
SIZES = np.array([(width, depth) for width in (-1.2, 0.0, 1.2) for depth in (-1.2, 0.0, 1.2)])


def log_loss(x):
    """The optimum moves with the first size, as that of a learning rate does with the width."""
    z, width, depth = x.T
    return 0.5 - 0.2 * width - 0.05 * depth + 0.15 * (z + 0.3 * width) ** 2


def noise_sd(x):
    return 0.006 * np.exp(0.8 * x[:, 0])


def world(seed, n_each=4):
    draws = np.random.default_rng(seed)
    x = np.hstack(
        [draws.uniform(-1, 1, (len(SIZES) * n_each, 1)), np.repeat(SIZES, n_each, axis=0)]
    )
    return x, log_loss(x) + noise_sd(x) * draws.standard_normal(len(x))


def fitted(x, y):
    scales = fit_scales(COLUMNS, x, y, np.zeros(len(y)))
    return condition(scales, x, y, np.zeros(len(y)))


def along(size, z=None):
    z = np.linspace(-1, 1, 81) if z is None else z
    return np.hstack([z[:, None], np.repeat([size], len(z), axis=0)])


def test_a_size_without_trials_is_predicted_from_the_others():
    x, y = world(0)
    seen = ~((x[:, 1] == 1.2) & (x[:, 2] == 1.2))
    points = along((1.2, 1.2))
    mean, sd = fitted(x[seen], y[seen]).marginal(points)
    truth = log_loss(points)
    best = np.argmin(mean)
    assert truth[best] - truth.min() < 0.005
    assert abs(mean[best] - truth[best]) < 2.5 * sd[best]


def test_90_percent_intervals_of_the_expected_loss_hold_about_that_often():
    held = []
    for seed in range(30):
        surrogate = fitted(*world(seed))
        for size in SIZES[::4]:
            points = along(size, np.linspace(-0.8, 0.8, 5))
            mean, sd = surrogate.marginal(points)
            held += [*(np.abs(mean - log_loss(points)) < 1.645 * sd)]
    assert 0.82 < np.mean(held) < 0.97


def test_the_noise_grows_with_the_searched_value():
    ratios = []
    for seed in range(5):
        surrogate = fitted(*world(seed, n_each=12))
        low, high = surrogate.scales.noise_sd(np.array([[-1.0, 0, 0], [1.0, 0, 0]]))
        ratios.append(high / low)
    assert 2.5 < np.median(ratios) < 10  # the truth is e^1.6, about 5


def test_noise_far_under_the_prior_is_found():
    x, y = world(3)
    quiet = log_loss(x) + (y - log_loss(x)) / 10
    assert fitted(x, quiet).scales.noise == pytest.approx(np.log(0.0006), abs=0.4)


def test_a_run_far_from_all_others_counts_less():
    x, y = world(1)
    spoiled = y.copy()
    spoiled[17] += 0.4
    points = along(SIZES[4])
    apart = np.abs(fitted(x, spoiled).marginal(points)[0] - fitted(x, y).marginal(points)[0])
    assert apart.max() < 0.1


def test_expected_results_narrow_the_loss_and_leave_it_where_it_is():
    surrogate = fitted(*world(2))
    points = along(SIZES[0], np.array([-0.9, 0.1]))
    mean, sd = surrogate.marginal(points)
    after_mean, after_sd = surrogate.expecting(points[:1]).marginal(points)
    assert after_mean == pytest.approx(mean, abs=1e-6)
    assert after_sd[0] < sd[0]
