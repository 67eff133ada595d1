"""Study files written by the program: every letter that need not change stays, and all that is said is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

import sweeplab
from sweeplab.formatting import yaml_text
from sweeplab.study.file.document import REMOVED, edited
from sweeplab.study.file.reading import read_study
from sweeplab.study.file.template import study_file

FILE = """\
# What this is for.
name: small  # short

fixed:  # one value
  max_iters: 300 # steps
  n_head: 4

  # about the loss
  dropout: 0.0

grid: {n_layer: [1, 2], n_embd: [32, 64]} # cells
search:
  learning_rate:
    min: 3e-4
    max: 1e-2 # not more
    log: true
  weight_decay: suggested # the table's
budget: {time: 30m}
pruner:
  type: asha
  factor: 3
# the end
"""


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({("name",): "other"}, "name: small  #", "name: other  #"),
        ({("fixed", "max_iters"): 1000}, "max_iters: 300 #", "max_iters: 1000 #"),
        ({("fixed", "max_iters"): REMOVED}, "  max_iters: 300 # steps\n", ""),
        ({("fixed", "grad_clip"): None}, "dropout: 0.0\n", "dropout: 0.0\n  grad_clip: null\n"),
        ({("grid", "n_layer"): [3]}, "n_layer: [1, 2]", "n_layer: [3]"),
        ({("grid", "n_layer"): REMOVED}, "{n_layer: [1, 2], n_embd", "{n_embd"),
        ({("grid", "n_embd"): REMOVED}, ", n_embd: [32, 64]}", "}"),
        ({("grid", "betas"): [[0.9, 0.95]]}, "64]} #", "64], betas: [[0.9, 0.95]]} #"),
        ({("budget", "time"): REMOVED}, "{time: 30m}", "{}"),
        (
            {("search", "learning_rate"): {"min": 1e-4, "max": 1e-3}},
            "learning_rate:\n    min: 3e-4\n    max: 1e-2 # not more\n    log: true\n",
            "learning_rate: {min: 1e-4, max: 1e-3}\n",
        ),
        ({("search", "weight_decay"): REMOVED}, "  weight_decay: suggested # the table's\n", ""),
        ({("pruner",): {"type": "none"}}, "pruner:\n  type: asha\n  factor: 3\n", "pruner: {type: none}\n"),
        ({("seeds",): [0, 1]}, "  factor: 3\n", "  factor: 3\nseeds: [0, 1]\n"),
        ({("engine", "workers"): 2}, "  factor: 3\n", "  factor: 3\nengine: {workers: 2}\n"),
        ({("grid",): REMOVED}, "grid: {n_layer: [1, 2], n_embd: [32, 64]} # cells\n", ""),
        ({("seeds",): REMOVED, ("engine", "workers"): REMOVED}, "", ""),
    ],
)  # fmt: skip
def test_only_what_changes_changes(changes, old: str, new: str) -> None:
    assert old in FILE
    assert edited(FILE, changes) == FILE.replace(old, new, 1)


def test_empty_parts_and_json_are_edited_too() -> None:
    for after in ("\n", " # nothing\n", "\nseeds: [0]\n"):
        text = f"name: a\nsearch:{after}"
        assert edited(text, {("search", "n_head"): [1]}) == f"name: a\nsearch: {{n_head: [1]}}{after}"
    assert edited('{"name": "a", "fixed": {}}', {("name",): "b", ("fixed", "n_head"): 2}) == (
        '{"name": b, "fixed": {n_head: 2}}'
    )


NAMES = st.sampled_from(["n_layer", "n_head", "max_iters", "dropout", "batch_size"])
VALUES = st.one_of(st.integers(1, 99), st.floats(1e-9, 1e9), st.booleans(), st.none(), st.just("a text: #1"))


@settings(max_examples=60)
@given(
    st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, st.one_of(VALUES, st.just(REMOVED))), st.booleans()
)
def test_edits_mean_what_they_say(before, changes, block: bool) -> None:
    text = study_file({"name": "a", "fixed": before})
    if block and before:
        lines = "".join(f"  {line}\n" for line in yaml_text(before)[1:-1].split(", "))
        text = f"name: a\nfixed:  # here\n{lines}"
    after = {name: each for name, each in {**before, **changes}.items() if each is not REMOVED}
    read = YAML(typ="safe").load(edited(text, {("fixed", name): each for name, each in changes.items()}))
    assert (read.get("fixed") or {}) == after


@pytest.mark.parametrize(
    "file",
    sorted((Path(sweeplab.__file__).parents[1] / "studies").glob("*.yaml")),
    ids=lambda each: each.stem,
)
def test_what_is_written_is_read_back(file: Path, tmp_path: Path) -> None:
    written = read_study(file).as_written()
    (tmp_path / "again.yaml").write_text(study_file(written, ["A comment"]))
    assert read_study(tmp_path / "again.yaml").as_written() == written
