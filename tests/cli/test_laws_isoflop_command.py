"""`sweeplab laws isoflop` of a file."""

import json
from pathlib import Path

import numpy as np
import pytest
from laws.planted_budgets import exponent, plant_isoflop

COLUMNS = ("--columns", "params=N,tokens=D,loss=val")


@pytest.fixture
def table(folder: Path) -> Path:
    points = plant_isoflop("steep", 0.003, np.random.default_rng(0))
    rows = np.c_[points.columns["params"], points.columns["tokens"], points.columns["loss"]]
    np.savetxt(folder / "runs.csv", rows, delimiter=",", header="N,D,val", comments="")
    return folder / "runs.csv"


def test_the_best_size(cli, table: Path) -> None:
    said = cli("laws", "isoflop", table, *COLUMNS, "--tuned", "each")
    assert (said.code, said.err) == (0, "")
    (line,) = [each.split() for each in said.out.splitlines() if each.startswith("N_opt exponent ")]
    value, low, high = map(float, line[2:5])
    assert low < exponent("steep") < high and low < value < high and line[5] == "identified"
    unknown = json.loads(cli("laws", "isoflop", table, *COLUMNS, "--json").out)["numbers"]
    assert {each["verdict"] for each in unknown.values()} == {"weak"}, (
        "how the points were tuned is not known"
    )
