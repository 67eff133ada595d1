"""The commands on real studies: what they print, for people and for programs, and what they leave behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from terminal import PROGRAM

CELLS = ["n_embd=8", "n_embd=16"]


def test_a_study_ends_with_a_report_and_says_where(finished) -> None:
    assert finished.played.code == 0
    last = finished.played.screen.text.splitlines()[-3:]
    report = finished.lab / "studies" / "tiny" / "report" / "scaling.html"
    said, where = last[1].split(": ")
    assert last[0] == "tiny: complete; runs: 4 complete"
    assert said == "report" and Path(where).parts[-5:] == report.parts[-5:]
    assert last[2] == "browse: sweeplab ui tiny"
    assert "plotly" in report.read_text(encoding="utf-8")


@pytest.mark.slow
def test_running_again_adds_nothing_and_a_larger_budget_the_rest(cli, finished, folder: Path) -> None:
    lab = shutil.copytree(finished.lab, folder / "lab")
    command = ["study", "run", str(finished.file), "--lab", str(lab), "--json"]
    said = cli(*command)
    assert (said.code, said.err) == (0, "")
    again = json.loads(said.out)
    assert (again["study"], again["status"], again["errors"]) == ("tiny", "complete", [])
    assert again["runs"] == {"complete": 4}
    assert again["best"]["cell"] in CELLS and again["best"]["grad_clip"] is None
    # In a log, even one that is to have colors, a trial is a line.
    more = subprocess.run(
        [*PROGRAM, *command, "-o", "budget.trials_per_cell=3"],
        capture_output=True,
        text=True,
        env={**os.environ, "FORCE_COLOR": "1"},
        check=True,
    )
    assert json.loads(more.stdout)["runs"] == {"complete": 6}
    assert json.loads(more.stdout)["best"]["value"] <= again["best"]["value"]
    first, *ended = more.stderr.splitlines()
    assert first.startswith("tiny: 4 of 6 trials (4 before), 2 cells, 1 worker (")
    assert [line.split("  ")[:3] for line in ended] == [
        ["5/6", "n_embd=8 trial 2", "complete"],
        ["6/6", "n_embd=16 trial 2", "complete"],
    ]


def test_list_and_show(cli, finished) -> None:
    (row,) = json.loads(cli("study", "list", "--lab", finished.lab, "--json").out)
    assert (row["name"], row["trials"], row["states"]) == ("tiny", 4, {"complete": 4})
    shown = json.loads(cli("study", "show", "tiny", "--lab", finished.lab, "--json").out)
    assert [cell["cell"] for cell in shown["cells"]] == CELLS, "in the order of the grid"
    assert all((cell["trials"], cell["complete"], cell["waiting"]) == (2, 2, 0) for cell in shown["cells"])
    assert shown["best"]["value"] == row["best_value"] == min(cell["best_value"] for cell in shown["cells"])
    assert not shown["failures"]
    assert {cell: each["method"] for cell, each in shown["baselines"].items()} == dict.fromkeys(
        CELLS, "n-grams"
    )
    assert all(cell["baseline"] == shown["baselines"][cell["cell"]]["loss"] for cell in shown["cells"])
    printed = cli("study", "show", "tiny", "--lab", finished.lab).out
    assert f"n-gram baseline: {shown['cells'][0]['baseline']:.4f} nats/token, by n-grams, order" in printed
    assert printed.splitlines()[1].split()[:4] == ["n_embd=8", "1,840", "2/2", "2"]
    assert f"val_loss {row['best_value']:.4f} by {shown['best']['key']}" in printed
    assert cli("study", "list", "--lab", finished.lab).out.splitlines()[1].split()[0] == "tiny"


def test_the_environment_says_where_the_lab_is(cli, finished, folder: Path, monkeypatch) -> None:
    assert cli("study", "list").out == f"no studies in {folder / 'lab'}\n"
    assert json.loads(cli("study", "list", "--json").out) == []
    monkeypatch.setenv("SWEEPLAB_LAB", str(finished.lab))
    assert "tiny" in cli("study", "list").out
    assert not (folder / "lab").exists(), "to look is not to make"


@pytest.mark.parametrize(("suffix", "read"), [(".csv", pd.read_csv), (".parquet", pd.read_parquet)])
def test_export_has_a_row_a_run(suffix: str, read, cli, finished, folder: Path) -> None:
    file = folder / f"runs{suffix}"
    said = json.loads(cli("study", "export", "tiny", "--output", file, "--lab", finished.lab, "--json").out)
    assert said == {"output": str(file), "rows": 4}
    table = read(file)
    assert set(table["cell"]) == set(CELLS)
    assert list(table["state"]) == ["complete"] * 4
    assert list(table["trial"]) == [0, 1, 0, 1]
    assert table["learning_rate"].between(3e-4, 1e-2).all() and (table["n_layer"] == 1).all()
    assert (table["best_val_loss"] == table["value"]).all()


def test_report_is_written_again(cli, finished, folder: Path) -> None:
    lab = shutil.copytree(finished.lab, folder / "lab")
    page = lab / "studies" / "tiny" / "report" / "scaling.html"
    before = {path.name for path in page.parent.iterdir()}
    shutil.rmtree(page.parent)
    assert json.loads(cli("report", "scaling", "tiny", "--json").out) == {
        "report": str(page),
        "files": [str(page)],
    }
    assert (
        {path.name for path in page.parent.iterdir()}
        == before
        >= {"scaling.html", "scaling.csv", "scaling.json"}
    )


def test_plan_and_dry_run_say_the_same_and_write_nothing(cli, finished, folder: Path) -> None:
    plan = cli("study", "plan", finished.file, "--json")
    dry_run = cli("study", "run", finished.file, "--dry-run", "--json", "--name", "other")
    first, second = json.loads(plan.out), json.loads(dry_run.out)
    assert second == first | {"name": "other"}
    assert (first["trials"], first["runs"], [cell["cell"] for cell in first["cells"]]) == (4, 4, CELLS)
    printed = cli("study", "plan", finished.file).out
    assert "FloatDistribution(high=0.01, log=True, low=0.0003, step=None)" in printed
    assert "ends after 4 trials, 4 runs" in printed
    assert not list(folder.iterdir())


def test_schema_is_json(cli) -> None:
    assert json.loads(cli("schema").out)["title"] == "A sweeplab study"


def test_tracking_that_does_not_answer_is_said_in_a_line(finished, cli, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # the discard port: nobody listens
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said = cli("report", "scaling", "tiny", "--lab", finished.lab)
    assert said.code == 1
    assert (
        said.err.startswith("error: tracking does not answer: http://127.0.0.1:9")
        and said.err.count("\n") == 1
    )
