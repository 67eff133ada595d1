"""Studies of the objectives in studies/plugins: planned, run, evaluated and used, from file to MLflow."""

import json
import math
import os
import shutil
from pathlib import Path

import mlflow
import plugged
import pytest
from terminal import PROGRAM, said

from sweeplab.lab.listing import find_study
from sweeplab.tracking.connection import tracking_uri

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forgets_plugins")]
STUDY = """
name: kinds
plugins: [PLUGIN.py]
data: {corpus: CORPUS, tokenizer: char, path: FILE}
fixed: {family: encoder, block_size: 20, batch_size: 16, epochs: 10, n_layer: 1, n_head: 2, n_embd: 16, dropout: 0.0,
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
TAGS = [
    {"tokens": [f"{'ab'[at % 2]}{at}", "c"], "tags": [("even", "odd")[at % 2], "end"]}
    for at in range(200)
]
SCORES = [
    {"sentence1": f"{'ab'[at % 2]}{at}", "sentence2": f"c{at}", "score": at % 2}
    for at in range(200)
]
QUESTIONS = [
    {
        "question": "where?",
        "context": f"{'a' * (at % 3)}B{at}",
        "answer": "B",
        "answer_start": at % 3,
    }
    for at in range(200)
]


def write(folder, name, text, rows, plugin):
    (folder / f"{name}.yaml").write_text(text)
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shutil.copy(plugged.FOLDER / f"{plugin}.py", folder)


def write_kinds(folder, plugin, corpus, rows):
    study = (
        STUDY.replace("PLUGIN", plugin).replace("CORPUS", corpus).replace("FILE", "kinds.jsonl")
    )
    write(folder, "kinds", study, rows, plugin)


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize(
    ("plugin", "corpus", "rows", "unit", "measures", "best", "text", "said"),
    [
        (
            "tagging",
            "tags",
            TAGS,
            "nats/tag",
            {"accuracy", "f1"},
            "accuracy",
            "b7 c",
            ["odd", "end"],
        ),
        (
            "similarity",
            "scores",
            SCORES,
            "squared error",
            {"pearson", "spearman"},
            "pearson",
            "b7\tc7",
            1,
        ),
        (
            "answers",
            "questions",
            QUESTIONS,
            "nats/answer",
            {"exact_match", "f1"},
            "f1",
            "where?\taB7",
            "B",
        ),
    ],
)
def test_a_plugin_is_trained_measured_and_used(
    plugin, corpus, rows, unit, measures, best, text, said, cli, json_of, folder
):
    write_kinds(folder, plugin, corpus, rows)
    refused = cli("run", "kinds.yaml")
    assert (
        refused.code == 2
        and "is code that would run here; allowed: --allow-plugins" in refused.err
    )
    assert cli("run", "kinds.yaml", "--quiet", ALLOWED).code == 0
    found = json_of("evaluate kinds", ALLOWED)
    assert found["measures"].keys() == {"val_loss"} | measures and found["measures"][best] > 0.9
    assert found["unit"] == unit
    (answer,) = json_of("predict kinds", text, ALLOWED)["texts"]
    if plugin == "tagging":
        assert [word["label"] for word in answer["words"]] == said
    elif plugin == "similarity":
        assert round(answer["score"]) == said
    else:
        assert answer["answer"] == said
    (end,) = [run.read_end() for run in find_study(folder / "lab", "kinds").runs()]
    assert end.best.keys() >= measures - {"accuracy"}
    refused = cli("generate", "kinds", "--prompt", "a", ALLOWED)
    assert refused.code == 2 and "`sweeplab predict RUN TEXT`" in refused.err


@pytest.mark.usefixtures("workers_here")
def test_a_run_of_pairs_learns_which_answers_are_preferred(cli, json_of, folder, monkeypatch):
    """Both answers are as likely in the pairs, and the preferences choose one."""
    prompts = [f"is {at}?" for at in range(300)]
    pairs = [
        {"source": each, "target": ("yes", "no")[at // 2 % 2]}
        for at, each in enumerate(prompts)
    ]
    preferences = [{"prompt": each, "chosen": "yes", "rejected": "no"} for each in prompts]
    write(folder, "pairs", PAIRS, pairs, "preference")
    write(folder, "preferences", PREFERENCES, preferences, "preference")
    assert cli("run", "pairs.yaml", "--quiet").code == 0
    for change, why in (
        (
            "fixed.batch_size=7",
            "batch_size / grad_accum is a multiple of what objective needs (preference: 2)",
        ),
        (
            "init_from=null",
            "init_from names the trained run that objective preference starts from",
        ),
        (
            "fixed.objective=pairs",
            "objective is preference, because corpus preferences has preferences",
        ),
        ("search.beta={min: 0, max: 1}", "allowed: a number, above 0"),
    ):
        refused = cli("plan", "preferences.yaml", ALLOWED, "-o", change)
        assert refused.code == 2 and why in refused.err and refused.err.count("\n") == 1, (
            refused.err
        )
    assert cli("run", "preferences.yaml", "--quiet", ALLOWED).code == 0
    best = json_of("best preferred")
    assert {*best["sampled"]} == {"learning_rate", "beta"} and best["value"] < 0.4
    found = json_of("evaluate preferred", ALLOWED)["measures"]
    assert found["reward_accuracy"] == 1.0 and found["reward_margin"] > 1
    assert found["val_loss"] == pytest.approx(best["value"], rel=1e-4) and found[
        "val_loss"
    ] < math.log(2)
    asked = ("generate", "preferred", ALLOWED, "--seed", "1", "--prompt")
    assert {cli(*asked, each).out.strip() for each in prompts[:6]} == {"yes"}
    said = json_of("predict preferred", "is 1?\tyes", "is 1?\tno", ALLOWED)["texts"]
    assert said[0]["log_probability"] > said[1]["log_probability"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(folder / "lab"))
    tracked = mlflow.search_runs(search_all_experiments=True)
    exact = tracked["tags.sweeplab.searched"].dropna().map(json.loads)
    betas = {
        run.read_start().values.beta for run in find_study(folder / "lab", "preferred").runs()
    }
    assert {searched["beta"] for searched in exact if "beta" in searched} == betas


def test_what_a_plugin_trained_is_shown_without_it_and_used_with_it_alone(cli, folder):
    """In other processes: this one may have imported it."""
    write_kinds(folder, "similarity", "scores", SCORES[:60])

    def run(*words, code=0):
        return said([*PROGRAM, *words], code, cwd=folder)

    short = ("-o", "max_iters=4", "-o", "eval_interval=2")
    run("run", "kinds.yaml", "--quiet", ALLOWED, *short)
    for remembered in Path(os.environ["XDG_STATE_HOME"]).glob("sweeplab/allowed/*"):
        if remembered.read_text().startswith("plugin\n"):
            remembered.unlink()
    for command in ("show kinds", "best kinds", "list", "report kinds", "doctor kinds"):
        run(*command.split())
    refused = run("predict", "kinds", "a1\tc1", code=2)
    assert (
        "uses the objective 'similarity'" in refused
        and ALLOWED in refused
        and refused.count("\n") == 1
    )
    run("extend", "kinds", "--trials-per-cell", "4", "--no-run")
    assert ALLOWED in run("resume", "kinds", code=2)
    assert run("predict", "kinds", "a1\tc1", ALLOWED)
    run("resume", "kinds")  # allowed once
    assert run("predict", "kinds", "a1\tc1")
