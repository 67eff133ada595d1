"""MLflow's own server as a process of ours, and what its pages show of a study in a real browser."""

import http.client
import json
import math
import socket
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil
import pytest
from chromium import Page, chromium_page

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.permissions import name_address
from sweeplab.tracking.connection import connect, tracking_uri
from sweeplab.tracking.experiment import count_studies
from sweeplab.tracking.mlflow import MLflowTracker
from sweeplab.tracking.pages import SAFE, publish, serve, view

# State, cell, learning rate, best loss, parameters: not in the order of the losses.
RUNS = [
    ("complete", "n_embd=8", 0.001, 2.5, 800),
    ("pruned", "n_embd=8", 0.01, 3.5, 800),
    ("stopped", "n_embd=16", 0.002, 2.0, 3200),
    ("diverged", "n_embd=16", 0.03, 4.0, 3200),
    ("complete", "n_embd=16", 0.003, 1.5, 3200),
]
# What the table shows: a row a run, a text a column, by MLflow's name of the column.
TABLE = """(() => {
  const rows = {};
  for (const cell of document.querySelectorAll(".ag-row [col-id]")) {
    const row = rows[cell.closest(".ag-row").getAttribute("row-index")] ??= {};
    row[cell.getAttribute("col-id")] = cell.innerText;
  }
  return Object.keys(rows).sort((a, b) => a - b).map((index) => rows[index]);
})()"""
HEADINGS = """[...document.querySelectorAll(".ag-header-cell")]
  .sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x)
  .map((each) => each.innerText.trim()).filter((text) => text)"""
NAMES = """[...document.querySelectorAll(".ag-row a[href*='/runs/']")]
  .map((link) => [link.closest(".ag-row").getAttribute("row-index"), link.innerText.trim()])
  .sort((a, b) => a[0] - b[0]).map((each) => each[1])"""
# Plots that lie in the window: the titles of their axes and what is drawn, without the faint twins of lines.
PLOTS = """[...document.querySelectorAll(".js-plotly-plot")]
  .filter((plot) => plot.getBoundingClientRect().bottom <= innerHeight)
  .map((plot) => ({
    axes: [...plot.querySelectorAll(".xtitle, .ytitle")].map((each) => each.textContent),
    traces: plot.data
      .map((trace) => ({name: trace.name, x: [...trace.x], y: [...trace.y], color: trace.marker?.color}))
      .filter((trace) => !/^#.{8}$/.test(trace.color))
  }))"""
ORDER = [4, 2, 0, 1, 3]


@dataclass(frozen=True)
class Shown:
    """A server that shows one study, and a page of a browser."""

    url: str
    links: dict[str, str]
    page: Page


def has(*texts):
    return f"{json.dumps(texts)}.every((each) => document.body?.innerText.includes(each))"


def ship(lab, runs, writer):
    tracker = MLflowTracker(lab, "shown")
    tracker.open({"study": "name: shown\n", "plan": {"cells": 2}, "note": "Two cells."})
    for number, (state, cell, rate, loss, n_params) in enumerate(RUNS):
        key = f"{cell}/{number}/0"
        values = writer.values | {"learning_rate": rate, "n_embd": int(cell.partition("=")[2])}
        known = {
            "facts": {"n_params": n_params},
            "grid": ["n_embd"],
            "sampled": {"learning_rate": rate},
        }
        folder = writer.begin(runs / key, key, values, **known)
        writer.append(
            folder, [writer.point(i, val_loss=loss + 1 - i / 30) for i in (0, 10, 20, 30)]
        )
        writer.end(folder, state, best_val_loss=loss, final_val_loss=loss, value=loss)
        tracker.ship(folder)
    tracker.close(
        {"state": "complete", "best_value": 1.5, "best_run": "n_embd=16/4/0", "counts": {}}
    )


@pytest.fixture(scope="module")
def shown(lab, writer, tmp_path_factory):
    ship(lab, tmp_path_factory.mktemp("runs"), writer)
    uri = tracking_uri(lab)
    with serve(lab, uri) as server:
        links = publish(lab, uri, "shown", ["learning_rate"], server.url)
        server.wait_until_ready()
        with chromium_page(tmp_path_factory.mktemp("profile"), 1920, 1200) as page:
            yield Shown(server.url, links, page)


@pytest.mark.browser
def test_the_table_shows_the_runs_by_loss_with_what_was_searched(shown):
    shown.page.open(shown.links["table"])
    shown.page.wait_for(f"{TABLE}.length == 5 && {TABLE}[0]['params.`learning_rate`']")
    expected = [
        {
            "tags.`sweeplab.state`": state,
            "tags.`sweeplab.cell`": cell,
            "params.`learning_rate`": str(rate),
            "metrics.`best_val_loss`": f"{loss:g}",
            "metrics.`n_params`": str(n_params),
        }
        for state, cell, rate, loss, n_params in (RUNS[index] for index in ORDER)
    ]
    rows = shown.page.read(TABLE)
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    headings = ["learning_rate", "best_val_loss", "sweeplab.state", "n_params", "sweeplab.cell"]
    assert [each for each in shown.page.read(HEADINGS) if each in headings] == headings


@pytest.mark.browser
def test_the_charts_stand_beside_the_runs_on_the_first_screen(shown):
    shown.page.open(shown.links["charts"])
    shown.page.wait_for(f"{PLOTS}.length == 2 && {PLOTS}.every((plot) => plot.traces.length)")
    names = [f"{RUNS[index][1]} #{index}" for index in ORDER]
    assert shown.page.read(NAMES) == names
    lines, points = shown.page.read(PLOTS)
    assert points["axes"] == ["log10_n_params", "best_val_loss"]
    (trace,) = points["traces"]
    assert sorted(zip(trace["x"], trace["y"], strict=True)) == [
        (pytest.approx(math.log10(run[4])), run[3])
        for run in sorted(RUNS, key=lambda run: (run[4], run[3]))
    ]
    drawn = {int(each["name"].split("#")[1].split()[0]): each for each in lines["traces"]}
    assert drawn.keys() == set(range(len(RUNS))) and len(lines["traces"]) == len(RUNS)
    for number, (_, _, _, loss, _) in enumerate(RUNS):
        assert drawn[number]["x"] == [0, 640, 1280, 1920], "tokens"
        assert drawn[number]["y"] == pytest.approx([loss + 1 - i / 30 for i in (0, 10, 20, 30)])
    shown.page.wait_for(has("Loss by tokens, and by size"))


@pytest.mark.browser
def test_the_study_s_page_has_its_description_and_files(shown):
    shown.page.open(shown.links["study"])
    shown.page.wait_for(has("Two cells.", "best_value", "n_embd=16 #4"))
    shown.page.open(f"{shown.links['study'].partition('?')[0]}/artifacts")
    shown.page.wait_for(has("plan.json", "study.yaml"))


@pytest.mark.browser
def test_the_pages_ask_nobody_but_this_machine(shown):
    shown.page.open(shown.links["charts"])
    shown.page.wait_for(f"{PLOTS}.length == 2")
    asked = {
        each
        for each in shown.page.requests
        if not each.startswith(("data:", "blob:", shown.url))
    }
    assert not asked
    assert not [each for each in shown.page.errors if "404" not in each]


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=120) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def status(url, host):
    """Return what the pages answer to a browser that knows their machine by this name."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=120)
    try:
        connection.request("GET", f"{place.path}/", headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.slow
def test_a_server_is_safe_and_leaves_nothing_behind(lab, monkeypatch):
    for name in ("MLFLOW_SERVER_ALLOWED_HOSTS", "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"):
        monkeypatch.setenv(name, "*")
    MLflowTracker(lab, "served").open({})
    with serve(lab, tracking_uri(lab)) as server:
        server.wait_until_ready()
        port = urlsplit(server.url).port
        assert answers(server.url)
        process = psutil.Process(server.process.pid)
        family = [process, *process.children(recursive=True)]
        assert len(family) <= 2, "one worker"
        assert SAFE.items() <= process.environ().items()
        for known in ("127.0.0.1", "localhost"):
            assert status(server.url, f"{known}:{port}") == 200
        for other in (
            "10.evil.com",
            "192.168.evil.com",
            "evil.com",
            f"evil.com:{port}",
            "127.0.0.1:1",
        ):
            assert status(server.url, other) == 403, other
        assert not any(
            "mlflow.db" in argument for each in family for argument in each.cmdline()
        )
        listening = [
            each
            for member in family
            for each in member.net_connections()
            if each.status == "LISTEN"
        ]
        assert {(each.laddr.ip, each.laddr.port) for each in listening} == {("127.0.0.1", port)}
    assert not any(
        each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family
    )
    assert not answers(server.url)


@pytest.mark.slow
def test_a_server_that_cannot_start_says_why(tmp_path):
    (tmp_path / "mlflow.db").write_text("no database")
    with (
        serve(tmp_path, tracking_uri(tmp_path)) as server,
        pytest.raises(TrackingUnavailable) as ended,
    ):
        server.wait_until_ready()
    assert "database" in str(ended.value)


def test_the_view_has_the_searched_values_first_and_replaces_an_earlier_one(lab):
    name = "the baker's view"
    parent = MLflowTracker(lab, name).open({})
    uri = tracking_uri(lab)
    for searched in (["learning_rate", "betas"], ["betas", "learning_rate", "betas"]):
        links = publish(lab, uri, name, searched, "http://x:1/")
        experiment = connect(lab, uri).get_experiment_by_name(name)
        written = json.loads(experiment.tags["mlflow.sharedViewState.sweeplab"])
        assert written == view(parent, searched)
        first = [f"params.`{each}`" for each in searched[:2]]
        assert written["selectedColumns"][:3] == [*first, "metrics.`best_val_loss`"]
        assert (written["orderByKey"], written["orderByAsc"]) == (
            "metrics.`best_val_loss`",
            True,
        )
    start = f"http://x:1/#/experiments/{experiment.experiment_id}/runs"
    assert links["table"] == (
        f"{start}?workflowType=machine_learning&viewStateShareKey=sweeplab&compareRunsMode=TABLE"
    )
    assert links["study"] == f"{start}/{parent}?workflowType=machine_learning"
    with pytest.raises(BadInput, match="has no study 'narrow': it has not been run yet"):
        publish(lab, uri, "narrow", [], "http://x:1/")


def test_a_tracking_server_that_does_not_answer(lab):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
        name_address(uri)
        with pytest.raises(TrackingUnavailable, match=uri):
            publish(lab, uri, "any", [], "http://x:1/")
        with pytest.raises(TrackingUnavailable) as down:
            count_studies(lab, uri)
        assert str(down.value) == f"{uri}: no answer (Connection refused)"
