"""`sweeplab laws forecast`, `verify` and `ledger`: sealed before, scored after, and what is refused."""

import json
import math
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from law_tables import COLUMNS, write_table

from sweeplab.analysis.ledger import append, read_chain
from sweeplab.analysis.scoring import score
from sweeplab.analysis.sealing import rows_at, started_runs
from sweeplab.analysis.studies import Counting, read_studies
from sweeplab.errors import BadInput
from sweeplab.laws.columns import Conventions
from sweeplab.records.folders import StudyFolder

SMALL = ("--params", "2e8", "--tokens", "4e9")


@pytest.fixture
def table(folder: Path) -> Path:
    return write_table(folder / "runs.csv", np.geomspace(1e6, 1e8, 6), (5, 10, 20, 60, 200))


def near_tiny(folder: Path) -> Path:
    """Return a table of runs as small as those of the finished study."""
    n = np.repeat(np.geomspace(200, 20_000, 5), 4)
    d = np.tile(np.geomspace(300, 30_000, 4), 5)
    loss = (3 + 20 / n**0.5 + 40 / d**0.6) * np.exp(np.random.default_rng(3).normal(0, 0.003, 20))
    path = folder / "near.csv"
    path.write_text(
        "params,tokens,loss\n" + "".join(f"{a},{b},{c}\n" for a, b, c in zip(n, d, loss, strict=True))
    )
    return path


def test_a_table_is_forecast_grows_and_is_scored(cli, folder: Path, table: Path) -> None:
    said = cli("laws", "forecast", table, *COLUMNS, *SMALL, "--tuned", "each")
    assert (said.code, said.err) == (0, "")
    assert "sealed in" in said.out and "runs.csv" in said.out.splitlines()[1]
    (entry,) = read_chain(folder / "lab" / "ledger.jsonl").entries
    predicted = entry.forecast["predicted"]
    assert predicted["low"] < predicted["loss"] < predicted["high"]
    assert predicted["verdict"]["verdict"] == "identified"
    assert entry.forecast["beyond"]["params"] == pytest.approx(2.0)
    assert entry.forecast["at"]["flops"] == pytest.approx(6 * 2e8 * 4e9)
    assert entry.sha256 in said.out

    waiting = cli("laws", "verify")
    assert waiting.code == 0 and "1 open: laws verify --against FILE scores it" in waiting.out
    same = cli("laws", "verify", "--against", table)
    assert f"1 open: {table} has no row of it" in same.out

    true = 1.8 + 480 / 2e8**0.35 + 2085 / 4e9**0.37
    lines = table.read_text().splitlines(keepends=True)
    # Where the rows stand, and what other rows have come, does not matter.
    later = folder / "later.csv"
    later.write_text("".join([lines[0], f"2e8,4e9,{true}\n", "1e9,1e9,3.0\n", *reversed(lines[1:])]))
    found = json.loads(cli("laws", "verify", "--against", later, "--json").out)
    (scored,) = found["forecasts"]
    assert (scored["state"], scored["score"]["covered"]) == ("scored", True)
    assert scored["score"]["outcome"] == pytest.approx(true)
    assert scored["score"]["error_nats"] == pytest.approx(true - predicted["loss"])
    crps = scored["score"]["crps"]
    assert crps["law"] < min(crps["last point"], crps["log-linear line"])
    assert found["calibration"]["n"] == 1 and len(found["calibration"]["pit"]) == 1
    shown = cli("laws", "verify", "--against", later, *COLUMNS)
    assert "inside the interval: " in shown.out and "1 of 1 at 90%" in shown.out

    changed = later.read_text().replace(lines[3], lines[3].replace(",", ",1", 1))
    later.write_text(changed)
    refused = cli("laws", "verify", "--against", later)
    assert "now it would be refused: only 29 of the 30 rows it was made from are unchanged in" in refused.out
    listed = cli("laws", "ledger")
    assert listed.code == 0 and "scored" in listed.out and "chinchilla" in listed.out


def test_many_points_of_a_file_are_sealed_at_once(cli, folder: Path, table: Path) -> None:
    known = table.read_text().splitlines()[7].split(",")
    targets = folder / "targets.tsv"
    targets.write_text(
        f"params_M\ttokens (B)\n200\t4\n400\t8\n{float(known[0]) / 1e6!r}\t{float(known[1]) / 1e9!r}\n"
    )
    found = json.loads(cli("laws", "forecast", table, *COLUMNS, "--targets", targets, "--json").out)
    assert [each["at"]["params"] for each in found["sealed"]] == [2e8, 4e8]
    (left,) = found["left_out"].values()
    assert "has its loss already" in left
    assert len(read_chain(folder / "lab" / "ledger.jsonl").entries) == 2
    targets.write_text("params\ttokens\n2e8\t4e9\n-1\t8e9\n")
    said = cli("laws", "forecast", table, *COLUMNS, "--targets", targets)
    assert said.code == 2 and "column 'params' (params): '-1.0' in line 3 is not positive" in said.err
    targets.write_text("size\n1\n")
    said = cli("laws", "forecast", table, *COLUMNS, "--targets", targets)
    assert "targets.tsv: no column is params, tokens or flops; allowed: size" in said.err


def test_a_file_is_scored_by_the_rows_that_it_was_fitted_to(cli, folder: Path, table: Path) -> None:
    lines = table.read_text().splitlines()
    marked = folder / "marked.csv"
    rows = [f"{line},{k % 3}" for k, line in enumerate(lines[1:])]
    marked.write_text("\n".join(["N,D,val_loss,source", *rows]))
    cli("laws", "forecast", marked, "--where", "source < 2", *SMALL)
    true = 1.8 + 480 / 2e8**0.35 + 2085 / 4e9**0.37
    marked.write_text("\n".join(["N,D,val_loss,source", *rows[:-1], f"2e8,4e9,{true},0"]))
    for named in ((), ("--columns", "params=N,tokens=D,loss=val_loss")):
        (scored,) = json.loads(cli("laws", "verify", "--against", marked, *named, "--json").out)["forecasts"]
        assert scored["state"] == "scored", scored["why"]


def verified(cli, *arguments) -> dict:
    (outcome,) = json.loads(cli("laws", "verify", *arguments, "--json").out)["forecasts"]
    return outcome


def test_the_first_score_counts_and_others_are_attempts(cli, folder: Path, table: Path) -> None:
    cli("laws", "forecast", table, *COLUMNS, *SMALL)
    rows = table.read_text()
    table.write_text(rows + "2e8,4e9,9.9\n")  # far outside of the interval
    missed = verified(cli, "--against", table)
    assert (missed["state"], missed["score"]["covered"], missed["attempts"]) == ("scored", False, 1)
    assert verified(cli, "--against", table)["attempts"] == 1, "the same rows again are no attempt"
    true = 1.8 + 480 / 2e8**0.35 + 2085 / 4e9**0.37
    table.write_text(rows + f"2e8,4e9,{true}\n")
    again = verified(cli, "--against", table)
    assert again["score"] == missed["score"] and again["attempts"] == 2
    assert f"2 attempts: later ones, of other rows, gave {true:.4g}; the first counts" in again["why"]
    assert verified(cli)["score"] == missed["score"], "no file: what is recorded counts"
    table.unlink()
    listed = json.loads(cli("laws", "ledger", "--json").out)
    assert listed["forecasts"][0]["score"] == missed["score"] and listed["n_forecasts"] == 1


def test_the_best_of_several_rows_is_said(cli, folder: Path, table: Path) -> None:
    cli("laws", "forecast", table, *COLUMNS, *SMALL)
    lines = table.read_text().splitlines()
    rates = "".join(f"2e8,4e9,{loss},{rate}\n" for loss, rate in ((2.9, 1e-3), (2.5, 2e-3), (3.1, 4e-3)))
    table.write_text("N,D,val,learning_rate\n" + "".join(f"{line},1e-3\n" for line in lines[1:]) + rates)
    assert "the best of 3 rows" in verified(cli, "--against", table)["why"]


def test_a_row_that_is_there_is_not_forecast(cli, folder: Path, table: Path) -> None:
    n, d, _ = table.read_text().splitlines()[7].split(",")
    said = cli("laws", "forecast", table, *COLUMNS, "--params", n, "--tokens", float(d) * (1 + 1e-7))
    assert (said.code, said.out) == (2, "")
    assert "runs.csv has its loss already, " in said.err and len(said.err.splitlines()) == 1
    assert not (folder / "lab").exists()
    assert (
        cli("laws", "forecast", table, *COLUMNS, "--params", n, "--tokens", float(d) * (1 + 1e-5)).code == 0
    )


def test_a_forecast_made_after_by_other_means_is_refused(cli, folder: Path, table: Path) -> None:
    """One whose own row was in the table that it was made from."""
    cli("laws", "forecast", table, *COLUMNS, *SMALL)
    path = folder / "lab" / "ledger.jsonl"
    forecast = read_chain(path).entries[0].forecast
    n, d, _ = table.read_text().splitlines()[7].split(",")
    append(path, [forecast | {"at": {"params": float(n), "tokens": float(d)}}])
    said = cli("laws", "verify", "--against", table)
    assert said.code == 0
    assert "2 refused: made after: its row was in the table when it was sealed" in said.out


@pytest.mark.slow
def test_what_is_not_identified_is_sealed_with_its_verdict(cli, folder: Path) -> None:
    ray = write_table(folder / "ray.csv", np.geomspace(1e6, 1e9, 12), (20,))
    forecast = ("laws", "forecast", ray, *COLUMNS, "--law", "chinchilla")
    said = cli(*forecast, "--params", "2e9", "--tokens", "4e10")
    assert (
        said.code == 0 and "warning: params 2e+09, tokens 4e+10: no law; interval only: all rows" in said.out
    )
    (entry,) = read_chain(folder / "lab" / "ledger.jsonl").entries
    verdict = entry.forecast["predicted"]["verdict"]
    assert verdict["verdict"] == "interval only" and "near one ray" in verdict["reason"]
    assert entry.forecast["fit"]["verdicts"]["alpha"] == "not identified"
    predicted = entry.forecast["predicted"]
    assert (
        predicted["low"] < predicted["loss"] < predicted["high"] and entry.forecast["fit"]["parameters"] == {}
    )
    later = folder / "later.csv"
    later.write_text(ray.read_text() + "2e9,4e10,2.3\n")
    scored = json.loads(cli("laws", "verify", "--against", later, "--json").out)["forecasts"][0]["score"]
    assert (
        scored["error_log"] == pytest.approx(math.log(2.3 / predicted["loss"])) and scored["crps"]["law"] > 0
    )
    assert score(predicted | {"loss": None}, {}, 2.3).error_log is None, "as older forecasts were sealed"
    assert cli("laws", "verify", "--against", later).code == 0 and cli("laws", "ledger").code == 0


def test_bad_input_of_verify_and_ledger(cli, folder: Path, table: Path) -> None:
    cli("laws", "forecast", "runs.csv", *COLUMNS, *SMALL, "--ledger", "other.jsonl")
    assert not (folder / "lab").exists()
    wrong = cli("laws", "verify", "runs.cvs", "--ledger", "other.jsonl")
    assert wrong.code == 2 and "did you mean 'runs.csv'" in wrong.err
    assert "for the table of --against" in cli("laws", "verify", *COLUMNS, "--ledger", "other.jsonl").err
    ledger = folder / "other.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"tokens":4000000000.0', b'"tokens":4000000001.0', 1))
    for command in (
        ["verify"],
        ["ledger"],
        ["forecast", table, *COLUMNS, "--params", "3e8", "--tokens", "4e9"],
    ):
        said = cli("laws", *command, "--ledger", ledger)
        assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)
        assert "line 1 was changed: its sha256 is not that of its content" in said.err


@pytest.mark.slow
def test_the_cells_of_a_study_are_forecast_and_scored(cli, folder: Path, finished) -> None:
    """Sealed before the study has been run in another lab; its runs' times are then moved behind it."""
    near = near_tiny(folder)
    near.write_text(near.read_text().replace("params,tokens", "size,seen"))  # the study's runs have neither
    columns = ("--columns", "params=size,tokens=seen,loss=loss")
    said = cli("laws", "forecast", near, *columns, "--study", finished.file)
    assert (said.code, said.err) == (0, "")
    entries = read_chain(folder / "lab" / "ledger.jsonl").entries
    assert [entry.forecast["run"]["cells"] for entry in entries] == [["n_embd=8"], ["n_embd=16"]]
    assert entries[0].forecast["at"] == {
        "params": 1840,
        "tokens": 1280,
        "flops": pytest.approx(15e6, rel=0.5),
    }
    assert "no study tiny has been run" in cli("laws", "verify").out
    run = entries[0].forecast["run"]
    of_a_trial = [
        entries[0].forecast | {"run": run | {"counting": run["counting"] | {"where": f"trial == {trial}"}}}
        for trial in (0, 1)
    ]
    append(folder / "narrow.jsonl", of_a_trial)

    ledger, lab = folder / "lab" / "ledger.jsonl", folder / "moved"
    shutil.copytree(finished.lab, lab)
    after = cli("laws", "verify", "tiny", "--ledger", ledger, "--lab", lab)
    assert after.out.count("refused: made after: it was sealed at ") == 2
    assert "its run n_embd=8/" in after.out and "and ended (complete) at " in after.out
    for file in (lab / "studies" / "tiny" / "runs").glob("*/*/run.json"):
        run = json.loads(file.read_text())
        file.write_text(json.dumps(run | {"started": time.time() + 60}))
    found = json.loads(cli("laws", "verify", "tiny", "--ledger", ledger, "--lab", lab, "--json").out)
    assert [each["state"] for each in found["forecasts"]] == ["scored", "scored"]
    shown = json.loads(cli("study", "show", "tiny", "--lab", lab, "--json").out)
    runs = lab / "studies" / "tiny" / "runs"
    best = [
        min(
            json.loads(end.read_text())["best_whole_val_loss"]
            for end in (runs / cell["cell"]).glob("*/end.json")
        )
        for cell in shown["cells"]
    ]
    assert [each["score"]["outcome"] for each in found["forecasts"]] == pytest.approx(best)
    narrow = cli("laws", "verify", "--ledger", folder / "narrow.jsonl", "--lab", lab, "--json")
    own = [json.loads((runs / "n_embd=8" / f"{trial}-0" / "end.json").read_text()) for trial in (0, 1)]
    assert [each["score"]["outcome"] for each in json.loads(narrow.out)["forecasts"]] == pytest.approx(
        [each["best_whole_val_loss"] for each in own]
    )

    known = cli("laws", "forecast", near, *columns, "--study", finished.file, "--lab", lab)
    assert (known.code, known.out) == (2, "")
    renamed = folder / "renamed.yaml"
    renamed.write_text(finished.file.read_text().replace("name: tiny", "name: other"))
    same = cli("laws", "forecast", near, *columns, "--study", renamed, "--lab", lab)
    assert same.code == 2 and "its run tiny/n_embd=8/" in same.err, "the same runs under another name"
    for file in runs.glob("*/*/end.json"):  # as a better trial would, after `extend`
        end = json.loads(file.read_text())
        file.write_text(json.dumps(end | {"best_whole_val_loss": 0.9 * end["best_whole_val_loss"]}))
    better = json.loads(cli("laws", "verify", "tiny", "--ledger", ledger, "--lab", lab, "--json").out)
    assert [each["score"] for each in better["forecasts"]] == [each["score"] for each in found["forecasts"]]
    assert [each["attempts"] for each in better["forecasts"]] == [2, 2], "what came later is an attempt"
    assert len(known.err.splitlines()) == 2 and "a forecast must be made before its run starts" in known.err
    study = lab / "studies" / "tiny" / "study.json"
    study.write_text(study.read_text().replace('"batch_size": 4', '"batch_size": 5'))
    other = cli("laws", "verify", "--ledger", ledger, "--lab", lab)
    assert other.out.count("; the first counts") == 2, "another study of the name does not reopen them"


# Every way of either in one pair; the whole product is slow.
@pytest.mark.parametrize(
    ("params", "flops", "columns"),
    [
        pytest.param(params, *way, marks=() if (at + other) % 3 == 0 else pytest.mark.slow)
        for at, params in enumerate(("total", "active", "non-embedding", "with-head"))
        for other, way in enumerate((("counted", {}), ("6nd", {}), ("", {"tokens": "iterations*64"})))
    ],
)
def test_a_run_to_come_is_counted_as_the_points_are(params: str, flops: str, columns, finished) -> None:
    counting = Counting(Conventions(params=params, flops=flops), columns)
    studies = read_studies(finished.lab, ["tiny"])
    points = studies.points(columns, counting.conventions)
    if columns:  # what is known only of a run that has ended
        with pytest.raises(BadInput, match="a run to come: no column 'iterations'"):
            started_runs(StudyFolder(finished.lab, "tiny"), counting)
        return
    runs = started_runs(StudyFolder(finished.lab, "tiny"), counting)
    assert len(runs) == 4 and [run.state for run in runs] == ["complete"] * 4
    for run in runs:
        (row,) = rows_at(points, run.at)
        assert {role: points.columns[role][row] for role in run.at} == pytest.approx(run.at)


GROWING = """\
name: growing
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, n_layer: 1, n_head: 2, warmup_iters: 2, learning_rate: 3e-3,
        dropout: 0.0, eval_interval: 500, eval_iters: 20, device: cpu}
grid: {n_embd: [8, 12, 16, 24], max_iters: [20, 40, 80]}
budget: {trials_per_cell: 1}
engine: {workers: 1}
"""


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_small_cells_are_run_large_ones_forecast_run_and_scored(cli, folder: Path) -> None:
    small, whole = folder / "small.yaml", folder / "whole.yaml"
    small.write_text(GROWING)
    whole.write_text(GROWING.replace("[20, 40, 80]", "[20, 40, 80, 160]"))
    assert cli("study", "run", small).code == 0
    one = cli("laws", "forecast", "growing", "--law", "power-d", "--params", "1840", "--tokens", "1280")
    assert one.code == 2 and "its run n_embd=8,max_iters=20/0/0 started at " in one.err
    said = cli("laws", "forecast", "growing", "--law", "power-d", "--study", whole, "--json")
    assert (said.code, said.err) == (0, "")
    sealed = json.loads(said.out)
    assert [each["run"]["cells"] for each in sealed["sealed"]] == [
        [f"n_embd={width},max_iters=160"] for width in (8, 12, 16, 24)
    ]
    assert len(sealed["left_out"]) == 12
    assert all("and ended (complete) at" in why for why in sealed["left_out"].values())
    assert "its run has not started" in cli("laws", "verify", "growing").out
    assert cli("study", "run", whole).code == 0
    found = json.loads(cli("laws", "verify", "growing", "--json").out)
    assert [each["state"] for each in found["forecasts"]] == ["scored"] * 4
    runs = folder / "lab" / "studies" / "growing" / "runs"
    for each in found["forecasts"]:
        (cell,) = each["forecast"]["run"]["cells"]
        (end,) = (runs / cell).glob("*/end.json")
        ended = json.loads(end.read_text())
        assert each["score"]["outcome"] == pytest.approx(ended["best_whole_val_loss"], rel=1e-12)
        # Tokens span less than a decade: the law identifies no loss, and the interval alone stands.
        assert each["forecast"]["predicted"]["verdict"]["verdict"] == "interval only"
        assert each["score"]["error_log"] is not None and each["score"]["covered"]
    assert found["calibration"]["n"] == 4
    # The same forecast sealed again, now that the runs have ended: the chain is whole, the time is not before.
    path = folder / "lab" / "ledger.jsonl"
    append(path, [read_chain(path).entries[0].forecast])
    late = cli("laws", "verify", "growing")
    assert late.code == 0 and "9 refused: made after: it was sealed at " in late.out
