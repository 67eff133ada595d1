"""Prediction intervals against planted truths, and against the classical ones where there are such."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from laws.planted_laws import BAD, GOOD, NEAR, TRUTHS, losses, plant
from laws.planted_misfit import wrong_losses, wrong_table
from scipy.stats import norm
from scipy.stats import t as t_distribution

from sweeplab.errors import BadInput
from sweeplab.laws.assessment import IDENTIFIED, NOT_IDENTIFIED, Assessment, assess
from sweeplab.laws.backtest import FormError
from sweeplab.laws.fitting import Fit, fit
from sweeplab.laws.forecasts import INTERVAL_ONLY, LAST_POINT, LOG_LINE, Regret, naive_forecasts, predict
from sweeplab.laws.forms import LAWS, Law, Quantity
from sweeplab.laws.intervals import Interval, noise_of, shared_of
from sweeplab.laws.points import Points

CHINCHILLA = LAWS["chinchilla"]
NOISE = 0.005


class NoError(FormError):
    """A form that is taken for right."""

    def widened(self, fit: Fit, quantity: Quantity, interval: Interval) -> Interval:
        return interval


def right(found: Assessment) -> Assessment:
    return replace(found, form_error=NoError(found.points, found.fit.law))


def classically(points: Points, law: Law) -> Assessment:
    """Return least squares with equal noise, for which there are textbook intervals."""
    return replace(right(assess(points, law, "least-squares")), noise=None)


def held(design: str, truth: str, n_tables: int, noise: float = NOISE, shared: float = 0.0) -> float:
    """Return the share of tables whose prediction interval holds a run that is made after it.

    The run has ten times the FLOPs of the largest of the table, at 20 tokens per parameter.
    """
    random, inside = np.random.default_rng(17), 0
    assessed = None
    for _ in range(n_tables):
        points = plant(truth, GOOD[design], noise, random, shared)
        n = math.sqrt(10 * points.columns["flops"].max() / 6 / 20)
        at = {"params": n, "tokens": 20 * n, "flops": 120 * n * n}
        if assessed is None:  # the whole of it for the first table: of the others, what a forecast reads
            assessed = right(assess(points, CHINCHILLA, others=()))
            assert predict(assessed, at) == predict(fitted(assessed, points), at)
        said = predict(fitted(assessed, points), at)
        outcome = losses(TRUTHS[truth], np.array([n]), np.array([20 * n]))[0]
        inside += said.low <= outcome * math.exp(noise * random.standard_normal()) <= said.high
    return inside / n_tables


def fitted(assessed: Assessment, points: Points) -> Assessment:
    """Return an assessment with all that a forecast's interval takes from a table, which is this one.

    The intervals of the law's own numbers, which take most of the time, are not among it.
    """
    found = fit(points, CHINCHILLA)
    shared = shared_of(points, found)
    return right(replace(assessed, points=points, fit=found, shared=shared, noise=noise_of(found)))


@pytest.mark.slow
@pytest.mark.parametrize(("design", "truth"), list(zip([*GOOD][:3], cycle(TRUTHS), strict=False)))
def test_intervals_hold_on_every_design(design: str, truth: str) -> None:
    assert 0.78 <= held(design, truth, 60, 0.01) <= 0.99


@pytest.mark.slow
def test_intervals_hold_where_runs_of_one_size_share_an_error() -> None:
    assert held("30 points, 6 x 5", "steep", 60, 0.01, shared=0.36) >= 0.75


def line_table():
    """Return a table whose loss is a power of N, and the law that is a line in logs."""
    points = plant("steep", GOOD["30 points, 6 x 5"], 0.01, np.random.default_rng(2))
    law = replace(LAWS["power-n"], name="line", terms=LAWS["power-n"].terms[1:])
    error = np.random.default_rng(1).normal(0, 0.02, points.n)
    loss = 50 * points.columns["params"] ** -0.2 * np.exp(error)
    return points.with_loss(loss), law


def classical(x, y, where: float, level: float = 0.9) -> tuple[float, float, float]:
    """Return the line's value and its prediction interval, by the textbook."""
    design = np.c_[np.ones(len(x)), x]
    theta, (squares,), *_ = np.linalg.lstsq(design, y, rcond=None)
    here = np.array([1.0, where])
    variance = squares / (len(x) - 2) * (1 + here @ np.linalg.inv(design.T @ design) @ here)
    half = t_distribution.ppf((1 + level) / 2, len(x) - 2) * math.sqrt(variance)
    return here @ theta, here @ theta - half, here @ theta + half


def test_where_nothing_bends_it_is_the_classical_prediction_interval() -> None:
    points, law = line_table()
    said = predict(classically(points, law), {"params": 1e9, "tokens": 1e10})
    x, y = np.log(points.columns["params"]), np.log(points.columns["loss"])
    expected = classical(x, y, math.log(1e9))
    assert np.log([said.loss, said.low, said.high]) == pytest.approx(expected, rel=1e-4)
    quantiles = norm.ppf([0.5, 0.05, 0.95], said.log_loss.mean, said.log_loss.sd)
    assert quantiles == pytest.approx(expected, rel=1e-4), "the normal distribution has the same ends"


def test_the_mean_of_seeds_is_quieter_only_as_far_as_the_table_shows() -> None:
    points, law = line_table()
    found, at = classically(points, law), {"params": 1e9}
    one = predict(found, at)
    assert predict(found, at, seeds=4).noise == one.noise
    thrice = replace(points, weights=np.full(points.n, 3.0))
    of_three = predict(classically(thrice, law), at, seeds=3)
    assert (of_three.low, of_three.high) == pytest.approx((one.low, one.high), rel=1e-6)
    single = predict(classically(thrice, law), at, seeds=1)
    assert single.noise == pytest.approx(of_three.noise * math.sqrt(3))


def test_what_values_are_expected_to_cost_is_part_of_a_forecast() -> None:
    """Outcomes of runs whose values miss the best by a normal error, so that the loss is a square of it too high."""
    points, law = line_table()
    assessment, at = classically(points, law), {"params": 1e9}
    tuned = predict(assessment, at)
    quantile = t_distribution.ppf(0.95, points.n - 2)
    sd = (math.log(tuned.high) - math.log(tuned.low)) / 2 / quantile
    draws = np.random.default_rng(0)
    for regret in (
        Regret(0.1 * sd),
        Regret(sd),
        Regret(10 * sd),
        Regret(sd, 4 * sd),
        Regret(0.1 * sd, 4 * sd),
    ):
        with_it = predict(assessment, at, regret=regret)
        errors = t_distribution.rvs(points.n - 2, size=20_000, random_state=draws) * sd
        missed = math.sqrt(regret.known) + math.sqrt(regret.error) * draws.standard_normal(20_000)
        outcomes = tuned.loss * np.exp(errors + missed**2)
        held = np.mean((with_it.low <= outcomes) & (outcomes <= with_it.high))
        assert 0.89 < held < 0.91, (regret, sd, held)
        expected = pytest.approx(math.log(with_it.loss), abs=0.02 * (sd + regret.mean))
        assert np.mean(np.log(outcomes)) == expected
        assert np.mean((tuned.low <= outcomes) & (outcomes <= tuned.high)) < held
    assert predict(assessment, at, regret=Regret()) == tuned


def test_naive_forecasters() -> None:
    points, _ = line_table()
    flops, loss = points.columns["flops"], points.columns["loss"]
    c = float(np.sort(flops)[12]) * 1.001
    found = naive_forecasts(points, {"params": 1e6, "tokens": c / 6e6, "flops": c})
    last = found[LAST_POINT].log_loss
    assert (last.mean, last.sd) == (math.log(loss[np.argsort(flops)[12]]), 0.0)
    mean, low, high = classical(np.log(flops), np.log(loss), math.log(c))
    line = found[LOG_LINE].log_loss
    assert norm.ppf([0.5, 0.05, 0.95], line.mean, line.sd) == pytest.approx([mean, low, high], rel=1e-9)
    smallest = naive_forecasts(points, {"params": 1.0, "tokens": 1.0, "flops": 6.0})
    assert smallest[LAST_POINT].log_loss is None and smallest[LAST_POINT].why == "every row has more flops"
    few = naive_forecasts(points.only(np.arange(2)), {"flops": c})
    assert few[LOG_LINE].log_loss is None and few[LOG_LINE].why.startswith("2 rows at 2 values of flops")
    assert naive_forecasts(points, {})[LOG_LINE].log_loss is None


def test_a_ray_forecasts_along_itself_with_its_verdict() -> None:
    points = plant("steep", BAD["one ray, D = 20 N"], 0.003, np.random.default_rng(3))
    said = predict(assess(points, CHINCHILLA), {"params": 2e9, "tokens": 4e10})
    assert said.verdict.verdict == INTERVAL_ONLY and said.low < said.loss < said.high
    assert said.verdict.reason.startswith("no law; interval only: all rows lie near one ray")
    good = plant("steep", GOOD["30 points, 6 x 5"], 0.003, np.random.default_rng(3))
    at = {"params": 2e8, "tokens": 4e9}
    assert predict(assess(good, CHINCHILLA), at).verdict.verdict == IDENTIFIED


def test_no_interval_no_forecast() -> None:
    points = plant("hoffmann", BAD["one ray, D = 20 N"], 0.003, np.random.default_rng(4))
    with pytest.raises(BadInput, match="cannot be forecast: the 12 rows give it no upper bound"):
        predict(assess(points, CHINCHILLA), {"params": 1e12, "tokens": 1e6})
    with pytest.raises(BadInput, match="chinchilla needs tokens too: --tokens"):
        predict(assess(points, CHINCHILLA), {"params": 1e6})


def test_a_forecast_allows_for_the_form_more_the_further_it_goes() -> None:
    """The law has no interaction of N and D, and the back-test is off by more than noise."""
    where = GOOD["30 points, 6 x 5"]
    found = assess(
        wrong_table("steep", "interaction", 0.1, where, 0.003, np.random.default_rng(1)), CHINCHILLA
    )
    most = float(found.points.columns["flops"].max())
    forms = []
    for times in (0.5, 10.0, 100.0):
        n = math.sqrt(times * most / 120)
        at = {"params": n, "tokens": 20 * n}
        said, without = predict(found, at), predict(right(found), at)
        forms.append(said.form)
        assert (said.high / said.low > without.high / without.low) == (times > 1)
    assert forms[0] == 0.0 and forms[1] > 0.003 and forms[2] > 1.5 * forms[1]
    loss = wrong_losses("steep", "interaction", 0.1, where)(np.array([n]), np.array([20 * n]))[0]
    assert said.low < loss < said.high and not without.low < loss < without.high


def test_a_forecast_allows_for_the_form_on_the_side_to_which_the_residuals_lean() -> None:
    """An interaction of either sign leans to the side on which the losses of larger runs lie."""
    where = GOOD["30 points, 6 x 5"]
    for sign in (1, -1):
        table = wrong_table("steep", "interaction", sign * 0.1, where, 0.003, np.random.default_rng(1))
        found = assess(table, CHINCHILLA, others=())
        n = math.sqrt(10 * float(table.columns["flops"].max()) / 120)
        said = predict(found, {"params": n, "tokens": 20 * n})
        loss = wrong_losses("steep", "interaction", sign * 0.1, where)(np.array([n]), np.array([20 * n]))[0]
        above, below = math.log(said.high / said.loss), math.log(said.loss / said.low)
        assert np.sign(found.form_error.lean) == np.sign(above - below) == np.sign(loss - said.loss)
        assert said.low < loss < said.high


def numbers_in(value) -> list[float]:
    """Return every number of plain values, also those in their texts."""
    if isinstance(value, dict | list | tuple):
        inside = value.values() if isinstance(value, dict) else value
        return [number for each in inside for number in numbers_in(each)]
    if isinstance(value, str):
        return [float(each) for each in re.findall(r"\d+\.?\d*(?:e[-+]?\d+)?", value)]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.mark.parametrize(("design", "truth"), [*zip((*BAD, "9 points, 3 x 3", "one budget"), cycle(TRUTHS))])
def test_a_value_is_given_or_nothing_gives_it_away(design: str, truth: str) -> None:
    """A forecast with an interval has its value; of a number without, no field and no two fields lead to it."""
    points = plant(truth, (GOOD | BAD | NEAR)[design], 0.02, np.random.default_rng(6))
    found = assess(points, CHINCHILLA, others=())
    for times in (1.0, 30.0):
        at = {"params": times * 1e8, "tokens": times * 2e9}
        with suppress(BadInput):  # it has no interval
            said = predict(found, at)
            assert said.low < said.loss < said.high
            assert said.verdict.verdict != NOT_IDENTIFIED
    plain = found.as_dict()
    entries = plain["parameters"] | plain["derived"]
    hidden = [each for each in found.estimates if not each.verdict.identified]
    assert hidden
    for estimate in hidden:
        entry, value = entries[estimate.quantity.name], estimate.quantity.shown(estimate.interval.value)
        assert entry["value"] is None and "by_delta" not in entry
        ends = [end for end in (entry["low"], entry["high"]) if end]
        steps = [*filter(None, numbers_in(entry["why"]))]
        led = [way for end in ends for step in steps for way in (end + step, end - step)]
        if estimate.quantity.is_log:
            led = [way for end in ends for step in steps for way in (end * step, end / step)]
        assert not np.isclose([*steps, *led], value, rtol=2e-3, atol=0).any(), entry
    named = [each for each in plain["warnings"] if "numbers would be" in each]
    assert not any(
        f" {each.quantity.name} " in line.split("(outside")[0] for line in named for each in hidden
    )
