"""Studies of the objectives in studies/plugins: asked about, planned, run, evaluated and used, from file to MLflow."""

import json
import math
import os
import shutil
from pathlib import Path

import plugged
import pytest

from sweeplab.lab.listing import find_study
from sweeplab.tracking.connection import tracking_uri

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forgets_plugins")]
STUDY = """
name: kinds
plugins: [PLUGIN.py]
data: {corpus: CORPUS, tokenizer: char, path: FILE}
fixed: {family: encoder, block_size: 12, batch_size: 16, epochs: 10, n_layer: 1, n_head: 2, n_embd: 16, dropout: 0.0,
  learning_rate: 0.01, warmup_iters: 5, eval_interval: 50, device: cpu}
budget: {trials_per_cell: 1}
engine: {workers: 1}
"""
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
plugins: [preference.py]
data: {corpus: preferences, tokenizer: char, path: preferences.jsonl}
init_from: lab/studies/answers/runs/all/0-0/best
fixed: {batch_size: 16, max_iters: 80, dropout: 0.0, min_lr: 0.0001, warmup_iters: 5, eval_interval: 20, device: cpu}
search: {learning_rate: {min: 0.0005, max: 0.003, log: true}, beta: {min: 0.05, max: 0.5, log: true}}
budget: {trials_per_cell: 3}
engine: {workers: 1}
"""
ALLOWED = "--allow-plugins"


def write(folder: Path, name: str, text: str, file: str, rows: list[str], plugin: str) -> None:
    (folder / name).write_text(text)
    (folder / file).write_text("\n".join(rows))
    shutil.copy(plugged.FOLDER / f"{plugin}.py", folder)


@pytest.mark.usefixtures("workers_here")
def test_tags_of_words(cli, folder: Path) -> None:
    rows = [
        {"tokens": [f"{'ab'[at % 2]}{at}", "c"], "tags": [("even", "odd")[at % 2], "end"]}
        for at in range(200)
    ]
    study = STUDY.replace("PLUGIN", "tagging").replace("CORPUS", "tags").replace("FILE", "kinds.jsonl")
    write(
        folder,
        "kinds.yaml",
        study.replace("size: 12", "size: 8"),
        "kinds.jsonl",
        [*map(json.dumps, rows)],
        "tagging",
    )
    refused = cli("run", "kinds.yaml")
    assert refused.code == 2 and "is code that would run here; allowed: --allow-plugins" in refused.err
    assert cli("run", "kinds.yaml", "--quiet", ALLOWED).code == 0
    found = json.loads(cli("evaluate", "kinds", ALLOWED, "--json").out)
    assert found["measures"].keys() == {"val_loss", "accuracy", "f1"} and found["measures"]["accuracy"] > 0.9
    assert found["unit"] == "nats/tag"
    said = json.loads(cli("predict", "kinds", "a2 c", "b7 c a a a a", ALLOWED, "--json").out)["texts"]
    assert [each["label"] for each in said[0]["words"]] == ["even", "end"]
    assert [each["word"] for each in said[1]["words"]] == ["b7", "c", "a", "a", "a", "a"]
    assert [each["label"] is None for each in said[1]["words"]] == [False] * 3 + [True] * 3, (
        "no room for more"
    )
    head, first, second = cli("predict", "kinds", "b7 c", ALLOWED).out.splitlines()
    assert head.split() == ["word", "label", "probability"]
    assert first.split()[:2] == ["b7", "odd"] and second.split()[:2] == ["c", "end"]


@pytest.mark.usefixtures("workers_here")
def test_scores_of_two_texts(cli, folder: Path) -> None:
    rows = ["sentence1,sentence2,score", *(f"{'ab'[at % 2]}{at},c{at},{at % 2}" for at in range(200))]
    study = STUDY.replace("PLUGIN", "similarity").replace("CORPUS", "scores").replace("FILE", "kinds.csv")
    write(folder, "kinds.yaml", study, "kinds.csv", rows, "similarity")
    assert cli("run", "kinds.yaml", "--quiet", ALLOWED).code == 0
    best = json.loads(cli("best", "kinds", "--json").out)
    assert best["commands"]["generate"].startswith("sweeplab predict kinds TEXT")
    found = json.loads(cli("evaluate", "kinds", ALLOWED, "--json").out)
    assert (
        found["measures"].keys() == {"val_loss", "pearson", "spearman"} and found["unit"] == "squared error"
    )
    assert found["measures"]["val_loss"] < 0.1 and found["measures"]["pearson"] > 0.9
    assert found["left_out"][0]["why"] == "objective similarity has no loss per position"
    (folder / "pairs.tsv").write_text("a1\tc1\nb1\tc1\n")
    asked = ("predict", "kinds", "b7\tc7", ALLOWED)
    said = json.loads(cli(*asked, "--file", "pairs.tsv", "--json").out)["texts"]
    assert [round(each["score"]) for each in said] == [1, 0, 1]
    assert [each["sentence1"] for each in said] == ["b7", "a1", "b1"]
    head, row = cli(*asked).out.splitlines()
    assert head.split() == ["sentence1", "sentence2", "score"] and row.split()[:2] == ["b7", "c7"]
    for words, why in (
        (("predict", "kinds", "a1"), "there are no two texts in 'a1'; allowed: a tab between two texts"),
        (("generate", "kinds", "--prompt", "a"), "`sweeplab predict RUN TEXT`"),
    ):
        refused = cli(*words, ALLOWED)
        assert refused.code == 2 and why in refused.err and len(refused.err.splitlines()) == 1
    (end,) = [run.read_end() for run in find_study(folder / "lab", "kinds").runs()]
    assert end.best.keys() == {"pearson", "spearman"}
    page = (folder / "lab/studies/kinds/report/sweep.html").read_text()
    assert "squared error" in page and "nats" not in page.partition("<script")[0]


@pytest.mark.usefixtures("workers_here")
def test_answers_and_embeddings(cli, folder: Path) -> None:
    rows = [
        {"question": "where?", "context": f"{'a' * (at % 3)}B{at}", "answer": "B", "answer_start": at % 3}
        for at in range(200)
    ]
    study = STUDY.replace("PLUGIN", "answers").replace("CORPUS", "questions").replace("FILE", "kinds.jsonl")
    write(folder, "kinds.yaml", study, "kinds.jsonl", [*map(json.dumps, rows)], "answers")
    short = cli("run", "kinds.yaml", "--quiet", ALLOWED)
    assert short.code == 2 and "block_size 12 is too short for a question and its context" in short.err
    assert cli("run", "kinds.yaml", "--quiet", ALLOWED, "-o", "fixed.block_size=20").code == 0
    found = json.loads(cli("evaluate", "kinds", ALLOWED, "--json").out)
    assert found["measures"].keys() == {"val_loss", "exact_match", "f1"} and found["unit"] == "nats/answer"
    assert found["measures"]["exact_match"] > 0.9
    (said,) = json.loads(cli("predict", "kinds", "where?\taB7", ALLOWED, "--json").out)["texts"]
    assert (said["question"], said["answer"]) == ("where?", "B") and said["probability"] > 0.5
    scores = ["sentence1,sentence2,score", *(f"{'ab'[at % 2]}{at},c{at},{at % 2}" for at in range(200))]
    study = STUDY.replace("PLUGIN", "similarity").replace("CORPUS", "scores").replace("FILE", "alike.csv")
    study = study.replace("kinds", "alike").replace("fixed: {", "fixed: {objective: embedding, ")
    write(folder, "alike.yaml", study, "alike.csv", scores, "similarity")
    assert cli("run", "alike.yaml", "--quiet", ALLOWED).code == 0
    one, other = json.loads(cli("predict", "alike", "b7", "c7", ALLOWED, "--json").out)["texts"]
    (both,) = json.loads(cli("predict", "alike", "b7\tc7", ALLOWED, "--json").out)["texts"]
    cosine = sum(x * y for x, y in zip(one["embedding"], other["embedding"], strict=True))
    assert both["score"] == pytest.approx(cosine, abs=1e-5) and both["score"] > 0.5


@pytest.mark.usefixtures("workers_here")
def test_a_run_of_pairs_learns_which_answers_are_preferred(cli, folder: Path, monkeypatch) -> None:
    """Both answers are as likely in the pairs, and the preferences choose one."""
    prompts = [f"is {at}?" for at in range(300)]
    pairs = [{"source": each, "target": ("yes", "no")[at // 2 % 2]} for at, each in enumerate(prompts)]
    preferences = [{"prompt": each, "chosen": "yes", "rejected": "no"} for each in prompts]
    for name, text, rows in (("pairs", PAIRS, pairs), ("preferences", PREFERENCES, preferences)):
        write(folder, f"{name}.yaml", text, f"{name}.jsonl", [*map(json.dumps, rows)], "preference")
    assert cli("run", "pairs.yaml", "--quiet").code == 0
    planned = cli("plan", "preferences.yaml", ALLOWED)
    assert planned.code == 0 and "beta" in planned.out
    for words, why in (
        (("fixed.batch_size=7",), "batch_size / grad_accum is a multiple of 2 and batch_warmup_iters is 0"),
        (
            ("fixed.batch_warmup_iters=4",),
            "batch_size / grad_accum is a multiple of 2 and batch_warmup_iters is 0",
        ),
        (("init_from=null",), "init_from names the trained run that objective preference starts from"),
        (("fixed.objective=pairs",), "objective is preference, because corpus preferences has preferences"),
        (("search.beta={min: 0, max: 1}",), "allowed: a number above 0"),
    ):
        refused = cli("plan", "preferences.yaml", ALLOWED, *(part for word in words for part in ("-o", word)))
        assert refused.code == 2 and why in refused.err, refused.err
        assert len(refused.err.splitlines()) == 1, refused.err
    assert cli("run", "preferences.yaml", "--quiet", ALLOWED).code == 0
    best = json.loads(cli("best", "preferred", "--json").out)
    assert {*best["sampled"]} == {"learning_rate", "beta"} and best["value"] < 0.4
    evaluated = json.loads(cli("evaluate", "preferred", "--lengths", "1", ALLOWED, "--json").out)
    assert not evaluated["length_extrapolation"] and "no loss per position" in evaluated["left_out"][0]["why"]
    found = evaluated["measures"]
    ratios = {"chosen_log_ratio", "rejected_log_ratio"}
    assert found.keys() == {"val_loss", "reward_accuracy", "reward_margin"} | ratios
    assert found["reward_accuracy"] == 1.0 and found["reward_margin"] > 1
    assert found["val_loss"] == pytest.approx(best["value"], rel=1e-4)
    assert found["val_loss"] < math.log(2)
    asked = ("generate", "preferred", ALLOWED, "--seed", "1", "--prompt")
    assert {cli(*asked, each).out.strip() for each in prompts[:6]} == {"yes"}
    said = json.loads(cli("predict", "preferred", "is 1?\tyes", "is 1?\tno", ALLOWED, "--json").out)["texts"]
    assert said[0]["log_probability"] > said[1]["log_probability"]
    runs = [*find_study(folder / "lab", "preferred").runs()]
    point = [json.loads(line) for line in (runs[0].path / "points.jsonl").read_text().splitlines()][-1]
    assert {
        "reward_accuracy",
        "reward_margin",
        "kept_loss",
    } | ratios <= point.keys() and "bits_per_byte" not in point
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(folder / "lab"))
    tracked = mlflow.search_runs(search_all_experiments=True)
    assert 1.0 in set(tracked["metrics.reward_accuracy"]) and tracked["metrics.best_reward_margin"].max() > 1
    betas = {run.read_start().values.beta for run in runs}
    assert set(tracked["params.beta"].dropna()) == {str(float(f"{beta:.4g}")) for beta in betas}
    exact = tracked["tags.sweeplab.searched"].dropna().map(json.loads)
    assert {searched["beta"] for searched in exact if "beta" in searched} == betas


@pytest.mark.parametrize("plugin", ["tagging", "similarity", "preference"])
def test_what_a_plugin_trained_is_shown_without_it_and_used_with_it_alone(
    plugin: str, cli, folder: Path
) -> None:
    """In other processes: this one may have imported it."""
    import subprocess

    from terminal import PROGRAM

    rows = {
        "tagging": ["a x\nb y\n"] * 1 + [f"w{at} {'xy'[at % 2]}\n" for at in range(60)],
        "similarity": ["sentence1,sentence2,score", *(f"a{at},c{at},{at % 2}" for at in range(60))],
        "preference": ["prompt,chosen,rejected", *(f"p{at},yes,no" for at in range(60))],
    }[plugin]
    corpus = {"tagging": "tags", "similarity": "scores", "preference": "preferences"}[plugin]
    file = "kinds.conll" if plugin == "tagging" else "kinds.csv"
    study = STUDY.replace("PLUGIN", plugin).replace("CORPUS", corpus).replace("FILE", file)
    study = study.replace("epochs: 10", "max_iters: 4").replace("eval_interval: 50", "eval_interval: 2")
    if plugin == "preference":
        pairs = [json.dumps({"source": f"p{at}", "target": "yes no"}) for at in range(60)]
        write(folder, "pairs.yaml", PAIRS.replace("300", "3"), "pairs.jsonl", pairs, plugin)
        assert cli("run", "pairs.yaml", "--quiet").code == 0
        study = (
            PREFERENCES.replace("preferred", "kinds")
            .replace("preferences.jsonl", file)
            .replace(": 80", ": 4")
        )
    write(folder, "kinds.yaml", study, file, rows, plugin)

    def said(*words: str, code: int = 0) -> str:
        ended = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, cwd=folder)
        assert ended.returncode == code, ended
        return ended.stdout + ended.stderr

    said("run", "kinds.yaml", "--quiet", ALLOWED)
    for remembered in Path(os.environ["XDG_STATE_HOME"]).glob("sweeplab/allowed/*"):
        if remembered.read_text().startswith("plugin\n"):
            remembered.unlink()
    for words in (
        ("show", "kinds"),
        ("best", "kinds"),
        ("list",),
        ("report", "kinds"),
        ("doctor", "kinds"),
    ):
        said(*words)
    text = "p1\tyes" if plugin == "preference" else "a1\tc1" if plugin == "similarity" else "w1"
    refused = said("predict", "kinds", text, code=2)
    assert f"uses the objective {plugin!r}" in refused and ALLOWED in refused and refused.count("\n") == 1
    said("study", "extend", "kinds", "--trials-per-cell", "4", "--no-run")
    assert ALLOWED in said("study", "resume", "kinds", code=2)
    assert said("predict", "kinds", text, ALLOWED)
    said("study", "resume", "kinds")  # allowed once
    assert said("predict", "kinds", text)
