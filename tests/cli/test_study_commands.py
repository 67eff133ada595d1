"""The commands on real studies: what they print, for people and for programs, and what they leave behind."""

import json
import os
import shlex
import subprocess
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from terminal import PROGRAM

CELLS = ["n_embd=8", "n_embd=16"]


def test_a_study_ends_with_its_first_screen_and_a_report_that_mlflow_keeps(finished) -> None:
    assert finished.played.code == 0
    law, check, following, opening = finished.played.screen.text.splitlines()[-4:]
    report = finished.lab / "studies" / "tiny" / "report" / "scaling.html"
    assert law == "law    not yet: 2 sizes with finished trials; three or more are needed"
    assert check.startswith("check  worse than n-grams (") and following.startswith(
        "next   sweeplab run tiny "
    )
    said, where = opening.split("     ")
    assert said == "open   sweeplab ui tiny" and Path(where).parts[-5:] == report.parts[-5:]
    # The lab's pages share one plotly.js; what MLflow shows has no file beside it.
    (shared,) = (finished.lab / "reports").glob("plotly-*.min.js")
    assert f'src="../../../reports/{shared.name}"' in report.read_text(encoding="utf-8")
    (kept,) = (finished.lab / "artifacts").rglob("report/scaling.html")
    assert shared.read_text(encoding="utf-8") in kept.read_text(encoding="utf-8")


@pytest.mark.slow
def test_running_again_adds_nothing_and_a_larger_budget_the_rest(cli, finished, lab: Path) -> None:
    command = ["study", "run", str(finished.file), "--lab", str(lab), "--json"]
    said = cli(*command)
    assert (said.code, said.err) == (0, "")
    again = json.loads(said.out)
    assert (again["study"], again["status"], again["errors"]) == ("tiny", "complete", [])
    assert again["runs"] == {"complete": 4} and again["best"]["cell"] in CELLS
    # In a log, even one that is to have colors, a trial is a line.
    more = subprocess.run(
        [*PROGRAM, *command, "-o", "budget.trials_per_cell=3"],
        capture_output=True,
        text=True,
        env={**os.environ, "FORCE_COLOR": "1"},
        check=True,
    )
    assert json.loads(more.stdout)["runs"] == {"complete": 6}
    first, *ended = more.stderr.splitlines()
    assert first.startswith("tiny: 4 of 6 trials (4 before), 2 cells, 1 worker (")
    assert [line.split("  ")[:3] for line in ended] == [
        ["5/6", "n_embd=8 trial 2", "complete"],
        ["6/6", "n_embd=16 trial 2", "complete"],
    ]


def test_list_and_show(cli, finished) -> None:
    lab = ("--lab", finished.lab)
    (row,) = json.loads(cli("list", *lab, "--json").out)
    shown = json.loads(cli("show", "tiny", *lab, "--json").out)
    assert (row["name"], row["states"], row["state"]) == ("tiny", {"complete": 4}, "finished")
    assert [cell["cell"] for cell in shown["cells"]] == CELLS, "in the order of the grid"
    assert all((cell["trials"], cell["complete"], cell["waiting"]) == (2, 2, 0) for cell in shown["cells"])
    assert shown["best"]["value"] == row["best_value"] == min(cell["best_value"] for cell in shown["cells"])
    printed = cli("show", "tiny", *lab).out
    values = json.loads(cli("best", "tiny", *lab, "--json").out)["values"]
    read = values["max_iters"] * values["batch_size"] * values["block_size"]
    loss = f"{shown['baselines'][CELLS[0]]['loss']:.4f} nats/token"
    assert f"n-gram baseline: {loss}, by n-grams, counted in {read:,} tokens" in printed
    assert ["n_embd=8", "1,840", "2/2", "2"] in [line.split()[:4] for line in printed.splitlines()]
    first = shown["headline"]
    assert printed.startswith(f"tiny   {first['state']}\nbest   {first['best']}\n")
    one = json.loads(cli("show", "tiny", "--cell", CELLS[1], *lab, "--json").out)
    assert one["cells"] == shown["cells"][1:] and one["best"]["key"].startswith(CELLS[1])
    heading, line = cli("list", *lab).out.splitlines()
    assert heading.split() == ["name", "state", "trials", "goal", "best", "age", "next"]
    assert line.split()[:5] == ["tiny", "finished", "4/4", "lowest", "val_loss"]
    assert line.endswith(first["next"]) and row["next"] == first["next"]


def test_the_best_in_a_few_lines_and_all_of_it_when_asked(cli, lab: Path) -> None:
    best = json.loads(cli("best", "tiny", "--json").out)
    said = cli("best", "tiny").out
    lines = said.splitlines()
    assert len(lines) < 12 and lines[0].startswith(
        f"val_loss {best['value']:.4f} on the evaluation targets  trial {best['trial']} in {best['cell']}, seed 0"
    )
    assert "by the lowest value seen: 4 runs are too few" in said and "  searched    learning_rate " in said
    assert Path(best["checkpoint"]).is_relative_to(lab) and best["checkpoint"] in said
    assert all(command in said for command in best["commands"].values())
    assert cli(*shlex.split(best["commands"]["generate"])[1:], "--max-new-tokens", "2").code == 0
    of_cell = json.loads(cli("best", "tiny", "--cell", "n_embd=8", "--json").out)
    assert of_cell["cell"] == "n_embd=8"
    rerun, run = of_cell["commands"]["rerun"].split(" && ")
    assert cli(*shlex.split(rerun)[1:]).code == 0 and cli(*shlex.split(run)[1:], "--dry-run").code == 0


def test_the_environment_says_where_the_lab_is(cli, finished, folder: Path, monkeypatch) -> None:
    assert cli("list").out == f"no studies in {folder / 'lab'}\n"
    monkeypatch.setenv("SWEEPLAB_LAB", str(finished.lab))
    assert "tiny" in cli("list").out
    assert not (folder / "lab").exists(), "to look is not to make"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ""])
def test_export_has_a_row_a_run(suffix: str, cli, finished, folder: Path) -> None:
    file, export = folder / f"runs{suffix}", ("export", "tiny", "--lab", finished.lab)
    if suffix:
        said = json.loads(cli(*export, "--output", file, "--json").out)
        assert said == {"output": str(file), "rows": 4}
    if suffix == ".parquet":
        table = pd.read_parquet(file)
    else:
        table = pd.read_csv(file if suffix else StringIO(cli(*export).out))
    assert set(table["cell"]) == set(CELLS) and list(table["trial"]) == [0, 1, 0, 1]
    assert list(table["state"]) == ["complete"] * 4
    assert table["learning_rate"].between(3e-4, 1e-2).all() and (table["n_layer"] == 1).all()
    assert (table["best_val_loss"] == table["value"]).all()


@pytest.mark.usefixtures("lab")
def test_a_removal_has_one_undo(cli) -> None:
    before = cli("best", "tiny", "--json").out
    removed = json.loads(cli("rm", "tiny", "--yes", "--json").out)
    assert removed["undo"] == ["sweeplab rm tiny --undo"]
    assert cli("show", "tiny").code == 2
    assert cli(*shlex.split(removed["undo"][0])[1:]).code == 0
    assert cli("best", "tiny", "--json").out == before
    again = cli("rm", "tiny", "--undo")
    assert again.code == 2 and "the trash has no study 'tiny'" in again.err


def test_plan_and_dry_run_say_the_same_and_write_nothing(cli, finished, folder: Path) -> None:
    plan = cli("plan", finished.file, "--json")
    dry_run = cli("run", finished.file, "--dry-run", "--json", "--name", "other")
    first, second = json.loads(plan.out), json.loads(dry_run.out)
    for each in (first, second):
        assert each["outlook"].pop("free_bytes") > 0  # others write to the disk
    assert second == first | {"name": "other"}
    assert (first["trials"], first["runs"], [cell["cell"] for cell in first["cells"]]) == (4, 4, CELLS)
    assert (first["sampler"]["type"], first["pruner"]["type"]) == ("joint", "none")
    printed = cli("plan", finished.file).out
    assert "search learning_rate: {min: 3e-4, max: 1e-2, log: true}" in printed, "as the file writes it"
    assert "ends after 4 trials, 4 runs" in printed
    assert not list(folder.iterdir())
