"""The causes in a law's residual: the planted one is named, and its cure does what it says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from laws.planted_causes import LOSS, World, look, make

from sweeplab.laws.assessment import law_for
from sweeplab.laws.causes import (
    BEND,
    CAUSES,
    EPOCHS,
    REST,
    SEEDS,
    SHAPE,
    TUNING,
    UNKNOWN,
    Beside,
    split,
    worth,
)
from sweeplab.laws.cures import diagnose
from sweeplab.laws.fitting import fit
from sweeplab.laws.hyperparameters.runs import excess_of, runs_of_frame
from sweeplab.laws.points import points_of_frame


def world(design: str, cause: str, size: float = 0.02) -> World:
    """Return the first world in which the law does not absorb the cause."""
    random = np.random.default_rng(3)
    return next(made for _ in range(50) if (made := make(design, {cause: size}, random)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("design", "cause"),
    [("9 points", SEEDS), ("9 points", SHAPE), ("9 points", TUNING), ("27 points", EPOCHS), ("27 points", BEND)],
)  # fmt: skip
def test_the_planted_cause_is_named_first_with_its_size_and_a_cure(design: str, cause: str) -> None:
    diagnosis, _ = look(world(design, cause).runs(2))
    first = diagnosis.causes.causes[0]
    assert [each.name for each in diagnosis.causes.named] == [cause] and first.name == cause
    assert (
        first.size == pytest.approx(0.02, rel=0.45)
        and first.low > 0.3
        and first.low <= first.share <= first.high
    )
    assert sum(each.share for each in diagnosis.causes.causes if each.state != UNKNOWN) == pytest.approx(1)
    cure = diagnosis.cures[cause]
    assert cure.words and diagnosis.estimate
    half = (diagnosis.estimate.interval.high - diagnosis.estimate.interval.low) / 2
    assert cure.half_width < half or (cause == BEND and math.isnan(cure.half_width) and cure.flops == 0)


@pytest.mark.slow
def test_a_law_that_is_right_has_no_cause_but_its_seeds() -> None:
    diagnosis, _ = look(World(seeds=3, noise=0.01).runs(2))
    assert [each.name for each in diagnosis.causes.named] == [SEEDS]
    assert {each.name for each in diagnosis.causes.causes} == set(CAUSES)


def test_what_a_table_lacks_cannot_be_split() -> None:
    frame = world("9 points", SHAPE).runs(1).query("seed == 0").drop(columns=["excess", "seed", "n_layer"])
    points = points_of_frame(frame, "a table", LOSS)
    diagnosis = diagnose(points)
    unknown = {each.name: each.why for each in diagnosis.causes.causes if each.state == UNKNOWN}
    assert unknown.keys() == {SEEDS, SHAPE, TUNING, EPOCHS} and all(unknown.values())
    plain = diagnosis.as_dict(1e-12)
    assert {each["share"] for each in plain["causes"] if each["name"] in unknown} == {None}
    rest = next(each for each in plain["causes"] if each["name"] == REST)
    assert rest["cure"] is None or rest["cure"]["seconds"] == pytest.approx(rest["cure"]["flops"] * 1e-12)


def test_seeds_of_a_table_say_the_noise() -> None:
    points = points_of_frame(World(noise=0.01).runs(4).drop(columns="excess"), "a table", LOSS)
    assert points.seed_spread == pytest.approx(0.01, rel=0.4) and (points.weights == 3).all()


@pytest.mark.parametrize(("high", "ends"), [(0.06, False), (0.012, True)])
def test_the_excess_of_a_range_that_ends_too_low(high: float, ends: bool) -> None:
    rates = np.tile(np.geomspace(2e-3, high, 5), (9, 1))
    made = replace(World(), rates=rates, bowl=0.15)
    excess = excess_of(runs_of_frame(made.runs(1).drop(columns="excess"), "a table", LOSS))
    assert excess and (excess.draws >= 0).all() and (excess.again <= excess.draws + 1e-9).all()
    assert (excess.beyond[0, 1] > 0.5) == ends
    # Cells are sorted by size, as those of the world are not.
    np.testing.assert_allclose(
        np.sort(excess.mean), np.sort(made.excess().min(1)), atol=0.3 * made.excess().min(1).max()
    )


@pytest.mark.slow
def test_many_rows_are_split_by_some_of_them() -> None:
    made = replace(world("27 points", SHAPE), lengths=tuple(np.geomspace(5e5, 8e6, 12)))
    runs = made.runs(1).query("learning_rate < 0.03").drop(columns="excess")
    points = points_of_frame(runs, "a table", LOSS)
    causes = split(points, fit(points, law_for(points)), Beside())
    assert points.n == 108 and causes.named[0].name == SHAPE
    assert causes.effects[SHAPE].shape == causes.noise[REST].shape == (108,)


def test_repeated_tokens_are_worth_less() -> None:
    assert worth(np.array([0.5, 1.0])).tolist() == [0, 0]
    assert np.all(np.diff(worth(np.array([1.0, 2.0, 8.0, 100.0]))) > 0)
    # Muennighoff et al. 2023: up to four epochs are nearly as good as new tokens.
    assert math.exp(worth(np.array([4.0]))[0]) < 1.1


def test_more_seeds_have_a_half_width_where_simulated_intervals_are_open() -> None:
    """Six sizes of a real study leave three degrees of freedom, and most intervals of such tables have no end."""
    seeds = {14_520: (1.9485, 1.9827, 1.9495, 1.9238), 25_504: (1.7677, 1.7715, 1.7592, 1.7618)}
    seeds |= {39_560: (1.6094, 1.6168), 56_688: (1.5259, 1.5228), 76_888: (1.4596,), 100_160: (1.4014,)}
    rows = [(params, 12 * params, *pair) for params, losses in seeds.items() for pair in enumerate(losses)]
    frame = pd.DataFrame(rows, columns=["params", "tokens", "seed", "loss"])
    diagnosis = diagnose(points_of_frame(frame, "a table"))
    assert diagnosis.estimate
    half = (diagnosis.estimate.interval.high - diagnosis.estimate.interval.low) / 2
    assert 0.5 * half < diagnosis.cures[SEEDS].half_width < half


def test_along_one_family_a_shape_is_no_cause_but_a_bend_is() -> None:
    widths = (16, 24, 32, 48, 64, 96, 128)

    def bend(cells: pd.DataFrame) -> Any:
        return 0.03 * (np.log(cells.n_params) - np.log(cells.n_params).mean()) ** 2 / 3

    frame = World(depths=(2,), widths=widths, noise=0.002, effects=(bend,)).runs(5).drop(columns="excess")
    causes = diagnose(points_of_frame(frame, "a table", LOSS)).causes
    why = {each.name: each.why for each in causes.causes if each.state == UNKNOWN}
    assert why[SHAPE] == "n_layer 2 in all rows" and causes.named[0].name == BEND
