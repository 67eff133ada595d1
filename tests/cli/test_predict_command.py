"""`sweeplab predict` on a study of texts with labels, from its file to MLflow."""

import json
import math

import mlflow
import pytest
from trained import run_in

from sweeplab.lab.listing import find_study
from sweeplab.runs import open_run
from sweeplab.runs.run import Run
from sweeplab.tracking.connection import tracking_uri
from sweeplab.tracking.models import load_checkpoint

STUDY = """
name: kinds
data: {corpus: labels, tokenizer: char, path: kinds.jsonl}
fixed: {family: encoder, block_size: 8, batch_size: 16, epochs: 10, n_layer: 1, n_head: 2, n_embd: 16, dropout: 0.0,
  learning_rate: 0.01, warmup_iters: 5, eval_interval: 50, device: cpu}
budget: {trials_per_cell: 1}
engine: {workers: 1}
"""


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_study_of_labels_is_planned_run_evaluated_and_used(cli, json_of, folder, monkeypatch):
    rows = [{"text": f"{'ab'[at % 2]}{at}", "label": at % 2} for at in range(200)]
    (folder / "kinds.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "kinds.yaml").write_text(STUDY)
    planned = cli("plan", "kinds.yaml")
    assert planned.code == 0 and "epochs 10: 100 iterations" in planned.out
    assert cli("run", "kinds.yaml", "--quiet").code == 0
    best = json_of("best kinds")
    assert best["commands"]["generate"].startswith("sweeplab predict kinds TEXT")
    found = json_of("evaluate kinds")["measures"]
    assert (
        found.keys() == {"val_loss", "accuracy", "f1"}
        and found["accuracy"] == found["f1"] == 1.0
    )
    (folder / "texts.txt").write_text("b7\n\n")
    said = json_of("predict kinds a1 --file texts.txt")
    assert [(each["text"], each["label"]) for each in said["texts"]] == [
        ("a1", "0"),
        ("b7", "1"),
    ]
    head, row = cli("predict", "kinds", "a1").out.splitlines()
    assert head.split() == ["label", "probability", "text"] and row.split()[::2] == ["0", "a1"]
    refused = cli("generate", "kinds", "--prompt", "a")
    assert refused.code == 2 and "`sweeplab predict RUN TEXT`" in refused.err
    lab = folder / "lab"
    assert find_study(lab, "kinds").data.labels == ["0", "1"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(lab))
    runs = mlflow.search_runs(search_all_experiments=True)
    assert 1.0 in set(runs["metrics.accuracy"]) and 1.0 in set(runs["metrics.best_f1"])


def test_a_language_model_says_how_probable_a_text_is(cli, json_of, finished):
    run = open_run("tiny", finished.lab)
    size, text = run.values.block_size, "the value of the expression"
    for asked in (text[: size + 1], text):
        (said,) = json_of("predict tiny", asked, "--lab", finished.lab)["texts"]
        assert "".join(token["token"] for token in said["tokens"]) == asked[1:], (
            "each but the first, once"
        )
        total = sum(token["log_probability"] for token in said["tokens"])
        loss = pytest.approx(-total / len(asked[1:]))
        assert said["log_probability"] == pytest.approx(total)
        for found in (
            said["loss"],
            math.log(said["perplexity"]),
            said["bits_per_byte"] * math.log(2),
        ):
            assert found == loss
    table = cli("predict", "tiny", "the", "of it", "--lab", finished.lab).out.splitlines()
    assert [line.split()[4:] for line in table[1:]] == [["the"], ["of", "it"]]


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_each_token_of_a_target_is_predicted_once(family, tmp_path):
    run = Run.of(
        load_checkpoint(run_in(tmp_path / "run", kind="pairs", family=family, block_size=8))
    )
    (said,) = run.predict(["abc\tde"])
    assert [token["token"] for token in said["tokens"]] == ["d", "e", "<eos>"]
