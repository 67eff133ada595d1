"""The compute-optimal size of a table with several sizes at each of some budgets."""

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


def test_the_best_size_of_each_budget_is_given_with_the_fit(cli, table: Path) -> None:
    said = cli("laws", "fit", table, *COLUMNS, "--tuned", "each", "--count", "params=total")
    assert (said.code, said.err) == (0, "") and "by curves at equal FLOPs" in said.out
    number = json.loads(
        cli("laws", "fit", table, *COLUMNS, "--tuned", "each", "--count", "params=total", "--json").out
    )["isoflop"]["numbers"]
    n_opt = number["N_opt exponent"]
    assert n_opt["low"] < exponent("steep") < n_opt["high"] and n_opt["verdict"] == "identified"
    unknown = json.loads(cli("laws", "fit", table, *COLUMNS, "--json").out)["isoflop"]["numbers"]
    assert {each["verdict"] for each in unknown.values()} == {"weak"}, "the tuning is not known"
