"""`sweeplab laws fit`, `predict` and `next` on tables and on trained studies, and how they count."""

import numpy as np
import pytest
from law_tables import COLUMNS, write_table
from laws.planted_tuning import World, planted

TUNED = (*COLUMNS, "--tuned", "each", "--count", "params=total")


@pytest.fixture
def good(folder):
    return write_table(folder / "good.csv", np.geomspace(1e6, 1e8, 6), (2, 6, 20, 60, 200))


def test_a_good_table(cli, good):
    said = cli("laws", "fit", good, *TUNED)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert len(lines) < 20 and max(map(len, lines)) < 300, "no paragraphs"
    (alpha,) = [line.split() for line in lines if line.startswith("alpha ")]
    value, low, high = map(float, alpha[1:4])
    assert low < 0.35 < high and low < value < high and alpha[4] == "identified"


@pytest.mark.slow
def test_tuned_hyperparameters_and_a_prediction(cli, json_of, folder):
    table = folder / "runs.csv"
    planted(World(3, 3, searched=1, scatter=0.03), 0).frame.to_csv(table, index=False)
    (size,) = json_of("laws predict", table, "--at", "N=3e9,D=1e11")["sizes"]
    best = size["values"]["learning_rate"]
    assert best["low"] < best["value"] < best["high"]
    assert size["regret"] > 0 and size["loss"]["low"] < size["loss"]["high"]
    assert "\nthe best learning_rate\n" in cli("laws", "fit", table).out
    laws = json_of("laws fit", table)["hyperparameters"]
    assert len(laws["cells"]) == 9
    assert "exponent of params" in laws["searched"]["learning_rate"]["numbers"]


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


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_the_next_runs_of_a_study_are_cells_of_it(cli, json_of, folder):
    (folder / "tiny.yaml").write_text(STUDY)
    assert cli("run", "tiny.yaml").code == 0
    found = json_of("laws next tiny --flops 1e9")
    assert found["n_runs"] and found["spent_flops"] <= 1e9
    assert all({*run["cell"]} == {"n_embd", "max_iters"} for run in found["runs"])
