"""The whole from Python: a study file in, a result, and a trained model back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import sweeplab
from sweeplab.api import StudyResult
from sweeplab.data.dataset import prepare
from sweeplab.errors import BadInput
from sweeplab.tracking.tracker import ENDED

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
def heard() -> list[str]:
    return []


@pytest.fixture(scope="module")
def result(heard: list[str], tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """Return what came of a study, one of whose learning rates diverges."""
    place = tmp_path_factory.mktemp("api")
    (place / "tiny.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        study = sweeplab.load_study(
            place / "tiny.yaml", lab=place / "lab", overrides=["budget.trials_per_cell=2"]
        )
        return study.run(lambda event, progress: heard.append(event["event"]))


def test_a_study_runs_and_says_how_it_stands(result: StudyResult, heard: list[str]) -> None:
    assert (result.status, result.errors) == ("complete", [])
    assert result.report and result.report.is_file()
    assert heard.count("claimed") == heard.count("ended") == 2
    assert {"ready", "evaluated", "tick", "exited"} <= set(heard)


def test_trials_are_a_frame_with_a_row_a_run(result: StudyResult) -> None:
    frame = result.trials()
    assert len(frame) == 2 and set(frame["state"]) <= set(ENDED)
    by_rate = frame.set_index("learning_rate")["state"]
    assert by_rate[3e-3] == "complete" and by_rate[1e6] == "diverged"
    assert (frame["max_iters"] == 100).all()


def test_best_is_the_run_with_the_lowest_value_as_plain_values(result: StudyResult) -> None:
    best = result.best
    assert best["learning_rate"] == 3e-3 and best["state"] == "complete"
    assert best["best_val_loss"] == best["value"] < math.log(103)
    assert best["grad_clip"] is None and best["patience"] is None
    assert {type(value) for value in best.values()} <= {int, float, bool, str, type(None)}


def test_a_trained_run_loads_back(result: StudyResult) -> None:
    best = result.best
    loaded = sweeplab.load_run(best["run_id"], lab=result.folder.lab)
    assert loaded.values["learning_rate"] == best["learning_rate"]
    tokens = torch.from_numpy(loaded.tokenizer.encode("import").astype(np.int64))[None]
    logits = loaded.model.logits(tokens)
    assert logits.shape == (1, 6, 103) and logits.isfinite().all()
    val = prepare("python-docs", "char").val[: 17 * 256].astype(np.int64).reshape(256, 17)
    assert loaded.model.loss(torch.from_numpy(val)) == pytest.approx(best["best_val_loss"], abs=0.25)


@pytest.mark.parametrize("run_id", ["nonsense", "0" * 32])
def test_an_unknown_run_is_refused(run_id: str, result: StudyResult) -> None:
    with pytest.raises(BadInput, match=rf"^no run {run_id} at sqlite:///{result.folder.lab}/mlflow\.db: "):
        sweeplab.load_run(run_id, lab=result.folder.lab)


def test_a_run_without_a_checkpoint_is_refused(result: StudyResult) -> None:
    diverged = result.trials().set_index("state").loc["diverged", "run_id"]
    with pytest.raises(BadInput, match=rf"^run {diverged} kept no checkpoint"):
        sweeplab.load_run(diverged, lab=result.folder.lab)


def test_looking_for_a_run_makes_no_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(BadInput, match=r"no run x: there is nothing at sqlite:"):
        sweeplab.load_run("x", lab=tmp_path / "lab")
    assert not list(tmp_path.iterdir())


def test_a_study_file_that_is_wrong_is_refused_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(STUDY.replace("n_layer", "n_layers"))
    with pytest.raises(BadInput, match=r"wrong\.yaml:3:56: .*did you mean 'n_layer'"):
        sweeplab.load_study(tmp_path / "wrong.yaml")


def test_a_lab_without_room_or_place_is_refused_when_it_is_planned(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(STUDY)
    (tmp_path / "lab").touch()
    study = sweeplab.load_study(tmp_path / "tiny.yaml", lab=tmp_path / "lab")
    for refuse in (study.plan, study.run):
        with pytest.raises(BadInput, match="cannot be written"):
            refuse()
    assert (tmp_path / "lab").read_bytes() == b""
