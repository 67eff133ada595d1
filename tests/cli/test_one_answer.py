"""One study, one answer: every place says the same state, counts, best trial, loss and next command of nine studies."""

import html
import json
import shutil
from pathlib import Path
from threading import Thread

import pytest
from terminal import wait_until

import sweeplab
from sweeplab.cli.mcp import Reach, Tools
from sweeplab.records.folders import StudyFolder
from sweeplab.report.live import Follower
from sweeplab.tracking.connection import connect, tracking_uri

SHORT = {
    "block_size": 16, "batch_size": 4, "max_iters": 20, "n_layer": 1, "n_head": 2, "n_embd": 8, "device": "cpu",
    "warmup_iters": 2, "dropout": 0.0, "eval_interval": 10, "eval_iters": 1, "compile": False,
}  # fmt: skip
LONG = {**SHORT, "max_iters": 100_000, "patience": None}
STUDY = {
    "data": {"corpus": "python-docs", "tokenizer": "char"},
    "fixed": SHORT,
    "search": {"learning_rate": {"min": 3e-4, "max": 1e-2, "log": True}},
    "budget": {"trials_per_cell": 3},
    "pruner": "none",
    "engine": {"workers": 1},
}
SIZES = {
    "grid": {"n_embd": [8, 16, 24]},
    "fixed": {k: v for k, v in SHORT.items() if k != "n_embd"},
}
METRIC = """\
from sweeplab.plugins import metric

@metric("hits")
def hits(model, batches, record):
    return -record.val_loss
"""
# What each study has that is not as above, and its state.
ENDED = {
    "finished": (SIZES, "finished"),
    "one-size": ({}, "finished"),
    "two-seeds": ({"seeds": [0, 1]}, "finished"),
    "wild": (
        {"search": {"learning_rate": {"min": 1e6, "max": 1e7, "log": True}}},
        "all diverged",
    ),
    "cut": (
        {"fixed": LONG, "budget": {"trials_per_cell": 3, "time": "6s"}},
        "stopped at its budget",
    ),
    "maximized": (
        {"plugins": ["hits.py"], "objective": {"metric": "hits", "goal": "maximize"}},
        "finished",
    ),
}


def check_answers(folder, state, cli):
    """Check that all places agree about a study, and that it is in this state."""
    name, place = folder.name, ("--lab", folder.lab)
    study = sweeplab.open_study(name, folder.lab)
    tools = Tools(Reach(folder.lab, [folder.lab.resolve(), Path.cwd()]))

    def told(words):
        return json.loads(cli(*words.split(), *place, "--json").out)

    first, chosen, live = study.show().as_dict(), study.best, Follower(folder).look()
    shown, asked = told(f"show {name}"), tools.call("show", {"name": name})
    rows = [each for each in (*told("list"), *tools.call("list", {})) if each["name"] == name]
    assert len(rows) == 2 and {each["state"] for each in (*rows, shown, asked, live)} == {state}
    assert shown["headline"] == asked["headline"] == live["headline"] == first
    assert {each["next"] for each in rows} == {first["next"]}
    assert f"{rows[0]['done']} of {rows[0]['planned']} trial" in first["state"]
    assert cli("show", name, *place).out.startswith(f"{study.show()}\n")
    if chosen is None:
        assert rows[0]["best_value"] is shown["best"] is None and not live["best"]
        return
    best = told(f"best {name}")
    (best_live,) = [run for run in live["runs"] if run["key"] == live["best"]]
    for each in (best, tools.call("best", {"name": name}), best_live):
        assert (each["cell"], each["trial"]) == (chosen.cell, chosen.trial)
    assert {rows[0]["best_value"], best["value"], shown["best"]["value"], study.best_value} == {
        chosen.loss
    }


def check_pages(folder):
    """Check that the page of a study that has ended, and MLflow, say the same."""
    study = sweeplab.open_study(folder.name, folder.lab)
    page = html.unescape(study.report("sweep").read_text("utf-8"))
    assert [line for line in study.show().as_dict().values() if line not in page] == []
    client = connect(folder.lab, tracking_uri(folder.lab))
    experiment = client.get_experiment_by_name(folder.name)
    tags = [run.data.tags for run in client.search_runs([experiment.experiment_id])]
    keys = {tag["sweeplab.best_key"] for tag in tags if "sweeplab.best_key" in tag}
    if study.best is not None:
        (key,) = keys
        assert key.startswith(f"{study.best.cell}/{study.best.trial}/")


def wait_for(study, begins):
    wait_until(study.folder.canonical_file.exists)  # from then on the lab has the whole study
    wait_until(lambda: study.show().state.startswith(begins))


@pytest.mark.slow
@pytest.mark.usefixtures("forgets_plugins")
def test_every_place_says_the_same_of_nine_studies(cli, folder):
    Path("hits.py").write_text(METRIC)
    for name, (changed, _) in ENDED.items():
        sweeplab.make_study(name, lab="lab", allow_plugins=True, **STUDY | changed).run(
            progress=False
        )
    lab = folder / "lab"
    for name, (_, state) in ENDED.items():
        check_answers(StudyFolder(lab, name), state, cli)
        check_pages(StudyFolder(lab, name))
    shutil.copytree(lab, folder / "copy")
    check_answers(StudyFolder(folder / "copy", "finished"), "finished", cli)

    study = sweeplab.make_study("running", lab="lab", **STUDY | {"fixed": LONG})
    running = Thread(target=study.run, kwargs={"progress": False})
    running.start()
    wait_for(study, "running: 0 of 3 trials (3 training")
    assert study.show().next == "sweeplab watch running"
    study.pause()
    wait_for(study, "paused: 0 of 3 trials")
    check_answers(study.folder, "paused", cli)
    study.stop()
    running.join(120)
    assert not running.is_alive()
    check_answers(study.folder, "interrupted", cli)

    once = sweeplab.open_study("one-size", lab)
    assert (
        "would be enqueued" in cli("enqueue", "one-size", "learning_rate=5e-4", "--dry-run").out
    )
    check_answers(once.folder, "finished", cli)
    once.enqueue(learning_rate=5e-4)
    check_answers(once.folder, "waiting", cli)
