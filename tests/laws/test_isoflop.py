"""Parabolas at equal FLOPs: the planted exponent, and no minimum where the rows bracket none."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from laws.planted_budgets import DESIGNS, drifting, exponent, n_opt, plant_isoflop
from laws.planted_laws import BAD, GOOD, TRUTHS, plant

from sweeplab.errors import BadInput
from sweeplab.laws.compute_optimal.isoflop import budgets_of, isoflop, parse_budgets
from sweeplab.laws.intervals import student


def rng(seed: int = 0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_planted_exponent(truth: str) -> None:
    found = isoflop(plant_isoflop(truth, 0.003, rng()))
    n, d, at = (found.numbers[name] for name in ("N_opt exponent", "D_opt exponent", "N_opt"))
    assert n.low <= exponent(truth) <= n.high and n.verdict.verdict == "identified"
    assert n.value + d.value == pytest.approx(1, abs=1e-6), "C = 6 N D"
    assert math.exp(at.low) < n_opt(truth, 1e20) * 1.03 and n_opt(truth, 1e20) * 0.97 < math.exp(at.high)
    for each in found.minima:
        assert each.log_n is not None and each.log_n[1] < each.log_n[0] < each.log_n[2]
        assert np.exp(each.log_n[0] + each.log_d[0]) * 6 == pytest.approx(each.parabola.budget.flops)


def test_intervals_cover() -> None:
    held = []
    for seed in range(60):
        found = isoflop(plant_isoflop("steep", 0.005, rng(seed), n_sizes=6, decades=1.2))
        at = found.numbers["N_opt exponent"]
        minima = [each for each in found.minima if each.log_n]
        truths = [math.log(n_opt("steep", each.parabola.budget.flops)) for each in minima]
        inside = [each.log_n[1] <= true <= each.log_n[2] for each, true in zip(minima, truths, strict=True)]
        held.append((at.low <= exponent("steep") <= at.high, np.mean(inside)))
    exponents, minima = np.mean(held, axis=0)
    assert 0.8 <= exponents <= 0.99 and 0.8 <= minima <= 0.99


@pytest.mark.parametrize(("off", "side"), [(-1.0, "largest"), (1.0, "smallest")])
def test_a_minimum_that_is_not_bracketed_is_none(off: float, side: str) -> None:
    found = isoflop(plant_isoflop("steep", 0.003, rng(), off=off))
    for each in found.as_dict()["budgets"]:
        assert (each["n_opt"], each["n_opt_low"], each["d_opt"], each["loss"]) == (None,) * 4
        assert "no minimum" in each["why_none"] and side in each["why_none"]
    assert found.line is None
    entry = found.as_dict()["numbers"]["N_opt exponent"]
    assert (entry["value"], entry["verdict"]) == (None, "not identified")
    assert entry["why"] == "0 of 5 budgets have a minimum; a line needs 3"


def test_an_optimum_at_the_edge_is_none() -> None:
    """The best size is the largest or the smallest one: nothing beyond it says that the loss rises again."""
    found = [
        each
        for seed in range(20)
        for off in (-0.5, 0.5)
        for each in isoflop(plant_isoflop("steep", 0.002, rng(seed), decades=1.0, off=off)).minima
    ]
    assert np.mean([each.log_n is not None for each in found]) <= 0.05
    assert {each.why_none.split()[-1] for each in found if each.log_n is None} <= {"it", "noise"}


def test_only_the_budgets_that_bracket_count() -> None:
    whole, half = plant_isoflop("steep", 0.002, rng(1)), plant_isoflop("steep", 0.002, rng(2), off=-0.9)
    kept = np.r_[np.arange(21), 35 + np.arange(21, 35)]
    columns = {name: np.r_[whole.columns[name], half.columns[name]][kept] for name in whole.columns}
    found = isoflop(replace(whole, columns=columns, weights=np.ones(35)))
    assert [each.log_n is not None for each in found.minima] == [True] * 3 + [False] * 2
    assert "2 of 5 budgets have no minimum" in found.warnings
    assert found.numbers["N_opt exponent"].identified


def test_noise_hides_a_bend() -> None:
    points = plant_isoflop("steep", 0.0, rng(), decades=0.3)
    loss = points.columns["loss"].mean() * np.exp(rng(4).normal(0, 0.02, points.n))
    found = isoflop(points.with_loss(loss))
    assert not found.numbers["N_opt exponent"].identified
    assert sum(each.log_n is not None for each in found.minima) <= 1


def test_fieller_is_the_profile_of_a_parabola() -> None:
    """At its ends, the best parabola with its vertex held there is worse by t^2 sigma^2."""
    found = isoflop(plant_isoflop("steep", 0.004, rng(5)))
    curve = found.minima[2].parabola
    z = curve.budget.log_n[curve.used]
    loss = curve.loss(z) / curve.level + curve.residuals
    least = float(curve.residuals @ curve.residuals)
    allowed = student(sum(each.parabola.freedom for each in found.minima)) ** 2 * found.sigma**2
    for end in found.minima[2].log_n[1:]:
        held = np.stack([np.ones_like(z), (z - end) ** 2], axis=1)
        rest = loss - held @ np.linalg.lstsq(held, loss, rcond=None)[0]
        assert float(rest @ rest) - least == pytest.approx(allowed, rel=1e-6)


@pytest.mark.parametrize("name", ["N_opt exponent", "D_opt exponent", "N_opt"])
def test_a_numbers_influence_is_its_derivative_by_the_rows(name: str) -> None:
    points = plant_isoflop("steep", 0.001, rng(6))
    before = isoflop(points).numbers[name]
    for row in (1, 12, 33):
        loss = points.columns["loss"].copy()
        loss[row] *= math.exp(1e-5)
        after = isoflop(points.with_loss(loss)).numbers[name]
        scale = float(np.abs(before.influence).max())
        assert (after.value - before.value) / 1e-5 == pytest.approx(before.influence[row], abs=0.05 * scale)


@pytest.mark.slow
@pytest.mark.parametrize(
    "design", ["9 x 9 over 10, from large to small", "9 x 7 over 30, from small to large"]
)
def test_intervals_cover_where_sizes_drift_across_the_optimum(design: str) -> None:
    """A line through minima that were found one by one holds the truth in 50 to 60% of these tables."""
    held = []
    for seed in range(60):
        at = isoflop(drifting("steep", DESIGNS[design], 0.01, rng(seed))).numbers["N_opt exponent"]
        if math.isfinite(at.value):
            held.append(at.low <= exponent("steep") <= at.high)
    assert len(held) > 40 and 0.8 <= np.mean(held) <= 0.99


def test_seeds_weigh() -> None:
    """A row that is the mean of four runs has half of the error, and counts for more."""
    points = plant_isoflop("steep", 0.0, rng())
    error = rng(8).normal(0, 0.004, points.n)
    weights = np.where(np.arange(points.n) % 2, 16.0, 1.0)
    loss = points.columns["loss"] * np.exp(error / np.sqrt(weights))
    columns = points.columns | {"loss": loss}
    weighed = isoflop(replace(points, columns=columns, weights=weights)).numbers["N_opt exponent"]
    alike = isoflop(replace(points, columns=columns)).numbers["N_opt exponent"]
    assert weighed.high - weighed.low < alike.high - alike.low
    assert weighed.low <= exponent("steep") <= weighed.high


def test_a_scattered_table_has_no_budgets_until_it_is_binned() -> None:
    points = plant("steep", GOOD["245 scattered"], 0.003, rng())
    found = isoflop(points)
    assert found.how.startswith("no budgets: only ") and "--budgets 8 would bin them" in found.how
    assert found.minima == () and found.as_dict()["numbers"]["N_opt"]["value"] is None
    binned = isoflop(points, 8)
    assert "binned" in binned.how and len(binned.minima) == 8
    at = binned.numbers["N_opt exponent"]
    assert at.identified and abs(at.value - exponent("steep")) < 0.05


def test_a_grid_of_sizes_and_ratios_has_no_budgets() -> None:
    assert isoflop(plant("steep", GOOD["30 points, 6 x 5"], 0.003, rng())).how.startswith(
        "no budgets: only 0 of 30"
    )


def test_on_one_ray_the_rows_of_a_budget_are_of_one_size() -> None:
    found = isoflop(plant("steep", BAD["one ray, D = 20 N"], 0.003, rng()), 4)
    assert found.minima == () and found.how == "no budget has rows of 3 sizes"


def test_budgets_that_are_named() -> None:
    points = plant_isoflop("steep", 0.003, rng())
    budgets, how = budgets_of(points, (1e17, 1e20))
    assert [each.flops for each in budgets] == pytest.approx([1e17, 1e20]) and "--budgets names" in how
    assert [len(each.rows) for each in budgets] == [7, 7]
    assert budgets_of(points, (1e30,)) == ([], "no budget has rows of 3 sizes")


def test_rows_that_miss_their_budget_are_brought_to_it() -> None:
    """Steps are whole numbers: each run misses its FLOPs by some percent, the large ones by the most."""
    points = plant_isoflop("steep", 0.0, rng())
    n = points.columns["params"]
    flops = points.columns["flops"] * (1 - 0.04 * np.argsort(np.argsort(n)) % 7 / 7)
    loss = TRUTHS["steep"]["E"] + 482.0 / n**0.3478 + 2085.4 / (flops / 6 / n) ** 0.3658
    columns = {
        "params": n,
        "tokens": flops / 6 / n,
        "flops": flops,
        "loss": loss * np.exp(rng(9).normal(0, 3e-4, 35)),
    }
    found = isoflop(replace(points, columns=columns))
    assert len(found.minima) == 5
    for each in found.minima:
        assert math.exp(each.log_n[0]) == pytest.approx(n_opt("steep", each.parabola.budget.flops), rel=0.03)


def test_a_bent_line_is_said_and_widens() -> None:
    straight = plant_isoflop("steep", 0.001, rng(3))
    away = np.log(straight.columns["flops"] / np.median(straight.columns["flops"]))
    factor = np.exp(0.02 * away**2)
    n, d = straight.columns["params"] * factor, straight.columns["tokens"] / factor
    bent = replace(straight, columns=straight.columns | {"params": n, "tokens": d})
    lines = [isoflop(each).line for each in (straight, bent)]
    assert lines[0].variance_ratio == 1 < lines[1].variance_ratio
    assert lines[1].half(lines[1].influences[1]) > 3 * lines[0].half(lines[0].influences[1])
    said = "the minima do not lie on a line: they deviate from it by more than noise"
    assert [said in isoflop(each).warnings for each in (straight, bent)] == [False, True]


def test_two_minima_make_no_line() -> None:
    found = isoflop(plant_isoflop("steep", 0.003, rng(), budgets=[1e18, 1e20]))
    assert len([each for each in found.minima if each.log_n]) == 2
    assert "2 of 2 budgets have a minimum; a line needs 3" in found.numbers["N_opt exponent"].verdict.reason


def test_budgets_within_a_decade_make_none_either() -> None:
    found = isoflop(plant_isoflop("steep", 0.002, rng(), budgets=np.geomspace(1e18, 4e18, 4)))
    assert found.line is not None and found.as_dict()["numbers"]["N_opt exponent"]["value"] is None
    assert "0.60 decades of FLOPs and 1.0 are needed" in found.numbers["N_opt exponent"].verdict.reason


def test_three_rows_a_budget_show_no_noise() -> None:
    found = isoflop(plant_isoflop("steep", 0.003, rng(), n_sizes=3))
    assert found.as_dict()["sigma"] is None or not math.isfinite(found.sigma)
    assert all("the noise cannot be estimated" in each.why_none for each in found.minima)


def test_without_tokens_there_is_no_d_opt() -> None:
    points = plant_isoflop("steep", 0.003, rng())
    columns = {name: column for name, column in points.columns.items() if name != "tokens"}
    found = isoflop(replace(points, columns=columns))
    assert found.numbers.keys() == {"N_opt exponent", "N_opt"}
    assert found.as_dict()["budgets"][0]["d_opt"] is None


def test_it_can_be_written() -> None:
    said = json.loads(json.dumps(isoflop(plant_isoflop("hoffmann", 0.003, rng())).as_dict()))
    assert {"rows", "parabola", "n_opt", "why_none"} <= said["budgets"][0].keys()
    lows, highs = said["line"]["low"], said["line"]["high"]
    assert all(low < n < high for low, n, high in zip(lows, said["line"]["params"], highs, strict=True))


def test_refused() -> None:
    points = plant_isoflop("steep", 0.003, rng())
    with pytest.raises(BadInput, match="needs 'flops', which the table lacks \\(tokens would do\\)"):
        isoflop(replace(points, columns={name: points.columns[name] for name in ("params", "loss")}))
    with pytest.raises(BadInput, match="the table has 1 size; the best size needs 3"):
        isoflop(points.only(np.array([0])))
    for text in ("many", "0", "-3", "1e17,x", "nan", "50.5", ""):
        with pytest.raises(BadInput, match="--budgets"):
            parse_budgets(text)
    assert (parse_budgets("8"), parse_budgets("3e18, 1e17")) == (8, (1e17, 3e18))
