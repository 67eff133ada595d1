"""Pages in a real Chromium, wide and narrow, without a network: nothing fails, is cut, or is illegible."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis.planted_sweep import plant_sweep, slow_ones_pruned
from benchmarks.pictures import clip_of, cut_off
from chromium import PROGRAM, chromium_page
from pandas import DataFrame

from sweeplab.analysis.studies import Studies
from sweeplab.model.shape import SETTLED
from sweeplab.report.data import ReportData
from sweeplab.report.writer import write_page
from sweeplab.study.file.reading import read_study

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium"),
]
WIDE, NARROW = 1400, 400
PAGES = ("scaling", "sweep", "compare")
CELLS = tuple((n_layer, n_embd) for n_layer in (1, 2, 4) for n_embd in (32, 64))
FIGURE = (
    "figures.find((each) => each.closest('section').querySelector('h2').innerText === {!r})"
)
SIZE, CURVES = FIGURE.format("Loss against model size"), FIGURE.format("Learning curves")
CONTRAST = """
(() => {
  const channel = (value) => {
    value /= 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const light = (color) => { const [r, g, b] = color.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...document.querySelectorAll(".figure text")].filter((each) => each.textContent.trim());
  const on = texts.filter((each) => !each.closest(".heatmaplayer, .hm, .bars"));
  return Math.min(...on.map((each) => { const ink = light(getComputedStyle(each).fill);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05); }));
})()
"""
LEGENDS = """figures.filter((each) => each.querySelector(".legend")).map((each) => {
    const [legend, all] = [each.querySelector(".legend .bg"), each].map((one) => one.getBoundingClientRect());
    const share = (legend.width * legend.height) / (all.width * all.height);
    return [share, legend.left >= all.left - 1, legend.right <= all.right + 1];
})"""


STUDY = """
name: planted
data: {corpus: python-docs, tokenizer: char}
fixed: {n_head: 4}
grid: {n_layer: [1, 2, 4], n_embd: [32, 64], activation: [relu, gelu], norm: [layernorm, rmsnorm]}
search:
  learning_rate: {min: 1e-4, max: 1e-1, log: true}
  dropout: {min: 0.0, max: 0.5}
  weight_decay: {min: 0.0, max: 0.3}
"""


def falling(runs, metric):
    """Return curves that fall from 4.6 to each run's value; metrics other than the loss are 1."""
    columns = ["study", "cell", "trial", "seed", "iteration", "train_tokens", "metric", "value"]
    rows = [
        (row.study, row.cell, row.trial, row.seed, at, at * 128, metric, value)
        for row in runs.itertuples()
        for at in range(0, row.iterations + 1, 60)
        for value in [
            row.value + (4.6 - row.value) * np.exp(-at / 60) if metric == "val_loss" else 1.0
        ]
    ]
    return DataFrame(rows, columns=columns)


def write(page, runs, place, lab=None, shared=None, studied=None):
    report = ReportData.of_study(runs, lambda metric: falling(runs, metric), studied, lab)
    return write_page(page, report, runs, place, shared=shared)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Write the pages of 96 runs in a grid of four dimensions, and of two studies; one page is whole by itself."""
    place, parts = tmp_path_factory.mktemp("pages"), []
    kinds = [(each, other) for each in ("relu", "gelu") for other in ("layernorm", "rmsnorm")]
    for key, (activation, norm) in enumerate(kinds):
        runs = plant_sweep(
            4,
            CELLS,
            loss=lambda values, key=key: 3 - 0.1 * values["n_layer"] + 0.05 * key,
            key=key,
        )
        runs["cell"] += f",activation={activation},norm={norm}"
        parts.append(runs.assign(activation=activation, norm=norm))
    runs = pd.concat(parts, ignore_index=True).drop(columns=[*SETTLED])
    two = [
        plant_sweep(20, state=slow_ones_pruned, seeds=2, name=name, key=key)
        for key, name in enumerate("ab")
    ]
    shared = place / "shared files"
    studied = Studies(
        runs, {"planted": read_study(Path("planted.yaml"), text=STUDY)}, {"planted": {}}
    )
    return {
        "scaling": write("scaling", runs, place, studied=studied),
        "sweep": write("sweep", runs, place, shared=shared),
        "compare": write("compare", pd.concat(two, ignore_index=True), place, shared=shared),
    }


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with chromium_page(tmp_path_factory.mktemp("profile")) as page:
        off = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        page._call("Network.emulateNetworkConditions", **off)
        yield page


@pytest.fixture
def browser(chromium):
    """Return a page that has asked for nothing yet."""
    chromium.open("about:blank")
    chromium.wait_for("location.href === 'about:blank'")
    chromium.requests.clear()
    chromium.errors.clear()
    return chromium


def opened(browser, file, width=WIDE, theme="light"):
    """Open a page, folds too, once all of its figures are drawn and their legends placed."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser._call("Emulation.setDeviceMetricsOverride", **screen)
    browser._call(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": theme}],
    )
    browser.open(file.as_uri())
    browser.wait_for("document.readyState === 'complete' && typeof figures !== 'undefined'")
    folds = "document.querySelectorAll('details.more, details:has(.missing)')"
    browser.read(f"{folds}.forEach((each) => {{ each.open = true; }})")
    browser.wait_for("figures.length && figures.every((each) => each.isSettled)")


def middle(browser, element):
    """Bring an element into view and return where its middle is in the window."""
    browser.read(f"{element}.scrollIntoView({{block: 'center'}})")
    sides = "(({left, right, top, bottom}) => [left, right, top, bottom])"
    left, right, top, bottom = browser.read(f"{sides}({element}.getBoundingClientRect())")
    return (left + right) / 2, (top + bottom) / 2


def mouse(browser, x, y, *kinds):
    for kind in kinds:
        browser._call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
        )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_a_network_and_no_word_of_a_table_is_broken(name, pages, browser):
    opened(browser, pages[name])
    assert browser.read("figures.length") >= {"scaling": 4, "sweep": 7, "compare": 4}[name]
    assert browser.errors == []
    inside = ("file:", "data:", "about:", "blob:")
    assert [url for url in browser.requests if not url.startswith(inside)] == []
    links = browser.read(
        "[...document.querySelectorAll('a[href]')].map((a) => a.getAttribute('href'))"
    )
    assert links
    for link in links:
        if link.startswith("#"):
            assert browser.read(f"!!document.getElementById('{link[1:]}')"), link
        else:
            assert link.startswith("data:") or (pages[name].parent / link).is_file(), link
    heads = (
        "[...document.querySelectorAll('table th button')].filter((each) => each.offsetHeight)"
    )
    assert browser.read(f"{heads}.length") > 10
    assert browser.read(
        f"{heads}.every((each) => getComputedStyle(each).overflowWrap === 'normal')"
    )
    lines = f"{heads}.map((each) => each.offsetHeight / parseFloat(getComputedStyle(each).fontSize))"
    assert browser.read(f"Math.max(...{lines})") < 5, "a line and its margins"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_the_words_of_figures_are_legible(name, theme, pages, browser):
    opened(browser, pages[name], theme=theme)
    ground = browser.read("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 23, 27)"}[theme]
    assert browser.read(CONTRAST) >= 4.5


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["scaling", "sweep"])
def test_legends_leave_three_quarters_and_nothing_is_cut(name, width, pages, browser):
    opened(browser, pages[name], width)
    assert browser.errors == []
    assert browser.read("document.documentElement.scrollWidth") == width, (
        "the page does not scroll sideways"
    )
    shares = browser.read(LEGENDS)
    assert len(shares) >= 2
    assert all(share <= 0.26 for share, *_ in shares), shares
    if name == "scaling":
        clip = clip_of(browser, "figures[0]", width)
        assert cut_off(browser, "figures[0]", clip) == []
        assert cut_off(browser, "figures[0]", clip | {"height": clip["height"] - 60}), (
            "it sees what is cut"
        )
    else:
        assert pages[name].stat().st_size < 1e6
    if width == NARROW and name == "scaling":  # the legend is below the axis
        top = browser.read(f"{SIZE}.querySelector('.legend .bg').getBoundingClientRect().top")
        assert top >= browser.read(
            f"{SIZE}.querySelector('.xtitle').getBoundingClientRect().bottom"
        )


def test_of_many_curves_the_best_is_bold_and_one_comes_forward_under_the_cursor(pages, browser):
    opened(browser, pages["scaling"])
    drawn = browser.read(
        f"{CURVES}.data.map((each) => [each.name, each.line.width, each.opacity ?? 1])"
    )
    assert [name for name, width, _ in drawn if width > 3 and name.endswith("(best)")]
    assert all(opacity < 0.5 for _, width, opacity in drawn if width < 3), "all others are pale"
    front = f"{CURVES}.data.find((each) => each.meta?.front)"
    assert browser.read(f"{front}.x.length ?? 0") == 0
    dot = f"{CURVES}.querySelector('.scatterlayer .trace:nth-child(12) .points path:nth-child(4)')"
    mouse(browser, *middle(browser, dot), "mouseMoved")
    browser.wait_for(f"{front}.x.length === 6")
    hovered = browser.read(f"{CURVES}.querySelector('.hoverlayer').textContent")
    assert "learning_rate" in hovered and "weight_decay" in hovered, "all that was searched"
    mouse(browser, 2, 2, "mouseMoved")
    browser.wait_for(f"{front}.x.length === 0")


def test_a_click_on_a_trial_opens_its_run(pages, browser):
    opened(browser, pages["sweep"])
    x, y = middle(
        browser, f"{FIGURE.format('Slice')}.querySelector('.scatterlayer .points path')"
    )
    mouse(browser, x, y, "mouseMoved", "mousePressed", "mouseReleased")
    browser.wait_for("document.getElementById('trial').open")
    words = browser.read("document.getElementById('trial').innerText")
    for part in (
        "Trial ",
        "State",
        "complete",
        "activation",
        "norm",
        "learning_rate",
        "dropout",
        "Seed 0",
    ):
        assert part in words
    browser.wait_for("!!document.querySelector('#trial .curve .scatterlayer path')")
    browser.read("document.getElementById('trial').querySelector('button').click()")
    assert not browser.read("document.getElementById('trial').open") and browser.errors == []


def test_two_trials_stand_beside_each_other_and_a_figure_can_be_saved(pages, browser):
    opened(browser, pages["sweep"])
    browser.read("open_trial(trials[0], about)")
    buttons = "[...dialog.querySelectorAll('button')]"
    browser.read(f"{buttons}.find((each) => each.innerText.startsWith('Compare')).click()")
    assert not browser.read("dialog.open")
    browser.read("open_trial(trials[1], about)")
    assert browser.read("dialog.open && dialog.querySelector('h2').innerText") == "Two trials"
    cells = "[...dialog.querySelectorAll('tr')].map((each) => [...each.cells].map((one) => one.innerText))"
    head, *rows = browser.read(cells)
    assert len(head) == 3 and head[1] != head[2]
    assert "learning_rate" in [row[0] for row in rows] and all(row[1] != row[2] for row in rows)
    browser.wait_for("dialog.querySelectorAll('.curve .scatterlayer .trace').length === 2")
    browser.read("dialog.close(); open_trial(trials[2], about)")
    assert browser.read("dialog.querySelector('h2').innerText").startswith("Trial "), (
        "one at a time again"
    )
    browser.read(
        "dialog.close(); Plotly.downloadImage = (what, how) => { window.saved = how; }"
    )
    browser.read("document.querySelector('[data-save=svg]').click()")
    saved = browser.read("window.saved")
    assert saved["format"] == "svg" and saved["width"] > 500 and saved["filename"]
    assert not browser.errors


def test_parallel_coordinates_have_a_loss_axis_and_take_a_selection(pages, browser):
    opened(browser, pages["sweep"])
    parallel = FIGURE.format("Parallel coordinates")
    labels = browser.read(f"{parallel}.data[0].dimensions.map((each) => each.label)")
    assert labels[-1] == "above" and {"n_layer", "n_embd", "learning_rate"} <= set(labels)
    depth = browser.read(f"{parallel}.data[0].dimensions[{labels.index('n_layer')}].ticktext")
    assert sorted(depth) == ["1", "2", "4"], "the values that exist"
    x, low, high = browser.read(f"""(() => {{ {parallel}.scrollIntoView({{block: "center"}});
        const brush = {parallel}.querySelectorAll(".y-axis")[{len(labels) - 1}];
        const axis = brush.querySelector(".axis .domain").getBoundingClientRect();
        return [axis.left + axis.width / 2, axis.bottom - 20, axis.top + axis.height / 2]; }})()""")
    mouse(browser, x, low, "mouseMoved", "mousePressed")
    mouse(browser, x, high, "mouseMoved", "mouseReleased")
    browser.wait_for(f"{parallel}.data[0].dimensions.at(-1).constraintrange?.length === 2")


def test_a_keyboard_reaches_each_figures_data_and_the_page_prints(pages, browser):
    opened(browser, pages["sweep"], theme="dark")
    reached = "[...document.querySelectorAll('summary, th button, a[href], .scroll')]"
    assert browser.read(f"{reached}.every((each) => each.tabIndex >= 0)")
    data = "[...document.querySelectorAll('summary')].filter((each) => each.textContent === 'Data of this figure')"
    assert browser.read(f"{data}.length") == browser.read("figures.length")
    browser.read(f"{data}[0].focus()")
    enter = {"key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13}
    for kind in ("keyDown", "keyUp"):
        browser._call("Input.dispatchKeyEvent", type=kind, **enter)
    browser.wait_for(f"{data}[0].parentElement.open")
    assert browser.read(f"{data}[0].parentElement.querySelectorAll('tbody tr').length") > 1
    assert len(browser._call("Page.printToPDF")["data"]) > 50_000 and browser.errors == []
