"""Studies and runs from Python, exit codes, and what is said of what is wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from characterization.conftest import Lab, command
from characterization.shape import Golden, Shapes

import sweeplab

REFUSED = (
    "study show nothing",
    "study show alfa",
    "study run nothing.yaml",
    "study plan beta.yaml",
    "study run alpha.yaml -o max_iter=5",
    "study run alpha.yaml -o fixed.n_head=3 --name other",
    "study run alpha.yaml -o max_iters=90",
    "study best alpha --cell n_layer=3",
    "study show alpha --trial 9",
    "study stop alpha",
    "study retry alpha",
    "study extend alpha",
    "study enqueue alpha learning_rate=fast",
    "study diff alpha nothing",
    "study clone alpha gamma",
    "study rename alpha beta --yes",
    "study rm alpha",
    "trial stop alpha 0",
    "trial stop alpha 0 --cell n_layer=1",
    "report scaling nothing",
    "report compare alpha beta",
    "report compare alpha alpha",
    "laws fit alpha",
    "laws fit nothing.csv",
    "model params --preset gpt22",
    "model next nothing --prompt a",
    "model trace alpha --token 300",
    "generate alpha --prompt é",
    "generate gamma --prompt the --contrast alpha",
    "evaluate nothing",
    "export-hf nothing out",
    "import-hf nothing",
    "hyperparameters --category nothing",
    "ui nothing",
    "doctor nothing",
)
MISUSED = ("study", "nothing", "study pause", "study show alpha --nothing", "study plan alpha.yaml --name")


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_in_a_line(line: str, place: Path, shapes: Shapes, golden: Golden) -> None:
    before = sorted([*place.glob("*"), *place.glob("lab/studies/*")])
    said = command(line)
    lines = said.err.splitlines()
    assert (said.code, said.out) == (2, "") and lines and all(each.startswith("error: ") for each in lines), (
        said
    )
    assert sorted([*place.glob("*"), *place.glob("lab/studies/*")]) == before, "something was written"
    golden.check(line, [shapes.text(each) for each in lines])


@pytest.mark.parametrize("line", MISUSED)
def test_what_is_no_command_ends_with_2(line: str, place: Path) -> None:
    said = command(line)
    assert said.code == 2 and "Traceback" not in said.err and said.out + said.err


def test_a_process_ends_as_the_command_does(place: Path) -> None:
    def run(line: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", "from sweeplab.cli import main; main()", *line.split()]
        return subprocess.run(program, capture_output=True, text=True)

    done, refused = run("study list"), run("study show nothing")
    assert (done.returncode, done.stderr) == (0, "") and "alpha" in done.stdout
    assert (refused.returncode, refused.stdout) == (2, "") and refused.stderr.startswith("error: no study ")


def test_tracking_that_does_not_answer_ends_with_1(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said = command("report scaling alpha")
    assert (said.code, said.out) == (1, "") and said.err.count("\n") == 1
    assert said.err.startswith("error: tracking does not answer: http://127.0.0.1:9")


def test_studies_from_python(place: Path, shapes: Shapes, golden: Golden) -> None:
    plan = sweeplab.load_study("alpha.yaml").plan()
    golden.check("load_study(…).plan()", [each.name for each in fields(plan)])
    study = sweeplab.open_study("alpha", place / "lab")
    assert repr(study).startswith(f"<study alpha in {place}/lab: complete, 6 of 6 trials, best ")
    trials, curves = study.trials(), study.curves()
    golden.check(
        "trials()", {name: str(kind) for name, kind in trials.dtypes.items()} | {"rows": len(trials)}
    )
    golden.check(
        "curves()", {name: str(kind) for name, kind in curves.dtypes.items()} | {"rows": len(curves)}
    )
    metrics = study.curves(metrics=["val_loss", "grad_norm"])
    golden.check("curves(metrics)", metrics.groupby("metric").size().to_dict())
    golden.check("best", shapes.of(study.best))
    assert "<table" in study._repr_html_()
    members = {type(each).__name__: _public(each) for each in (study, plan)}
    golden.check("members", members)


def _public(what: object) -> str:
    return " ".join(name for name in dir(what) if not name.startswith("_"))


def test_a_run_from_python(lab: Lab, place: Path, shapes: Shapes, golden: Golden) -> None:
    import torch

    best = sweeplab.open_study("alpha").best
    run = sweeplab.load_run(best["run_id"], lab=place / "lab")
    tokens = run.tokenizer.encode("the old tree")
    assert run.tokenizer.decode(tokens) == "the old tree"
    logits = run.model.logits(torch.tensor([[int(each) for each in tokens]]))
    weights = {name: list(weight.shape) for name, weight in run.model.weights.items()}
    golden.check("load_run(…)", {
        "members": _public(run), "of the model": _public(run.model), "of the tokenizer": _public(run.tokenizer),
        "tokens": [int(each) for each in tokens], "logits": list(logits.shape), "weights": weights,
        "values": shapes.of(run.values.as_dict()), "facts": shapes.of(run.facts), "special": run.special,
    })  # fmt: skip
    with pytest.raises(Exception, match="no run 'nothing'"):
        sweeplab.load_run("nothing", lab=place / "lab")
