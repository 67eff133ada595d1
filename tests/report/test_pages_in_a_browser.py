"""All pages in a real Chromium, with the network off: nothing is missing, nothing fails, both themes are legible."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis.planted_sweep import plant_sweep, slow_ones_pruned, too_fast
from chromium import PROGRAM, Page, chromium_page
from pandas import DataFrame

from sweeplab.report.data import ReportData
from sweeplab.report.writer import write_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium"),
]
PAGES = ("scaling", "sweep", "compare")
DRAWN = "document.querySelectorAll('.figure .main-svg').length"
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


def mixed(values, random: np.random.Generator) -> str:
    return too_fast(values, random) if values["learning_rate"] > 0.01 else slow_ones_pruned(values, random)


def curves(runs: DataFrame, metric: str) -> DataFrame:
    value = 6400.0 if metric == "tokens_per_second" else 3.0
    columns = ["study", "cell", "trial", "seed", "iteration", "train_tokens", "metric", "value"]
    rows = [
        (row.study, row.cell, row.trial, row.seed, at, at * 128, metric, value - at / 1000)
        for row in runs.itertuples()
        for at in (0, 100, 200, 300)
        if at <= row.iterations
    ]
    return DataFrame(rows, columns=columns)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("pages")
    runs = plant_sweep(20, state=mixed, seeds=2)
    other = plant_sweep(20, state=mixed, seeds=2, name="other", shift=0.1, key=3)
    both = pd.concat([runs, other], ignore_index=True)
    found = {}
    for page, table in (("scaling", runs), ("sweep", runs), ("compare", both)):
        material = ReportData.of_study(table, lambda metric, table=table: curves(table, metric))
        shared = None if page == "scaling" else place / "shared files"
        (found[page],) = write_page(page, material, table, place, shared=shared)
    return found


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium_page(tmp_path_factory.mktemp("profile")) as page:
        page._call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
        yield page


@pytest.fixture
def browser(offline: Page) -> Page:
    """Return a page that has asked for nothing yet."""
    offline.open("about:blank")
    offline.wait_for("location.href === 'about:blank'")
    offline.requests.clear()
    offline.errors.clear()
    return offline


def opened(browser: Page, file: Path, theme: str = "light") -> int:
    """Open a page and return the number of its figures once all are drawn."""
    browser._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    browser.open(file.as_uri())
    browser.wait_for("document.readyState === 'complete'")
    browser.read("document.querySelectorAll('details.more').forEach((each) => { each.open = true; })")
    wanted = browser.read("document.querySelectorAll('.figure').length")
    browser.wait_for(f"{DRAWN} >= {wanted}")
    return int(wanted)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_a_network_and_without_an_error(name: str, pages, browser: Page) -> None:
    assert opened(browser, pages[name]) >= {"scaling": 4, "sweep": 7, "compare": 6}[name]
    assert browser.errors == []
    outside = [url for url in browser.requests if not url.startswith(("file:", "data:", "about:", "blob:"))]
    assert outside == []
    links = browser.read("[...document.querySelectorAll('a[href]')].map((a) => a.getAttribute('href'))")
    assert links and all(
        each.startswith(("data:", "#")) or (pages[name].parent / each).is_file() for each in links
    )
    assert all(browser.read(f"!!document.getElementById('{each[1:]}')") for each in links if each[0] == "#")


def test_a_page_without_the_file_it_shares_says_what_to_do(pages, browser: Page, tmp_path: Path) -> None:
    browser.open(shutil.copy(pages["sweep"], tmp_path / "sent.html").as_uri())
    browser.wait_for("document.readyState === 'complete'")
    said = "[...document.querySelectorAll('[data-figure]')].map((each) => each.innerText)"
    assert len(browser.read(said)) >= 7 and all("--single-file" in each for each in browser.read(said))


@pytest.mark.parametrize("name", PAGES)
def test_no_word_of_a_table_is_broken(name: str, pages, browser: Page) -> None:
    opened(browser, pages[name])
    cells = "[...document.querySelectorAll('table th button')].filter((each) => each.offsetHeight)"
    assert browser.read(f"{cells}.length") > 10
    assert browser.read(f"{cells}.every((each) => getComputedStyle(each).overflowWrap === 'normal')")
    lines = f"{cells}.map((each) => each.offsetHeight / parseFloat(getComputedStyle(each).fontSize))"
    assert browser.read(f"Math.max(...{lines})") < 5, "a line and its margins"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_the_words_of_figures_are_legible(name: str, theme: str, pages, browser: Page) -> None:
    opened(browser, pages[name], theme)
    dark = browser.read("getComputedStyle(document.body).backgroundColor")
    assert dark == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 23, 27)"}[theme]
    assert browser.read(CONTRAST) >= 4.5


def test_a_keyboard_reaches_each_figures_data_and_sorts_tables(pages, browser: Page) -> None:
    n_figures = opened(browser, pages["sweep"])
    reached = browser.read(
        "[...document.querySelectorAll('summary, th button, a[href], .scroll')]"
        ".filter((each) => each.tabIndex < 0).length"
    )
    assert reached == 0
    data = "[...document.querySelectorAll('summary')].filter((each) => each.textContent === 'Data of this figure')"
    assert browser.read(f"{data}.length") == n_figures
    browser.read(f"{data}[0].focus()")
    for kind in ("keyDown", "keyUp"):
        browser._call(
            "Input.dispatchKeyEvent",
            type=kind,
            key="Enter",
            code="Enter",
            text="\r",
            windowsVirtualKeyCode=13,
        )
    browser.wait_for(f"{data}[0].parentElement.open")
    assert browser.read(f"{data}[0].parentElement.querySelectorAll('tbody tr').length") > 1


def test_a_page_prints(pages, browser: Page) -> None:
    opened(browser, pages["sweep"], "dark")
    printed = browser._call("Page.printToPDF")["data"]
    assert len(printed) > 50_000 and browser.errors == []
