"""How a person may write a cell's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeplab.errors import BadInput
from sweeplab.records.folders import named_cell

CELLS = [
    f"n_layer={depth},n_embd={width},learning_rate={rate},activation={activation}"
    for depth in (1, 2)
    for width in (16, 32)
    for rate in (0.001, 0.01)
    for activation in ("gelu", "relu%20x")
]


@given(st.sampled_from(CELLS), st.randoms(use_true_random=False))
def test_any_order_and_any_form_of_a_number(cell: str, random) -> None:
    pairs = [pair.split("=") for pair in cell.split(",")]
    random.shuffle(pairs)
    forms = {"0.001": "1e-3", "0.01": "1.0e-2", "1": "1.0", "16": "1.6e1"}
    text = ",".join(f"{name}={random.choice([value, forms.get(value, value)])}" for name, value in pairs)
    assert named_cell("s", CELLS, text) == cell


def test_a_part_that_no_other_cell_has() -> None:
    cells = ["n_layer=1,n_embd=16", "n_layer=2,n_embd=16", "n_layer=2,n_embd=32"]
    assert named_cell("s", cells, "n_embd=32") == cells[2]
    assert named_cell("s", cells, "depth=1") == cells[0]  # by another common name
    with pytest.raises(
        BadInput, match="2 cells of study s have n_embd=16; allowed: n_layer=1,n_embd=16, n_l"
    ):
        named_cell("s", cells, "n_embd=16")


@pytest.mark.parametrize("text", ["", "all", "n_head=2", "=", ",", "n_embd", "n_embd=", "n_embd=nan"])
def test_what_names_no_cell_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="study s has no cell"):
        named_cell("s", CELLS, text)
