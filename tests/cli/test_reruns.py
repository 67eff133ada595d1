"""The best trials of real studies, trained again from the file that `best` writes: every bit is the same."""

import json
from pathlib import Path

import pytest

from sweeplab.records.folders import StudyFolder

# Each moves something that a loss could rest on: neighbors in the stack, threads, seeds, patience, which evaluation.
STUDIES = {
    "stacked, two workers of a thread": "engine: {workers: 2, threads: 1, stack: 8}",
    "stacked, two threads": "engine: {workers: 1, threads: 2, stack: 4}",
    "three seeds": "engine: {workers: 2, threads: 1}\nseeds: [3, 1, 2]",
    "the last evaluation, on the whole split": "objective: {at: final}\nengine: {workers: 2, threads: 1}",
}
STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 32, batch_size: 8, max_iters: 100, n_head: 2, n_layer: 2, patience: 3,
        eval_interval: 10, eval_iters: 3, device: cpu}
grid: {n_embd: [16, 32]}
search:
  learning_rate: {min: 1e-3, max: 3e-2, log: true}
  dropout: {min: 0.0, max: 0.3, step: 0.1}
  betas: suggested
  weight_decay: suggested
  lr_decay: [true, false]
  min_lr: suggested
  warmup_iters: {expr: max_iters // 10}
budget: {trials_per_cell: 4}
pruner: {type: asha, min_iters: 40, factor: 3}
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", STUDIES)
def test_every_cells_best_comes_to_the_same_bits(case: str, cli, folder: Path) -> None:
    text = STUDY + STUDIES[case]
    if "whole" in case:
        text = text.replace("eval_iters: 3", "eval_full: true").replace(
            "eval_interval: 10", "eval_interval: 50"
        )
    (folder / "tiny.yaml").write_text(text)
    assert cli("study", "run", "tiny.yaml").code == 0
    # Every cell of the first study, and one of each other.
    for width in (16, 32) if case == next(iter(STUDIES)) else (32,):
        cell = f"n_embd={width}"
        best = json.loads(cli("study", "best", "tiny", "--cell", cell, "--json").out)
        assert cli("study", "best", "tiny", "--cell", cell, "--output", "best.yaml", "--force").code == 0
        assert cli("study", "run", "best.yaml").code == 0
        again = list(StudyFolder(folder / "lab", f"tiny-n_embd{width}-{best['trial']}").runs())
        assert {run.read_end().value for run in again} == {best["value"]}
        assert len(again) == len(best["seeds"])
