"""`sweeplab classify` on a study of texts with labels, from its file to MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweeplab.lab.listing import find_study
from sweeplab.tracking.connection import tracking_uri

STUDY = """
name: kinds
data: {corpus: labels, tokenizer: char, path: kinds.jsonl}
fixed: {family: encoder, block_size: 8, batch_size: 16, epochs: 10, n_layer: 1, n_head: 2, n_embd: 16, dropout: 0.0,
  learning_rate: 0.01, warmup_iters: 5, eval_interval: 50, device: cpu}
budget: {trials_per_cell: 1}
engine: {workers: 1}
"""


@pytest.mark.slow
def test_a_study_of_labels_is_planned_run_evaluated_and_used(cli, folder: Path, monkeypatch) -> None:
    rows = [{"text": f"{'ab'[at % 2]}{at}", "label": at % 2} for at in range(200)]
    (folder / "kinds.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "kinds.yaml").write_text(STUDY)
    planned = cli("plan", "kinds.yaml")
    assert planned.code == 0 and "epochs 10: 100 iterations" in planned.out
    assert cli("run", "kinds.yaml", "--quiet").code == 0
    best = json.loads(cli("best", "kinds", "--json").out)
    assert best["commands"]["generate"].startswith("sweeplab classify kinds TEXT")
    found = json.loads(cli("evaluate", "kinds", "--json").out)["measures"]
    assert found.keys() == {"val_loss", "accuracy", "f1"} and found["accuracy"] == found["f1"] == 1.0
    (folder / "texts.txt").write_text("b7\n\n")
    said = json.loads(cli("classify", "kinds", "a1", "--file", "texts.txt", "--json").out)
    assert [(each["text"], each["label"]) for each in said["texts"]] == [("a1", "0"), ("b7", "1")]
    for each in said["texts"]:
        assert sum(each["probabilities"].values()) == pytest.approx(1.0)
        assert [*each["probabilities"].values()] == sorted(each["probabilities"].values(), reverse=True)
    head, row = cli("classify", "kinds", "a1").out.splitlines()
    assert head.split() == ["label", "probability", "text"] and row.split()[::2] == ["0", "a1"]
    for words, why in (
        (("generate", "kinds", "--prompt", "a"), "`sweeplab classify RUN TEXT`"),
        (("classify", "kinds"), "there is no text; allowed: RUN TEXT…, or --file FILE"),
        (("classify", "kinds", "é"), "in the text, character 'é' at 0"),
        (
            ("plan", "kinds.yaml", "-o", "fixed.objective=pairs"),
            "objective is classification, because",
        ),
    ):
        refused = cli(*words)
        assert refused.code == 2 and why in refused.err and len(refused.err.splitlines()) == 1
    lab = folder / "lab"
    assert find_study(lab, "kinds").data.labels == ["0", "1"]
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(lab))
    runs = mlflow.search_runs(search_all_experiments=True)
    assert 1.0 in set(runs["metrics.accuracy"]) and 1.0 in set(runs["metrics.best_f1"])


def test_a_run_of_text_finds_no_labels(cli, finished) -> None:
    refused = cli("classify", "tiny", "text", "--lab", finished.lab)
    assert refused.code == 2 and "predicts no labels: its objective is next_token" in refused.err


@pytest.mark.slow
def test_a_study_of_tags_is_run_evaluated_and_used(cli, folder: Path) -> None:
    rows = [
        {"tokens": [f"{'ab'[at % 2]}{at}", "c"], "tags": ["odd" if at % 2 else "even", "end"]}
        for at in range(200)
    ]
    (folder / "kinds.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "kinds.yaml").write_text(STUDY.replace("corpus: labels", "corpus: tags"))
    assert cli("run", "kinds.yaml", "--quiet").code == 0
    found = json.loads(cli("evaluate", "kinds", "--json").out)
    assert found["measures"].keys() == {"val_loss", "accuracy", "f1"} and found["measures"]["accuracy"] > 0.9
    assert found["unit"] == "nats/tag"
    said = json.loads(cli("classify", "kinds", "a2 c", "b7 c a a a a", "--json").out)["texts"]
    assert [each["label"] for each in said[0]["tags"]] == ["even", "end"]
    assert [each["word"] for each in said[1]["tags"]] == ["b7", "c", "a", "a", "a", "a"]
    assert [each["label"] is None for each in said[1]["tags"]] == [False] * 3 + [True] * 3, "no room for more"
    head, first, second = cli("classify", "kinds", "b7 c").out.splitlines()
    assert head.split() == ["word", "label", "probability"]
    assert first.split()[:2] == ["b7", "odd"] and second.split()[:2] == ["c", "end"]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*type hint is inferred as AnyType:UserWarning"
)  # MLflow's own, on import
def test_a_study_of_scores_is_run_reported_and_used(cli, folder: Path, monkeypatch) -> None:
    rows = ["sentence1,sentence2,score", *(f"{'ab'[at % 2]}{at},c{at},{at % 2}" for at in range(200))]
    (folder / "kinds.csv").write_text("\n".join(rows))
    (folder / "kinds.yaml").write_text(
        STUDY.replace("corpus: labels", "corpus: scores")
        .replace("kinds.jsonl", "kinds.csv")
        .replace("size: 8", "size: 12")
    )
    assert cli("run", "kinds.yaml", "--quiet").code == 0
    best = json.loads(cli("best", "kinds", "--json").out)
    assert best["commands"]["generate"].startswith("sweeplab score kinds TEXT TEXT")
    found = json.loads(cli("evaluate", "kinds", "--json").out)
    assert (
        found["measures"].keys() == {"val_loss", "pearson", "spearman"} and found["unit"] == "squared error"
    )
    assert found["measures"]["val_loss"] < 0.1 and found["measures"]["pearson"] > 0.9
    assert found["left_out"][0]["why"] == "a pair of texts has one score, not one per position"
    (folder / "pairs.tsv").write_text("a1\tc1\nb1\tc1\n")
    said = json.loads(cli("score", "kinds", "b7", "c7", "--file", "pairs.tsv", "--json").out)["pairs"]
    assert [round(each["score"]) for each in said] == [1, 0, 1]
    assert [each["sentence1"] for each in said] == ["b7", "a1", "b1"]
    head, row = cli("score", "kinds", "b7", "c7").out.splitlines()
    assert head.split() == ["score", "sentence1", "sentence2"] and row.split()[1:] == ["b7", "c7"]
    (folder / "pairs.tsv").write_text("a1 c1\n")
    for words, why in (
        (("score", "kinds", "a1"), "there are no two texts; allowed: RUN FIRST SECOND, or --file FILE"),
        (
            ("score", "kinds", "--file", "pairs.tsv"),
            "pairs.tsv:1: there are no two texts; allowed: a tab between",
        ),
        (("generate", "kinds", "--prompt", "a"), "`sweeplab score RUN FIRST SECOND`"),
        (("classify", "kinds", "a"), "predicts no labels: its objective is similarity"),
    ):
        refused = cli(*words)
        assert refused.code == 2 and why in refused.err and len(refused.err.splitlines()) == 1
    registered = json.loads(cli("study", "publish", "kinds", "--json").out)
    assert registered["example"].startswith('{"sentence1": ')
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(folder / "lab"))
    both = {"sentence1": ["b7", "a1"], "sentence2": ["c7", "c1"]}
    served = mlflow.pyfunc.load_model(registered["uri"]).predict(both)
    assert [round(each["score"]) for each in served] == [1, 0]
    page = (folder / "lab/studies/kinds/report/scaling.html").read_text()
    assert "squared error" in page and "nats" not in page.partition("<script")[0]
