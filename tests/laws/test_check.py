"""The test of added columns and the hold-out: right forms pass, wrong ones are found, and the power is said."""

import numpy as np
import pytest
from laws.planted_laws import BAD, GOOD, TRUTHS, plant
from laws.planted_misfit import FIVE_PERCENT, wrong_losses, wrong_table

from sweeplab.laws.assessment import assess, predict
from sweeplab.laws.check import FLAGGED, NOT_SEEN, UNSEEN, hold_out, misfit
from sweeplab.laws.fitting import fit
from sweeplab.laws.forms import LAWS

CHINCHILLA = LAWS["chinchilla"]
GRID = GOOD["30 points, 6 x 5"]


def test_a_right_form_is_rarely_flagged():
    alarms = 0
    for seed in range(40):
        shared = 0.36 if seed % 2 else 0.0
        points = plant(
            [*TRUTHS][seed // 2 % 2], GRID, 0.005, np.random.default_rng([seed, 9]), shared
        )
        alarms += misfit(points, fit(points, CHINCHILLA)).status == FLAGGED
    assert alarms <= 6


@pytest.mark.parametrize(("kind", "size"), [("interaction", 0.03), ("broken power of D", 0.4)])
def test_a_wrong_form_is_flagged_and_its_direction_named(kind, size):
    points = wrong_table("steep", kind, size, GRID, 0.003, np.random.default_rng(1))
    found = misfit(points, fit(points, CHINCHILLA))
    assert found.status == FLAGGED and found.direction in found.powers
    assert found.words.startswith("the form chinchilla does not fit")


def test_what_a_design_cannot_show_is_said():
    found = []
    for seed in range(6):
        points = plant(
            "steep", BAD["one ray, D = 20 N"], 0.02, np.random.default_rng([seed, 1])
        )
        found.append(misfit(points, fit(points, CHINCHILLA)))
    unseen = [each for each in found if each.status == UNSEEN]
    assert len(unseen) >= 3 and "no evidence" in unseen[0].words
    few = plant("steep", GOOD["9 points, 3 x 3"], 0.01, np.random.default_rng(0)).only(
        np.arange(6)
    )
    assert misfit(few, fit(few, CHINCHILLA)).status in (UNSEEN, NOT_SEEN)


def test_the_hold_out_forecasts_the_larger_rows():
    points = plant("steep", GRID, 0.003, np.random.default_rng(0))
    found = hold_out(points, CHINCHILLA)
    assert found.rows == (points.columns["flops"] > found.cut * 1.0001).sum() >= 6
    assert found.error < 0.01


@pytest.mark.parametrize("kind", ["broken power of N", "late saturation"])
def test_forecasts_allow_for_a_form_that_is_wrong(kind):
    """The forecast of the straight form is 5% wrong at ten times the compute."""
    inside = []
    for seed in range(8):
        random, truth = np.random.default_rng([seed, 6]), [*TRUTHS][seed % 2]
        assessed = assess(
            wrong_table(truth, kind, FIVE_PERCENT[kind], GRID, 0.003, random), CHINCHILLA
        )
        at = {"params": 7.4e8, "tokens": 1.48e10}
        true = wrong_losses(truth, kind, FIVE_PERCENT[kind], GRID)(
            *(np.array([size]) for size in at.values())
        )
        said = predict(assessed, at)
        inside.append(said.low <= float(true[0]) <= said.high)
    assert np.mean(inside) >= 0.75


def test_few_rows_leave_none_for_a_hold_out():
    few = plant("hoffmann", GRID, 0.003, np.random.default_rng(0)).only(np.arange(7))
    assert (
        "no cut" in hold_out(few, CHINCHILLA).words and hold_out(few, CHINCHILLA).error is None
    )
