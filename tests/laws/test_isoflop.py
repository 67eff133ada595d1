"""Curves at equal FLOPs: the planted exponent, and no minimum where the rows bracket none."""

import json

import numpy as np
import pytest
from laws.planted_budgets import DESIGNS, drifting, exponent, n_opt, plant_isoflop
from laws.planted_laws import GOOD, TRUTHS, plant

from sweeplab.errors import BadInput
from sweeplab.laws.isoflop import isoflop
from sweeplab.laws.sentences import Reason


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_planted_exponent(truth):
    found = isoflop(plant_isoflop(truth, 0.003, rng()))
    n, at = (found.numbers[name] for name in ("N_opt exponent", "N_opt"))
    assert n["low"] <= exponent(truth) <= n["high"] and n["verdict"] == "identified"
    assert at["low"] < n_opt(truth, 1e20) * 1.05 and n_opt(truth, 1e20) * 0.95 < at["high"]
    json.dumps(found.budgets, allow_nan=False)
    for each in found.budgets:
        assert each["n_opt_low"] < each["n_opt"] < each["n_opt_high"]


def test_intervals_cover():
    inside = []
    for seed in range(60):
        found = isoflop(plant_isoflop("steep", 0.005, rng(seed), n_sizes=6, decades=1.2))
        at = found.numbers["N_opt exponent"]
        inside.append(at["low"] <= exponent("steep") <= at["high"])
        for each in found.budgets:
            if not each["edge"]:
                inside.append(
                    each["n_opt_low"] <= n_opt("steep", each["flops"]) <= each["n_opt_high"]
                )
    assert 0.8 <= np.mean(inside) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_intervals_cover_where_sizes_drift_across_the_optimum(design):
    inside = []
    for seed in range(40):
        truth = [*TRUTHS][seed % 2]
        at = isoflop(drifting(truth, DESIGNS[design], 0.003, rng(seed))).numbers[
            "N_opt exponent"
        ]
        if at["low"] is not None:
            inside.append(at["low"] <= exponent(truth) <= at["high"])
    assert not inside or np.mean(inside) >= 0.75


@pytest.mark.parametrize(("off", "edge"), [(-1.0, "highest"), (1.0, "lowest")])
def test_a_minimum_that_is_not_bracketed_is_none(off, edge):
    points = plant_isoflop("steep", 0.003, rng(), off=off)
    with pytest.raises(
        BadInput, match=f"show no minimum over params: the {edge} params tried is the best"
    ):
        isoflop(points)


def test_a_budget_whose_minimum_lies_at_an_end_has_none():
    found = isoflop(drifting("steep", (7, 7, 10, 0.0, 0.6), 0.003, rng()))
    *others, last = found.budgets
    assert last["edge"] == "at or below the smallest value"
    assert (last["n_opt"], last["n_opt_low"], last["loss"]) == (None,) * 3
    assert not others[0]["edge"] and found.numbers["N_opt exponent"]["value"]


def test_a_budget_far_from_its_best_sizes_has_no_minimum():
    points = drifting("steep", (4, 7, 10, 0.0, 0.0), 0.003, rng())
    params = points.columns["params"] * np.repeat([1.0, np.exp(4)], [21, 7])
    assert isoflop(points.with_column("params", params)).budgets[3]["n_opt"] is None


def test_noise_hides_a_bend():
    points = plant_isoflop("steep", 0.0, rng(), decades=0.3)
    loss = points.columns["loss"].mean() * np.exp(rng(4).normal(0, 0.02, points.n))
    with pytest.raises(BadInput, match="show no minimum over params"):
        isoflop(points.with_column("loss", loss))


def test_a_doubt_makes_numbers_weak_and_a_grid_has_no_budgets():
    weak = isoflop(plant_isoflop("steep", 0.003, rng()), doubt=Reason("drift", {"drift": 0.01}))
    assert {each["verdict"] for each in weak.numbers.values()} == {"weak"}
    with pytest.raises(
        BadInput, match="0 budgets with 4 sizes or more at equal FLOPs; 3 are needed"
    ):
        isoflop(plant("steep", GOOD["30 points, 6 x 5"], 0.003, rng()))
    points = plant_isoflop("steep", 0.003, rng())
    with pytest.raises(BadInput, match="needs 'flops'"):
        isoflop(
            points.__class__(
                {k: c for k, c in points.columns.items() if k != "flops"}, points.weights
            )
        )
