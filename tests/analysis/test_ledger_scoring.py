"""Scores of forecasts against their definitions."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from sweeplab.analysis.ledger import LedgerEntry
from sweeplab.analysis.scoring import (
    LAST_POINT,
    LAW,
    LEVELS,
    LOG_LINE,
    OPEN,
    SCORED,
    Normal,
    Outcome,
    calibrate,
    score,
)


@pytest.mark.parametrize("value", [-3.0, 0.9, 1.0, 1.02, 1.5, 40.0])
@pytest.mark.parametrize("sd", [0.02, 0.3, 2.0])
def test_crps_is_the_integral_that_defines_it(value: float, sd: float) -> None:
    """The integral of (F(x) - [x >= value])^2."""
    below = quad(lambda x: norm.cdf(x, 1.0, sd) ** 2, 1 - 12 * sd, value, points=[1.0], limit=200)[0]
    above = quad(lambda x: norm.sf(x, 1.0, sd) ** 2, value, 1 + 12 * sd, points=[1.0], limit=200)[0]
    assert Normal(1.0, sd).crps(value) == pytest.approx(below + above, rel=1e-6)


def test_without_a_spread_crps_is_the_absolute_error() -> None:
    assert Normal(1.0, 0.0).crps(1.25) == 0.25
    assert Normal(1.0, 1e-9).crps(1.25) == pytest.approx(0.25)
    assert [Normal(1.0, 0.0).pit(value) for value in (0.5, 1.0, 2.0)] == [0.0, 0.5, 1.0]


def test_crps_is_lowest_for_the_true_distribution() -> None:
    drawn = np.random.default_rng(0).normal(1.0, 0.1, 4000)
    means = {sd: np.mean([Normal(1.0, sd).crps(each) for each in drawn]) for sd in (0.05, 0.1, 0.2)}
    assert min(means, key=means.get) == 0.1


def forecast(mean: float, sd: float, study: str = "small", verdict: str = "identified") -> dict:
    low, high = (math.exp(mean + side * 1.6448536269514722 * sd) for side in (-1, 1))
    naive = {
        LAST_POINT: {"log_loss": {"mean": mean + 0.1, "sd": 0.0}, "why": ""},
        LOG_LINE: {"log_loss": None, "why": "too few"},
    }
    return {
        "run": {"studies": {study: ""}},
        "at": {"params": 1e6, "tokens": 1e7},
        "predicted": {
            "loss": math.exp(mean),
            "low": low,
            "high": high,
            "log_loss": {"mean": mean, "sd": sd},
            "verdict": {"verdict": verdict, "reason": ""},
        },
        "naive": naive,
        "fit": {"law": "chinchilla", "delta": "auto"},
        "data": {"digest": "x"},
    }


def test_a_score() -> None:
    said = forecast(1.0, 0.01)
    found = score(said["predicted"], said["naive"], math.exp(1.005))
    assert found.error_log == pytest.approx(0.005)
    assert found.error_nats == pytest.approx(math.exp(1.005) - math.e)
    assert found.covered and found.pit == pytest.approx(norm.cdf(0.5))
    assert found.crps == {LAW: Normal(1.0, 0.01).crps(1.005), LAST_POINT: pytest.approx(0.095)}
    assert not score(said["predicted"], said["naive"], math.exp(1.02)).covered


def outcome(said: dict, loss: float | None) -> Outcome:
    entry = LedgerEntry(1, datetime.now(UTC), "", said, "")
    if loss is None:
        return Outcome(entry, OPEN)
    return Outcome(entry, SCORED, score=score(said["predicted"], said["naive"], loss))


def test_calibration() -> None:
    random = np.random.default_rng(4)
    said = [forecast(1.0, 0.01, f"study {k}") for k in range(300)]
    found = calibrate(
        [outcome(each, math.exp(random.normal(1.0, 0.01))) for each in said] + [outcome(said[0], None)]
    )
    assert (found.n, found.n_forecasts, found.n_fits, len(found.pit)) == (300, 300, 1, 300)
    assert [each.level for each in found.coverage] == list(LEVELS)
    for each in found.coverage:
        inside = np.abs(np.array(found.pit) - 0.5) <= each.level / 2
        assert each.covered == inside.sum() and each.share == inside.mean()
        assert each.low < each.level < each.high, "forecasts that are right are found to be"
        # The definition of the ends: as few, or as many, would come in one table of twenty.
        assert binom.sf(each.covered - 1, each.n, each.low) == pytest.approx(0.05)
        assert binom.cdf(each.covered, each.n, each.high) == pytest.approx(0.05)
    assert found.crps.keys() == {LAST_POINT} and found.crps[LAST_POINT].ratio < 0.1
    sure = calibrate([outcome(forecast(1.0, 0.002), math.exp(each)) for each in random.normal(1, 0.01, 50)])
    assert sure.coverage[2].high < 0.9, "forecasts that are too sure show"


def test_calibration_by_verdict() -> None:
    told = [outcome(forecast(1.0, 0.01), math.e), outcome(forecast(1.0, 0.01, verdict="weak"), 2.8)]
    again = outcome(forecast(1.0, 0.01), 2.7)
    found = calibrate([*told, again])
    counts = {verdict: (each.covered, each.n) for verdict, each in found.by_verdict.items()}
    assert counts == {"identified": (2, 2), "weak": (0, 1)}


def test_one_run_counts_once_whatever_its_study_is_called() -> None:
    told = [outcome(forecast(1.0, 0.01, name), math.e) for name in ("one", "other", "third")]
    found = calibrate([*told, outcome(forecast(1.0, 0.01), 2.7)])
    assert (found.n, found.n_forecasts) == (2, 4)


def test_nothing_scored_has_no_calibration() -> None:
    found = calibrate([outcome(forecast(1.0, 0.01), None)])
    assert (found.n, found.coverage, found.pit, dict(found.crps)) == (0, (), (), {})
