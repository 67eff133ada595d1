import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from pandas import DataFrame
from report.scaling_page import write_scaling

from sweeplab.errors import BadInput
from sweeplab.report.panels.base import PAGES, PANELS, read_dashboard

TABLES = {"RunsPanel", "VerdictsPanel"}
FILES = {"scaling.html", "scaling.csv", "scaling-curves.csv", "scaling.json"}
FOLDS = {"details", "table", "script", "style", "title", "button", "pre"}
MOST_WORDS = 600
REPOSITORY = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a browser would fetch, and the page's words and figures."""

    def __init__(self, text):
        super().__init__()
        self.links = []
        self.words = ""
        self.prose = []  # outside folds and tables
        self.figures = []
        self._folds, self._kind = 0, ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._folds += tag in FOLDS
        self._kind = dict(attrs).get("type") or tag
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")
        ]

    def handle_endtag(self, tag):
        self._folds -= tag in FOLDS
        self._kind = ""

    def handle_data(self, data):
        if not self._folds:
            self.prose += data.split()
        if self._kind == "application/json" and '"layout"' in data:  # and no list of trials
            self.figures.append(json.loads(data))
        elif self._kind not in ("application/json", "script", "style"):
            self.words += data


@pytest.fixture
def quick(tmp_path):
    """Return a dashboard that fits no law."""
    (tmp_path / "quick.yaml").write_text(
        "panels: [{panel: loss, x: n_embd}, {panel: learning_curves}]\n"
    )
    return tmp_path / "quick.yaml"


@pytest.fixture
def planted(plant):
    return plant(["complete", "stopped", "pruned", "diverged"], seeds=2)


@pytest.mark.slow
def test_writes_the_page_and_its_data(tmp_path, planted, typed, quick):
    runs, curves = typed(planted)
    page = write_scaling(runs, curves, tmp_path / "report", quick)
    assert page == tmp_path / "report" / "scaling.html"
    assert {path.name for path in page.parent.iterdir()} == FILES
    again = pd.read_csv(page.with_suffix(".csv"))
    assert list(again) == list(runs) and len(again) == len(runs)
    assert again["best_val_loss"].equals(runs["best_val_loss"].astype(float))
    assert len(pd.read_csv(page.with_name("scaling-curves.csv"))) == len(curves)


@pytest.fixture(scope="module")
def page(plant, tmp_path_factory):
    planted = plant(["complete", "stopped", "pruned", "diverged"], seeds=2)
    return write_scaling(*planted, tmp_path_factory.mktemp("report"))


@pytest.mark.slow
def test_json_has_the_data_of_every_panel_and_no_nan(page):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    report = json.loads(page.with_suffix(".json").read_text(), parse_constant=refuse)
    assert report["study"] == "planted"
    asked = [each.title for each in read_dashboard().panels]
    assert [
        each["title"] if title else ""
        for each, title in zip(report["panels"], asked, strict=True)
    ] == asked
    loss = report["panels"][0]["data"]
    assert len(loss) == 18 and min(row["loss"] for row in loss) == pytest.approx(
        4 - 0.4 - 0.64 + 0.005
    )
    assert report["best"]["hyperparameters"]["n_embd"] == 64


@pytest.mark.slow
def test_the_page_needs_no_network(page):
    text = page.read_text()
    read = Page(text)
    outside = [
        link for link in read.links if not link.startswith("data:") and link not in FILES
    ]
    assert not outside
    assert not re.search("<(iframe|img)", text[text.index("</script>") :])
    assert not re.search(r"@import|url\(", text[: text.index("plotly.js")])
    assert text.count("* plotly.js v") == 1


def test_the_page_draws_each_panel_and_says_the_summary(page):
    report = json.loads(page.with_suffix(".json").read_text())
    page = Page(page.read_text())
    drawn = [
        each for each in report["panels"] if not each["missing"] and each["kind"] not in TABLES
    ]
    assert len(page.figures) == len(drawn) >= 6
    assert page.figures[0]["layout"]["xaxis"]["title"]["text"] == "parameters"
    assert page.figures[0]["layout"]["xaxis"]["type"] == "log"
    assert page.figures[0]["layout"]["yaxis"]["title"]["text"] == "val_loss (nats/token)"
    assert 10 < len(page.prose) <= MOST_WORDS
    for said in (
        "48 runs of 24 trials in 6 cells",
        "Not drawn: 6 diverged.",
        "n_layer 1, 2, 4; ",
    ):
        assert said in page.words


def test_a_report_without_runs_says_so(tmp_path):
    page = Page(write_scaling(DataFrame(), None, tmp_path).read_text())
    assert not page.figures
    assert (
        page.words.count("The study has no runs.") == 1
    )  # each reason once, beside the titles of all it is for
    assert all(each.title in page.words for each in read_dashboard().panels)
    assert {path.name for path in tmp_path.iterdir()} == FILES


@pytest.mark.slow
def test_names_cannot_break_out_of_the_page(tmp_path, planted, quick):
    evil = "</script><script>alert(1)</script><b>&"
    runs = planted.runs.assign(study=evil, cell=planted.runs["cell"] + f",activation={evil}")
    curves = planted.curves.assign(cell=planted.curves["cell"] + f",activation={evil}")
    text = write_scaling(runs, curves, tmp_path / "report", quick).read_text()
    assert "<script>alert" not in text and "<b>&" not in text
    page = Page(text)
    assert evil in page.words
    assert evil in page.figures[-1]["data"][1]["name"]


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_said(tmp_path, planted, quick):
    (tmp_path / "report").write_text("a file")
    with pytest.raises(BadInput, match=r"report: cannot be written: "):
        write_scaling(*planted, tmp_path / "report", quick)


def test_dashboards_explain_every_panel_and_their_own_above_all():
    explained = {}
    for name in PAGES:
        lines = (REPOSITORY / "dashboards" / f"{name}.yaml").read_text().splitlines()
        explained[name] = {
            kind for kind in PANELS if any(line.startswith(f"# {kind} ") for line in lines)
        }
        assert {PANELS[each.panel].source for each in read_dashboard(page=name).panels} <= set(
            PAGES[name]
        )
    assert set.union(*explained.values()) == set(PANELS)


def test_a_page_refuses_panels_of_another_and_names_its_own(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("panels: [{panel: differences}]\n")
    with pytest.raises(
        BadInput, match=r"unknown panel 'differences'; allowed: best_values, .* slice"
    ):
        read_dashboard(mine, "sweep")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("panels:\n  - panel: los\n", "2:5: unknown panel 'los'; allowed: best_values, "),
        ("panels:\n  - panel: loss\n", "2:5: panels[0].x is missing"),
        ("panels:\n  - {panel: loss, x: n_layers}\n", '2:19: panels[0].x is "n_layers"'),
        ("panels:\n  - {panel: table, lgo: [x]}\n", '2:20: panels[0]: unknown key "lgo"'),
        (
            "panels:\n  - {panel: loss, x: n_embd, log: [x, z]}\n",
            'log[1] is "z"; allowed: x | y',
        ),
        ("panel: []\n", '1:1: the file: unknown key "panel"'),
        ("panels: []\n", "1:1: panels is []; allowed: a list of one or more"),
        ("panels: [3]\n", "1:10: this is not a panel"),
        ("- panel: loss\n", "1:1: this is not a dashboard"),
        ("panels: [{panel: table}]\npanels: []\n", "2:1: "),
        ("a: &a [x]\npanels: *a\n", "alias"),
    ],
)
def test_a_wrong_dashboard_is_refused_with_its_line(tmp_path, text, said):
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    with pytest.raises(BadInput) as refused:
        read_dashboard(mine)
    assert str(refused.value).startswith(str(mine)) and said in str(refused.value)


def test_says_every_problem_of_a_dashboard_at_once(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "titel: x\npanels:\n  - panel: los\n  - {panel: loss, x: n_layrs, log: z}\n"
    )
    with pytest.raises(BadInput) as refused:
        read_dashboard(mine)
    assert [problem.line for problem in refused.value.problems] == [1, 3, 4, 4]
