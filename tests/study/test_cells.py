"""Cells that are named one by one: what each changes of what is fixed."""

from pathlib import Path

import pytest

from sweeplab.data import DataSizes
from sweeplab.errors import BadInput
from sweeplab.study.file.reading import read_study
from sweeplab.study.space import spaces_of
from sweeplab.sweep.planning import make_plan

SIZES = DataSizes(65)

STUDY = """\
name: parts
data: {corpus: python-docs, tokenizer: char}
fixed:
  block_size: 16
  batch_size: 4
  n_layer: 1
  n_embd: 16
  n_head: 2
  max_iters: 20
  norm: rmsnorm
cells:
  - {}
  - {norm: layernorm}
  - {positions: rotary, n_head: 4}
"""
FILE = Path("parts.yaml")


def read(text=STUDY, *overrides):
    return read_study(FILE, overrides, text=text)


def refused(text, *overrides):
    with pytest.raises(BadInput) as error:
        read(text, *overrides)
    return [str(each) for each in error.value.problems]


def keys(spec):
    return [space.cell.key for space in spaces_of(spec, SIZES)[0]]


def test_each_changes_what_is_fixed():
    spec = read()
    spaces, _ = spaces_of(spec, SIZES)
    assert [space.cell.key for space in spaces] == [
        "base",
        "norm=layernorm",
        "positions=rotary,n_head=4",
    ]
    found = [
        (each.norm, each.positions, each.n_head)
        for each in (space.resolve({}, 0) for space in spaces)
    ]
    assert found == [
        ("rmsnorm", "learned", 2),
        ("layernorm", "learned", 2),
        ("rmsnorm", "rotary", 4),
    ]
    assert spec.changed == {
        "norm": ["rmsnorm", "layernorm"],
        "positions": ["learned", "rotary"],
        "n_head": [2, 4],
    }


def test_each_stands_at_each_point_of_the_grid():
    spec = read(STUDY.replace("  n_layer: 1\n", "") + "grid: {n_layer: [1, 2]}\n")
    assert keys(spec)[:3] == ["n_layer=1", "n_layer=2", "norm=layernorm,n_layer=1"]
    assert len(keys(spec)) == 6


def test_a_cell_that_breaks_a_rule_is_none_and_the_plan_says_why(tmp_path):
    spec = read(STUDY + "  - {n_head: 3}\nconstraints: ['n_params < 1e6']\n")
    plan, found, _ = make_plan(spec, tmp_path)
    assert (
        [space.cell.key for space in found]
        == keys(spec)[:3]
        == [cell.cell for cell in plan.cells]
    )
    assert plan.excluded == [{"n_head": 3, "reason": "n_embd % n_head == 0"}]


def test_the_command_line_comes_before_the_cells():
    assert keys(read(STUDY, "n_head=8")) == ["base", "norm=layernorm", "positions=rotary"]
    assert keys(read(STUDY, "cells=[{}, {bias: false}]")) == ["base", "bias=false"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "{norms: layernorm}",
            "cells[1]: unknown hyperparameter \"norms\"; did you mean 'norm'?",
        ),
        ("{norm: rmsnorm}", "cells[1] is the same as cells[0]"),
        ("rmsnorm", 'cells[1] is "rmsnorm"; allowed: a mapping of hyperparameters'),
        (
            "{bias: false}",
            "grid.bias and cells[1].bias exclude each other; allowed: one of them",
        ),
        (
            "{betas: [0.9, 0.95]}",
            "search.betas and cells[1].betas exclude each other; allowed: one of them",
        ),
    ],
)
def test_what_is_wrong_is_said_at_its_place(written, said):
    text = STUDY.replace("{norm: layernorm}", written)
    text += "grid: {bias: [true, false]}\nsearch: {betas: suggested}\n"
    (problem,) = refused(text)
    line = 1 + text[: text.index(f"- {written}")].count("\n")
    assert problem.startswith(f"{FILE}:{line}:") and said in problem
