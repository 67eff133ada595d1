"""Columns by what they mean: their units, their cells, the rows that count, and what is wrong in them."""

import numpy as np
import pandas as pd
import pytest

from sweeplab.errors import BadInput
from sweeplab.laws.columns import (
    ROLES,
    Counting,
    pairs_of,
    read_columns,
    role_columns,
    rows_where,
)
from sweeplab.laws.points import points_of_frame


def values(name, cells, role, asked=None):
    frame = pd.DataFrame({name: cells})
    return list(read_columns(frame, {role: asked or name}, "runs.csv")[role].values)


@pytest.mark.parametrize(
    ("role", "name", "unit"),
    [
        ("params", "N", 1), ("params", "params_total", 1), ("params", "N_E", 1), ("tokens", "T", 1),
        ("params", "params_M", 1e6), ("params", "params (M)", 1e6),
        ("params", "N [million]", 1e6), ("params", "params_b", 1e9), ("params", "size K", 1e3),
        ("tokens", "D_tokens_billions", 1e9), ("tokens", "tokens.1e9", 1e9), ("tokens", "D_T", 1e12),
        ("flops", "flops_E", 1e18), ("flops", "train_PFLOPs", 1e15), ("flops", "totalflops", 1),
        ("flops", "C (ZFLOPs)", 1e21), ("loss", "loss_M", 1),
    ],
)  # fmt: skip
def test_a_name_says_the_unit(role, name, unit):
    assert values(name, [2.0, 3.0], role) == [2 * unit, 3 * unit]


def test_a_factor_is_the_whole_word_on_the_unit_and_a_cell_is_before_its_column():
    assert values("params_M", [2.0], "params", "params_M*1") == [2.0]
    assert values("params_M", [2.0], "params", "params_M * 1e3") == [2e3]
    assert values("N*1", [2.0], "params", "N*1") == [2.0]
    assert values("params_M", ["2", "1.3B", "125 M"], "params") == [2e6, 1.3e9, 125e6]


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1.3B", 1.3e9), ("4,000,000", 4e6), (" 2 M ", 2e6), (".5", 0.5), ("3.", 3), ("1E3", 1000),
        ("2E", 2e18), ("", np.nan), ("N/A", np.nan), ("inf", np.nan), ("diverged", np.nan), (" failed ", np.nan),
    ],
)  # fmt: skip
def test_cells(cell, number):
    np.testing.assert_equal(values("N", [cell, "7"], "params"), [number, 7])


@pytest.mark.parametrize(
    "cell", ["1,0,0", "1_000", "M", "1.3 billion", "--", "31%", "3,14", True]
)
def test_cells_that_are_no_number(cell):
    with pytest.raises(BadInput, match=rf"'{cell}' in row 0 is not a number, such as 0\.31"):
        values("L", [cell], "loss")


def test_a_cell_of_many_digits_is_read_in_one_pass():
    n = 300_000  # in the square of which it would take an hour
    cells = [
        "9" * n + "x",
        "1," * n + "x",
        "1" + " " * n + "x",
        f"0.{'0' * n}",
        "9" * n,
        "1,000.5",
        "1.3 B",
    ]
    with pytest.raises(BadInput) as refused:
        read_columns(pd.DataFrame({"loss": cells}), {"loss": "loss"}, "runs.csv")
    assert f"column 'loss' (loss): '{'9' * 60}…' in row 0 and 2 more is not a number" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (["Params_M", "tokens", "tokens_B", "Loss", "flops_E", "lr", "gpu_tflops"],
         {"params": "Params_M", "tokens": "tokens", "flops": "flops_E", "loss": "Loss"}),
        (["N", "D", "C", "L"], {"params": "N", "tokens": "D", "flops": "C", "loss": "L"}),
        (["n", "d", "c", "l", "d_model", "loss", "train_loss"], {"n_embd": "d_model", "loss": "loss"}),
        (["D (B)", "config/n_params_M", "summary/val_loss", "Training FLOPs"], {
            "params": "config/n_params_M", "tokens": "D (B)", "flops": "Training FLOPs", "loss": "summary/val_loss"}),
        (["test_loss", "val-loss", "Validation.Loss"], {"loss": "val-loss"}),
    ],
)  # fmt: skip
def test_names_that_say_a_role(known, found):
    assert role_columns(known, {}, "runs.csv") == found
    asked = role_columns([*known, "own"], {"loss": "own"}, "runs.csv", taken=known)
    assert asked == {"loss": "own"}


def test_tokens_follow_from_flops():
    frame = pd.DataFrame({"C": [6e15, 12e15], "N": [1e7, 2e7]})
    found = read_columns(frame, {"flops": "C", "params": "N"}, "runs.csv")["tokens"]
    assert (list(found.values), found.words) == ([1e8, 1e8], "C/6N")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("params", "'params' is not NAME=VALUE"),
        (
            "parms=N",
            "no 'parms'; allowed: params, tokens, flops, loss, n_layer, n_embd; did you mean 'params'?",
        ),
        ("loss=a,loss=b", "names 'loss' twice"),
    ],
)
def test_columns_that_say_nothing(text, said):
    with pytest.raises(BadInput) as error:
        pairs_of("--columns", text, ROLES)
    assert said in str(error.value)
    assert pairs_of("--columns", "params=N, loss=val loss", ROLES) == {
        "params": "N",
        "loss": "val loss",
    }


FRAME = pd.DataFrame(
    {
        "N": [1e6, 2e6, 4e6, 8e6],
        "val loss": [4.0, 3.5, 3.2, 3.0],
        "optimizer": ["adamw", "adamw", None, "sgd"],
        "epochs": pd.array([1, 2, None, 4], "Int64"),
        "lr": [1e-3, np.nan, 3e-3, 1e-2],
    }
)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("N >= 2e6", [1, 2, 3]),
        ("optimizer == 'adamw' and lr < 1", [0]),
        ("epochs != 2 and val_loss < 3.9", [2, 3]),
        ("row % 2 == 0", [0, 2]),
        ("epochs <= 4", [0, 1, 3]),
    ],
)
def test_rows_where_an_expression_holds(where, rows):
    assert list(rows_where(FRAME, where, "runs.csv").index) == rows


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("ephocs == 1", "runs.csv has no column 'ephocs'; allowed: row, N, val_loss, optimizer, epochs, lr; did you "),
        ("N >", "--where: 'N >' is not an expression; allowed: names, numbers"),
        ("__import__('os').system('true')", "is not arithmetic; allowed: names"),
        ("N.real > 1", "'N.real' is not arithmetic"),
        ("optimizer < 3", "--where: runs.csv, row 0: 'optimizer < 3' cannot be evaluated"),
        ("N > 1e9", "--where: 'N > 1e9' holds in no row of runs.csv"),
    ],
)  # fmt: skip
def test_what_says_no_rows(where, said):
    with pytest.raises(BadInput) as error:
        rows_where(FRAME, where, "runs.csv")
    assert said in str(error.value) and "\n" not in str(error.value)


N = np.geomspace(1e6, 1e9, 12)
D = 20 * N
L = 1.7 + 400 / N**0.34 + 400 / D**0.28
COLUMNS = {"params": "N", "tokens": "D", "loss": "L"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"N": N / 4e4}, "8e+05 tokens for each parameter, usually about 20; is one of them in another unit"),
        ({"D": D / 1e9}, "2e-08 tokens for each parameter, usually about 20; is one of them in another unit"),
        ({"N": N / 1e6}, "2e+07 tokens for each parameter, usually about 20; is one of them in another unit"),
        ({"N": D * 1e4, "D": N}, "or params and tokens swapped? If this is right, write params=COLUMN*1"),
        ({"D": D / 1e6, "N": N / 1e6}, "column 'N' (params): 1; no run has that"),
        ({"N": N * 1e9, "D": D * 1e7}, "column 'N' (params): 1e+18; no run has that"),
        ({"L": 5 * np.exp(L)}, "a perplexity, or in percent? If this is right, write loss=L*1 in --columns"),
    ],
)  # fmt: skip
def test_numbers_that_nobody_has_are_asked_about(changes, said):
    with pytest.raises(BadInput) as error:
        points_of_frame(
            pd.DataFrame({"N": N, "D": D, "L": L} | changes),
            "runs.csv",
            Counting(columns=COLUMNS),
        )
    assert said in str(error.value)


def test_a_factor_says_that_it_is_meant():
    frame = pd.DataFrame({"N": N / 1e6, "D": D, "L": 100 * L})
    points = points_of_frame(
        frame, "runs.csv", Counting(columns={"params": "N*1", "tokens": "D", "loss": "L*0.01"})
    )
    np.testing.assert_allclose(points.columns["loss"], L)
    np.testing.assert_array_equal(points.columns["params"], N / 1e6)


def grid(sizes, tokens_per_param, low, high):
    n = np.repeat(np.asarray(sizes, float), len(tokens_per_param))
    return {
        "params": n, "tokens": n * np.tile(tokens_per_param, len(sizes)), "loss": np.geomspace(high, low, len(n))
    }  # fmt: skip


USUAL = {
    "from hundreds of parameters on": grid(np.geomspace(768, 1.5e9, 30), (20, 2000), 2.2, 8),
    "tiny models, a lot of text": grid((2e3, 1e4, 1e5), (100, 5_000, 10_000), 1.2, 4),
    "large models, little text": grid((1e9, 1e10), (0.2, 1), 2, 5),
    "bits per byte": grid(np.geomspace(1e7, 1e10, 4), (20, 100), 0.55, 1.2),
    "no floor to the loss": grid(np.geomspace(1e4, 1e10, 40), (20, 40), 0.003, 9),
}


@pytest.mark.parametrize("name", USUAL)
def test_tables_that_are_meant_are_not_doubted(name):
    frame = pd.DataFrame(USUAL[name]).assign(
        flops=lambda table: 9 * table["params"] * table["tokens"]
    )
    points_of_frame(frame, name, Counting(columns={role: role for role in frame}))
