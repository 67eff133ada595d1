"""`best`, `diff` and warm starts, from one study's results to the next one's: every bit of a rerun is the same."""

import pytest

from sweeplab.records.folders import StudyFolder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forgets_plugins", "workers_here")]
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


@pytest.mark.parametrize("case", STUDIES)
def test_a_cells_best_trains_again_to_the_same_bits(case, cli, json_of, folder):
    text = STUDY + STUDIES[case]
    if "whole" in case:
        text = text.replace("eval_iters: 3", "eval_full: true").replace(
            "eval_interval: 10", "eval_interval: 50"
        )
    (folder / "tiny.yaml").write_text(text)
    assert cli("run", "tiny.yaml").code == 0
    best = json_of("best tiny --cell n_embd=32")
    assert cli("best", "tiny", "--cell", "n_embd=32", "--output", "best.yaml").code == 0
    assert cli("run", "best.yaml").code == 0
    name = f"tiny-n_embd32-{best['trial']}"
    again, before = ([*StudyFolder(folder / "lab", each).runs()] for each in (name, "tiny"))
    assert {run.read_end().value for run in again} == {best["value"]} and len(again) == len(
        best["seeds"]
    )
    seen = [run for run in before if str(run.path) in best["runs"]]
    curves = [
        sorted(
            (point.iteration, point.val_loss, point.train_loss)
            for run in runs
            for point in run.points()
        )
        for runs in (seen, again)
    ]
    assert curves[0] == curves[1]
    diff = json_of("diff tiny", name)
    assert diff["data"] == diff["code"] == []
    assert {"place": "fixed.n_embd", "a": None, "b": 32} in diff["file"]
    assert "fixed.max_iters" not in [each["place"] for each in diff["file"]]


def test_a_study_starts_from_another(cli, json_of, finished, lab, folder):
    text = (
        finished.file.read_text()
        .replace("name: tiny", "name: next")
        .replace("[8, 16]", "[16, 24]")
    )
    (folder / "next.yaml").write_text(text.replace("grid:", "warm_start: [tiny]\ngrid:"))
    planned = cli("plan", "next.yaml").out
    assert "warm start: 2 trials of tiny\n" in planned and "no cell has n_embd=8" in planned
    for _ in range(2):
        assert cli("run", "next.yaml").code == 0
    shown = json_of("show next")
    counts = [(cell["cell"], cell["trials"]) for cell in shown["cells"]]
    assert counts == [("n_embd=16", 2), ("n_embd=24", 2)]
