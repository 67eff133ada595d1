"""Points that are tuned worse at larger sizes: what the trials show of it, and what is said where nothing does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from laws.planted_laws import GOOD, TRUTHS, plant, vector
from laws.planted_mistuned import FEW, HIGH, RIGHT, mistuned_table

from sweeplab import laws
from sweeplab.laws.assessment import IDENTIFIED, Assessment, assess
from sweeplab.laws.doubts import doubts, tuning_of
from sweeplab.laws.fitting import fit
from sweeplab.laws.forecasts import predict
from sweeplab.laws.forms import LAWS
from sweeplab.laws.hyperparameters.runs import searched_points
from sweeplab.laws.points import EACH, SHARED, UNKNOWN, Points, TuningRecord

DESIGN = "30 points, 6 x 5"
LARGER = {"params": 2e8, "tokens": 4e9}


def identified(assessed: Assessment) -> list[str]:
    verdicts = {each.quantity.name: each.verdict.verdict for each in assessed.estimates}
    verdicts["a forecast"] = predict(assessed, LARGER).verdict.verdict
    return [name for name, verdict in verdicts.items() if verdict == IDENTIFIED]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [HIGH, FEW])
def test_where_large_sizes_are_mistuned_no_number_is_identified(kind: str) -> None:
    for seed, truth in enumerate(TRUTHS):
        frame = mistuned_table(kind, DESIGN, truth, np.random.default_rng(seed))
        assessed = laws.fit(frame, "chinchilla").assessment
        assert not identified(assessed)
        (line,) = [warning for warning in assessed.warnings if "the tuning excess may drift" in warning]
        assert "search learning_rate " in line or "run more trials in every cell" in line


def test_where_every_size_is_tuned_numbers_stay_identified() -> None:
    for seed, truth in enumerate(TRUTHS):
        frame = mistuned_table(RIGHT, DESIGN, truth, np.random.default_rng(seed))
        assessed = laws.fit(frame, "chinchilla").assessment
        assert {"E", "alpha", "beta", "a forecast"} <= {*identified(assessed)}
        assert assessed.tuning.how == EACH and assessed.tuning.ends[2] < 0.002


def test_a_searched_column_is_no_unused_one_as_the_excess_contains_what_its_values_cost() -> None:
    frame = mistuned_table(RIGHT, DESIGN, next(iter(TRUTHS)), np.random.default_rng([0, 3033167124]))
    points = searched_points(frame, "the table")
    assert "lr" in points.extra_columns and "lr" in doubts(points, fit(points, LAWS["chinchilla"])).why
    assert "lr" not in tuning_of(points).points.extra_columns
    assert len(identified(laws.fit(frame, "chinchilla").assessment)) == 10


def test_a_table_of_the_best_rows_alone_identifies_nothing_unless_a_person_says_how_it_was_tuned() -> None:
    points = replace(plant("steep", GOOD[DESIGN], 0.005, np.random.default_rng(1)), tuned=UNKNOWN)
    chinchilla = LAWS["chinchilla"]
    unknown, shared, each = (
        assess(points.tuned_as(how), chinchilla, others=()) for how in (None, SHARED, EACH)
    )
    assert not identified(unknown) and not identified(shared) and len(identified(each)) == 10
    assert each.what_if is None and not each.warnings
    for assessed, share in ((unknown, "1%"), (shared, "3%")):
        (line,) = [warning for warning in assessed.warnings if f"costs {share} of the loss" in warning]
        entry = assessed.as_dict()["parameters"]["alpha"]
        assert (
            f"alpha {entry['if_tuned_otherwise']:.4g}" in line
            and entry["if_tuned_otherwise"] < entry["value"]
        )


def test_the_fit_leaves_a_known_excess_out_and_its_interval_contains_what_is_not_known_of_it() -> None:
    """The excess is one-sided: at the largest size from 1 to 5% of the loss, about 3%."""
    points = plant("steep", GOOD[DESIGN], 0.003, np.random.default_rng(2))
    chinchilla, logs = LAWS["chinchilla"], np.log(points.columns["params"])
    part = ((logs - logs.min()) / np.ptp(logs)) ** 2
    draws = np.random.default_rng(3).uniform(0.01, 0.05, (300, 1)) * part
    losses = points.columns["loss"] * np.exp(draws.mean(0))
    spoilt = points.with_loss(losses)

    def record(of: Points) -> TuningRecord:
        return TuningRecord(draws, np.zeros_like(draws), "more trials")

    apart, known = (assess(each, chinchilla, others=()) for each in (points, replace(spoilt, record=record)))
    theta = vector(chinchilla, TRUTHS["steep"], known.fit.center)
    for without, estimate in zip(apart.estimates, known.estimates, strict=True):
        true = estimate.quantity.at(theta)
        assert estimate.interval.value == pytest.approx(without.interval.value, abs=1e-3)
        assert estimate.interval.low <= true <= estimate.interval.high
        assert estimate.interval.high - estimate.interval.low > without.interval.high - without.interval.low
    assert not identified(known) and identified(apart)


def test_of_too_few_trials_nothing_is_known() -> None:
    frame = mistuned_table(RIGHT, DESIGN, "steep", np.random.default_rng(0))
    few = frame.groupby(["N", "D"]).head(1)
    assert searched_points(few, "the table").tuned == UNKNOWN
