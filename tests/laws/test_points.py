"""Points from files and from studies: what is read, what is kept, what is counted, what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeplab.analysis.studies import study_points
from sweeplab.errors import BadInput
from sweeplab.laws.columns import Counting
from sweeplab.laws.points import points_of_frame
from sweeplab.laws.reading import SUFFIXES, read_frame

GIVEN = {"N": [1e6, 2e6, 4e6, 8e6], "D": [2e7, 4e7, 8e7, 16e7], "L": [4.0, 3.5, 3.2, 3.0]}
CSV = pd.DataFrame(GIVEN).to_csv(index=False)
RECORDS = pd.DataFrame(GIVEN).to_dict("records")


def read(path, where=""):
    return points_of_frame(read_frame(path), str(path), Counting(where=where))


def frame(**changes):
    return pd.DataFrame(GIVEN | changes)


def of(table, **columns):
    return points_of_frame(table, "runs.csv", Counting(columns=columns))


def refused(table, **columns):
    with pytest.raises(BadInput) as error:
        of(table, **columns)
    return [str(problem) for problem in error.value.problems]


TEXTS = {
    "a.csv": CSV,
    "b.csv": CSV.replace(",", ";").replace("\n", "\r\n"),
    "c.tsv": "\ufeff" + CSV.replace(",", "\t"),
    "d.csv": "# of March\n\n" + CSV.replace(",", " , ") + "# end\n",
    "f.json": json.dumps(RECORDS),
    "h.jsonl": "\n".join(map(json.dumps, RECORDS)) + "\n\n",
}


@pytest.mark.parametrize("name", [*TEXTS, "i.parquet"])
def test_every_format_gives_the_same_points(name, tmp_path):
    path = tmp_path / name
    if path.suffix == ".parquet":
        frame().to_parquet(path)
    else:
        path.write_bytes(TEXTS[name].encode())
    points = read(path)
    for role, column in {"params": "N", "tokens": "D", "loss": "L"}.items():
        np.testing.assert_array_equal(points.columns[role], GIVEN[column])
        assert points.conventions[role] == f"column {column}"
    np.testing.assert_allclose(points.columns["flops"], 6 * np.array(GIVEN["N"]) * GIVEN["D"])
    assert (points.n, points.dropped, points.conventions["flops"]) == (4, {}, "6ND")
    assert points.flops_per_param_token == pytest.approx(6)


def test_lines_are_those_of_the_file(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("# made by hand\nN,D,L\n1e6,2e7,4\n# a second batch\n\n2e6,4e7,slow\n")
    with pytest.raises(
        BadInput, match=r"column 'L' \(loss\): 'slow' in line 6 is not a number"
    ):
        read(path)
    points = read(path, where="L != 'slow'")
    assert points.names == ("line 3",) and points.dropped == {"not where L != 'slow'": 1}
    path.write_text('N,D,L,note\n1e6,2e7,4,"two\nlines"\n2e6,4e7,x,\n')
    with pytest.raises(BadInput, match=r"column 'L' \(loss\): 'x' in row 1 is not a number"):
        read(path)


def test_names_of_exported_runs_are_those_of_roles_and_flops_give_the_tokens(tmp_path):
    path = tmp_path / "runs.json"
    runs = {
        k: {"config": {"n_params": 1e6 * k, "flops": 1e14 * k**2}, "summary": {"loss": 4 - k}}
        for k in (1, 2, 3)
    }
    path.write_text(json.dumps([*runs.values()]))
    points = read(path)
    assert points.columns["tokens"] == pytest.approx([1e14 / 6e6, 4e14 / 12e6, 9e14 / 18e6])
    assert points.conventions["tokens"] == "C/6N"


def test_units_factors_and_flops_of_ones_own():
    table = frame(N=["1M", "2 M", "4,000,000", "8e6"], D=[0.02, 0.04, 0.08, 0.16])
    table["C"] = 7 * np.array(GIVEN["N"]) * GIVEN["D"]
    points = of(table.rename(columns={"D": "Tokens (B)"}))
    np.testing.assert_allclose(points.columns["params"], GIVEN["N"])
    np.testing.assert_allclose(points.columns["tokens"], GIVEN["D"])
    assert points.conventions["tokens"] == "column Tokens (B), times 1e+09"
    assert points.flops_per_param_token == pytest.approx(7)
    np.testing.assert_allclose(of(table, tokens="D*1e9").columns["tokens"], GIVEN["D"])


def test_rows_that_are_dropped_are_counted():
    table = pd.concat([frame(), frame().iloc[:1], frame(L=[np.nan, np.inf, None, 2.9])])
    points = of(table.reset_index(drop=True))
    assert points.dropped == {"not finite": 3, "duplicate": 1}
    assert list(points.columns["loss"]) == [*GIVEN["L"], 2.9]


def test_every_faulty_column_of_a_table_is_said_at_once():
    table = frame(N=[1e6, -1, 0, 8e6], L=["4.0", "31%", "low", "3.0"])
    assert refused(table, flops="n") == [
        "runs.csv: no column 'n'; allowed: N, D, L; did you mean 'N'?",
        "runs.csv: column 'N' (params): '-1.0' in row 1 and 1 more is not positive",
        "runs.csv: column 'L' (loss): '31%' in row 1 and 1 more is not a number, such as 0.31, 4e6 or 1.3B",
    ]
    assert refused(frame(), tokens="D*big")[0].startswith(
        "runs.csv: 'big' is no factor for column 'D'"
    )
    assert refused(frame(), params="N", tokens="N*20") == [
        "runs.csv: column 'N' is both params and tokens"
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("runs.xlsx", b"x", "no table has the suffix '.xlsx'; allowed: .csv, .tsv, .json, .jsonl, .parquet"),
        ("no.csv", None, "cannot be read: No such file"),
        ("empty.csv", b"", "is not a table: No columns"),
        ("torn.parquet", b"PAR1", "is not a table: "),
        ("binary.csv", b"a\x00b,c\n", "is not a table: it holds NUL bytes"),
        ("latin.csv", b"N,L\n1,\xfc\n", "is not a table: 'utf-8' codec"),
        ("other.csv", b"a,b\n1,2\n", "which column is the loss?"),
        ("long.csv", b"N,loss\n1,2,3\n2,3,4\n", "its rows have more cells than its first line has names"),
        ("twice.csv", b"N,D,loss,lr,loss\n1e6,2e7,4,1,5\n", "columns 3 and 5 are both named 'loss'; rename one"),
    ],
)  # fmt: skip
def test_files_that_are_no_table(name, content, said, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput) as error:
        read(tmp_path / name)
    assert said in str(error.value) and "\n" not in str(error.value)


@settings(max_examples=150, deadline=None)
@given(
    content=st.one_of(
        st.binary(max_size=200), st.text("N,D;L\t|#\"'\n\r 0123456789.e-{}[]:", max_size=200)
    ),
    suffix=st.sampled_from(SUFFIXES),
)
def test_whatever_a_file_holds_it_is_a_table_or_refused_in_one_line(
    content, suffix, tmp_path_factory
):
    path = tmp_path_factory.mktemp("any") / f"runs{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        assert isinstance(read_frame(path), pd.DataFrame)
    except BadInput as error:
        assert "\n" not in str(error)


def study():
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
        study="planted",
        max_iters=100,
        train_tokens=pd.array([50_000] * 7 + [None], "Int64"),
        train_flops=4e8,
        final_val_loss=table["best_val_loss"] + 1,
    )


def test_a_study_gives_the_best_trial_of_each_cell_and_the_mean_of_its_seeds():
    points = study_points(study())
    np.testing.assert_allclose(points.columns["loss"], [3.1, 2.5])
    np.testing.assert_allclose(points.columns["params"], [1000, 2000])
    np.testing.assert_allclose(points.weights, [2, 1])
    assert points.dropped == {
        "pruned before the end": 1, "failed": 1, "has not ended": 1, "not the best of its model and length": 2
    }  # fmt: skip
    assert points.names == ("n=1/0", "n=2/0")
    assert points.conventions["flops"] == "matrix products and attention, the head's too"
    final = study_points(study(), Counting(columns={"loss": "final_val_loss"}))
    np.testing.assert_allclose(final.columns["loss"], [4.1, 3.5])


def test_a_study_without_an_end_and_without_the_column():
    with pytest.raises(BadInput, match="no run of the study has ended"):
        study_points(study().iloc[-3:])
    with pytest.raises(BadInput, match="no column 'best_loss'; did you mean 'best_val_loss'"):
        study_points(study(), Counting(columns={"loss": "best_loss"}))
