"""A study with `track: {gradients: true}`, from its file to `show` and its page."""

import json
from pathlib import Path

import pytest


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_study_keeps_norms_of_layers_where_it_is_asked_to(cli, folder: Path) -> None:
    study = """
name: flow
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 2, n_head: 2, n_embd: 16, eval_interval: 10,
  eval_iters: 1, log_interval: 5, device: cpu}
budget: {trials_per_cell: 1}
engine: {workers: 1}
"""
    for name, more in (("flow", "track: {gradients: true}"), ("plain", "")):
        (folder / f"{name}.yaml").write_text(study.replace("flow", name) + more)
        assert cli("run", f"{name}.yaml", "--quiet").code == 0
    shown = [
        json.loads(cli("show", name, "--trial", "0", "--json").out)["runs"][0] for name in ("flow", "plain")
    ]
    assert [each["iteration"] for each in shown[0]["gradient_flow"]] == [5, 10, 15, 20]
    assert list(shown[0]["gradient_flow"][0]["layers"])[-2:] == ["blocks.1", "final_norm"]
    assert "gradient_flow" not in shown[1]
    losses = [[point["val_loss"] for point in run["curve"]] for run in shown]
    assert losses[0] == losses[1]
    cli("report", "flow", "--page", "sweep")
    panels = json.loads((folder / "lab/studies/flow/report/sweep.json").read_text())["panels"]
    (panel,) = [each for each in panels if each["title"] == "Gradient flow by layer"]
    assert len(panel["data"]) == 4 * 5
