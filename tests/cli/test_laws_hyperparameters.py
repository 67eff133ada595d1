"""`sweeplab laws hyperparameters`: what it prints, what it gives to programs, and what it refuses."""

import json
from pathlib import Path

import pytest
from laws.planted_tuning import World, planted


@pytest.mark.slow
def test_a_table_and_a_prediction(cli, folder: Path) -> None:
    table = folder / "runs.csv"
    planted(World(3, 3, searched=1, scatter=0.03), 0).frame.to_csv(table, index=False)
    asked = ("laws", "hyperparameters", table, "--at", "N=3e9,D=1e11,learning_rate=1e-3")
    said = cli(*asked)
    assert (said.code, said.err) == (0, "")
    assert "exponent of params" in said.out and "one learning_rate does not transfer" in said.out
    assert "expected regret of these values" in said.out and "above the tuned loss" in said.out
    found = json.loads(cli(*asked, "--json").out)
    best = found["prediction"]["best"]["learning_rate"]
    assert best["low"] < best["value"] < best["high"] and best["band"][0] < best["value"] < best["band"][1]
    assert found["n_cells"] == len(found["cells"]) == 9


def test_what_is_wrong_is_said_in_a_line(cli, folder: Path) -> None:
    table = folder / "runs.csv"
    planted(World(2, 2, searched=1), 0).frame.to_csv(table, index=False)
    for arguments, message in (
        (("--columns", "learning_rat=lr"), "--columns has no 'learning_rat'"),
        (("--columns", "learning_rate=lrr"), "no column 'lrr'"),
        (("--at", "N=3e9"), "--at lacks tokens, which the law of learning_rate needs"),
        (("--timescale",), "the timescale needs weight_decay"),
    ):
        said = cli("laws", "hyperparameters", table, *arguments)
        assert said.code == 2 and message in said.err and "Traceback" not in said.err
