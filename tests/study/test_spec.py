from pathlib import Path

import pytest
from pydantic import ValidationError

from sweeplab.expressions import Expression
from sweeplab.study.file.reading import read_plain, read_study
from sweeplab.study.options import Pruner
from sweeplab.study.spec import Budget, DataSpec, Engine, ObjectiveSpec, StudySpec
from sweeplab.study.values import Range

DATA = DataSpec(corpus="text", tokenizer="byte", path="books/*.txt")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30m", 1800),
        ("1h30m", 5400),
        ("1d2h3m4.5s", 93784.5),
        (45, 45),
    ],
)
def test_time_is_read_in_the_units_people_write(written, seconds):
    assert Budget(time=written).time == seconds


@pytest.mark.parametrize("written", ["", "m", "30", "3x", "30m2h", "-5m", "nanm", 0, True])
def test_what_is_no_time_is_refused(written):
    with pytest.raises(ValidationError):
        Budget(time=written)


def test_a_budget_has_trials_only_where_it_has_nothing_else():
    assert Budget().trials_per_cell == Budget(time=None).trials_per_cell == 10
    assert Budget(flops=1e12).trials_per_cell is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 101, "a\n"])
def test_other_names_are_refused(name):
    with pytest.raises(ValidationError):
        StudySpec(name=name, data=DATA)


def test_identity_changes_with_what_decides_results_and_with_nothing_else():
    spec = StudySpec(name="a", data=DATA, fixed={"n_layer": 2})
    identity = spec.identity()
    same = {
        "grid": {"n_embd": [96, 192]},
        "budget": Budget(trials_per_cell=3),
        "pruner": Pruner(type="median"),
        "engine": Engine(workers=2),
        "name": "b",
    }
    other = {
        "data": DataSpec(corpus="text", tokenizer="char", path="books/*.txt"),
        "fixed": {"n_layer": 3},
        "search": {"dropout": Range(0.0, 0.1)},
        "objective": ObjectiveSpec(at="final"),
        "seeds": [1],
        "constraints": [Expression("n_layer > 1")],
    }
    for key, value in same.items():
        assert spec.model_copy(update={key: value}).identity() == identity
    for key, value in other.items():
        assert spec.model_copy(update={key: value}).identity() != identity
    assert identity.keys() == other.keys()


def test_the_corpus_lies_beside_the_study_file(tmp_path):
    plain = {"name": "a", "data": {"path": "books/*.txt"}}
    assert read_plain(plain).data_files["path"] == str(Path.cwd() / "books/*.txt")
    spec = read_study(tmp_path / "study.yaml", text="name: a\ndata:\n    path: books/*.txt\n")
    assert spec.source == tmp_path / "study.yaml"
    assert spec.data_files["path"] == str(tmp_path / "books/*.txt")
    problem = spec.problem(("data", "path"), "is empty", "text")
    assert str(problem) == f"{tmp_path}/study.yaml:3:5: is empty; allowed: text"
    assert (
        StudySpec(name="a", data=DataSpec(corpus="python-docs", tokenizer="char")).data_files
        == {}
    )
