"""A study of preferences, from a run that has learned pairs to the text that it writes afterwards."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sweeplab.lab.listing import find_study
from sweeplab.tracking.connection import tracking_uri

PAIRS = """
name: answers
data: {corpus: pairs, tokenizer: char, path: pairs.jsonl}
fixed: {block_size: 16, batch_size: 16, max_iters: 300, n_layer: 1, n_head: 2, n_embd: 16, dropout: 0.0,
  learning_rate: 0.01, warmup_iters: 5, eval_interval: 100, device: cpu}
budget: {trials_per_cell: 1}
engine: {workers: 1}
"""
PREFERENCES = """
name: preferred
data: {corpus: preferences, tokenizer: char, path: preferences.jsonl}
init_from: lab/studies/answers/runs/all/0-0/best
fixed: {batch_size: 16, max_iters: 80, dropout: 0.0, min_lr: 0.0001, warmup_iters: 5, eval_interval: 20, device: cpu}
search: {learning_rate: {min: 0.0005, max: 0.003, log: true}, beta: {min: 0.05, max: 0.5, log: true}}
budget: {trials_per_cell: 3}
engine: {workers: 1}
"""


@pytest.mark.slow
def test_a_run_of_pairs_learns_which_answers_are_preferred(cli, folder: Path, monkeypatch) -> None:
    """Both answers are as likely in the pairs, and the preferences choose one."""
    prompts = [f"is {at}?" for at in range(300)]
    pairs = [{"source": each, "target": ("yes", "no")[at // 2 % 2]} for at, each in enumerate(prompts)]
    preferences = [{"prompt": each, "chosen": "yes", "rejected": "no"} for each in prompts]
    for name, rows in (("pairs", pairs), ("preferences", preferences)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "pairs.yaml").write_text(PAIRS)
    (folder / "preferred.yaml").write_text(PREFERENCES)
    assert cli("run", "pairs.yaml", "--quiet").code == 0
    planned = cli("plan", "preferred.yaml")
    assert planned.code == 0 and "beta" in planned.out
    for words, why in (
        (("fixed.batch_size=7",), "batch_size / grad_accum is even and batch_warmup_iters is 0"),
        (("fixed.batch_warmup_iters=4",), "batch_size / grad_accum is even and batch_warmup_iters is 0"),
        (("init_from=null",), "init_from names the trained run that objective preference starts from"),
        (("fixed.objective=pairs",), "objective is preference, because corpus preferences has preferences"),
        (("search.beta={min: 0, max: 1}",), "allowed: a number above 0"),
    ):
        refused = cli("plan", "preferred.yaml", *(part for word in words for part in ("-o", word)))
        assert refused.code == 2 and why in refused.err, refused.err
        assert len(refused.err.splitlines()) == 1, refused.err
    assert cli("run", "preferred.yaml", "--quiet").code == 0
    best = json.loads(cli("best", "preferred", "--json").out)
    assert {*best["sampled"]} == {"learning_rate", "beta"} and best["value"] < 0.4
    evaluated = json.loads(cli("evaluate", "preferred", "--lengths", "1", "--json").out)
    assert not evaluated["length_extrapolation"] and "one loss" in evaluated["left_out"][0]["why"]
    assert cli("evaluate", "preferred").code == 0
    found = evaluated["measures"]
    assert found.keys() == {"val_loss", "reward_accuracy", "reward_margin"}
    assert found["reward_accuracy"] == 1.0 and found["reward_margin"] > 1
    assert found["val_loss"] == pytest.approx(best["value"], rel=1e-4)
    assert found["val_loss"] < math.log(2)

    wrote = {
        cli("generate", "preferred", "--prompt", each, "--seed", "1").out.strip() for each in prompts[:6]
    }
    assert wrote == {"yes"}
    runs = [*find_study(folder / "lab", "preferred").runs()]
    point = [json.loads(line) for line in (runs[0].path / "points.jsonl").read_text().splitlines()][-1]
    assert {"reward_accuracy", "reward_margin"} <= point.keys() and "bits_per_byte" not in point
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(folder / "lab"))
    tracked = mlflow.search_runs(search_all_experiments=True)
    assert 1.0 in set(tracked["metrics.reward_accuracy"]) and tracked["metrics.best_reward_margin"].max() > 1
    assert set(tracked["params.beta"].dropna()) == {str(run.read_start().values.beta) for run in runs}
