"""Numbers that are hardly meant are asked about, and good tables are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sweeplab.errors import BadInput
from sweeplab.laws.points import points_of

N = np.geomspace(1e6, 1e9, 12)
D = 20 * N
L = 1.7 + 400 / N**0.34 + 400 / D**0.28
COLUMNS = {"params": "N", "tokens": "D", "loss": "L"}


def asked(columns: dict[str, str] | None = None, **changes) -> str:
    frame = pd.DataFrame({"N": N, "D": D, "L": L} | changes)
    with pytest.raises(BadInput) as error:
        points_of(frame, COLUMNS | (columns or {}), "runs.csv")
    return str(error.value)


def mixed(column: np.ndarray, unit: float, rows: slice = slice(0, 12, 3)) -> np.ndarray:
    """Return the column with some of its rows in another unit."""
    changed = column.copy()
    changed[rows] /= unit
    return changed


@pytest.mark.parametrize("unit", [1e6, 1e9])
@pytest.mark.parametrize("role", ["params", "tokens"])
@pytest.mark.parametrize("rows", [slice(0, 12, 3), slice(4, 8), slice(11, 12)])
def test_rows_in_two_units(role: str, unit: float, rows: slice) -> None:
    name, column = {"params": ("N", N), "tokens": ("D", D)}[role]
    said = asked(**{name: mixed(column, unit, rows)})
    assert said.startswith(f"runs.csv: column '{name}' ({role}): {len(range(12)[rows])} of 12 rows have ")
    assert "are they in another unit, by a factor of " in said and f" {unit:.0e}" in said
    assert said.endswith(f"If this is right, write {role}={name}*1 in --columns")


def test_losses_in_two_units() -> None:
    assert "4 of 12 rows have" in asked(L=mixed(100 * L, 100))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"N": N / 4e4}, "8e+05 tokens for each parameter; are params in units of 1e+06"),
        ({"D": D / 1e6, "N": N / 1e6}, "column 'D' (tokens): 20; no training is so short"),
        (
            {"D": D / 1e9},
            "2e-08 tokens for each parameter; are tokens in units of 1e+09 (tokens=COLUMN*1e+09), or",
        ),
        (
            {"N": N / 1e6},
            "2e+07 tokens for each parameter; are params in units of 1e+06 (params=COLUMN*1e+06), or",
        ),
        ({"N": N * 1e9, "D": D * 1e7}, "column 'N' (params): 1e+18; no model is so large"),
        ({"L": 5 * np.exp(L)}, "is it a perplexity, or in percent?"),
        ({"L": 100 * L}, "is it a perplexity, or in percent?"),
        ({"N": D * 1e4, "D": N}, "tokens for each parameter; are "),
        ({"D": 5e6 * N}, "5e+06 tokens for each parameter; are params in units of 1e+06"),
    ],
)
def test_numbers_that_nobody_has(changes: dict, said: str) -> None:
    assert said in asked(**changes)


def test_flops_that_have_nothing_to_do_with_params_and_tokens() -> None:
    assert "the FLOPs of 12 of 12 rows are 1e+06 times 6 N D; in which units" in asked(
        {"flops": "C"}, C=6e6 * N * D
    )
    wrong = mixed(6 * N * D, 1e5, slice(8, 12))
    assert "the FLOPs of 4 of 12 rows are 1e-05 times" in asked({"flops": "C"}, C=wrong)


def test_a_factor_says_that_it_is_meant() -> None:
    frame = pd.DataFrame({"N": mixed(N, 1e6), "D": D, "L": 100 * L})
    columns = {"params": "N*1", "tokens": "D", "loss": "L*0.01"}
    points = points_of(frame, columns, "runs.csv")
    np.testing.assert_allclose(points.columns["loss"], L)
    np.testing.assert_array_equal(points.columns["params"], mixed(N, 1e6))
    factor = columns | {"tokens": "D*1e9"}
    with pytest.raises(BadInput, match=r"If this is right, write tokens=D\*1e9\*1 in --columns"):
        points_of(frame, factor, "runs.csv")
    points = points_of(frame, columns | {"tokens": "D*1e9*1"}, "runs.csv")
    np.testing.assert_allclose(points.columns["tokens"], 1e9 * D)


def grid(sizes, tokens_per_param, low: float, high: float) -> dict[str, np.ndarray]:
    n = np.repeat(np.asarray(sizes, float), len(tokens_per_param))
    return {
        "params": n, "tokens": n * np.tile(tokens_per_param, len(sizes)), "loss": np.geomspace(high, low, len(n))
    }  # fmt: skip


USUAL = {
    "few sizes far apart": grid((1e6, 1e8, 1e10), (5, 20, 80), 2, 4),
    "one decade": grid(np.geomspace(4e7, 4e8, 6), (5, 20, 80), 2, 4),
    "from hundreds of parameters on": grid(np.geomspace(768, 1.5e9, 30), (20, 2000), 2.2, 8),
    "tiny models, a lot of text": grid((2e3, 1e4, 1e5), (100, 10_000, 100_000), 1.2, 4),
    "large models, little text": grid((1e9, 1e10), (0.01, 1), 2, 5),
    "bits per byte": grid(np.geomspace(1e7, 1e10, 4), (20, 100), 0.55, 1.2),
    "no floor to the loss": grid(np.geomspace(1e4, 1e10, 40), (20, 40), 0.003, 9),
}


@pytest.mark.parametrize("name", USUAL)
def test_tables_that_are_meant_are_not_doubted(name: str) -> None:
    frame = pd.DataFrame(USUAL[name]).assign(flops=lambda table: 9 * table["params"] * table["tokens"])
    points_of(frame, {role: role for role in frame}, name)
