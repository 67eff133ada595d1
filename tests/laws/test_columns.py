"""Columns by what they mean: their units, their cells, and what is wrong in them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sweeplab.errors import BadInput
from sweeplab.laws.columns import ROLES, guessed_columns, own_columns, parse_columns, read_columns


def values(name: str, cells: list, role: str, asked: str | None = None) -> list[float]:
    frame = pd.DataFrame({name: cells})
    return list(read_columns(frame, {role: asked or name}, "runs.csv")[role].values)


@pytest.mark.parametrize(
    ("role", "name", "unit"),
    [
        ("params", "params", 1), ("params", "N", 1), ("params", "n_params", 1), ("params", "params_total", 1),
        ("params", "params_M", 1e6), ("params", "params (M)", 1e6), ("params", "paramsM", 1e6),
        ("params", "N [million]", 1e6), ("params", "params_b", 1e9), ("params", "size K", 1e3),
        ("tokens", "tokens_B", 1e9), ("tokens", "D_tokens_billions", 1e9), ("tokens", "tokens.1e9", 1e9),
        ("tokens", "D_T", 1e12), ("tokens", "T", 1), ("tokens", "B", 1), ("tokens", "tokens_seen", 1),
        ("flops", "flops_E", 1e18), ("flops", "exaflops", 1e18), ("flops", "train_PFLOPs", 1e15),
        ("flops", "PF-days", 8.64e19), ("flops", "C_pf_days", 8.64e19), ("flops", "petaflop/s-days", 8.64e19),
        ("flops", "train_flops", 1), ("flops", "totalflops", 1), ("flops", "C (ZFLOPs)", 1e21),
        ("params", "N_E", 1), ("loss", "loss_M", 1),
    ],
)  # fmt: skip
def test_a_name_says_the_unit(role: str, name: str, unit: float) -> None:
    assert values(name, [2.0, 3.0], role) == [2 * unit, 3 * unit]


def test_a_factor_is_the_whole_word_on_the_unit_and_a_cell_is_before_its_column() -> None:
    assert values("params_M", [2.0], "params", "params_M*1") == [2.0]
    assert values("params_M", [2.0], "params", "params_M * 1e3 * 1") == [2e3]
    assert values("N*1", [2.0], "params", "N*1") == [2.0]
    assert values("params_M", ["2", "1.3B", "125 M"], "params") == [2e6, 1.3e9, 125e6]


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1.3B", 1.3e9), ("125000000", 125e6), ("4,000,000", 4e6), ("1_000", 1000), ("8e6", 8e6), (" 2 M ", 2e6),
        (".5", 0.5), ("3.", 3), ("1E3", 1000), ("2E", 2e18), ("", np.nan), ("N/A", np.nan), ("inf", np.nan),
    ],
)  # fmt: skip
def test_cells(cell: str, number: float) -> None:
    np.testing.assert_equal(values("N", [cell, "7"], "params"), [number, 7])


@pytest.mark.parametrize("cell", ["1,0,0", "1_0", "1_0e-4", "M", "1.3 billion", "--", "."])
def test_cells_that_are_no_number(cell: str) -> None:
    with pytest.raises(BadInput, match=r"is not a number(; --where .* leaves it out)?$"):
        values("L", [cell, "3"], "loss")


def test_truth_is_no_number_and_a_percentage_is_named() -> None:
    with pytest.raises(BadInput, match="'True' in row 0 and 1 more is not a number"):
        values("L", [True, False], "loss")
    with pytest.raises(BadInput, match="'3,14' in row 0 is not a number; write a decimal point"):
        values("L", ["3,14", "3"], "loss")
    with pytest.raises(BadInput, match="'31%' in row 0 is a percentage"):
        values("L", ["31%", "3"], "loss")


def test_a_column_has_one_role() -> None:
    with pytest.raises(BadInput, match="column 'N' is both params and tokens"):
        read_columns(pd.DataFrame({"N": [1.0]}), {"params": "N", "tokens": "N*20"}, "runs.csv")
    read_columns(pd.DataFrame({"N": [1.0]}), {"params": "N", "group": "N"}, "runs.csv")


def test_names_that_say_a_role() -> None:
    known = ["Params_M", "tokens", "tokens_B", "Loss", "flopsE", "lr", "gpu_tflops"]
    assert own_columns(known) == {
        "params": "Params_M", "tokens": "tokens", "flops": "flopsE", "loss": "Loss"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (["N", "D", "C", "L"], {"params": "N", "tokens": "D", "flops": "C", "loss": "L"}),
        (["n", "d", "c", "l", "d_model", "n_layer", "train_loss"], {"n_embd": "d_model"}),
        (["D (B)", "n_params_M", "Val Loss", "Training FLOPs"], {
            "params": "n_params_M", "tokens": "D (B)", "flops": "Training FLOPs", "loss": "Val Loss"}),
        (["test_loss", "val-loss", "Validation.Loss"], {"loss": "val-loss"}),
    ],
)  # fmt: skip
def test_names_that_a_role_is_called_by(known: list[str], found: dict[str, str]) -> None:
    assert guessed_columns(known) == found
    assert guessed_columns(known, known) == {}


def test_a_cell_of_many_digits_is_read_in_one_pass() -> None:
    n = 300_000  # in the square of which it would take an hour
    cells = ["9" * n + "x", "1," * n + "x", "1" + " " * n + "x", f"0.{'0' * n}", "9" * n, "1,000.5", "1.3 B"]
    with pytest.raises(BadInput) as refused:
        read_columns(pd.DataFrame({"loss": cells}), {"loss": "loss"}, "runs.csv")
    assert f"column 'loss' (loss): '{'9' * 60}…' in row 0 and 2 more is not a number" in str(refused.value)


@pytest.mark.parametrize(
    ("role", "word", "other"), [("tokens", "C/6N", "params"), ("params", "C/6D", "tokens")]
)
def test_what_follows_from_the_two_others(role: str, word: str, other: str) -> None:
    frame = pd.DataFrame({"C": [6e15, 12e15], "x": [1e7, 2e7]})
    found = read_columns(frame, {"flops": "C", other: "x", role: word}, "runs.csv")[role]
    assert (list(found.values), found.words) == ([1e8, 1e8], word)
    with pytest.raises(BadInput, match=f"{role}={word} needs flops; name it with --columns; allowed: C, x"):
        read_columns(frame, {other: "x", role: word}, "runs.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("params", "'params' is not ROLE=COLUMN"),
        ("parms=N", f"no 'parms'; allowed: {', '.join(ROLES)}; did you mean 'params'?"),
        ("loss=a,loss=b", "names 'loss' twice"),
    ],
)
def test_columns_that_say_nothing(text: str, said: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_columns(text)
    assert said in str(error.value)
    assert parse_columns("params=N, loss=val loss") == {"params": "N", "loss": "val loss"}
