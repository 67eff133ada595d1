"""`sweeplab laws isoflop` and `sweeplab laws shape`: a file, a study, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from laws.planted_budgets import exponent, plant_isoflop

from sweeplab.analysis.studies import curves_of_study
from sweeplab.analysis.table import curves_table, runs_table

COLUMNS = ("--columns", "params=N,tokens=D,loss=val")


@pytest.fixture
def table(folder: Path) -> Path:
    points = plant_isoflop("steep", 0.003, np.random.default_rng(0))
    rows = np.c_[points.columns["params"], points.columns["tokens"], points.columns["loss"]]
    np.savetxt(folder / "runs.csv", rows, delimiter=",", header="N,D,val", comments="")
    return folder / "runs.csv"


def test_the_three_approaches(cli, table: Path) -> None:
    said = cli("laws", "isoflop", table, *COLUMNS, "--tuned", "each")
    assert (said.code, said.err) == (0, "")
    (line,) = [
        each.split() for each in said.out.splitlines() if each.startswith("isoflop ") and "N_opt exp" in each
    ]
    value, low, high = map(float, line[3:6])
    assert low < exponent("steep") < high and low < value < high and line[6] == "identified"
    assert "parametric and isoflop agree within noise" in said.out
    assert "envelope: N_opt exponent, D_opt exponent, N_opt: not identified: no curves" in said.out


@pytest.mark.slow
def test_the_shape_of_a_file(cli, folder: Path) -> None:
    layer, embd = (
        each.ravel().astype(float) for each in np.meshgrid((1, 2, 4, 8), (32, 64, 128), indexing="ij")
    )
    n = 12 * layer * embd**2
    loss = (1 + 20 / n**0.2) * (embd / layer) ** 0.02 * np.exp(np.random.default_rng(1).normal(0, 1e-3, 12))
    np.savetxt(
        folder / "s.csv",
        np.c_[n, loss, layer, embd],
        delimiter=",",
        header="N,val,n_layer,n_embd",
        comments="",
    )
    said = cli("laws", "shape", "s.csv", "--columns", "params=N,loss=val")
    assert said.code == 0
    assert "at equal parameters doubling the depth changes the loss by -" in said.out
    at_size = cli("laws", "shape", "s.csv", "--columns", "params=N,loss=val", "--params", "1e5")
    assert "at N = 100k the worst shape of n_layer" in at_size.out
    refused = cli("laws", "shape", "s.csv", "--columns", "tokens=N,loss=val")
    assert refused.code == 2 and "the shape needs params, which the table lacks" in refused.err


def test_a_real_study_of_two_cells(cli, finished) -> None:
    """Two sizes, trained for real: it says why it has no number."""
    found = json.loads(cli("laws", "shape", "tiny", "--lab", finished.lab, "--json").out)
    assert [(each["n_layer"], each["n_embd"]) for each in found["cells"]] == [(1, 8), (1, 16)]
    assert not found["derived"] and found["law"] is None
    assert "n_layer 1 in all rows" in found["says"][0]


@pytest.mark.slow
def test_the_curves_of_a_real_study(finished) -> None:
    """The last point of a curve has the run's own FLOPs; two evaluations a run are too few for a curve."""
    runs, curves = runs_table(finished.lab, "tiny"), curves_table(finished.lab, "tiny")
    assert curves_of_study(runs, curves).why_none == "no curves: no run was evaluated 3 times"
    early = curves[curves["iteration"] == 10].assign(iteration=5)
    found = curves_of_study(runs, pd.concat([curves, early], ignore_index=True))
    assert found.schedule == "decays" and len(found.runs) == 2
    flops = sorted(set(runs["train_flops"]))
    for curve, of_run in zip(sorted(found.runs, key=lambda each: each.params), flops, strict=True):
        np.testing.assert_allclose(np.exp(curve.log_flops), of_run * np.array([0.25, 0.5, 1]))
        ends = runs[(runs["n_params"] == curve.params)]["final_val_loss"]
        assert float(np.exp(curve.log_loss[-1])) == pytest.approx(float(ends.min()), rel=0.05)
