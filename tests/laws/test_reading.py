"""Tables as people have them: every format gives the same rows, and what is not data is left out, counted or named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeplab.errors import BadInput
from sweeplab.laws.columns import Conventions
from sweeplab.laws.points import Points, read_points
from sweeplab.laws.reading import LEFT_OUT, SUFFIXES, read_frame

ROWS = [
    {"Model Size": 1_000_000 * 2**k, "Dataset-Size": 2e7 * 3**k, "val/loss": 4.0 - 0.2 * k} for k in range(4)
]
CSV = pd.DataFrame(ROWS).to_csv(index=False)


def written(path: Path) -> Path:
    """Write the rows in the format of a path's suffix."""
    texts = {
        ".csv": CSV,
        ".tsv": CSV.replace(",", "\t"),
        ".json": json.dumps(ROWS),
        ".jsonl": "\n".join(map(json.dumps, ROWS)) + "\n\n",
        ".ndjson": "\n".join(map(json.dumps, ROWS)),
    }
    plain = path.with_suffix("") if path.suffix in (".gz", ".bz2", ".xz") else path
    if plain.suffix == ".parquet":
        pd.DataFrame(ROWS).to_parquet(path)
    else:
        plain.write_text(texts[plain.suffix])
    if path != plain:
        pd.io.common.get_handle(path, "wb").handle.write(plain.read_bytes())
    return path


def checked(points: Points) -> None:
    np.testing.assert_allclose(points.columns["params"], [row["Model Size"] for row in ROWS])
    np.testing.assert_allclose(points.columns["tokens"], [row["Dataset-Size"] for row in ROWS])
    np.testing.assert_allclose(points.columns["loss"], [row["val/loss"] for row in ROWS])


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix[-3:] not in ("bz2", ".xz")])
def test_every_format_gives_the_same_points(suffix: str, tmp_path: Path) -> None:
    if suffix.endswith(".gz"):
        plain = written(tmp_path / f"runs{suffix[:-3]}")
        path = tmp_path / f"runs{suffix}"
        path.write_bytes(gzip.compress(plain.read_bytes()))
    else:
        path = written(tmp_path / f"runs{suffix}")
    checked(read_points(path))


@pytest.mark.parametrize(
    "content",
    [
        CSV.encode("utf-16"),
        CSV.encode("utf-8-sig"),
        CSV.replace("\n", "\r\n").encode(),
        f"# of March, W\u00fcrzburg\n\n{CSV}# end\n".encode("cp1252"),
        ("# " + CSV).encode(),  # a header that is a comment, as numpy.savetxt writes it
    ],
    ids=["utf-16", "byte order mark", "CRLF", "comments in latin-1", "a header that is a comment"],
)
def test_dialects_of_a_text(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    checked(read_points(path))


def test_lines_are_those_of_the_file_with_its_comments(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("# made by hand\nN,D,L\n1e6,2e7,4\n# a second batch\n2e6,4e7,slow\n")
    with pytest.raises(
        BadInput, match=r"'slow' in line 5 is not a number; --where \"L != 'slow'\" leaves it out"
    ):
        read_points(path)
    assert read_points(path, where="L != 'slow'").names == ("line 3",)


def test_headers_that_are_repeated_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("N,D,L\n1e6,2e7,4\nN,D,L\n2e6,4e7,3.5\n")
    points = read_points(path)
    assert (points.n, points.dropped, points.names) == (2, {"repeated header": 1}, ("line 2", "line 4"))


@pytest.mark.parametrize("cell", ["diverged", "-", "OOM", " failed "])
def test_a_run_without_a_number_is_left_out_and_counted(cell: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"N,D,L\n1e6,2e7,4\n2e6,4e7,{cell}\n")
    assert read_points(path).dropped == {"not finite": 1}


def test_two_columns_of_one_name_are_refused_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("N,D,loss,lr,loss\n1e6,2e7,4,1,5\n")
    with pytest.raises(BadInput, match="columns 3 and 5 are both named 'loss'; rename one of them"):
        read_points(tmp_path / "runs.csv")


@pytest.mark.parametrize("name", ["D/N", "tokens_per_param", "tokens per parameter", "tokens/parameter"])
def test_tokens_per_parameter_give_the_tokens(name: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"N,{name},loss\n1e6,20,4\n2e6,25,3.5\n")
    points = read_points(path)
    np.testing.assert_allclose(points.columns["tokens"], [2e7, 5e7])
    assert "times params" in points.conventions["tokens"]


@pytest.mark.parametrize("name", ["Model Size", "model_size", "n_params", "config/n_params"])
def test_names_of_parameters(name: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{name},Training FLOP,summary/val_loss\n1e6,1e14,4\n2e6,4e14,3.5\n")
    points = read_points(path)
    np.testing.assert_allclose(points.columns["tokens"], [1e14 / 6e6, 4e14 / 12e6])


def test_names_of_exported_runs_are_those_of_roles_and_flops_give_the_tokens(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("summary/params,config/flops,summary/loss\n1e6,1e14,4\n2e6,4e14,3.5\n3e6,9e14,3.2\n")
    points = read_points(path)
    assert points.columns["tokens"] == pytest.approx([1e14 / 6e6, 4e14 / 12e6, 9e14 / 18e6])
    assert points.conventions["tokens"] == "C/6N"
    assert "tokens" not in read_points(path, conventions=Conventions(flops="6nd")).columns


def test_runs_exported_with_inner_objects(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    runs = {f"run{k}": {"config": {"n_params": 1e6 * 2**k}, "summary": {"val_loss": 4 - k}} for k in range(3)}
    path.write_text(json.dumps(runs))
    assert list(read_frame(path)) == ["config/n_params", "summary/val_loss"]


@settings(max_examples=150, deadline=None)
@given(
    content=st.one_of(st.binary(max_size=200), st.text("N,D;L\t|#\"'\n\r 0123456789.e-{}[]:", max_size=200)),
    suffix=st.sampled_from(SUFFIXES),
)
def test_whatever_a_file_holds_it_is_a_table_or_refused_in_one_line(
    content: bytes | str, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / f"runs{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        frame = read_frame(path)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(frame, pd.DataFrame) and LEFT_OUT not in frame
