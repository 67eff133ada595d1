"""The whole from Python: a study file in, a result, and a trained model back."""

import math
import shutil
import sys

import numpy as np
import pytest
import torch
from terminal import captured
from workers_here import workers_here

import sweeplab
from sweeplab.errors import BadInput
from sweeplab.lab.events import (
    RunEvaluated,
    Tick,
    TrialClaimed,
    TrialEnded,
    WorkerExited,
)
from sweeplab.records.runs import RunFolder

STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 100, n_layer: 1, n_embd: 16, n_head: 2, dropout: 0.0,
        warmup_iters: 2, eval_interval: 10, eval_iters: 2, patience: null, grad_clip: null, device: cpu}
search:
  learning_rate: [3e-3, 1e6]
budget: {trials_per_cell: 4}
sampler: grid
engine: {workers: 1}
"""


@pytest.fixture(scope="module")
def heard():
    return []


@pytest.fixture(scope="module")
def evaluations():
    return []


@pytest.fixture(scope="module")
def result(heard, evaluations, tmp_path_factory):
    """Return what came of a study, one of whose learning rates diverges."""
    place = tmp_path_factory.mktemp("api")
    (place / "tiny.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch, workers_here():
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        study = sweeplab.load_study(
            place / "tiny.yaml", lab=place / "lab", overrides=["budget.trials_per_cell=2"]
        )

        def clumsy(end):
            raise LookupError(f"no place for {end.ending.outcome}")

        return study.run(
            lambda event, progress: heard.append(type(event)),
            on_evaluation=evaluations.append,
            on_trial_end=clumsy,
        )


@pytest.mark.slow
def test_a_study_runs_and_says_how_it_stands(result, heard):
    assert result.status == "complete"
    assert result.report and result.report.is_file()
    assert heard.count(TrialClaimed) == heard.count(TrialEnded) == 2
    assert {RunEvaluated, Tick, WorkerExited} <= set(heard)


@pytest.mark.slow
def test_callbacks_hear_of_every_evaluation_and_what_they_raise_is_said(result, evaluations):
    (said,) = result.errors
    assert said.startswith("on_trial_end raised LookupError: no place for ")
    by_trial = {
        number: [each for each in evaluations if each.trial == number] for number in (0, 1)
    }
    lengths = sorted(len(each) for each in by_trial.values())
    assert lengths[0] < lengths[1] == 11, "one learning rate diverges"
    points = result.curves(metrics=["val_loss"])
    known = {(row.trial, row.iteration): row.value for row in points.itertuples()}
    finite = [each for each in evaluations if math.isfinite(each.val_loss)]
    assert known.items() >= {((each.trial, each.iteration), each.val_loss) for each in finite}
    assert {(each.cell, each.seed) for each in evaluations} == {("all", 0)}


AGAIN = """
import sys
import sweeplab
folder = sweeplab.open_study("tiny", sys.argv[1]).run(progress=False).folder
print("mlflow" in sys.modules, sum(1 for run in folder.runs()))
"""


@pytest.mark.slow
def test_a_complete_study_is_left_as_it_is_unless_tracking_lost_it(result, tmp_path):
    lab = tmp_path / "lab"
    shutil.copytree(result.folder.lab, lab)
    for expected in ("False 2", "True 2", "False 2"):
        command = [sys.executable, "-c", AGAIN, str(lab)]
        told = captured(command, check=True).stdout.splitlines()
        assert told[-1] == expected and (lab / "mlflow.db").exists()
        if expected == "False 2":
            (lab / "mlflow.db").unlink()


@pytest.mark.slow
def test_a_study_of_the_lab_is_opened_shown_and_goes_on(result):
    study = sweeplab.open_study("tiny", result.folder.lab)
    assert study.best == result.best and len(study.trials()) == 2
    html = study._repr_html_()
    assert html == result._repr_html_()
    assert "finished: 2 of 2 trials" in html and "<script" not in html
    before = result.folder.study_file.read_bytes()
    again = study.run()
    assert again.status == "complete" and len(again.trials()) == 2
    assert result.folder.study_file.read_bytes() == before
    with pytest.raises(BadInput, match="study tiny is not running"):
        study.stop()
    with pytest.raises(BadInput, match="did you mean 'tiny'"):
        sweeplab.open_study("tny", result.folder.lab)


def test_a_study_that_has_not_been_run_says_so(tmp_path):
    (tmp_path / "tiny.yaml").write_text(STUDY.replace("name: tiny", "name: new"))
    study = sweeplab.load_study(tmp_path / "tiny.yaml", lab=tmp_path / "a <b>")
    assert "not run yet" in study._repr_html_() and "<b>" not in study._repr_html_()
    assert repr(study) == f"<study new in {tmp_path}/a <b>: not run yet>"
    said = repr(
        sweeplab.load_study(
            tmp_path / "tiny.yaml", overrides=["budget.trials_per_cell=2"]
        ).plan()
    )
    assert (
        said.startswith("<plan of new: 1 cell, ")
        and ", 2 trials, 2 runs" in said
        and "FLOPs a run" in said
    )
    for ask in (study.trials, study.curves, lambda: study.best):
        with pytest.raises(BadInput, match="study new has not been run in "):
            ask()


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_study_is_stopped_from_a_callback_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "tiny.yaml").write_text(STUDY.replace("[3e-3, 1e6]", "[3e-3, 1e-3]"))
    lines = ["max_iters=1200", "eval_interval=400", "budget.trials_per_cell=1"]
    study = sweeplab.load_study(tmp_path / "tiny.yaml", lab=tmp_path / "lab", overrides=lines)
    stopped = study.run(on_evaluation=lambda evaluation: study.stop())
    assert stopped.status == "interrupted" and stopped.folder.states() == {"waiting": 1}
    ends = []
    done = study.run(on_trial_end=ends.append)
    assert done.status == "complete" and done.errors == []
    (end,) = ends
    assert (end.ending.outcome, end.ending.states, end.ending.error) == (
        "complete",
        {0: "complete"},
        None,
    )
    assert end.value == done.best.loss


def test_best_is_the_chosen_trial(result):
    best = result.best
    assert best.values == result.best_params == {"learning_rate": 3e-3} and best.cell == "all"
    assert result.best_value == best.loss < math.log(103) and best.metric == "val_loss"
    assert best.interval is None, "there is one seed"
    assert RunFolder(best.path).read_end().value == best.loss
    varied = ["cell", "trial", "seed", "state", "value", "learning_rate"]
    frame = result.trials()
    assert varied == list(frame)[: len(varied)]
    assert dict(zip(frame["learning_rate"], frame["state"], strict=True)) == {
        3e-3: "complete",
        1e6: "diverged",
    }
    assert result.trials_dataframe().equals(frame)
    assert {"Run", "Study", "laws", "load_run", "load_study", "make_study", "open_study"} < {
        *dir(sweeplab)
    }
    assert isinstance(sweeplab.open_study("tiny", result.folder.lab), sweeplab.Study)


def test_a_run_writes_and_gives_logits(result):
    run = sweeplab.load_run("tiny", lab=result.folder.lab)
    assert len(run.generate("import ", max_new_tokens=9, seed=3)) == 16
    ids = run.tokenizer.encode("import").astype(np.int64)
    logits = run.logits("import")
    assert logits.shape == (6, 103)
    for same in (ids, ids.tolist(), torch.from_numpy(ids)):
        assert torch.equal(run.logits(same), logits)
    assert torch.equal(run.logits([ids.tolist()] * 2)[1], logits)
    for wrong in ([], "i" * 17):
        with pytest.raises(BadInput, match="1 to 16, the run's block_size"):
            run.logits(wrong)


def test_values_make_the_same_study_as_a_file(tmp_path):
    (tmp_path / "tiny.yaml").write_text(STUDY)
    of_file = sweeplab.load_study(tmp_path / "tiny.yaml", lab=tmp_path / "other")
    data = {"corpus": "python-docs", "tokenizer": "char"}
    fixed = {**of_file.spec.fixed, "batch_size": np.int64(4)}
    parts = {
        "data": data,
        "fixed": fixed,
        "search": {"learning_rate": (3e-3, 1e6)},
        "sampler": "grid",
    }
    parts |= {"budget": {"trials_per_cell": 2}, "engine": {"workers": 1}}
    study = sweeplab.make_study("tiny", **parts, lab=tmp_path / "lab")
    assert study.spec.identity() == of_file.spec.identity()
    changes = ["max_iters=50", "budget.time=5m"]
    changed = sweeplab.load_study(tmp_path / "tiny.yaml", name="other", overrides=changes)
    assert (changed.spec.name, changed.spec.fixed["max_iters"], changed.spec.budget.time) == (
        "other",
        50,
        300,
    )
    with pytest.raises(sweeplab.BadInput, match=r"^-o maxiters=3: 'maxiters' is unknown"):
        sweeplab.load_study(tmp_path / "tiny.yaml", overrides=["maxiters=3"])
    with pytest.raises(sweeplab.BadInput, match=r"learning_rat.*did you mean 'learning_rate'"):
        sweeplab.make_study("tiny", data=data, search={"learning_rat": [1]})


@pytest.mark.slow
def test_callbacks_see_what_was_measured(tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(STUDY)
    overrides = [
        "budget.trials_per_cell=2",
        "eval_train=true",
        "search.learning_rate=[1e-3, 2e-3]",
    ]
    study = sweeplab.load_study(
        tmp_path / "tiny.yaml", lab=tmp_path / "lab", overrides=overrides
    )
    seen = []

    def keep(end):
        raise ValueError(end.ending.outcome)

    with workers_here():
        result = study.run(on_evaluation=seen.append, on_trial_end=keep)
    (error,) = result.errors
    assert error.startswith("on_trial_end raised ValueError: ")
    assert all("eval_train_loss" in evaluation.measures for evaluation in seen)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith("1/2  all trial ") and "val_loss" in lines[0]
    assert sweeplab.load_study(
        tmp_path / "tiny.yaml", lab=tmp_path / "lab", overrides=overrides
    ).run(progress=False)
    assert not capsys.readouterr().out
