"""What a reader does with a page in a real Chromium, on a wide and on a narrow screen: look, point, choose, click."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis.planted_sweep import plant_sweep
from benchmarks.pictures import clip_of, cut_off
from chromium import PROGRAM, Page, chromium_page
from pandas import DataFrame

from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import GradientPoint, append_gradients
from sweeplab.report.data import ReportData
from sweeplab.report.writer import write_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium"),
]
CELLS = tuple((n_layer, n_embd) for n_layer in (1, 2, 4) for n_embd in (32, 64))
FIGURE = "figures.find((each) => each.closest('section').querySelector('h2').innerText === {!r})"
SIZE, CURVES = FIGURE.format("Loss against model size"), FIGURE.format("Learning curves")


def falling(runs: DataFrame, metric: str) -> DataFrame:
    """Return curves that fall from 4.6 to each run's value; metrics other than the loss are 1."""
    columns = ["study", "cell", "trial", "seed", "iteration", "train_tokens", "metric", "value"]
    rows = [
        (row.study, row.cell, row.trial, row.seed, at, at * 128, metric, value)
        for row in runs.itertuples()
        for at in range(0, row.iterations + 1, 60)
        for value in [row.value + (4.6 - row.value) * np.exp(-at / 60) if metric == "val_loss" else 1.0]
    ]
    return DataFrame(rows, columns=columns)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the pages of 96 runs in a grid of four dimensions."""
    place, parts = tmp_path_factory.mktemp("pages"), []
    for key, (activation, norm) in enumerate(
        (each, other) for each in ("relu", "gelu") for other in ("layernorm", "rmsnorm")
    ):
        runs = plant_sweep(
            4, CELLS, loss=lambda values, key=key: 3 - 0.1 * values["n_layer"] + 0.05 * key, key=key
        )
        runs["cell"] += f",activation={activation},norm={norm}"
        parts.append(runs.assign(activation=activation, norm=norm))
    runs = pd.concat(parts, ignore_index=True)
    report = ReportData.of_study(runs, lambda metric: falling(runs, metric))
    return {page: write_page(page, report, runs, place, shared=place)[0] for page in ("scaling", "sweep")}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium_page(tmp_path_factory.mktemp("profile")) as page:
        yield page


def opened(browser: Page, file: Path, width: int) -> None:
    """Open a page on a screen of this width, once all of its figures are drawn and their legends placed."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser._call("Emulation.setDeviceMetricsOverride", **screen)
    browser.open(file.as_uri())
    browser.wait_for("document.readyState === 'complete' && typeof figures !== 'undefined'")
    browser.read(
        "document.querySelectorAll('details.more, details:has(.missing)').forEach((each) => { each.open = true; })"
    )
    browser.wait_for("figures.length && figures.every((each) => each.isSettled)")


def middle(browser: Page, element: str) -> tuple[float, float]:
    """Bring an element into view and return where its middle is in the window."""
    browser.read(f"{element}.scrollIntoView({{block: 'center'}})")
    box = browser.read(
        f"(({{left, right, top, bottom}}) => [left, right, top, bottom])({element}.getBoundingClientRect())"
    )
    left, right, top, bottom = box
    return (left + right) / 2, (top + bottom) / 2


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("name", ["scaling", "sweep"])
def test_legends_leave_three_quarters_and_nothing_is_cut(name: str, width: int, pages, browser: Page) -> None:
    opened(browser, pages[name], width)
    assert pages[name].stat().st_size < 1e6
    assert browser.errors == []
    assert browser.read("document.documentElement.scrollWidth") == width, "the page does not scroll sideways"
    shares = browser.read("""figures.filter((each) => each.querySelector(".legend")).map((each) => {
        const [legend, all] = [each.querySelector(".legend .bg"), each].map((one) => one.getBoundingClientRect());
        const share = (legend.width * legend.height) / (all.width * all.height);
        return [share, legend.left >= all.left - 1, legend.right <= all.right + 1];
    })""")
    assert len(shares) >= 3
    assert all(share <= 0.26 for share, *_ in shares), shares
    # Below the axis, where a screen is narrow.
    if width == 400:
        figure = SIZE if name == "scaling" else FIGURE.format("Optimization history")
        top, bottom = (
            browser.read(f"{figure}.querySelector('{part}').getBoundingClientRect().{side}")
            for part, side in ((".legend .bg", "top"), (".xtitle", "bottom"))
        )
        assert top >= bottom


def test_four_dimensions_are_one_line_a_combination(pages, browser: Page) -> None:
    opened(browser, pages["scaling"], 1400)
    lines = browser.read(
        f"{SIZE}._fullData.filter((each) => (each.mode ?? '').startsWith('lines') && each.name.includes(' = '))"
        ".map((each) => [each.name, each.line.color, each.line.dash, [...each.x]])"
    )
    assert len({name for name, *_ in lines}) == len(lines) == 3 * 2 * 2, "layers by activations by norms"
    assert len({(color, dash) for _, color, dash, _ in lines}) == 12
    assert all(len(x) == 2 and x[0] < x[1] for *_, x in lines), "no line goes back"


def test_of_many_curves_the_best_is_bold_and_one_comes_forward_under_the_cursor(pages, browser: Page) -> None:
    opened(browser, pages["scaling"], 1400)
    drawn = browser.read(f"{CURVES}.data.map((each) => [each.name, each.line.width, each.opacity ?? 1])")
    bold = [name for name, width, opacity in drawn if width > 3]
    assert len(bold) == 1 and bold[0].endswith("(best)")
    assert all(opacity < 0.5 for name, width, opacity in drawn if width < 3), "all others are pale"
    top = browser.read(f"{CURVES}.layout.yaxis.range[1]")
    assert top < 4.6, "the axis begins after the first evaluation"
    dot = f"{CURVES}.querySelector('.scatterlayer .trace:nth-child(12) .points path:nth-child(4)')"
    front = f"{CURVES}.data.find((each) => each.meta?.front)"
    assert browser.read(f"{front}.x.length ?? 0") == 0
    x, y = middle(browser, dot)
    browser._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.wait_for(f"{front}.x.length === 6")
    hovered = browser.read(f"{CURVES}.querySelector('.hoverlayer').textContent")
    assert "learning_rate" in hovered and "weight_decay" in hovered, "all that was searched"
    browser._call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    browser.wait_for(f"{front}.x.length === 0")


def test_a_click_on_a_trial_opens_its_run(pages, browser: Page) -> None:
    opened(browser, pages["sweep"], 1400)
    x, y = middle(browser, f"{FIGURE.format('Slice')}.querySelector('.scatterlayer .points path')")
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        browser._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    browser.wait_for("document.getElementById('trial').open")
    words = browser.read("document.getElementById('trial').innerText")
    assert words.startswith("Close") and "Trial " in words
    for said in ("State", "complete", "activation", "norm", "learning_rate", "dropout", "Seed 0"):
        assert said in words
    browser.wait_for("!!document.querySelector('#trial .curve .scatterlayer path')")
    browser.read("document.getElementById('trial').querySelector('button').click()")
    assert not browser.read("document.getElementById('trial').open") and browser.errors == []


def test_parallel_coordinates_have_a_loss_axis_and_take_a_selection(pages, browser: Page) -> None:
    opened(browser, pages["sweep"], 1400)
    parallel = FIGURE.format("Parallel coordinates")
    labels = browser.read(f"{parallel}.data[0].dimensions.map((each) => each.label)")
    assert labels[-1] == "above best" and {"n_layer", "n_embd", "learning_rate"} <= set(labels)
    depth = browser.read(f"{parallel}.data[0].dimensions[{labels.index('n_layer')}].ticktext")
    assert sorted(depth) == ["1", "2", "4"], "the values that exist"
    place = browser.read(f"""(() => {{ {parallel}.scrollIntoView({{block: "center"}});
        const brush = {parallel}.querySelectorAll(".y-axis")[{len(labels) - 1}];
        const axis = brush.querySelector(".axis .domain").getBoundingClientRect();
        return [axis.left + axis.width / 2, axis.bottom - 20, axis.top + axis.height / 2]; }})()""")
    x, low, high = place
    drag = [("mouseMoved", low), ("mousePressed", low), ("mouseMoved", high), ("mouseReleased", high)]
    for kind, y in drag:
        browser._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    browser.wait_for(f"{parallel}.data[0].dimensions.at(-1).constraintrange?.length === 2")


@pytest.mark.parametrize("width", [1400, 400])
def test_gradient_flow_shows_the_layers_of_the_best_run(width: int, tmp_path: Path, browser: Page) -> None:
    runs = plant_sweep(2, ((1, 32), (3, 32)), loss=lambda values: 3 - 0.1 * values["n_layer"])
    for row in runs.itertuples():
        folder = StudyFolder(tmp_path, row.study).run(row.cell, row.trial, row.seed)
        folder.path.mkdir(parents=True, exist_ok=True)
        layers = {f"blocks.{layer}": (0.1 + layer, 0.01, 1.0) for layer in range(row.n_layer)}
        append_gradients(folder, [GradientPoint(at, layers) for at in (60, 120)])
    report = ReportData.of_study(runs, lambda metric: falling(runs, metric), lab=tmp_path)
    page = write_page("sweep", report, runs, tmp_path / "page", shared=tmp_path)[0]
    opened(browser, page, width)
    figure = FIGURE.format("Gradient flow by layer")
    drawn = f"[...{figure}.querySelectorAll('.ytick text')].map((each) => each.textContent)"
    assert browser.read(drawn) == 2 * ["blocks.0", "blocks.1", "blocks.2"], "of the best cell"
    assert browser.read(f"{figure}.querySelectorAll('.heatmaplayer image').length") == 2
    left, right = browser.read(f"(({{left, right}}) => [left, right])({figure}.getBoundingClientRect())")
    assert 0 <= left < right <= width


def test_two_trials_stand_beside_each_other_and_a_figure_can_be_saved(pages, browser: Page) -> None:
    opened(browser, pages["sweep"], 1400)
    browser.read("open_trial(trials[0], about)")
    browser.read(
        "[...dialog.querySelectorAll('button')].find((each) => each.innerText.startsWith('Compare')).click()"
    )
    assert not browser.read("dialog.open")
    browser.read("open_trial(trials[1], about)")
    assert browser.read("dialog.open && dialog.querySelector('h2').innerText") == "Two trials"
    heads = browser.read("[...dialog.querySelectorAll('th')].map((each) => each.innerText)")
    assert len(heads) == 3 and heads[1] != heads[2]
    cells = "[...dialog.querySelectorAll('tr')].slice(1).map((each) => [...each.cells].map((one) => one.innerText))"
    rows = browser.read(cells)
    assert "learning_rate" in [row[0] for row in rows] and all(row[1] != row[2] for row in rows)
    browser.wait_for("dialog.querySelectorAll('.curve .scatterlayer .trace').length === 2")
    browser.read("dialog.close()")
    browser.read("open_trial(trials[2], about)")
    assert browser.read("dialog.querySelector('h2').innerText").startswith("Trial "), "one at a time again"
    browser.read(
        "dialog.close(); window.saved = null; Plotly.downloadImage = (what, how) => { window.saved = how; }"
    )
    browser.read("document.querySelector('[data-save=svg]').click()")
    saved = browser.read("window.saved")
    assert saved["format"] == "svg" and saved["width"] > 500 and saved["filename"]
    assert not browser.errors


@pytest.mark.parametrize("width", [1500, 400])
def test_a_picture_of_the_first_figure_has_all_of_its_axes(width: int, pages, browser: Page) -> None:
    opened(browser, pages["scaling"], width)
    clip = clip_of(browser, "figures[0]", width)
    assert cut_off(browser, "figures[0]", clip) == []
    assert cut_off(browser, "figures[0]", clip | {"height": clip["height"] - 60}), "it sees what is cut"


def test_what_is_not_shown_has_its_reason_without_capitals_in_names_and_without_overlap(
    tmp_path: Path, browser: Page
) -> None:
    runs = plant_sweep(3, ((1, 32), (1, 64)), loss=lambda values: 3 - 0.001 * values["n_embd"])
    report = ReportData.of_study(runs, lambda metric: falling(runs, metric))
    page = write_page("scaling", report, runs, tmp_path / "page", shared=tmp_path)[0]
    opened(browser, page, 400)
    missing = "document.querySelector('.missing')"
    assert "n_layer is 1 in every run." in browser.read(f"{missing}.innerText")
    assert browser.read("!document.body.innerText.includes(' yet')"), "the study is complete"
    wide = f"[...{missing}.children].every((each) => each.scrollWidth <= each.clientWidth)"
    assert browser.read(wide)
    opened(browser, page, 1400)
    assert browser.read("document.querySelectorAll('section.half').length % 2 === 0"), (
        "no hole beside a panel"
    )
