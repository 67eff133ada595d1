"""The compute-optimal size by three approaches: they agree where the law is planted, and say so where they do not."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from laws.planted_budgets import exponent, n_opt, plant_curves, plant_isoflop
from laws.planted_laws import GOOD, TRUTHS, plant

from sweeplab.errors import BadInput
from sweeplab.laws.assessment import assess, find_law
from sweeplab.laws.compute_optimal.approaches import (
    Curve,
    Curves,
    _lost,
    approaches,
    curves_of_points,
    envelope,
)
from sweeplab.laws.points import Points

APPROACHES = ("isoflop", "envelope", "parametric")


def rng(seed: int = 0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_three_agree_with_the_planted_law(truth: str) -> None:
    found = approaches(plant_isoflop(truth, 0.003, rng(3)), plant_curves(truth, 0.003, rng(4)))
    for name in APPROACHES:
        at = found.numbers[name]["N_opt exponent"]
        assert at.identified and at.low - 0.01 <= exponent(truth) <= at.high + 0.01, name
        assert abs(at.value - exponent(truth)) < 0.03
        size = found.numbers[name]["N_opt"]
        assert math.exp(size.low) / 1.05 <= n_opt(truth, 1e20) <= math.exp(size.high) * 1.05
        assert found.numbers[name]["D_opt exponent"].value == pytest.approx(1 - at.value, abs=1e-6)
    assert {each.between for each in found.disagreements} == {
        ("parametric", "isoflop"), ("parametric", "envelope"), ("isoflop", "envelope")
    }  # fmt: skip


@pytest.mark.slow
def test_differences_cover_none_where_there_is_none() -> None:
    """What two approaches have in common is taken out: their difference is better known than either of them."""
    held, shares = [], []
    for seed in range(10):
        found = approaches(
            plant_isoflop("steep", 0.003, rng(seed), decades=1.2), Curves((), "constant", "none")
        )
        apart = found.disagreements[0].differences["N_opt exponent"]
        held.append(not apart.more_than_noise)
        alone = [found.numbers[name]["N_opt exponent"] for name in ("isoflop", "parametric")]
        shares.append((apart.high - apart.low) / math.hypot(*(each.high - each.low for each in alone)))
    assert np.mean(held) >= 0.85
    assert np.median(shares) < 0.6


def test_what_a_huber_fit_loses_is_in_the_books() -> None:
    """At 1.345 sigmas it is 95% as efficient as least squares; at very many it is least squares."""
    assert _lost(1.345) == pytest.approx(1 / 0.95 - 1, abs=1e-3)
    assert _lost(math.inf) == 0 and _lost(8) == pytest.approx(0, abs=1e-9)
    assert _lost(1e-3) == pytest.approx(math.pi / 2 - 1, abs=1e-2), "least absolute deviations"


def test_a_law_of_another_form_disagrees_by_more_than_noise() -> None:
    """Parabolas need no form: here bowls become steeper with compute, which no sum of two powers does."""
    points = plant_isoflop("steep", 0.0, rng(), n_sizes=9, decades=1.2)
    log_n, log_c = np.log(points.columns["params"]), np.log(points.columns["flops"] / 1e17)
    best = log_n.reshape(5, 9)[:, 4][np.arange(45) // 9] + 0.3 - 0.08 * log_c
    bowl = 0.005 * (1 + log_c / 2) * (log_n - best) ** 2
    loss = (2 + 40 * points.columns["flops"] ** -0.1) * np.exp(bowl + rng(1).normal(0, 5e-4, 45))
    found = approaches(points.with_loss(loss), Curves((), "constant", "none"))
    at = found.numbers["isoflop"]["N_opt exponent"]
    assert at.low <= exponent("steep") - 0.08 <= at.high
    said = found.disagreements[0]
    assert said.as_dict()["more_than_noise"] and "disagree by more than noise" in said.says


def test_no_number_where_there_is_none() -> None:
    said = approaches(plant("steep", GOOD["30 points, 6 x 5"], 0.003, rng())).as_dict()
    assert said["roads"]["isoflop"]["N_opt"]["value"] is None
    assert said["roads"]["isoflop"]["N_opt"]["why"].startswith("no budgets")
    assert said["roads"]["envelope"]["N_opt"]["why"].startswith("no curves: --columns group=")
    assert said["roads"]["parametric"]["N_opt exponent"]["verdict"] == "identified"
    first = said["disagreements"][0]
    assert first["says"] == "parametric and isoflop cannot be compared: isoflop has no number"
    assert first["differences"] == {} and not first["more_than_noise"]
    json.dumps(said)


def test_few_rows_allow_no_fit_and_that_is_said() -> None:
    points = plant_isoflop("steep", 0.003, rng()).only(np.arange(4))
    found = approaches(points)
    assert found.parametric is None and "4 rows for the 5 parameters of chinchilla" in found.why_none
    assert found.as_dict()["roads"]["parametric"]["N_opt"]["value"] is None


def test_an_assessment_that_there_is_is_not_made_again() -> None:
    points = plant_isoflop("steep", 0.003, rng())
    made = assess(points, find_law("chinchilla"), budget=1e21)
    found = approaches(points, assessment=made)
    assert found.parametric is made and found.budget == 1e21
    assert found.numbers["isoflop"]["N_opt"].meaning == "the parameters of lowest loss for 1e+21 FLOPs"
    ratio = next(each for each in made.estimates if each.quantity.name == "tokens per parameter")
    tokens = 1e21 / 6 / math.exp(found.numbers["parametric"]["N_opt"].value)
    assert tokens / math.exp(found.numbers["parametric"]["N_opt"].value) == pytest.approx(
        math.exp(ratio.interval.value)
    )


def test_refused() -> None:
    points = plant_isoflop("steep", 0.003, rng())
    with pytest.raises(BadInput, match="power-n has no compute-optimal size"):
        approaches(points, law="power-n")
    with pytest.raises(BadInput, match="did you mean 'chinchilla'"):
        approaches(points, law="chinchila")
    with pytest.raises(BadInput, match="--flops -1 is not a budget"):
        approaches(points, budget=-1)


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_envelope_has_the_planted_exponent(truth: str) -> None:
    found = envelope(plant_curves(truth, 0.0, rng()), 1e18)
    at = found.numbers["N_opt exponent"]
    assert at.value == pytest.approx(exponent(truth), abs=0.01) and at.verdict.verdict == "identified"
    assert math.exp(found.numbers["N_opt"].value) == pytest.approx(n_opt(truth, 1e18), rel=0.1)
    assert (np.diff(found.envelope["params"]) >= 0).all() and len(found.changes) == 7


def test_sizes_at_uneven_steps_do_not_bend_the_envelope() -> None:
    every = plant_curves("steep", 0.0, rng(), n_sizes=16).runs
    found = envelope(Curves(tuple(every[at] for at in (0, 1, 2, 5, 6, 10, 11, 15)), "constant"), 1e18)
    assert found.numbers["N_opt exponent"].value == pytest.approx(exponent("steep"), abs=0.02)


def test_the_lowest_curve_of_the_path_is_the_brute_forces() -> None:
    """The path of lowest sum among all that never shrink, tried one by one on a few computes."""
    from itertools import combinations_with_replacement

    from sweeplab.laws.compute_optimal.approaches import _path

    losses = rng(3).normal(size=(5, 3, 6))
    for each, path in zip(losses, _path(losses), strict=True):
        best = min(
            combinations_with_replacement(range(3), 6), key=lambda sizes: each[list(sizes), range(6)].sum()
        )
        assert tuple(path) == best


def test_a_curve_that_ends_is_no_change() -> None:
    """Each size stops where it is still the best: what comes next was not found better."""
    runs = []
    for curve in plant_curves("steep", 0.0, rng()).runs:
        best = 6 * curve.params**2 * 3  # tokens per parameter at which the next size is still worse
        keep = curve.log_flops <= math.log(best)
        runs.append(Curve(curve.name, curve.params, curve.log_flops[keep], curve.log_loss[keep]))
    found = envelope(Curves(tuple(each for each in runs if len(each.log_flops) > 2), "constant"), 1e18)
    assert found.changes == () and found.as_dict()["numbers"]["N_opt exponent"]["value"] is None
    assert "the best size changes 0 times" in found.numbers["N_opt exponent"].verdict.reason


def test_a_schedule_that_has_not_ended_is_said_and_costs_the_verdict() -> None:
    for schedule in ("decays", "unknown"):
        found = envelope(plant_curves("steep", 0.0, rng(), schedule=schedule), 1e18)
        assert found.numbers["N_opt exponent"].verdict.verdict == "weak"
        assert "favored" in found.numbers["N_opt exponent"].verdict.reason
        assert "favored" in found.warnings[0]


def test_few_sizes_make_no_envelope() -> None:
    found = envelope(plant_curves("steep", 0.0, rng(), n_sizes=3), 1e18)
    assert "the curves are of 3 sizes" in found.numbers["N_opt"].verdict.reason
    json.dumps(found.as_dict())


def test_the_envelopes_interval_holds_the_truth() -> None:
    held = []
    for seed in range(12):
        at = envelope(plant_curves("steep", 0.005, rng(seed)), 1e18).numbers["N_opt exponent"]
        held.append(at.low <= exponent("steep") <= at.high)
    assert np.mean(held) >= 0.75


def test_the_groups_of_a_table_are_its_curves() -> None:
    curves = plant_curves("steep", 0.0, rng(), n_points=6).runs
    n = np.repeat([each.params for each in curves], 6)
    flops = np.exp(np.concatenate([each.log_flops for each in curves]))
    loss = np.exp(np.concatenate([each.log_loss for each in curves]))
    groups = tuple(name for each in curves for name in [each.name] * 6)
    table = Points({"params": n, "tokens": flops / 6 / n, "flops": flops, "loss": loss}, np.ones(48), groups)
    shuffled = table.only(rng().permutation(48))
    found = curves_of_points(shuffled)
    assert found.schedule == "unknown" and len(found.runs) == 8
    for curve in found.runs:
        (planted,) = [each for each in curves if each.name == curve.name]
        np.testing.assert_allclose(curve.log_flops, planted.log_flops)
        np.testing.assert_allclose(curve.log_loss, planted.log_loss)
    ends = curves_of_points(replace(table, groups=tuple(map(str, range(48)))))
    assert ends.runs == () and ends.why_none.startswith("no curves: no group has 3 rows of one size")
