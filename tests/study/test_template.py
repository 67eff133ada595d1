from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

import sweeplab
from sweeplab.data import DataSizes
from sweeplab.errors import BadInput
from sweeplab.formatting import yaml_text
from sweeplab.hyperparameters import TABLE, defaults
from sweeplab.study.file.reading import read_study
from sweeplab.study.file.template import SEARCHED, study_file, study_text
from sweeplab.study.space import spaces_of


def written(text):
    return YAML(typ="safe", pure=True).load(text)


def read(text, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return read_study(path)


def test_writes_every_hyperparameter_once():
    study = written(study_text("full"))
    assert study["name"] == "full"
    assert study["search"] == {name: TABLE[name].suggested for name in study["search"]}
    assert (
        set(study["search"])
        == set(SEARCHED)
        == {"learning_rate", "weight_decay", "dropout", "warmup_iters"}
    )
    assert set(study["fixed"]) | set(study["search"]) | {"seed"} == set(TABLE)
    for name, value in study["fixed"].items():
        assert TABLE[name].check(value) == defaults()[name]


def test_what_is_searched_starts_at_what_it_would_be_without(tmp_path):
    first = read(
        study_text("mine", values={"dropout": 0.9, "learning_rate": 1e-3}), tmp_path
    ).first_trial
    assert first == {"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_iters": 100}, (
        "0.9 is out of range"
    )
    path = tmp_path / "study.yaml"
    fixed = read_study(path, ["learning_rate=5e-4"])
    assert set(fixed.first_trial) == {"weight_decay", "warmup_iters"}, (
        "what is fixed needs no first value"
    )


def test_every_suggested_width_gets_heads_that_divide_it(tmp_path):
    spec = read(study_text("mine", search=["n_embd"]), tmp_path)
    (space,), excluded = spaces_of(spec, DataSizes(65))
    assert not excluded
    for n_embd in TABLE["n_embd"].suggested:
        values = space.resolve({"n_embd": n_embd}, seed=0)
        assert values.n_head == n_embd // 32
        assert space.broken(values) is None


def test_a_warm_up_that_was_not_given_is_shorter_than_the_run():
    assert written(study_text("mine", (), {"max_iters": 80}))["fixed"]["warmup_iters"] == 8
    assert (
        written(study_text("mine", (), {"max_iters": 80, "warmup_iters": 90}))["fixed"][
            "warmup_iters"
        ]
        == 90
    )


def test_a_name_without_a_range_is_refused():
    with pytest.raises(
        BadInput, match="no range is suggested for 'max_iters'; allowed: block_size, "
    ):
        study_text("mine", search=["max_iters", "eps"])


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8")),
)  # fmt: skip


@given(st.one_of(SCALARS, st.lists(SCALARS, max_size=3)))
def test_a_scalar_reads_back(value):
    back = written(f"value: {yaml_text(value)}  # comment\n")["value"]
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "file",
    sorted((Path(sweeplab.__file__).parents[1] / "studies").glob("*.yaml")),
    ids=lambda each: each.stem,
)
def test_what_is_written_is_read_back(file, tmp_path):
    written = read_study(file).as_written()
    (tmp_path / "again.yaml").write_text(study_file(written, ["A comment"]))
    assert read_study(tmp_path / "again.yaml").as_written() == written
