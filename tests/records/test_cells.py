"""How a person may write a cell's name."""

import pytest

from sweeplab.errors import BadInput
from sweeplab.records.folders import named_cell

CELLS = [
    "n_layer=1,n_embd=16",
    "n_layer=2,n_embd=16",
    "n_layer=2,n_embd=32,activation=relu%20x",
]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        (CELLS[0], 0),
        ("n_embd=32", 2),
        ("n_embd=16, n_layer=2", 1),
        ("activation=relu%20x,n_embd=32", 2),
        ("n_layer=1", 0),
    ],
)
def test_a_cell_is_named_by_values_that_no_other_has(text, cell):
    assert named_cell("s", CELLS, text) == CELLS[cell]


def test_what_several_cells_have_names_none():
    with pytest.raises(
        BadInput, match="2 cells of study s have n_embd=16; allowed: n_layer=1,n_embd=16, n_l"
    ):
        named_cell("s", CELLS, "n_embd=16")


@pytest.mark.parametrize(
    "text", ["", "all", "n_head=2", "=", ",", "n_embd", "n_embd=", "n_embd=nan"]
)
def test_what_names_no_cell_is_refused(text):
    with pytest.raises(BadInput, match="study s has no cell"):
        named_cell("s", CELLS, text)
