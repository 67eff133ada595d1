"""A study's view: what is written for MLflow's pages, and the links that name it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.permissions import name_address
from sweeplab.tracking.connection import connect, tracking_uri
from sweeplab.tracking.experiment import count_studies
from sweeplab.tracking.mlflow import MLflowTracker
from sweeplab.tracking.pages import publish, state

CHARTS = (
    {
        "chart": "line",
        "title": "Loss",
        "x": "train_tokens",
        "metric": "val_loss",
        "log": ["x"],
        "width": "half",
    },
    {"chart": "scatter", "title": "by rate", "x": "learning_rate", "y": "best_val_loss", "width": "half"},
    {"chart": "line", "x": "time", "metric": "grad_norm", "width": "half"},
    {"chart": "compare", "title": "Side by side"},
)
COLUMNS = ("state", "searched", "best_val_loss")
VIEW = {"columns": COLUMNS, "sort": {"by": "best_val_loss"}, "charts": CHARTS}


def test_columns_stand_in_their_order_and_once() -> None:
    columns = ["tags.`sweeplab.state`", "params.`learning_rate`", "params.`betas`", "metrics.`best_val_loss`"]
    written = state(VIEW, "abc", [], ["learning_rate", "betas", "learning_rate"])
    assert written["selectedColumns"] == written["columnOrder"] == columns == list(written["columnWidths"])
    assert (written["orderByKey"], written["orderByAsc"]) == ("metrics.`best_val_loss`", True)
    assert written["searchFilter"] == "tags.`mlflow.parentRunId` = 'abc'"
    assert written["runsExpanded"] == {"abc": True}


def test_charts_lie_in_rows_under_their_titles() -> None:
    written = state(VIEW, "abc", [], ["learning_rate"])
    line, scatter, time, compare = written["compareRunCharts"]
    assert (line["metricKey"], line["xAxisKey"], line["xAxisScaleType"]) == (
        "val_loss_by_tokens", "step", "log",
    )  # fmt: skip
    assert (time["metricKey"], time["xAxisKey"], time["xAxisScaleType"]) == (
        "grad_norm", "time-relative", "linear",
    )  # fmt: skip
    assert scatter["xaxis"] == {"key": "learning_rate", "type": "PARAM"}, "what was set, not the last point"
    assert scatter["yaxis"] == {"key": "best_val_loss", "type": "METRIC"}
    assert compare["chartName"] == "Side by side"
    rows = {each["uuid"]: (each["name"], each["columns"]) for each in written["compareRunSections"]}
    assert [rows[chart["metricSectionId"]] for chart in written["compareRunCharts"]] == [
        ("Loss · by rate", 2), ("Loss · by rate", 2), ("Row 2", 1), ("Side by side", 1),
    ]  # fmt: skip
    assert len({chart["uuid"] for chart in written["compareRunCharts"]}) == 4


def test_a_chart_over_what_the_study_does_not_vary_is_left_out() -> None:
    sizes = [{"chart": "scatter", "x": x, "y": "value"} for x in ("n_layer", "log10_n_params")]
    view = {"columns": ["searched"], "sort": {"by": "value"}, "charts": sizes}
    shown = [state(view, "abc", grid, [])["compareRunCharts"] for grid in ([], ["n_layer"])]
    assert [[each["xaxis"] for each in charts] for charts in shown] == [
        [{"key": "log10_n_params", "type": "METRIC"}],
        [{"key": "n_layer", "type": "PARAM"}, {"key": "log10_n_params", "type": "METRIC"}],
    ]


def test_publishing_writes_the_view_and_replaces_it(lab: Path) -> None:
    name = "the baker's view"
    parent = MLflowTracker(lab, name).open({})
    uri = tracking_uri(lab)
    links = publish(lab, uri, name, "my view", VIEW, ["n_embd"], ["learning_rate"], "http://x:1/")
    experiment = connect(lab, uri).get_experiment_by_name(name)
    tag = "mlflow.sharedViewState.sweeplab-my-view"
    assert json.loads(experiment.tags[tag]) == state(VIEW, parent, ["n_embd"], ["learning_rate"])
    start = f"http://x:1/#/experiments/{experiment.experiment_id}/runs"
    query = "?workflowType=machine_learning&viewStateShareKey=sweeplab-my-view&compareRunsMode=CHART"
    assert links == {
        "charts": start + query,
        "table": start + query.replace("CHART", "TABLE"),
        "study": f"{start}/{parent}?workflowType=machine_learning",
    }
    assert (
        publish(lab, uri, name, "my view", VIEW, ["n_embd"], ["betas", "learning_rate"], "http://x:1/")
        == links
    )
    assert '"params.`betas`"' in connect(lab, uri).get_experiment_by_name(name).tags[tag]


def test_what_cannot_be_published(lab: Path) -> None:
    MLflowTracker(lab, "wide").open({})
    uri = tracking_uri(lab)
    with pytest.raises(BadInput, match="has no study 'narrow': it has not been run yet"):
        publish(lab, uri, "narrow", "my view", VIEW, [], [], "http://x:1/")
    with pytest.raises(BadInput, match="my view: too many columns"):
        publish(lab, uri, "wide", "my view", VIEW, [], [f"name_{i}" for i in range(500)], "http://x:1/")
    assert count_studies(lab, uri) >= 1


def test_a_server_that_does_not_answer(lab: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
        name_address(uri)
        with pytest.raises(TrackingUnavailable, match=uri):
            publish(lab, uri, "any", "my view", VIEW, [], [], "http://x:1/")
        with pytest.raises(TrackingUnavailable) as down:
            count_studies(lab, uri)
        assert str(down.value) == f"{uri}: no answer (Connection refused)"
