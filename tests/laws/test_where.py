"""Rows of a table by an expression over its columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sweeplab.errors import BadInput
from sweeplab.laws.columns import rows_where
from sweeplab.laws.points import read_points

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
        ("log2(N / 1e6) == 2", [2]),
    ],
)
def test_rows(where: str, rows: list[int]) -> None:
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
def test_what_says_no_rows(where: str, said: str) -> None:
    with pytest.raises(BadInput) as error:
        rows_where(FRAME, where, "runs.csv")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_says_which_rows_count(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    FRAME.assign(D=2e7).to_csv(path, index=False)
    points = read_points(path, None, None, "line > 2 and lr > 2e-3")
    assert points.names == ("line 4", "line 5")
    assert points.dropped == {"not where line > 2 and lr > 2e-3": 2}
