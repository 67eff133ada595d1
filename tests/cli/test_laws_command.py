"""`sweeplab laws`: what it prints, what it gives to programs, and what it refuses in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from law_tables import COLUMNS, write_table
from laws.planted_tuning import World, planted


@pytest.fixture
def good(folder: Path) -> Path:
    return write_table(folder / "good.csv", np.geomspace(1e6, 1e8, 6), (2, 6, 20, 60, 200))


def test_a_good_table(cli, good: Path) -> None:
    said = cli("laws", "fit", good, *COLUMNS, "--tuned", "each", "--count", "params=total")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith("quantity ") and lines[1].startswith("E "), "the answer comes first"
    assert "\nchinchilla: L = E + A/N^alpha + B/D^beta, 30 rows\n" in said.out and len(lines) < 20
    assert max(map(len, lines)) < 300, "no paragraphs"
    (alpha,) = [line.split() for line in lines if line.startswith("alpha ")]
    value, low, high = map(float, alpha[1:4])
    assert low < 0.35 < high and low < value < high and alpha[4] == "identified"
    assert "not identified" not in said.out


@pytest.mark.slow
def test_tuned_hyperparameters_and_a_prediction(cli, folder: Path) -> None:
    table = folder / "runs.csv"
    planted(World(3, 3, searched=1, scatter=0.03), 0).frame.to_csv(table, index=False)
    at = ("--at", "N=3e9,D=1e11,learning_rate=1e-3", "--json")
    (size,) = json.loads(cli("laws", "predict", table, *at).out)["sizes"]
    best = size["values"]["learning_rate"]
    assert best["low"] < best["value"] < best["high"] and best["band"][0] < best["value"] < best["band"][1]
    assert size["regret"] > 0 and size["asked"]["excess"] > 0 and size["loss"]["low"] < size["loss"]["high"]
    said = cli("laws", "fit", table)
    assert (said.code, said.err) == (0, "") and "\nthe best learning_rate\n" in said.out
    laws = json.loads(cli("laws", "fit", table, "--json").out)["hyperparameters"]
    assert laws["n_cells"] == len(laws["cells"]) == 9
    assert "exponent of params" in laws["searched"]["learning_rate"]["numbers"]
