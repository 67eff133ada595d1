"""`sweeplab laws next`: what it prints, and what it gives to programs."""

import json
from pathlib import Path

import numpy as np
import pytest

STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, n_layer: 1, n_head: 2, warmup_iters: 2, dropout: 0.0, eval_iters: 2,
        learning_rate: 0.01, device: cpu}
grid: {n_embd: [8, 32], max_iters: [10, 40, 160, 320]}
search: {eval_interval: {expr: max_iters // 2}, save_interval: {expr: max_iters}}
budget: {trials_per_cell: 1}
engine: {workers: 1}
track: {checkpoints: none}
"""


@pytest.fixture
def pilot(folder: Path) -> Path:
    n = np.repeat(np.geomspace(1e6, 1e7, 3), 3)
    d = n * np.tile([2, 20, 200], 3)
    loss = (1.8 + 480 / n**0.35 + 2085 / d**0.37) * np.exp(np.random.default_rng(3).normal(0, 0.005, 9))
    np.savetxt(
        folder / "pilot.csv", np.c_[n, d, loss], delimiter=",", header="params,tokens,loss", comments=""
    )
    return folder / "pilot.csv"


def test_a_table(cli, pilot: Path) -> None:
    said = cli("laws", "next", pilot, "--flops", "4e16", "--quantity", "beta")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith("beta: ±") and " now, about ±" in lines[0]
    assert lines[1].split() == ["params", "tokens", "flops", "times"]
    found = json.loads(cli("laws", "next", pilot, "--json").out)
    n, d = np.loadtxt(pilot, delimiter=",", skiprows=1).T[:2]
    assert found["quantity"] == "N_opt exponent"
    assert found["spent_flops"] <= found["budget_flops"] == pytest.approx(3 * (n * d).sum()), (
        "half of what was spent"
    )
    assert found["n_runs"] == sum(run["times"] for run in found["runs"])
    assert found["half_width"]["then"] < found["half_width"]["now"]


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_study(cli, folder: Path) -> None:
    (folder / "tiny.yaml").write_text(STUDY)
    assert cli("study", "run", "tiny.yaml").code == 0
    found = json.loads(cli("laws", "next", "tiny", "--flops", "1e9", "--json").out)
    assert found["n_runs"] and found["spent_flops"] <= 1e9
    assert all({*run["cell"]} == {"n_embd", "max_iters"} for run in found["runs"])
