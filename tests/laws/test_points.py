"""Points from files and from studies: what is kept, what is counted, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sweeplab.analysis.studies import study_points
from sweeplab.errors import BadInput
from sweeplab.laws.points import points_of, read_points

GIVEN = {"N": [1e6, 2e6, 4e6, 8e6], "D": [2e7, 4e7, 8e7, 16e7], "L": [4.0, 3.5, 3.2, 3.0]}
COLUMNS = {"params": "N", "tokens": "D", "loss": "L"}


def frame(**changes) -> pd.DataFrame:
    return pd.DataFrame(GIVEN | changes)


def refused(table: pd.DataFrame, columns: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(BadInput) as error:
        points_of(table, COLUMNS | (columns or {}), "runs.csv")
    return [str(problem) for problem in error.value.problems]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"runs.{suffix}"
    frame().to_csv(path, index=False) if suffix == "csv" else frame().to_parquet(path)
    points = read_points(path, COLUMNS)
    assert (points.n, points.groups, points.dropped) == (4, None, {})
    np.testing.assert_array_equal(points.columns["loss"], GIVEN["L"])
    np.testing.assert_allclose(points.columns["flops"], 6 * np.array(GIVEN["N"]) * GIVEN["D"])
    assert points.conventions == {
        "params": "column N", "tokens": "column D", "loss": "column L", "flops": "6ND"
    }  # fmt: skip
    assert points.flops_per_param_token == pytest.approx(6)


def test_names_that_say_it_need_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    frame().rename(columns={"N": "params", "D": "tokens", "L": "loss"}).to_csv(path, index=False)
    assert set(read_points(path).columns) == {"params", "tokens", "loss", "flops"}


def test_names_that_say_a_unit_too(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    table = pd.DataFrame({"params_M": [1, 2, "4M"], "Tokens (B)": [0.02, 0.04, 0.08], "Loss": [4, 3.5, 3.2]})
    table.to_csv(path, index=False)
    points = read_points(path)
    np.testing.assert_allclose(points.columns["params"], [1e6, 2e6, 4e6])
    np.testing.assert_allclose(points.columns["tokens"], [2e7, 4e7, 8e7])
    assert points.conventions["params"] == "column params_M, times 1e+06"
    assert points.names == ("line 2", "line 3", "line 4")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "N,D,L\n1e6,2e7,4\n\n2e6,4e7,x\n"),
        ("b.csv", "N;D;L\r\n1e6;2e7;4\r\n\r\n2e6;4e7;x\r\n"),
        ("c.tsv", "\ufeffN\tD\tL\n1e6\t2e7\t4\n  \n2e6\t4e7\tx"),
        ("d.csv", "N | D | L\n1e6 | 2e7 | 4\n\n2e6 | 4e7 |x\n"),
        ("e.csv", "N  D L\n1e6 2e7  4\n\n2e6 4e7 x\n"),
    ],
)
def test_separators_and_lines_of_a_text(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode())
    with pytest.raises(BadInput, match=r"column 'L' \(loss\): ' ?x' in line 4 is not a number"):
        read_points(path)
    path.write_bytes(text.replace("x", "3").encode())
    points = read_points(path)
    assert (points.n, points.names) == (2, ("line 2", "line 4"))
    assert points.conventions["params"] == "column N, by its name"


def test_rows_are_counted_where_a_cell_has_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text('N,D,L,note\n1e6,2e7,4,"two\nlines"\n2e6,4e7,x,\n')
    with pytest.raises(BadInput, match=r"column 'L' \(loss\): 'x' in row 1 is not a number"):
        read_points(path)


def test_units_factors_groups_and_flops_of_ones_own() -> None:
    table = frame(N=["1M", "2 M", "4,000,000", "8e6"], D=[0.02, 0.04, 0.08, 0.16], run=list("aabb"))
    table["C"] = 7 * np.array(GIVEN["N"]) * GIVEN["D"]
    points = points_of(table, COLUMNS | {"tokens": "D*1e9", "group": "run", "flops": "C"}, "runs.csv")
    np.testing.assert_allclose(points.columns["params"], GIVEN["N"])
    np.testing.assert_allclose(points.columns["tokens"], GIVEN["D"])
    assert points.groups == ("a", "a", "b", "b")
    assert points.flops_per_param_token == pytest.approx(7)


def test_rows_that_are_dropped_are_counted() -> None:
    table = pd.concat([frame(), frame().iloc[:1], frame(L=[np.nan, np.inf, None, 2.9])])
    points = points_of(table.reset_index(drop=True), COLUMNS, "runs.csv")
    assert points.dropped == {"not finite": 3, "duplicate": 1}
    assert list(points.columns["loss"]) == [*GIVEN["L"], 2.9]


def test_every_fault_of_a_table_is_said_at_once() -> None:
    table = frame(N=[1e6, -1, 0, 8e6], L=["4.0", "31%", "low", "3.0"])
    assert refused(table, {"flops": "n"}) == [
        "runs.csv: column 'N' (params): '-1.0' in row 1 and 1 more is not positive",
        "runs.csv: column 'L' (loss): '31%' in row 1 is a percentage; write the number itself",
        "runs.csv: column 'L' (loss): 'low' in row 2 is not a number; --where \"L != 'low'\" leaves it out",
        "runs.csv: no column 'n'; allowed: N, D, L; did you mean 'N'?",
    ]
    assert refused(frame(), {"tokens": "D*big"})[0].startswith("runs.csv: 'big' is no factor for column 'D'")


def test_params_and_tokens_that_are_swapped() -> None:
    table = frame(N=[1e9, 2e9, 4e9, 8e9], D=[1e5, 2e5, 4e5, 8e5])
    assert refused(table) == [
        "runs.csv: 0.0001 tokens for each parameter; are tokens in units of 1e+06 (tokens=COLUMN*1e+06), "
        "or params and tokens swapped? If this is right, write params=COLUMN*1"
    ]
    assert points_of(table, COLUMNS | {"params": "N*1"}, "runs.csv").n == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "runs.xlsx",
            b"x",
            "no table has the suffix '.xlsx'; allowed: .csv, .tsv, .json, .jsonl, .ndjson, .parquet",
        ),
        ("no.csv", None, "cannot be read: No such file"),
        ("empty.csv", b"", "is not a table: No columns"),
        ("torn.parquet", b"PAR1", "is not a table: "),
        ("binary.csv", b"\xff\xfe\x00a,b\n", "is not a table: "),
        ("other.csv", b"a,b\n1,2\n", "which column is the loss?"),
        (
            "long.csv",
            b"N,loss\n1,2,3\n2,3,4\n",
            "is not a table: its rows have more cells than its first line has names",
        ),
    ],
)
def test_files_that_are_no_table(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput) as error:
        read_points(tmp_path / name)
    assert said in str(error.value) and "\n" not in str(error.value)


def study() -> pd.DataFrame:
    """Return three cells: one with two trials of two seeds, one with a pruned trial, one that failed."""
    rows = [
        ("n=1", 0, 0, "complete", 3.0, 1000), ("n=1", 0, 1, "complete", 3.2, 1000),
        ("n=1", 1, 0, "complete", 2.9, 1000), ("n=1", 1, 1, "complete", 3.5, 1000),
        ("n=2", 0, 0, "stopped", 2.5, 2000), ("n=2", 1, 0, "pruned", 2.0, 2000),
        ("n=3", 0, 0, "failed", np.nan, 3000), ("n=3", 1, 0, "running", np.nan, 3000),
    ]  # fmt: skip
    names = ["cell", "trial", "seed", "state", "best_val_loss", "n_params"]
    table = pd.DataFrame(rows, columns=names)
    return table.assign(
        train_tokens=pd.array([50_000] * 7 + [None], "Int64"),
        train_flops=4e8,
        final_val_loss=table["best_val_loss"] + 1,
    )


def test_a_study_gives_the_best_trial_of_each_cell_and_the_mean_of_its_seeds() -> None:
    points = study_points(study())
    np.testing.assert_allclose(points.columns["loss"], [3.1, 2.5])
    np.testing.assert_allclose(points.columns["params"], [1000, 2000])
    np.testing.assert_allclose(points.weights, [2, 1])
    assert points.dropped == {
        "pruned before the end": 1, "failed": 1, "has not ended": 1, "not the best of its model and length": 2
    }  # fmt: skip
    assert points.names == ("n=1/0", "n=2/0")
    assert points.conventions["flops"] == "matrix products and attention, the head's too"
    assert points.conventions["weights"].startswith("the number of seeds")
    final = study_points(study(), {"loss": "final_val_loss"})
    np.testing.assert_allclose(final.columns["loss"], [4.1, 3.5])


def test_a_study_without_an_end_and_without_the_column() -> None:
    with pytest.raises(BadInput, match="no run of the study has ended"):
        study_points(study().iloc[-3:])
    with pytest.raises(BadInput, match="no column 'best_loss'; did you mean 'best_val_loss'"):
        study_points(study(), {"loss": "best_loss"})


def test_an_encoder_with_a_decoder_is_as_deep_as_both() -> None:
    depths = {"n_layer": [3, 3], "n_encoder_layer": [2, 2], "n_decoder_layer": [4, 4], "n_embd": [8, 8]}
    frame = pd.DataFrame(
        {"family": ["decoder", "encoder_decoder"], **depths, "n": [1e3, 2e3], "loss": [3.0, 2.0]}
    )
    points = points_of(frame, {"params": "n", "loss": "loss"}, "a table")
    assert points.shape["n_layer"].tolist() == [3, 6]
