"""Panels of laws, on tables whose law is planted."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from laws.planted_laws import BAD, GOOD, TRUTHS, losses, plant

from sweeplab.laws.assessment import assess
from sweeplab.laws.forms import LAWS
from sweeplab.laws.points import Points
from sweeplab.report.data import ReportData
from sweeplab.report.options import PanelSpec
from sweeplab.report.panels.base import Panel, make_panel
from sweeplab.report.writer import write_law_report

TRUTH = TRUTHS["steep"]
GRID, RAY, SCATTERED = "30 points, 6 x 5", "one ray, D = 20 N", "245 scattered"


@cache
def of(design: str, law: str = "chinchilla", noise: float = 0.003) -> ReportData:
    points = plant("steep", (GOOD | BAD)[design], noise, np.random.default_rng(3))
    return ReportData.of_table(assess(points, LAWS[law]))


def shown(kind: str, material: ReportData, **asked: object) -> Panel:
    found = make_panel(PanelSpec(kind, asked), material)
    assert not found.missing, found.missing
    return found


def test_the_band_holds_the_planted_law_and_widens_beyond_the_points() -> None:
    data = shown("law", of(GRID), x="params").data
    law = data[data["what"] != "measured"]
    ratio = law["line"].str.removeprefix("tokens per parameter ").astype(float)
    true = losses(TRUTH, law["params"], law["params"] * ratio)
    assert ((law["low"] <= true) & (true <= law["high"])).mean() > 0.8
    width = law["high"] / law["low"]
    assert width[law["what"] == "beyond"].mean() > width[law["what"] == "law"].mean()
    assert law["params"].max() == pytest.approx(1e9)


def test_the_line_over_compute_is_the_best_use_of_it() -> None:
    data = shown("law", of(GRID), x="flops").data
    law = data[(data["what"] == "law") & (data["flops"] > 1e15)]
    n = np.geomspace(1e5, 1e10, 4000)
    best = [losses(TRUTH, n, flops / 6 / n).min() for flops in law["flops"]]
    np.testing.assert_allclose(law["loss"], best, rtol=0.005)
    assert set(law["line"]) == {"compute-optimal"}


@pytest.mark.slow
def test_no_line_goes_beyond_the_points_where_its_loss_is_not_identified() -> None:
    ray = shown("law", of(RAY), x="params")
    assert not (ray.data["what"] == "beyond").any()
    assert any("No line goes further beyond the points" in note and "one ray" in note for note in ray.notes)
    assert not ray.figure().layout.shapes
    good = shown("law", of(GRID), x="params")
    assert (good.data["what"] == "beyond").any()
    assert good.figure().layout.annotations[0].text == "beyond the points"


@pytest.mark.slow
def test_a_scattered_table_has_few_lines() -> None:
    found = shown("law", of(SCATTERED), x="params")
    assert len(found.lines) == 4 and all(name.startswith("tokens about ") for name in found.lines)
    points = found.data[found.data["what"] == "measured"]
    assert len(points) == 245 and set(points["line"]) == set(found.lines)


def test_a_law_of_one_column_has_one_line() -> None:
    found = shown("law", of(RAY, "power-n"), law="power-n", x="params")
    assert found.lines == ("measured",) and set(found.data["line"]) == {"measured", "power-n"}
    assert make_panel(PanelSpec("law", {"law": "power-n", "x": "tokens"}), of(RAY, "power-n")).missing == (
        "power-n does not use tokens"
    )


def test_the_method_says_formula_source_intervals_and_rows() -> None:
    method = dict(shown("law", of(GRID)).method)
    assert method["Law"] == "chinchilla: L = E + A/N^alpha + B/D^beta"
    assert "Hoffmann et al. 2022" in method["Source"]
    assert (
        "4,000 draws of all unknowns" in method["Intervals"] and "Rows of one params" in method["Intervals"]
    )
    assert method["Rows"] == "30 fitted; left out: none"


def test_verdicts_have_a_number_only_where_there_is_one() -> None:
    good, ray = shown("verdicts", of(GRID)), shown("verdicts", of(RAY))
    alpha = good.data.set_index("quantity").loc["alpha"]
    assert alpha["verdict"] == "identified"
    assert alpha["low"] <= TRUTH["alpha"] <= alpha["high"]
    assert set(ray.data["verdict"]) == {"not identified"}
    assert ray.data["value"].isna().all() and set(ray.shown["value"]) == {"–"}
    assert ray.shown["verdict"].str.contains("not identified\n(?:.*one ray|as E$)").all(), "a reason once"
    assert "one ray" in ray.shown["verdict"][0]
    assert ray.result["parameters"]["alpha"]["value"] is None


def test_residuals_are_what_the_law_leaves_over() -> None:
    found = shown("residuals", of(GRID))
    assert [axis.column for axis in found.axes] == ["params", "tokens", "flops"]
    data = found.data
    np.testing.assert_allclose(data["residual"], 100 * np.log(data["loss"] / data["fitted"]), atol=1e-9)
    assert 0.1 < found.sigma < 0.6
    figure = found.figure()
    assert {trace.xaxis for trace in figure.data} == {"x", "x2", "x3"}
    assert sum(len(trace.x) for trace in figure.data) == 3 * 30


def test_too_few_points_are_said() -> None:
    n, d = (column[3:8] for column in GOOD[GRID])
    few = Points({"params": n, "tokens": d, "flops": 6 * n * d, "loss": losses(TRUTH, n, d)}, np.ones(len(n)))
    material = ReportData(*(of(GRID).runs, of(GRID).curves), table=few)
    for kind in ("law", "verdicts", "residuals"):
        assert make_panel(PanelSpec(kind), material).missing == (
            "5 rows for the 5 parameters of chinchilla; it needs 6 or more"
        )


def test_the_test_of_the_form_and_the_hold_out_are_said_with_the_numbers() -> None:
    points = plant("steep", BAD[RAY], 0.02, np.random.default_rng([0, 1]))
    good, ray = (
        shown("verdicts", of(GRID)),
        shown("verdicts", ReportData.of_table(assess(points, LAWS["chinchilla"]))),
    )
    assert good.result["misfit"]["status"] == "not seen" and "No departure of the form" in good.notes[1]
    assert ray.result["misfit"]["status"] == "cannot be seen" and "cannot show a misfit" in ray.notes[1]
    assert good.notes[2].startswith("Fitted to the rows up to ")


@pytest.mark.slow
def test_the_page_of_a_table_needs_no_network_and_no_study(tmp_path: Path) -> None:
    page = write_law_report(of(GRID).assessment("chinchilla"), "runs.csv", tmp_path / "law.html")
    assert [path.name for path in tmp_path.iterdir()] == ["law.html"]
    text = page.read_text(encoding="utf-8")
    body = text[text.rindex("</script>\n</head>") :]
    links = re.findall(r'(?:src|href|action|srcset)="([^"]*)"', body)
    assert links and all(link.startswith("data:text/csv;base64,") for link in links)
    assert not re.search(r"@import|url\(|https?://", body)
    assert "runs.csv" in body and "Learning curves" not in body and "Forecasts" not in body
    assert body.count("How this is computed") == 1, "once for all panels"
