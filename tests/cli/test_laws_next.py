"""`sweeplab laws next`: what it prints, and what it gives to programs."""

import json
from pathlib import Path

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


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_study(cli, folder: Path) -> None:
    (folder / "tiny.yaml").write_text(STUDY)
    assert cli("study", "run", "tiny.yaml").code == 0
    found = json.loads(cli("laws", "next", "tiny", "--flops", "1e9", "--json").out)
    assert found["n_runs"] and found["spent_flops"] <= 1e9
    assert all({*run["cell"]} == {"n_embd", "max_iters"} for run in found["runs"])
