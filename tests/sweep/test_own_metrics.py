"""Metrics of plugins that see the model: measured, recorded, shown, and the value of trials."""

import json
from pathlib import Path

import pytest
from tiny_study import FIXED

import sweeplab
from sweeplab.analysis.table import runs_table
from sweeplab.errors import BadInput
from sweeplab.tracking.connection import connect, tracking_uri

pytestmark = pytest.mark.usefixtures("forgets_plugins", "workers_here")
PLUGIN = """
import torch
from sweeplab.plugins import metric

@metric("hits")
def hits(model, batches, record):
    torch.rand(3)
    for weight in model.weights.values():
        assert weight.requires_grad is False
    correct = [(model.logits(batch).argmax(-1) == batch.targets).float() for batch in batches]
    next(iter(model.weights.values())).zero_()
    return {"hits": torch.cat(correct).mean().item(), "iteration": record.iteration}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a study of two trials with a plugin's code, and changes."""
    monkeypatch.chdir(tmp_path)

    def run_study(code=PLUGIN, **parts):
        Path("hits.py").write_text(code)
        usual = {
            "data": {"corpus": "python-docs", "tokenizer": "char"}, "fixed": FIXED, "plugins": ["hits.py"],
            "search": {"learning_rate": {"min": 1e-3, "max": 1e-2}}, "budget": {"trials_per_cell": 3},
            "sampler": "random", "pruner": "none", "engine": {"workers": 1, "threads": 1}, "name": "own",
        }  # fmt: skip
        study = sweeplab.make_study(**usual | parts, allow_plugins=True)
        return study, study.run()

    return run_study


def curve(study, trial=0):
    file = study.folder.run("all", trial, 0).points_file
    return [json.loads(line) for line in file.read_text().splitlines() if "val_loss" in line]


@pytest.mark.slow
def test_it_is_recorded_and_gives_trials_their_values(run, tmp_path):
    study, result = run(objective={"metric": "hits", "goal": "maximize"})
    assert result.status == "complete", result.errors
    shares = [point["hits"] for point in curve(study)]
    assert len(shares) == 3 and all(0 <= share <= 1 for share in shares)
    assert [point["hits_iteration"] for point in curve(study)] == [0, 10, 20]
    frame = runs_table(study.lab, "own")
    for row in frame.itertuples():
        assert row.value == -max(point["hits"] for point in curve(study, row.trial))
    assert study.best.loss == frame["value"].min() and "-hits" in study._repr_html_()
    assert {"hits", "hits_iteration"} <= set(study.curves(["hits", "hits_iteration"])["metric"])
    assert study.plot(metric="hits").layout.yaxis.title.text == "hits"
    with pytest.raises(BadInput, match=r"metric is \"hit\".*did you mean 'hits'"):
        study.plot(metric="hit")
    client = connect(study.lab, tracking_uri(study.lab))
    runs = client.search_runs([client.get_experiment_by_name("own").experiment_id])
    assert any(found.data.metrics.get("hits") == shares[-1] for found in runs)


@pytest.mark.slow
def test_it_changes_no_training(run):
    study, _ = run()
    plain, _ = run("", name="plain")
    assert [point["val_loss"] for point in curve(study)] == [
        point["val_loss"] for point in curve(plain)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("'many'", "metric hits returned 'many'"),
        ("float('nan')", "metric hits is nan"),
        ("{'a': 1}", "hits is None"),
    ],
)
def test_a_metric_that_measures_nothing_fails_its_trial(run, result, said):
    code = "from sweeplab.plugins import metric\n@metric('hits')\n"
    code += f"def f(*_): return {result}"
    study, _ = run(code, objective={"metric": "hits"}, budget={"trials_per_cell": 1})
    frame = runs_table(study.lab, "own")
    assert set(frame["state"]) == {"failed"}
    assert said in study.folder.run("all", 0, 0).read_end().error
