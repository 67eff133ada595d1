"""What to run next: the choice is the best there is, keeps to its limits, and is worth its FLOPs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from laws.planted_laws import GOOD, TRUTHS, losses, plant
from scipy.stats import f as f_distribution

from sweeplab.errors import BadInput
from sweeplab.laws.fitting import LEAST_SQUARES, fit
from sweeplab.laws.forms import LAWS
from sweeplab.laws.next_runs import (
    LEAST_SPAN,
    Limits,
    NextRuns,
    Prospect,
    Rules,
    choose,
    corners,
    find_quantity,
    likely_vectors,
    next_runs,
    of_axes,
    of_file,
    of_points,
    parse_axes,
)
from sweeplab.laws.points import Points

CHINCHILLA = LAWS["chinchilla"]
GRID = GOOD["30 points, 6 x 5"]
GRID_FLOPS = float((6 * GRID[0] * GRID[1]).sum())
PILOT_SIZES = np.repeat(np.geomspace(1e6, 1e7, 3), 3)
PILOT = (PILOT_SIZES, PILOT_SIZES * np.tile([2, 20, 200], 3))
AXES = {"params": np.geomspace(1e6, 1e8, 13), "ratio": np.geomspace(2, 200, 13)}
FIFTH = GRID_FLOPS / 5 - float((6 * PILOT[0] * PILOT[1]).sum())


def prospect(random: np.random.Generator, n_candidates: int) -> Prospect:
    rows = random.standard_normal((3, 4, 7))
    return Prospect(
        information=rows @ rows.transpose(0, 2, 1),
        bias=0.5 * random.standard_normal((3, 4, 2)),
        slope=random.standard_normal((3, 4)),
        jacobian=random.standard_normal((3, 4, n_candidates)),
        departures=0.5 * random.standard_normal((3, 2, n_candidates)),
    )


def limits(n_candidates: int, **changed) -> Limits:
    given = {
        "rules": Rules(100.0, most_runs=4, most_each=1, most_share=1.0), "cost": np.ones(n_candidates),
        "allowed": np.ones(n_candidates, bool), "corners": np.zeros(n_candidates, bool),
    }  # fmt: skip
    return Limits(**given | changed)


def with_pilot(chosen: NextRuns) -> list[np.ndarray]:
    """Return N and D of the pilot's rows and the chosen runs."""
    at = np.repeat(np.arange(chosen.candidates.n), chosen.counts)
    columns = chosen.candidates.columns
    return [
        np.concatenate([own, columns[name][at]])
        for own, name in zip(PILOT, ("params", "tokens"), strict=True)
    ]


@pytest.fixture(scope="module")
def pilot() -> Points:
    return plant("steep", PILOT, 0.005, np.random.default_rng(1))


@pytest.mark.parametrize("seed", range(3))
def test_one_more_run_does_what_the_whole_sum_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    told, counts = prospect(random, 6), random.integers(0, 3, 6).astype(float)
    whole = np.stack([told.error(counts + one) for one in np.eye(6)], axis=1)
    assert told.after_each(counts) == pytest.approx(whole, rel=1e-9)
    assert (told.variance(counts) < told.error(counts)).all()
    assert 0 < told.shares(counts).sum() < 1


def test_the_choice_is_near_the_best_of_all_choices() -> None:
    behind = []
    for seed in range(20):
        told = prospect(np.random.default_rng(seed), 10)
        scores = {}
        for chosen in combinations(range(10), 4):
            counts = np.bincount(chosen, minlength=10).astype(float)
            scores[chosen] = float(np.log(told.error(counts)).mean())
        found = choose(told, limits(10))
        behind.append(float(np.log(told.error(found)).mean()) - min(scores.values()))
        assert np.median(list(scores.values())) > min(scores.values()) + behind[-1]
    assert np.median(behind) < 1e-9
    assert max(behind) < 0.15


def test_limits_hold() -> None:
    random = np.random.default_rng(5)
    for seed in range(10):
        told, cost = prospect(np.random.default_rng(seed), 20), random.uniform(1, 20, 20)
        allowed, at_corner = random.random(20) < 0.7, random.random(20) < 0.4
        rules = Rules(60.0, most_runs=10, most_each=2, most_share=0.3)
        counts = choose(told, limits(20, rules=rules, cost=cost, allowed=allowed, corners=at_corner))
        assert counts.sum() > 2 and counts @ cost <= 60 and counts.sum() <= 10 and counts.max() <= 2
        assert not counts[~allowed].any() and counts[at_corner].sum() <= 3


@pytest.mark.slow
@pytest.mark.parametrize(("quantity", "most"), [("exponent", 0.9), ("alpha", 0.95), ("beta", 1.0)])
def test_a_fifth_of_a_grids_flops_gives_as_narrow_an_interval(quantity: str, most: float) -> None:
    """By the curvature at the truth, where both tables' noise is the same."""
    truth = plant("hoffmann", GRID, 0.0, np.random.default_rng(0))
    right = fit(truth, CHINCHILLA, LEAST_SQUARES)
    slope = find_quantity(right, truth, quantity).measure(right.theta[None])[1][0]

    def width(n: np.ndarray, d: np.ndarray) -> float:
        logs = {"params": np.log(n) - right.center["params"], "tokens": np.log(d) - right.center["tokens"]}
        jacobian = CHINCHILLA.derivatives(right.theta[None], logs)[1][0]
        allowed = f_distribution.ppf(0.9, 1, len(n) - 5)
        return float(np.sqrt(allowed * slope @ np.linalg.solve(jacobian @ jacobian.T, slope)))

    ratios = []
    for seed in range(3):
        first = plant("hoffmann", PILOT, 0.005, np.random.default_rng([seed, 9]))
        found = fit(first, CHINCHILLA)
        chosen = next_runs(found, find_quantity(found, first, quantity), of_axes(first, AXES), Rules(FIFTH))
        where = with_pilot(chosen)
        assert (6 * where[0] * where[1]).sum() <= GRID_FLOPS / 5 * (1 + 1e-9)
        assert chosen.after.at_fit / found.sigma == pytest.approx(width(*where), rel=0.3)
        assert chosen.after.at_fit < chosen.grid.at_fit < chosen.now.at_fit
        ratios.append(width(*where) / width(*GRID))
    assert np.mean(ratios) < most


@pytest.mark.slow
def test_capped_runs_lean_less_on_the_form(pilot: Points) -> None:
    """Without noise, of a law that bends by 2%, the chosen runs say nearly what the whole grid says."""

    def told(where) -> float:
        n, d = where
        bent = losses(TRUTHS["steep"], n, d) * np.exp(0.02 * np.log10(n / 1e7) ** 2)
        points = Points({"params": n, "tokens": d, "flops": 6 * n * d, "loss": bent}, np.ones(len(n)))
        return fit(points, CHINCHILLA, LEAST_SQUARES).minimizer()["alpha"]

    found = fit(pilot, CHINCHILLA)
    off = {}
    for name, rules in (
        ("capped", Rules(FIFTH)),
        ("not", Rules(FIFTH, most_each=30, most_share=1.0, least_share=0.0, misfit=0.0)),
    ):
        chosen = next_runs(found, find_quantity(found, pilot, "alpha"), of_axes(pilot, AXES), rules)
        off[name] = abs(told(with_pilot(chosen)) - told(GRID))
    assert off["capped"] < 0.5 * off["not"]
    assert off["capped"] < 0.005


def test_what_is_said(pilot: Points) -> None:
    found = fit(pilot, CHINCHILLA)
    rules = Rules(FIFTH, most_runs=20, most_each=1, most_share=0.1)
    chosen = next_runs(found, find_quantity(found, pilot, "beta"), of_axes(pilot, AXES), rules)
    said = chosen.as_dict()
    assert said["n_runs"] == sum(run["times"] for run in said["runs"]) <= 20
    assert sum(run["flops"] for run in said["runs"]) == pytest.approx(said["spent_flops"])
    assert said["spent_flops"] <= said["budget_flops"] == FIFTH
    assert all(run["share_of_budget"] >= 1e-3 for run in said["runs"])
    assert all(run["flops"] == pytest.approx(6 * run["params"] * run["tokens"]) for run in said["runs"])
    assert chosen.counts[corners(chosen.candidates)].sum() <= 2
    assert said["grid_flops_for_the_same"] > said["spent_flops"]
    width = said["width"]
    assert width["after"]["at_fit"] < width["grid_of_equal_cost"]["at_fit"] < width["now"]["at_fit"]
    assert said["warnings"] == []


def test_a_width_that_tells_nothing_is_no_number() -> None:
    points = plant("steep", PILOT, 0.3, np.random.default_rng(4))
    found = fit(points, CHINCHILLA)
    asked = find_quantity(found, points, "exponent")
    said = next_runs(found, asked, of_axes(points, AXES), Rules(2e16)).as_dict()
    assert said["width"]["now"]["at_fit"] is None
    assert said["width"]["after"]["at_fit"] is None and said["grid_flops_for_the_same"] is None


def test_the_loss_at_a_point_is_learned_near_it(pilot: Points) -> None:
    found = fit(pilot, CHINCHILLA)
    asked = find_quantity(found, pilot, "loss-at", {"params": 1e9, "tokens": 2e10})
    chosen = next_runs(found, asked, of_axes(pilot, AXES), Rules(FIFTH))
    largest = chosen.candidates.columns["params"][chosen.counts > 0].max()
    assert largest == pytest.approx(1e8)
    assert chosen.as_dict()["width"]["is_factor"] and 1 < chosen.as_dict()["width"]["after"]["at_fit"] < 1.1


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_next_runs(law: str) -> None:
    points = plant("steep", GOOD["12 points, 4 x 3"], 0.005, np.random.default_rng(2))
    found = fit(points, LAWS[law])
    name = "beta" if law == "power-d" else "alpha"
    chosen = next_runs(found, find_quantity(found, points, name), of_axes(points, AXES), Rules(1e18))
    assert chosen.after.at_fit < chosen.now.at_fit
    assert np.isfinite(chosen.shares).all()


def test_vectors_are_near_the_fit_and_differ(pilot: Points) -> None:
    found = fit(pilot, CHINCHILLA)
    vectors = likely_vectors(found)
    assert (vectors[0] == found.theta).all() and len(vectors) > 40
    low, high = np.quantile(vectors, [0.02, 0.98], axis=0)
    assert (low < found.theta).all() and (found.theta < high).all()


def test_default_candidates_are_like_the_table(pilot: Points) -> None:
    found = of_points(pilot, 1e18)
    ratio = found.columns["tokens"] / found.columns["params"]
    assert (ratio.min(), ratio.max()) == pytest.approx((2, 200))
    assert found.columns["params"].min() == pytest.approx(1e6) and found.cost.max() <= 1e18
    assert found.columns["params"].max() == pytest.approx(np.sqrt(1e18 / 12))
    ray = plant(
        "steep", (np.geomspace(1e6, 1e8, 9), 20 * np.geomspace(1e6, 1e8, 9)), 0.005, np.random.default_rng(0)
    )
    other = of_points(ray, 1e18)
    ratio = other.columns["tokens"] / other.columns["params"]
    assert ratio.max() / ratio.min() == pytest.approx(LEAST_SPAN)


def test_axes_and_files(pilot: Points, tmp_path: Path) -> None:
    axes = parse_axes("params=1e6:1e8:3, tokens=1e7:1e9:2")
    found = of_axes(pilot, axes)
    assert found.columns["params"] == pytest.approx([1e6, 1e6, 1e7, 1e7, 1e8, 1e8])
    assert found.columns["tokens"] == pytest.approx([1e7, 1e9] * 3)
    assert found.cost == pytest.approx(6 * found.columns["params"] * found.columns["tokens"])
    (tmp_path / "some.csv").write_text("params_M,tokens,flops\n1,2e7,9e13\n10,2e8,9e15\n")
    other = of_file(pilot, tmp_path / "some.csv")
    assert other.columns["params"] == pytest.approx([1e6, 1e7])
    assert other.cost == pytest.approx([9e13, 9e15])


@pytest.mark.parametrize(
    "text",
    ["params", "params=1:2", "params=2:1:3", "params=1:2:0", "params=0:2:3", "=1:2:3", "a=1:2:3,a=1:2:3"],
)
def test_axes_that_are_none(text: str) -> None:
    with pytest.raises(BadInput, match="--candidates"):
        parse_axes(text)


def test_bad_input(pilot: Points, tmp_path: Path) -> None:
    found = fit(pilot, CHINCHILLA)
    (tmp_path / "some.csv").write_text("params,loss\n1,2\n")
    alpha = find_quantity(found, pilot, "alpha")
    for call, said in (
        (lambda: of_axes(pilot, parse_axes("parms=1:2:3")), "did you mean 'params'"),
        (lambda: of_axes(pilot, parse_axes("params=1:2:3")), "params and one of tokens and ratio"),
        (lambda: of_axes(pilot, parse_axes("params=1:2:100,tokens=1:2:100")), "10,000; at most 2,000"),
        (lambda: of_file(pilot, tmp_path / "some.csv"), "no column 'tokens'"),
        (lambda: of_points(pilot, 4.0), "too few for any candidate"),
        (lambda: find_quantity(found, pilot, "bta"), "did you mean 'beta'"),
        (lambda: find_quantity(found, pilot, "loss-at", {"params": 1e9}), "needs --at with tokens"),
        (lambda: next_runs(found, alpha, of_axes(pilot, AXES), Rules(-1.0)), "--flops -1 is not a budget"),
        (lambda: next_runs(found, alpha, of_axes(pilot, AXES), Rules(1e18, most_share=3)), "--most-share 3"),
        (
            lambda: next_runs(found, alpha, of_axes(pilot, AXES), Rules(1.0)),
            "no candidate costs 0.1% to 100%",
        ),
    ):
        with pytest.raises(BadInput, match=said):
            call()
