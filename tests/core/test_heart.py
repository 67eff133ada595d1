"""The heart: a study from its file to its page, trials told as they end, a resume to the bit, a law.

`pytest tests/core` says in seconds whether these hold; what each of them rests on is tested in the other folders.
"""

import json
import subprocess
from collections import Counter

import numpy as np
import pytest
from laws.planted_laws import GOOD, TRUTHS, plant
from optuna.trial import TrialState
from tiny_study import dataset, losses, opened, tiny, work
from tracked import Tracked

from sweeplab import load_study
from sweeplab.lab.events import EventStream, RunEvaluated, TrialClaimed, TrialEnded
from sweeplab.laws.assessment import assess
from sweeplab.laws.forms import LAWS

__all__ = ["dataset", "opened", "tiny", "work"]
pytestmark = pytest.mark.usefixtures("one_thread")
STUDY = """\
name: heart
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, warmup_iters: 2, dropout: 0.0,
        eval_interval: 10, eval_iters: 1, device: cpu, dtype: float32, compile: false}
grid: {n_embd: [8, 16]}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 2}
engine: {workers: 1, threads: 1}
"""


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("diff", [True, False])
def test_mlflow_has_the_diff_of_a_dirty_tree(diff, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    file, track = tmp_path / "heart.yaml", f"track: {{diff: {str(diff).lower()}}}\n"
    file.write_text(STUDY)
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -q -m first"):
        subprocess.run(["git", "-C", tmp_path, *command.split()], check=True)
    file.write_text(STUDY.replace("trials_per_cell: 2", "trials_per_cell: 1") + track)
    folder = load_study(file, lab=tmp_path / "lab").run().folder
    client, tracked = Tracked(folder.lab, "heart").client, folder.read_tracked()
    assert tracked
    names = {each.path for each in client.list_artifacts(tracked.run_id)}
    assert "study.yaml" in names and ("study.diff" in names) is diff


@pytest.mark.usefixtures("workers_here")
def test_a_study_file_becomes_trials_records_and_a_page(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "heart.yaml").write_text(STUDY)
    result = load_study(tmp_path / "heart.yaml", lab=tmp_path / "lab").run()
    assert (result.status, result.errors, result.folder.states()) == (
        "complete",
        [],
        {"complete": 4},
    )
    values = [run.read_end().value for run in result.folder.runs()]
    assert result.best.loss == min(values) == min(result.trials()["value"])
    assert {run.state for run in Tracked(result.folder.lab, "heart").runs()} == {"complete"}
    assert result.report is not None and '<div class="figure"' in result.report.read_text(
        "utf-8"
    )
    loss, *_ = json.loads(result.report.with_suffix(".json").read_text())["panels"]
    assert sorted(row["loss"] for row in loss["data"]) == pytest.approx(sorted(values)), (
        "one loss of all trials"
    )
    whole = [run.read_end().whole_val_loss for run in result.folder.runs()]
    assert 2 <= sum(value is not None for value in whole) < 4, "of what each cell chooses alone"


def test_a_study_is_trained_and_told(tiny, work):
    folder, store, _ = work(tiny(grid={"n_embd": [16, 32]}))
    ends = {run.read_start().key: run.read_end() for run in folder.runs()}
    assert len(ends) == 8
    assert {end.state for end in ends.values()} == {"complete"}
    told = Counter(map(type, EventStream(folder).new()))
    assert told == {TrialClaimed: 8, RunEvaluated: 24, TrialEnded: 8}
    for cell in store.cells:
        for trial in store.trials(cell):
            end = ends[f"{cell.key}/{trial.number}/0"]
            assert end.best_val_loss == trial.value == end.value
            assert sorted(trial.intermediate_values) == [0, 10, 20]
    assert not list(folder.path.rglob("state*")), "an ended run keeps no snapshot"


def test_stopped_at_any_step_it_goes_on_to_the_same_losses(tiny, work):
    whole, _, _ = work(tiny(name="whole", seeds=[0, 1]))
    spec = tiny(name="parts", seeds=[0, 1])
    rounds = 0
    for steps in (0, 3, 9, 5, 6):
        left = iter(range(steps + 1))
        folder, _, _ = work(spec, lambda left=left: next(left, None) is None)
        rounds += any(run.read_end() is None for run in folder.runs())
    assert rounds >= 3, "most of these stops were in the middle of the study"
    folder, store, _ = work(spec)
    assert losses(folder) == losses(whole)
    assert {trial.state for trial in store.trials(store.cells[0])} == {TrialState.COMPLETE}
    assert all(run.read_end() for run in folder.runs())


def test_a_planted_law_is_found_with_its_interval():
    points = plant("steep", GOOD["30 points, 6 x 5"], 0.003, np.random.default_rng(3))
    found = assess(points, LAWS["chinchilla"]).as_dict()["parameters"]
    for name in ("alpha", "beta"):
        assert found[name]["low"] < TRUTHS["steep"][name] < found[name]["high"]
        assert found[name]["verdict"] == "identified"
