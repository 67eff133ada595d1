"""The commands on real studies: what they print, for people and for programs, and what they leave behind."""

import json
import os
import re
import shlex
import shutil
import subprocess
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from terminal import PROGRAM, play

from sweeplab.study.file.overrides import overrides_of

CELLS = ["n_embd=8", "n_embd=16"]
SETTLED = ("-o", "dtype=float32", "-o", "engine.stack=1")  # what a plan would else time


def test_a_study_ends_with_a_report_and_says_where(finished) -> None:
    assert finished.played.code == 0
    last = finished.played.screen.text.splitlines()[-4:]
    report = finished.lab / "studies" / "tiny" / "report" / "scaling.html"
    assert last[0] == "law    not yet: 2 sizes with finished trials; three or more are needed"
    assert last[1].startswith("check  worse than n-grams (") and last[2].startswith(
        "next   sweeplab run tiny "
    )
    said, where = last[3].split("     ")
    assert said == "open   sweeplab ui tiny" and Path(where).parts[-5:] == report.parts[-5:]
    # The lab's pages share one plotly.js; what MLflow shows has no file beside it.
    (shared,) = (finished.lab / "reports").glob("plotly-*.min.js")
    assert f'src="../../../reports/{shared.name}"' in report.read_text(encoding="utf-8")
    assert report.stat().st_size < 1e6 < shared.stat().st_size
    (kept,) = (finished.lab / "artifacts").rglob("report/scaling.html")
    assert shared.read_text(encoding="utf-8") in kept.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_page_to_send_has_all_it_needs(cli, lab: Path) -> None:
    report = lab / "studies" / "tiny" / "report" / "scaling.html"
    assert cli("report", "tiny", "--single-file", "--lab", str(lab)).code == 0
    assert "<script src" not in report.read_text(encoding="utf-8") and report.stat().st_size > 2e6


@pytest.mark.slow
def test_running_again_adds_nothing_and_a_larger_budget_the_rest(cli, finished, lab: Path) -> None:
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
    values = json.loads(cli("study", "best", "tiny", "--lab", finished.lab, "--json").out)["values"]
    read = values["max_iters"] * values["batch_size"] * values["block_size"]
    loss = f"{shown['cells'][0]['baseline']:.4f} nats/token"
    assert f"n-gram baseline: {loss}, by n-grams, counted in {read:,} tokens" in printed
    rows = [line.split()[:4] for line in printed.splitlines()]
    assert ["n_embd=8", "1,840", "2/2", "2"] in rows
    assert shown["headline"]["state"] == "finished: 4 of 4 trials"
    assert shown["headline"]["best"].startswith(f"val_loss {row['best_value']:#.3g} (one seed)   n_embd=")
    assert printed.startswith(f"tiny   {shown['headline']['state']}\nbest   {shown['headline']['best']}\n")
    assert (row["state"], row["done"], row["planned"]) == ("finished", 4, 4)
    one = json.loads(cli("study", "show", "tiny", "--cell", CELLS[1], "--lab", finished.lab, "--json").out)
    assert one["cells"] == shown["cells"][1:] and one["best"]["key"].startswith(CELLS[1])
    heading, line = cli("study", "list", "--lab", finished.lab).out.splitlines()
    assert heading.split() == ["name", "state", "trials", "goal", "best", "age", "next"]
    assert line.split()[:5] == ["tiny", "finished", "4/4", "lowest", "val_loss"]
    assert line.endswith(row["next"]) and row["next"] == shown["headline"]["next"]
    assert 0 < row["age"] < 24 * 3600


def test_a_study_that_lacks_trials_is_interrupted_in_the_list_and_its_plan_says_what_is_left(
    cli, finished, lab: Path
) -> None:
    assert cli("study", "extend", "tiny", "--trials-per-cell", "5", "--no-run").code == 0
    (row,) = json.loads(cli("list", "--json").out)
    assert (row["state"], row["done"], row["planned"]) == ("interrupted", 4, 10)
    more = ("plan", finished.file, "-o", "budget.trials_per_cell=5")
    planned = json.loads(cli(*more, "--json").out)["outlook"]
    assert planned["done"] == 4 and planned["timed_by"] == "4 earlier runs of this lab"
    assert planned["seconds"] > 0
    printed = cli(*more).out
    assert "done already: 4, 6 to go" in printed and "more, by 4 earlier runs of this lab" in printed
    assert re.search(r"checkpoints and snapshots take up to \S+ \S+ of the \S+ \S+ free on disk", printed)


def test_the_best_in_a_few_lines_and_all_of_it_when_asked(cli, lab: Path) -> None:
    best = json.loads(cli("best", "tiny", "--json").out)
    lines = cli("best", "tiny").out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["val_loss", "choice", "searched"]
    assert "by the lowest value seen: 4 runs are too few" in lines[2]
    assert lines[0].startswith(
        f"val_loss {best['value']:.4f} on the evaluation targets  trial {best['trial']} in {best['cell']}, seed 0"
    )
    assert lines[3].split()[:2] == ["searched", "learning_rate"]
    assert Path(lines[4].split()[1]).is_dir() and Path(best["checkpoint"]).is_relative_to(lab)
    for command in best["commands"].values():
        assert command in "\n".join(lines)
    everything = cli("best", "tiny", "--all").out.splitlines()
    assert everything[: len(lines)] == lines and len(everything) > 80
    generate = shlex.split(best["commands"]["generate"])
    assert cli(*generate[1:], "--max-new-tokens", "2").code == 0
    of_cell = json.loads(cli("best", "tiny", "--cell", "n_embd=8", "--json").out)["commands"]
    rerun, run = of_cell["rerun"].split(" && ")
    assert cli(*shlex.split(rerun)[1:]).code == 0 and cli(*shlex.split(run)[1:], "--dry-run").code == 0


def test_a_trial_shows_its_curve_and_checkpoint_before_what_the_table_says(cli, finished) -> None:
    show = ("show", "tiny", "--trial", "1", "--cell", "n_embd=8", "--lab", finished.lab)
    printed = cli(*show).out
    order = [
        "val_loss over iterations",
        "checkpoint: ",
        "\nlearning_rate",
        "\nn_embd",
        "\nblock_size",
        "more at",
    ]
    assert [printed.index(each) for each in order] == sorted(printed.index(each) for each in order)
    assert "weight_decay" not in printed and "weight_decay" in cli(*show, "--all").out


@pytest.mark.slow
def test_words_of_the_command_line_are_grid_and_search(cli, finished) -> None:
    words = ("--grid", "n_layer=1,2", "--search", "learning_rate=1e-4..1e-2", "--search", "dropout", *SETTLED)
    planned = json.loads(cli("plan", finished.file, *words, "--search", "activation=relu,gelu", "--json").out)
    assert [cell["cell"] for cell in planned["cells"]] == [
        f"n_embd={width},n_layer={depth}" for width in (8, 16) for depth in (1, 2)
    ]
    assert planned["outlook"]["ranges"] == {
        "learning_rate": {"min": 1e-4, "max": 1e-2, "log": True},
        "dropout": {"min": 0.0, "max": 0.4, "step": 0.05},
        "activation": ["relu", "gelu"],
    }


@pytest.mark.slow
def test_a_run_reads_its_words_as_init_does(cli, finished) -> None:
    words = ("--grid=d_model=8|16", "--search=lr=1e-4 to 1e-2, log", "--search=wd, dropout", *SETTLED)
    planned = json.loads(cli("plan", finished.file, *words, "--json").out)
    assert [cell["cell"] for cell in planned["cells"]] == ["n_embd=8", "n_embd=16"]
    assert planned["outlook"]["ranges"]["learning_rate"] == {"min": 1e-4, "max": 1e-2, "log": True}
    assert {"weight_decay", "dropout"} <= planned["outlook"]["ranges"].keys()
    a_plugins = overrides_of("--grid act=mine,gelu")
    assert a_plugins == ["grid.activation=[mine,gelu]"], "checked once its plugin is imported"


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


def test_export_without_a_file_is_a_table_on_standard_output(cli, finished) -> None:
    said = cli("study", "export", "tiny", "--lab", finished.lab)
    table = pd.read_csv(StringIO(said.out))
    assert said.err == "" and list(table["trial"]) == [0, 1, 0, 1]
    rows = json.loads(cli("study", "export", "tiny", "--lab", finished.lab, "--json").out)
    assert [row["value"] for row in rows] == pytest.approx(list(table["value"]))


@pytest.mark.usefixtures("lab")
def test_a_removal_has_one_undo(cli) -> None:
    before = cli("best", "tiny", "--json").out
    removed = json.loads(cli("rm", "tiny", "--yes", "--json").out)
    assert removed["undo"] == ["sweeplab rm tiny --undo"]
    assert cli("show", "tiny").code == 2
    said = cli(*shlex.split(removed["undo"][0])[1:])
    assert said.out == "tiny is back, as it was\nundo: sweeplab rm tiny\n"
    assert cli("best", "tiny", "--json").out == before
    assert len(json.loads(cli("export", "tiny", "--json").out)) == 4, "tracking has it again"
    again = cli("rm", "tiny", "--undo")
    assert again.code == 2 and "the trash has no study 'tiny'" in again.err


@pytest.mark.slow
def test_report_is_written_again(cli, lab: Path) -> None:
    page = lab / "studies" / "tiny" / "report" / "scaling.html"
    before = {path.name for path in page.parent.glob("scaling*")}
    shutil.rmtree(page.parent)
    assert json.loads(cli("report", "tiny", "--json").out) == {
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
    assert min(each["outlook"].pop("free_bytes") for each in (first, second)) > 0  # others write to the disk
    assert second == first | {"name": "other"}
    assert (first["trials"], first["runs"], [cell["cell"] for cell in first["cells"]]) == (4, 4, CELLS)
    assert (first["sampler"]["type"], first["pruner"]["type"]) == ("joint", "none"), (
        "values, with their options"
    )
    printed = cli("study", "plan", finished.file).out
    assert "search learning_rate: {min: 3e-4, max: 1e-2, log: true}" in printed, "as the file writes it"
    assert "ends after 4 trials, 4 runs" in printed
    assert not list(folder.iterdir())


def test_a_plan_without_earlier_runs_says_no_time(cli, finished, folder: Path) -> None:
    said = cli(
        "plan", finished.file, "--lab", folder / "new", "-o", "max_iters=400", "-o", "eval_interval=100"
    )
    assert said.code == 0 and "known once its first trials train" in said.out


def test_schema_is_json(cli) -> None:
    assert json.loads(cli("hyperparameters", "--schema").out)["title"] == "A sweeplab study"


@pytest.mark.slow
@pytest.mark.parametrize("columns", [36, 80])
def test_a_narrow_terminal_cuts_no_heading_and_no_value(finished, columns: int) -> None:
    command = ["study", "plan", str(finished.file), "--lab", str(finished.lab)]
    played = play(command, finished.file.parent, columns=columns, lines=120)  # nothing scrolls away
    table = played.screen.text.partition("\n\n")[2].partition("\n\n")[0]
    table = table.partition("stacks have the fastest")[0]  # a sentence, which the terminal wraps
    words = ["cell", "params", "non-", "embedding", "tokens", "FLOPs", "memory", "stack", "valid", "samples"]
    assert played.code == 0 and "…" not in table
    assert {*words} <= {*table.replace("non-embedding", "non- embedding").split()}
    assert max(map(len, table.splitlines())) <= columns
