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


def test_of_an_unknown_tuning_no_number_is_identified_and_one_line_says_what_it_would_do(
    cli, good: Path
) -> None:
    for how, share in (("unknown", "2%"), ("shared", "3%")):
        said = cli("laws", "fit", good, *COLUMNS, *(("--tuned", how) if how == "shared" else ()))
        assert said.code == 0 and "  identified" not in said.out
        (line,) = [
            line for line in said.out.splitlines() if "warning: " in line and "tuned less well" in line
        ]
        assert f"by up to {share} of the loss" in line
        asked = ("--at", "params=2e8,tokens=4e9", "--tuned", how, "--count", "params=total", "--json")
        (size,) = json.loads(cli("laws", "predict", good, *COLUMNS, *asked).out)["sizes"]
        assert size["loss"]["verdict"] != "identified"


def test_a_wrong_form_is_said(cli, folder: Path) -> None:
    """The loss has an interaction of N and D, which the law has not."""
    n = np.repeat(np.geomspace(1e6, 1e8, 6), 5)
    d = n * np.tile((2, 6, 20, 60, 200), 6)
    bent = np.exp(0.006 * np.log(n / 1e7) * np.log(d / 2e8))
    loss = (1.8 + 480 / n**0.35 + 2085 / d**0.37) * bent
    loss *= np.exp(np.random.default_rng(3).normal(0, 0.003, 30))
    np.savetxt(folder / "wrong.csv", np.c_[n, d, loss], delimiter=",", header="N,D,val", comments="")
    said = cli("laws", "fit", "wrong.csv", *COLUMNS, "--tuned", "each", "--count", "params=total")
    assert said.code == 0 and "warning: the form does not fit (chance" in said.out
    assert "  identified" not in said.out
    asked = ("--at", "params=2e8,tokens=4e9", "--seal", "--json")
    (entry,) = json.loads(cli("laws", "predict", "wrong.csv", *COLUMNS, *asked).out)["sealed"]
    assert entry["fit"]["form"] == "flagged"
    assert entry["predicted"]["verdict"]["verdict"] != "identified"


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
