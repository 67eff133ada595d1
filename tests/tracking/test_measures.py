"""A run's numbers as tracking has them: each once, whatever a writer that dies and starts again leaves behind."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.records.runs import CurvePoint, RunEnd, RunFolder, RunStart, RunState, TrialEnding
from sweeplab.tracking.tracker import RunMeasures

START = RunStart(
    key="a/b=1/2/3",
    cell="a/b=1",
    trial=2,
    seed=3,
    values=Hyperparameters(),
    facts={"n_params": 7},
    started=1000.5,
)


def measures_of(path):
    return RunMeasures(RunFolder(path), START)


def line(iteration, attempt):
    numbers = {"train_tokens": 8 * iteration, "wall_seconds": iteration + 100.0 * attempt}
    losses = {"train_loss": attempt + 0.5} | (
        {"val_loss": attempt + 0.25} if iteration % 2 == 0 else {}
    )
    return {"iteration": iteration} | numbers | losses


@st.composite
def files(draw):
    """Draw a points.jsonl of several attempts, each cut off in a line, and which attempt counts for each."""
    text, counts = b"", {}
    for attempt in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(counts)))
        for iteration in range(begin, begin + draw(st.integers(0, 4))):
            text += json.dumps(line(iteration, attempt)).encode() + b"\n"
            counts.setdefault(iteration, attempt)
        cut = json.dumps(line(99, attempt)).encode()
        text += cut[: draw(st.integers(0, len(cut) - 2))]
    return text, counts


@given(files(), st.data())
def test_each_point_once_however_it_is_written_and_read(file, data):
    text, counts = file
    with TemporaryDirectory() as name:
        path = Path(name, "points.jsonl")
        run = measures_of(Path(name))
        measures = []
        position = 0
        while position < len(text):
            size = data.draw(st.integers(1, len(text) - position))
            with path.open("ab") as points:
                points.write(text[position : position + size])
            position += size
            measures += [each for point in run.new_points() for each in point]
        assert list(run.new_points()) == []
        whole = RunFolder(Path(name)).points()
    found = {(each.name, each.step): (each.value, each.timestamp_ms) for each in measures}
    assert len(found) == len(measures)
    expected = {}
    for iteration, attempt in counts.items():
        at_ms = 1_000_500 + 1000 * (iteration + 100 * attempt)
        for name, value in {"train_loss": 0.5, "val_loss": 0.25}.items():
            if name in line(iteration, attempt):
                expected[name, iteration] = (attempt + value, at_ms)
                if name == "val_loss":
                    expected["val_loss_by_tokens", 8 * iteration] = (attempt + value, at_ms)
    assert found == expected
    assert whole == [
        CurvePoint(**line(each, attempt)) for each, attempt in sorted(counts.items())
    ]


def test_what_a_folder_may_lack(tmp_path):
    run = measures_of(tmp_path)
    assert list(run.new_points()) == []
    assert (
        run.folder.checkpoint() is None
        and run.folder.read_end() is None
        and not run.folder.points()
    )
    facts = {each.name: each.value for each in run.facts()}
    assert facts == {"n_params": 7.0, "log10_n_params": pytest.approx(0.845098)}
    failed = RunEnd(
        state=RunState.FAILED, value=None, ending=TrialEnding(RunState.FAILED, None)
    )
    assert {each.name: each.value for each in run.totals(failed)} == {
        "train_flops": 0,
        "wall_seconds": 0,
    }


def test_a_language_model_s_run_has_a_dozen_numbers(tmp_path):
    """MLflow draws a chart for each."""
    run = measures_of(tmp_path)
    extra = {
        "val_loss": 2.0,
        "bits_per_byte": 1.5,
        "grad_norm": 0.5,
        "learning_rate": 1e-3,
        "tokens_per_second": 9.0,
    }
    (tmp_path / "points.jsonl").write_text(f"{json.dumps(line(2, 0) | extra)}\n")
    end = RunEnd(
        state=RunState.COMPLETE,
        value=2.0,
        best_val_loss=2.0,
        final_val_loss=2.1,
        best_whole_val_loss=2.0,
        best_whole_bits_per_byte=1.5,
        best={"bits_per_byte": 1.5},
        ending=TrialEnding(RunState.COMPLETE, 2.0),
    )
    sent = [
        *run.facts(),
        *(each for point in run.new_points() for each in point),
        *run.totals(end),
    ]
    names = {each.name for each in sent}
    assert (
        len(names) == 12
        and {"train_loss", "val_loss", "val_loss_by_tokens", "best_val_loss", "lr"} <= names
    )


def test_lines_that_are_no_points(tmp_path):
    good = json.dumps(line(3, 0))
    bad = [
        "",
        "null",
        "[1]",
        '{"iteration": 1}',
        "\x00\x00",
        '"text"',
        "[" * 100_000,
        good[:20],
    ]
    wrong = ({"iteration": None}, {"iteration": True}, {"iteration": 20.5}, {"iteration": -1})
    wrong += (
        {"train_tokens": 10**30},
        {"wall_seconds": "soon"},
        {"val_loss": "low"},
        {"val_loss": [4.0]},
    )
    bad += [json.dumps(line(4, 0) | each) for each in wrong]
    (tmp_path / "points.jsonl").write_text("\n".join([*bad, good, ""]))
    (point,) = measures_of(tmp_path).new_points()
    assert [each.step for each in point] == [3]
    assert [point.iteration for point in RunFolder(tmp_path).points()] == [3]
