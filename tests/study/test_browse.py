"""The file that says what MLflow shows: the shipped one, and what is wrong with others."""

from pathlib import Path

import pytest

from sweeplab.errors import BadInput
from sweeplab.lab.identity import write_study
from sweeplab.records.folders import DataDescription
from sweeplab.report.browse import browse, read_view
from sweeplab.report.options import default_dashboard
from sweeplab.tracking.mlflow import MLflowTracker
from sweeplab.tracking.pages import state

REPOSITORY = Path(__file__).parents[2]
DATA = DataDescription("text", "char", 97, 900, 100, 100, 100, "text", "tokens")
GOOD = "columns: [state, searched]\nsort: {by: best_val_loss}\n"


def test_the_shipped_file_is_the_default_one() -> None:
    assert default_dashboard("mlflow") == REPOSITORY / "dashboards" / "mlflow.yaml"
    view = read_view(default_dashboard("mlflow"))
    assert view["columns"] == ["searched", "best_val_loss", "state", "n_params", "cell"]
    assert view["sort"] == {"by": "best_val_loss", "descending": False}
    assert [tuple(chart.get(part) for part in ("chart", "x", "metric", "y")) for chart in view["charts"]] == [
        ("line", "train_tokens", "val_loss", None), ("scatter", "log10_n_params", None, "best_val_loss"),
        ("scatter", "n_layer", None, "best_val_loss"), ("scatter", "n_embd", None, "best_val_loss"),
        ("compare", None, None, None),
    ]  # fmt: skip


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    chart = "charts: [{chart: line, metric: grad_norm, x: time, log: [y], title: Norms, width: half}]\n"
    file.write_text(f"columns: [n_layer]\nsort: {{by: learning_rate, descending: true}}\n{chart}")
    view = read_view(file)
    shown = state(view, "parent", [], [])
    assert view["columns"] == ["n_layer"]
    assert (shown["orderByKey"], shown["orderByAsc"]) == ("params.`learning_rate`", False)
    assert shown["compareRunSections"][0]["name"] == "Norms"
    (drawn,) = shown["compareRunCharts"]
    assert (drawn["metricKey"], drawn["scaleType"]) == ("grad_norm", "log")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["this is not a dashboard"]),
        ("columns: []\nsort: {by: n_layer}", ["1:10: columns is []; allowed: a list of one or more"]),
        ("columns: [stat]\nsort: {by: n_layer}", ['1:11: columns[0] is "stat"', "did you mean 'state'?"]),
        ("columns: [state]", ["sort is missing"]),
        ("columns: [state]\nsort: {by: val_loss}", ['2:12: sort.by is "val_loss"', "'best_val_loss'"]),
        ("columns: [state]\nsort: {by: n_layer, descend: true}", ["unknown key", "mean 'descending'?"]),
        (
            "columns: [state]\nsort: {by: n_layer, descending: 1}",
            ["2:33: sort.descending is 1; allowed: true"],
        ),
        (f"{GOOD}chart: []", ["unknown key", "did you mean 'charts'?"]),
        (f"{GOOD}charts: 3", ["charts is 3; allowed: a list"]),
        (f"{GOOD}charts: [line]", ["3:10: this is not a chart; allowed: chart: line | scatter | compare"]),
        (f"{GOOD}charts: [{{chart: lines}}]", ["unknown chart 'lines'", "did you mean 'line'?"]),
        (f"{GOOD}charts: [{{chart: line, metric: val_loss}}]", ["charts[0].x is missing"]),
        (f"{GOOD}charts: [{{chart: scatter, x: n_parms, y: n_layer}}]", ['x is "n_parms"', "'n_params'?"]),
        (f"{GOOD}charts: [{{chart: compare, x: n_layer}}]", ["unknown key"]),
        (
            f"{GOOD}charts: [{{chart: line, metric: grad_norm, x: train_tokens}}]",
            ["MLflow has no grad_norm over tokens; allowed: iteration, time"],
        ),
        (f"{GOOD}charts: [{{chart: line, metric: val_loss, x: time, log: [z]}}]", ['log[0] is "z"']),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, said: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        read_view(file)
    (problem,) = refused.value.problems
    assert problem.file == file
    assert all(each in str(problem) for each in said), str(problem)


def test_what_there_is_nothing_to_see_of(tiny, opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    spec = tiny()
    folder, _ = opened(spec)
    write_study(spec, folder, DATA)
    with pytest.raises(BadInput, match="has no runs to look at yet"), browse(folder.lab, spec.name):
        pass
    MLflowTracker(folder.lab, "another").open({})
    never_run = f"has no study '{spec.name}': it has not been run yet"
    with pytest.raises(BadInput, match=never_run), browse(folder.lab, spec.name):
        pass
