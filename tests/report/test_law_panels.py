"""Panels of laws, on tables whose law is planted."""

import re
from functools import cache

import numpy as np
import pytest
from laws.planted_laws import BAD, GOOD, TRUTHS, losses, plant

from sweeplab.laws.assessment import assess
from sweeplab.laws.forms import LAWS
from sweeplab.laws.points import Points
from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import PanelSpec, make_panel
from sweeplab.report.writer import write_law_report

TRUTH = TRUTHS["steep"]
GRID, RAY = "30 points, 6 x 5", "one ray, D = 20 N"


@cache
def of(design, law="chinchilla", noise=0.003):
    points = plant("steep", (GOOD | BAD)[design], noise, np.random.default_rng(3))
    return ReportData.of_table(assess(points, LAWS[law]))


def shown(kind, material, **asked):
    found = make_panel(PanelSpec(kind, asked), material)
    assert not found.missing, found.missing
    return found


def test_the_band_holds_the_planted_law_and_widens_beyond_the_points():
    data = shown("law", of(GRID), x="params").data
    law = data[data["what"] != "measured"]
    ratio = law["line"].str.removeprefix("tokens per parameter ").astype(float)
    true = losses(TRUTH, law["params"], law["params"] * ratio)
    assert ((law["low"] <= true) & (true <= law["high"])).mean() > 0.8
    width = law["high"] / law["low"]
    assert width[law["what"] == "beyond"].mean() > width[law["what"] == "law"].mean()
    assert law["params"].max() == pytest.approx(1e9)


def test_the_line_over_compute_is_the_best_use_of_it():
    data = shown("law", of(GRID), x="flops").data
    law = data[(data["what"] == "law") & (data["flops"] > 1e15)]
    n = np.geomspace(1e5, 1e10, 4000)
    best = [losses(TRUTH, n, flops / 6 / n).min() for flops in law["flops"]]
    np.testing.assert_allclose(law["loss"], best, rtol=0.005)
    assert set(law["line"]) == {"compute-optimal"}


@pytest.mark.slow
def test_no_line_goes_beyond_the_points_where_its_loss_is_not_identified():
    ray = shown("law", of(RAY), x="params")
    assert not (ray.data["what"] == "beyond").any()
    assert any(
        "No line goes further beyond the points" in note and "one line" in note
        for note in ray.notes
    )
    assert not ray.figure().layout.shapes
    good = shown("law", of(GRID), x="params")
    assert (good.data["what"] == "beyond").any()
    assert good.figure().layout.annotations[0].text == "beyond the points"


def test_verdicts_have_a_number_only_where_there_is_one():
    good, ray = shown("verdicts", of(GRID)), shown("verdicts", of(RAY))
    alpha = good.data.set_index("quantity").loc["alpha"]
    assert alpha["verdict"] == "identified"
    assert alpha["low"] <= TRUTH["alpha"] <= alpha["high"]
    assert set(ray.data["verdict"]) == {"not identified"}
    assert ray.data["value"].isna().all() and set(ray.shown["value"]) == {"–"}
    assert ray.shown["verdict"].str.contains("not identified\n(?:.*one line|as E$)").all(), (
        "a reason once"
    )
    assert "one line" in ray.shown["verdict"][0]
    assert ray.result["parameters"]["alpha"]["value"] is None


@pytest.mark.slow
def test_the_page_of_a_table_needs_no_network_and_no_study(tmp_path):
    page = write_law_report(
        of(GRID).assessment("chinchilla"), "runs.csv", tmp_path / "law.html"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["law.html"]
    text = page.read_text(encoding="utf-8")
    body = text[text.rindex("</script>\n</head>") :]
    links = re.findall(r'(?:src|href|action|srcset)="([^"]*)"', body)
    assert links and all(link.startswith("data:text/csv;base64,") for link in links)
    assert not re.search(r"@import|url\(|https?://", body)
    assert "runs.csv" in body and "Learning curves" not in body and "Forecasts" not in body
    assert body.count("How this is computed") == 1, "once for all panels"


BUDGETS = np.geomspace(1e16, 1e19, 5)
# N_opt goes as C to this, and there the loss is lowest.
SHARE = TRUTH["beta"] / (TRUTH["alpha"] + TRUTH["beta"])


def isoflops():
    """Five budgets with seven sizes around the best one each."""
    grid = np.geomspace(1e5, 1e11, 20_000)
    best = [grid[losses(TRUTH, grid, budget / 6 / grid).argmin()] for budget in BUDGETS]
    n = np.outer(best, np.geomspace(1 / 4, 4, 7)).ravel()
    flops = np.repeat(BUDGETS, 7)
    noise = np.exp(0.001 * np.random.default_rng(2).standard_normal(len(n)))
    tokens = flops / 6 / n
    columns = {
        "params": n,
        "tokens": tokens,
        "flops": flops,
        "loss": losses(TRUTH, n, tokens) * noise,
    }
    return ReportData.of_table(assess(Points(columns, np.ones(len(n))), LAWS["chinchilla"]))


def test_isoflop_marks_the_minimum_of_each_budget():
    found = make_panel(PanelSpec("isoflop"), isoflops())
    assert not found.missing
    minima = found.data[found.data["what"] == "minimum"]
    slope = np.polyfit(np.log(minima["flops"]), np.log(minima["params"]), 1)[0]
    assert len(minima) == 5 and slope == pytest.approx(SHARE, abs=0.05)
    assert (minima["low"] < minima["params"]).all() and (
        minima["params"] < minima["high"]
    ).all()
    assert (found.data["what"] == "row").sum() == 35
    figure = found.figure()
    assert sum(trace.marker.symbol == "star" for trace in figure.data) == 5
