"""The commands on real studies: what they print, for people and for programs, and what they leave behind."""

import json
import os
import shlex
import subprocess
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from terminal import PROGRAM, captured, play

from sweeplab.doctor import examine
from sweeplab.records.folders import StudyFolder

CELLS = ["n_embd=8", "n_embd=16"]


def test_a_study_ends_with_its_first_screen_and_a_report(finished):
    assert finished.played.code == 0
    law, check, following, opening = finished.played.screen.text.splitlines()[-4:]
    assert law.startswith("law    not yet: 2 sizes") and check.startswith(
        "check  worse than n-grams ("
    )
    assert following.startswith("next   sweeplab run tiny ") and opening.startswith(
        "open   sweeplab ui tiny "
    )
    report = finished.lab / "studies" / "tiny" / "report" / "scaling.html"
    assert Path(opening.split()[-1]).parts[-5:] == report.parts[-5:]
    # The lab's pages share one plotly.js.
    (shared,) = (finished.lab / "reports").glob("plotly-*.min.js")
    assert f'src="../../../reports/{shared.name}"' in report.read_text(encoding="utf-8")


@pytest.mark.slow
def test_running_again_adds_nothing_and_a_larger_budget_the_rest(json_of, finished, lab):
    again = json_of("run", finished.file)
    assert (again["study"], again["status"], again["errors"]) == ("tiny", "complete", [])
    assert again["runs"] == {"complete": 4} and again["best"]["cell"] in CELLS
    # In a log, even one that is to have colors, a trial is a line.
    command = [*PROGRAM, "run", finished.file, "--json", "-o", "budget.trials_per_cell=3"]
    settings = {**os.environ, "FORCE_COLOR": "1"}
    more = captured(command, env=settings, check=True)
    assert json.loads(more.stdout)["runs"] == {"complete": 6}
    first, *ended = more.stderr.splitlines()
    assert first.startswith("tiny: 4 of 6 trials, 2 cells, 1 worker (")
    expected = [
        [f"{5 + at}/6", f"{cell} trial 2", "complete"]
        for at, cell in enumerate(reversed(CELLS))
    ]
    assert [line.split("  ")[:3] for line in ended] == expected


def test_list_and_show(cli, json_of, finished):
    lab = ("--lab", finished.lab)
    (row,), shown = json_of("list", *lab), json_of("show tiny", *lab)
    assert (row["name"], row["states"], row["state"]) == ("tiny", {"complete": 4}, "finished")
    assert [cell["cell"] for cell in shown["cells"]] == CELLS, "in the order of the grid"
    assert all(
        (cell["trials"], cell["complete"], cell["waiting"]) == (2, 2, 0)
        for cell in shown["cells"]
    )
    assert (
        shown["best"]["value"]
        == row["best_value"]
        == min(cell["best_value"] for cell in shown["cells"])
    )
    one = json_of(f"show tiny --cell {CELLS[1]}", *lab)
    assert one["cells"] == shown["cells"][1:] and one["best"]["key"].startswith(CELLS[1])
    first, printed = shown["headline"], cli("show", "tiny", *lab).out
    assert printed.startswith(f"tiny   {first['state']}\nbest   {first['best']}\n")
    assert ["n_embd=8", "1,840", "2/2", "2"] in [
        line.split()[:4] for line in printed.splitlines()
    ]
    heading, line = cli("list", *lab).out.splitlines()
    assert heading.split() == ["name", "state", "trials", "goal", "best", "age", "next"]
    assert line.split()[:5] == ["tiny", "finished", "4/4", "lowest", "val_loss"]
    assert line.endswith(first["next"]) and row["next"] == first["next"]


def test_the_best_in_a_few_lines_with_commands_that_run(cli, json_of, lab):
    best, said = json_of("best tiny"), cli("best", "tiny").out
    assert said.count("\n") < 12 and said.startswith(f"val_loss {best['value']:.4f} ")
    assert f"trial {best['trial']} in {best['cell']}, seed 0" in said
    assert Path(best["checkpoint"]).is_relative_to(lab) and best["checkpoint"] in said
    assert all(command in said for command in best["commands"].values())
    assert (
        cli(*shlex.split(best["commands"]["generate"])[1:], "--max-new-tokens", "2").code == 0
    )
    of_cell = json_of("best tiny --cell n_embd=8")
    rerun, run = of_cell["commands"]["rerun"].split(" && ")
    assert of_cell["cell"] == "n_embd=8" and cli(*shlex.split(rerun)[1:]).code == 0
    assert cli(*shlex.split(run)[1:], "--dry-run").code == 0


def test_the_environment_says_where_the_lab_is(cli, finished, folder, monkeypatch):
    assert cli("list").out == f"no studies in {folder / 'lab'}\n"
    monkeypatch.setenv("SWEEPLAB_LAB", str(finished.lab))
    assert "tiny" in cli("list").out
    assert not (folder / "lab").exists(), "to look is not to make"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ""])
def test_export_has_a_row_a_run(suffix, cli, json_of, finished, folder):
    file, lab = folder / f"runs{suffix}", ("--lab", finished.lab)
    if suffix:
        said = json_of("export tiny --output", file, *lab)
        assert said == {"output": str(file), "rows": 4}
        table = pd.read_csv(file) if suffix == ".csv" else pd.read_parquet(file)
    else:
        table = pd.read_csv(StringIO(cli("export", "tiny", *lab).out))
    assert {*table["cell"]} == {*CELLS} and [*table["trial"]] == [0, 1, 0, 1]
    assert {*table["state"]} == {"complete"} and (
        table["best_val_loss"] == table["value"]
    ).all()
    assert table["learning_rate"].between(3e-4, 1e-2).all() and (table["n_layer"] == 1).all()


def test_a_removal_is_undone_by_the_commands_that_it_says(cli, json_of, lab):
    before = json_of("best tiny")
    removed = json_of("rm tiny --yes")
    assert cli("show", "tiny").code == 2
    move, repair = removed["undo"]
    subprocess.run(shlex.split(move), check=True)
    assert cli(*shlex.split(repair)[1:]).code == 0
    assert json_of("best tiny") == before
    checks = {each.name: each.verdict for each in examine(lab, StudyFolder(lab, "tiny"))}
    assert checks["agreement"] == "ok"


def test_plan_and_dry_run_say_the_same_and_write_nothing(cli, json_of, finished, folder):
    first = json_of("plan", finished.file)
    second = json_of("run --dry-run --name other", finished.file)
    for each in (first, second):
        assert each["outlook"].pop("free_bytes") > 0  # others write to the disk
    assert second == first | {"name": "other"}
    assert (first["trials"], first["runs"], [cell["cell"] for cell in first["cells"]]) == (
        4,
        4,
        CELLS,
    )
    assert (first["sampler"]["type"], first["pruner"]["type"]) == ("joint", "none")
    assert "learning_rate: {min: 3e-4, max: 1e-2, log: true}" in cli("plan", finished.file).out
    assert not [*folder.iterdir()]


def test_a_sentence_is_wrapped_between_words_on_a_terminal_alone(cli, finished):
    words = ["show", "tiny", "--lab", str(finished.lab)]
    (line,) = [each for each in cli(*words).out.splitlines() if each.startswith("to change: ")]
    rows = play(words, finished.lab, columns=60).screen.rows
    first = next(at for at, row in enumerate(rows) if row.startswith("to change: "))
    assert len(line) > 60 >= max(len(row.rstrip()) for row in rows[first:])
    assert " ".join(row.strip() for row in rows[first:]).startswith(line)
