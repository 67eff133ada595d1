"""`sweeplab laws predict --seal` and `verify`: sealed before, scored after, and what never counts."""

import json

import numpy as np
import pytest
from law_tables import COLUMNS, write_table

from sweeplab.analysis.ledger import read_ledger

AT = ("--at", "params=2e8,tokens=4e9", "--seal")
TRUE = 1.8 + 480 / 2e8**0.35 + 2085 / 4e9**0.37


@pytest.fixture
def table(folder):
    return write_table(folder / "runs.csv", np.geomspace(1e6, 1e8, 6), (5, 10, 20, 60, 200))


def test_a_table_is_forecast_grows_and_is_scored(cli, json_of, folder, table):
    def verified(*arguments):
        return json_of("laws verify", *arguments)

    said = cli(
        "laws", "predict", table, *COLUMNS, *AT, "--tuned", "each", "--count", "params=total"
    )
    assert (said.code, said.err) == (0, "")
    (entry,) = read_ledger(folder / "lab" / "ledger.jsonl")
    predicted = entry.forecast["predicted"]
    assert predicted["low"] < predicted["loss"] < predicted["high"]
    assert predicted["verdict"]["verdict"] == "identified"
    assert entry.forecast["at"]["flops"] == pytest.approx(6 * 2e8 * 4e9)
    assert entry.sha256 in said.out and f"{predicted['loss']:.4g}" in said.out
    assert verified("--against", table)["forecasts"][0]["why"] == "runs.csv has no row of it"

    head, *rows = table.read_text().splitlines(keepends=True)
    # Where the rows stand, and what other rows have come, does not matter.
    (folder / "later.csv").write_text(
        "".join([head, f"2e8,4e9,{TRUE}\n", "1e9,1e9,3.0\n", *reversed(rows)])
    )
    found = verified("--against", "later.csv")
    (scored,) = found["forecasts"]
    assert (scored["state"], scored["held"]) == ("scored", True)
    assert scored["loss"] == pytest.approx(TRUE)
    assert scored["error"] == pytest.approx(np.log(TRUE / predicted["loss"]))
    assert (found["calibration"]["n"], found["calibration"]["held"]) == (1, 1)
    assert verified()["forecasts"][0]["state"] == "scored", "no file: it is recorded"


def test_a_changed_line_and_a_wrong_name_are_refused(cli, folder, table):
    seal = ("laws", "predict", "runs.csv", *COLUMNS)
    cli(*seal, *AT)
    ledger = folder / "lab" / "ledger.jsonl"
    changed = ledger.read_bytes().replace(b'"tokens":4000000000.0', b'"tokens":4000000001.0', 1)
    verify = ("laws", "verify")
    wrong = cli(*verify, "runs.cvs")
    assert wrong.code == 2 and "did you mean 'runs.csv'" in wrong.err
    ledger.write_bytes(changed)
    for command in (verify, (*seal, "--at", "params=3e8,tokens=4e9", "--seal")):
        said = cli(*command)
        assert (said.code, said.out, said.err.count("\n")) == (
            2,
            "",
            1,
        ) and "line 1 was changed" in said.err


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
def test_small_cells_are_run_large_ones_forecast_run_and_scored(cli, json_of, folder):
    small, whole = folder / "small.yaml", folder / "whole.yaml"
    small.write_text(GROWING)
    whole.write_text(GROWING.replace("[20, 40, 80]", "[20, 40, 80, 160]"))
    assert cli("run", small).code == 0
    seal = ("laws", "predict", "growing", "--law", "power-d", "--seal", "--json")
    (late,) = json.loads(cli(*seal, "--at", "N=1840,D=1280").out)["sealed"]
    assert late["late"].startswith("its run n_embd=8,max_iters=20/0/0 started at ")
    sealed = json.loads(cli(*seal, "--targets", whole).out)["sealed"]
    counted = [each["run"]["cells"] for each in sealed if not each["late"]]
    assert (
        counted == [[f"n_embd={width},max_iters=160"] for width in (8, 12, 16, 24)]
        and len(sealed) == 16
    )
    assert "its run has not started" in cli("laws", "verify", "growing").out
    assert cli("run", whole).code == 0
    found = json_of("laws verify growing")
    scored = [each for each in found["forecasts"] if each["state"] == "scored"]
    assert len(scored) == 4 == found["calibration"]["n"]
    runs = folder / "lab" / "studies" / "growing" / "runs"
    for each in scored:
        (cell,) = each["forecast"]["run"]["cells"]
        (end,) = (runs / cell).glob("*/end.json")
        assert each["loss"] == pytest.approx(
            json.loads(end.read_text())["best_whole_val_loss"], rel=1e-12
        )
        # Tokens span less than a decade: the law identifies no loss, and the interval alone stands.
        assert (
            each["forecast"]["predicted"]["verdict"]["verdict"] == "interval only"
            and each["held"]
        )
    # The same forecasts sealed again, now that the runs have ended, do not count.
    cli(*seal, "--targets", whole)
    again = json_of("laws verify growing")
    assert again["calibration"] == found["calibration"] and len(again["forecasts"]) == 33
