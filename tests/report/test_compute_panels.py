"""Panels of the best use of compute and of shape, on tables whose law is planted."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from laws.planted_laws import TRUTHS, losses
from pandas import DataFrame

from sweeplab.laws.assessment import assess
from sweeplab.laws.forms import LAWS
from sweeplab.laws.points import Points
from sweeplab.report.data import ReportData
from sweeplab.report.options import PanelSpec
from sweeplab.report.panels.base import make_panel
from sweeplab.report.panels.runs import LossMap

TRUTH = TRUTHS["steep"]
BUDGETS = np.geomspace(1e16, 1e19, 5)
# N_opt goes as C to this, and there the loss is lowest.
SHARE = TRUTH["beta"] / (TRUTH["alpha"] + TRUTH["beta"])


def _points(n: np.ndarray, flops: np.ndarray, loss: np.ndarray) -> Points:
    return Points({"params": n, "tokens": flops / 6 / n, "flops": flops, "loss": loss}, np.ones(len(n)))


@cache
def isoflops(reach: float = 4.0) -> ReportData:
    """Five budgets with seven sizes around the best one each; the reach of 1 has none on its far side."""
    n, flops = [], []
    grid = np.geomspace(1e5, 1e11, 20_000)
    for budget in BUDGETS:
        best = grid[losses(TRUTH, grid, budget / 6 / grid).argmin()]
        n += list(best * np.geomspace(1 / 4, reach, 7))
        flops += [budget] * 7
    sizes, compute = np.array(n), np.array(flops)
    noise = np.exp(0.001 * np.random.default_rng(2).standard_normal(len(n)))
    points = _points(sizes, compute, losses(TRUTH, sizes, compute / 6 / sizes) * noise)
    return ReportData.of_table(assess(points, LAWS["chinchilla"], n_refits=50))


def test_isoflop_marks_the_minimum_of_each_budget() -> None:
    found = make_panel(PanelSpec("isoflop"), isoflops())
    assert not found.missing
    minima = found.data[found.data["what"] == "minimum"]
    slope = np.polyfit(np.log(minima["flops"]), np.log(minima["params"]), 1)[0]
    assert len(minima) == 5 and slope == pytest.approx(SHARE, abs=0.05)
    assert (minima["low"] < minima["params"]).all() and (minima["params"] < minima["high"]).all()
    assert (found.data["what"] == "row").sum() == 35
    figure = found.figure()
    assert sum(trace.marker.symbol == "star" for trace in figure.data) == 5


def test_a_minimum_that_is_not_bracketed_has_no_star_and_a_reason() -> None:
    found = make_panel(PanelSpec("isoflop"), isoflops(1.0))
    assert not (found.data["what"] == "minimum").any()
    assert any("no minimum" in note for note in found.notes)
    assert found.shown["verdict"].str.startswith("not identified\n").all() and set(found.shown["value"]) == {
        "–"
    }
    assert not any(trace.marker.symbol == "star" for trace in found.figure().data)


def test_roads_stand_side_by_side_and_say_whether_they_agree() -> None:
    found = make_panel(PanelSpec("compute_optimal"), isoflops())
    assert set(found.data["road"]) == {"isoflop", "parametric"}
    line = found.data.query("road == 'parametric' and what == 'line'")
    assert np.polyfit(np.log(line["flops"]), np.log(line["params"]), 1)[0] == pytest.approx(SHARE, abs=0.03)
    (said,) = (each for each in found.result["disagreements"] if each["differences"])
    assert found.notes == (f"P{said['says'][1:]}.",) and said["between"] == ["parametric", "isoflop"]
    quantities = found.shown["quantity"].str.split("\n").str[0].tolist()
    assert "N_opt exponent, isoflop" in quantities and "envelope" in quantities
    assert {trace.legendgroup for trace in found.figure().data} == {"isoflop", "parametric"}


@cache
def shapes(depth: float = 0.9) -> ReportData:
    """Shapes of three sizes whose loss at equal parameters is multiplied by `depth` where the depth doubles."""
    layer, embd = [], []
    for size in (1, 2, 3):
        for n_layer in (1, 2, 4, 8):
            layer.append(n_layer)
            embd.append(round(64 * 4**size / np.sqrt(n_layer)))
    n_layer, n_embd = np.array(layer, float), np.array(embd, float)
    n = 12 * n_layer * n_embd**2
    noise = np.exp(0.001 * np.random.default_rng(1).standard_normal(len(n)))
    loss = 30 * n**-0.1 * depth ** (np.log2(n_layer)) * noise
    points = replace(_points(n, 6 * n * 1e6, loss), shape={"n_layer": n_layer, "n_embd": n_embd})
    return ReportData(DataFrame(), DataFrame(), table=points)


@pytest.mark.slow
def test_shapes_are_compared_at_equal_parameters() -> None:
    """At equal parameters the loss falls as the depth grows, so it rises with the ratio: N is n_layer n_embd^2."""
    found = make_panel(PanelSpec("shape", {"x": "aspect_ratio"}), shapes())
    assert not found.missing, found.missing
    measured = found.data[found.data["what"] == "measured"]
    slope = np.polyfit(np.log(measured["aspect_ratio"]), np.log(measured["loss"]), 1)[0]
    assert slope == pytest.approx(-2 / 3 * math.log(0.9) / math.log(2), rel=0.05)
    figure = found.figure()
    assert figure.layout.xaxis.title.text.startswith("n_embd / n_layer")
    assert figure.layout.yaxis.title.text.endswith("at equal parameters")


@pytest.mark.slow
@pytest.mark.parametrize("x", ["params", "n_layer", "n_embd"])
def test_marks_and_curves_of_shapes_are_of_one_law_and_one_loss(x: str) -> None:
    report = shapes()
    found, law = (make_panel(PanelSpec(name, {"x": x}), report) for name in ("shape", "law"))
    marks = found.data[found.data["what"] == "measured"]
    np.testing.assert_allclose(sorted(marks["measured loss"]), sorted(report.points.columns["loss"]))
    assert found.data["loss"].tolist() == law.data["loss"].tolist() and found.y.title == law.y.title
    found.figure().to_json()


@pytest.mark.slow
def test_the_frontier_has_the_shapes_that_none_beats() -> None:
    found = make_panel(PanelSpec("shape"), shapes())
    assert {8} <= {cell["n_layer"] for cell in found.result["frontier"]}
    assert any(
        "at equal parameters doubling the depth changes the loss by -10" in note.lower()
        for note in found.notes
    )


def test_the_map_of_shapes_leaves_size_out() -> None:
    found = make_panel(PanelSpec("shape_map"), shapes())
    assert isinstance(found, LossMap) and len(found.data) == 12
    deepest = found.data[found.data["n_layer"] == 8]["loss"]
    assert deepest.max() < found.data[found.data["n_layer"] == 1]["loss"].min()
    found.figure().to_json()


def test_shapes_that_cannot_be_compared_are_not() -> None:
    points = shapes().points
    keep = np.isin(points.shape["n_layer"], [1])
    material = ReportData(DataFrame(), DataFrame(), table=points.only(keep))
    assert "is not identified" in make_panel(PanelSpec("shape", {"x": "n_layer"}), material).missing
    without = ReportData(DataFrame(), DataFrame(), table=replace(points, shape={}))
    assert make_panel(PanelSpec("shape"), without).missing == (
        "the shape needs n_layer and n_embd, which the table lacks"
    )
