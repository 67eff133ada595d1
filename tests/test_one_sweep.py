"""The sweep that `studies/one_sweep.py` writes by hand is the program's: the same trials, curves and values."""

import random
import re
import textwrap
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import mlflow
import pytest
from optuna.trial import TrialState

from sweeplab import load_study
from sweeplab.data.dataset import prepare

FILE = Path(__file__).parents[1] / "studies" / "one_sweep.py"


@pytest.mark.slow
def test_the_plain_sweep_and_the_program_train_the_same(tmp_path):
    draw = random.Random(0)
    text = "the the quick brown fox jumps over lazy dog and vixen then hen"
    (tmp_path / "text.txt").write_text(" ".join(draw.choices(text.split(), k=3_000)))
    spec = spec_from_file_location("one_sweep", FILE)
    plain = module_from_spec(spec)
    spec.loader.exec_module(plain)
    study = textwrap.dedent(re.search(r"\n\n(    name: .*?)\n\n", plain.__doc__, re.DOTALL)[1])
    (tmp_path / "one-sweep.yaml").write_text(study)
    result = load_study(tmp_path / "one-sweep.yaml", lab=tmp_path / "lab").run()
    assert result.status == "complete"
    curves, ends = {}, {}
    for run in result.folder.runs():
        rate = run.read_start().values.learning_rate
        ends[rate] = run.read_end()
        curves[rate] = {
            each.iteration: each.val_loss for each in run.points() if each.val_loss is not None
        }

    data = prepare("text", "char", str(tmp_path / "text.txt"))
    texts = [data.tokenizer.decode(split) for split in (data.train, data.val)]
    trials = {
        trial.params["learning_rate"]: trial for trial in plain.sweep(*texts, tmp_path).trials
    }
    mlflow.set_tracking_uri(None)
    assert len(trials) == len(plain.RATES) == 3 and {*trials} == {*curves}
    assert {trial.state for trial in trials.values()} == {
        TrialState.COMPLETE,
        TrialState.PRUNED,
    }
    for rate, trial in trials.items():
        assert trial.intermediate_values == pytest.approx(curves[rate], rel=1e-5)
        assert (trial.state == TrialState.PRUNED) == (ends[rate].state == "pruned")
        assert trial.value == pytest.approx(ends[rate].value, rel=1e-5)
