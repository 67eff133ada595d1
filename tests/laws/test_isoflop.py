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
    n, d, at = (found.numbers[name] for name in ("N_opt exponent", "D_opt exponent", "N_opt"))
    assert n["low"] <= exponent(truth) <= n["high"] and n["verdict"] == "identified"
    assert n["value"] + d["value"] == pytest.approx(1, abs=1e-9), "C = 6 N D"
    assert at["low"] < n_opt(truth, 1e20) * 1.05 and n_opt(truth, 1e20) * 0.95 < at["high"]
    json.dumps(found.budgets, allow_nan=False)
    for each in found.budgets:
        assert each["n_opt_low"] < each["n_opt"] < each["n_opt_high"]
        assert 6 * each["n_opt"] * each["d_opt"] == pytest.approx(each["flops"], rel=1e-6)


def test_intervals_cover():
    inside = []
    for seed in range(60):
        found = isoflop(plant_isoflop("steep", 0.005, rng(seed), n_sizes=6, decades=1.2))
        at = found.numbers["N_opt exponent"]
        inside.append(at["low"] <= exponent("steep") <= at["high"])
        for each in found.budgets:
            if not each["code"]:
                inside.append(each["n_opt_low"] <= n_opt("steep", each["flops"]) <= each["n_opt_high"])
    assert 0.8 <= np.mean(inside) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_intervals_cover_where_sizes_drift_across_the_optimum(design):
    inside = []
    for seed in range(40):
        truth = [*TRUTHS][seed % 2]
        at = isoflop(drifting(truth, DESIGNS[design], 0.003, rng(seed))).numbers["N_opt exponent"]
        if at["low"] is not None:
            inside.append(at["low"] <= exponent(truth) <= at["high"])
    assert not inside or np.mean(inside) >= 0.75


@pytest.mark.parametrize(("off", "code"), [(-1.0, "minimum above"), (1.0, "minimum below")])
def test_a_minimum_that_is_not_bracketed_is_none(off, code):
    found = isoflop(plant_isoflop("steep", 0.003, rng(), off=off))
    for each in found.budgets:
        assert (each["n_opt"], each["n_opt_low"], each["d_opt"], each["loss"]) == (None,) * 4
        assert each["code"] in (code, "no bend")
    entry = found.numbers["N_opt exponent"]
    assert (entry["value"], entry["code"], entry["facts"]["count"]) == (None, "few minima", 0)


def test_noise_hides_a_bend():
    points = plant_isoflop("steep", 0.0, rng(), decades=0.3)
    loss = points.columns["loss"].mean() * np.exp(rng(4).normal(0, 0.02, points.n))
    assert isoflop(points.with_column("loss", loss)).numbers["N_opt exponent"]["value"] is None


def test_a_doubt_makes_numbers_weak_and_a_grid_has_no_budgets():
    weak = isoflop(plant_isoflop("steep", 0.003, rng()), doubt=Reason("no bend", {}))
    assert {each["verdict"] for each in weak.numbers.values()} == {"weak"}
    with pytest.raises(BadInput, match="0 budgets with 4 sizes or more at equal FLOPs; 3 are needed"):
        isoflop(plant("steep", GOOD["30 points, 6 x 5"], 0.003, rng()))
    points = plant_isoflop("steep", 0.003, rng())
    with pytest.raises(BadInput, match="needs 'flops'"):
        isoflop(points.__class__({k: c for k, c in points.columns.items() if k != "flops"}, points.weights))
