"""A study of a plugin's model: searched by its own rows, killed and continued with the same bits, and used."""

import os
import shutil
import signal
import subprocess
import sys
import time

import plugged
import pytest
import torch

from sweeplab.lab.listing import find_study
from sweeplab.train.checkpoint import read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forgets_plugins", "one_thread")]
STUDY = """
name: mine
plugins: [nanogpt.py]
data: {corpus: python-docs, tokenizer: char}
fixed: {model: nanogpt, n_layer: 1, n_head: 2, block_size: 16, batch_size: 4, max_iters: 400, eval_interval: 100,
  eval_iters: 1, save_interval: 20, dropout: 0.1, warmup_iters: 2, device: cpu}
grid: {n_embd: [8, 16]}
search: {learning_rate: {min: 1e-3, max: 1e-2, log: true}, mlp_ratio: suggested, gate: [gelu, silu]}
budget: {trials_per_cell: 2}
sampler: random
engine: {workers: 1, threads: 1}
track: {checkpoints: last}
"""
ALLOWED = "--allow-plugins"


@pytest.mark.usefixtures("workers_here")
def test_a_study_of_a_module_is_killed_continued_and_used(cli, json_of, folder):
    shutil.copy(plugged.FOLDER / "nanogpt.py", folder)
    (folder / "mine.yaml").write_text(STUDY)
    command = [sys.executable, "-P", "-m", "sweeplab", "run", "mine.yaml", "--quiet", ALLOWED]
    process = subprocess.Popen(command, start_new_session=True)
    runs = folder / "lab/studies/mine/runs"
    while not any(runs.glob("*/*/state-*.safetensors")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    cut_short = next(runs.glob("*/*/state-*.safetensors")).parent.relative_to(runs)
    assert not (runs / cut_short / "end.json").exists()
    assert cli("run", "mine.yaml", "--quiet").code == 0, "it was allowed once"
    assert cli("run", "mine.yaml", "--quiet", "--name", "whole").code == 0
    ends = {name: [*find_study(folder / "lab", name).runs()] for name in ("mine", "whole")}
    assert len(ends["mine"]) == len(ends["whole"]) == 4
    for ours, theirs in zip(*ends.values(), strict=True):
        weights, facts = read_checkpoint(ours.path / "last", "model")
        whole, _ = read_checkpoint(theirs.path / "last", "model")
        assert all(torch.equal(weights[name], whole[name]) for name in whole), ours.path
        assert facts["values"]["gate"] in ("gelu", "silu") and facts["values"]["mlp_ratio"] in (
            2,
            4,
        )
    sizes = {run.read_start().facts["n_params"] for run in ends["mine"]}
    assert len(sizes) >= 2 and all(run.read_end().state == "complete" for run in ends["mine"])

    best = json_of("best mine")
    assert {*best["sampled"]} == {"learning_rate", "mlp_ratio", "gate"}
    written = cli(
        "generate", "mine", "--prompt", "The ", "--max-new-tokens", "30", "--seed", "1"
    )
    assert written.code == 0 and len(written.out) > 30
    found = json_of("evaluate mine")
    assert found["measures"]["val_loss"] == pytest.approx(best["value"], rel=1e-5)
    refused = cli("trace", "mine", "--prompt", "The ")
    assert (
        refused.code == 2
        and "a trace shows a transformer's parts, and model nanogpt" in refused.err
    )
