"""The panel of the best use of compute, on tables whose law is planted."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from laws.planted_laws import TRUTHS, losses

from sweeplab.laws.assessment import assess
from sweeplab.laws.forms import LAWS
from sweeplab.laws.points import Points
from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import PanelSpec, make_panel

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
    return ReportData.of_table(assess(points, LAWS["chinchilla"]))


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
