"""What is counted, and how: parameters, operations, losses, against the model's own accounting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from analysis.planted_study import plant

from sweeplab.analysis.studies import file_points as read_points
from sweeplab.analysis.studies import study_points
from sweeplab.analysis.table import export
from sweeplab.errors import BadInput
from sweeplab.laws.columns import CHOICES, Conventions, parse_conventions
from sweeplab.model.accounting import parameters
from sweeplab.model.shape import ModelShape


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_by_convention(tied: bool) -> None:
    runs = plant(seeds=1, rates=(1e-3,), tie_weights=tied)
    found = {how: study_points(runs, None, Conventions(params=how)) for how in CHOICES["params"]}
    for at, row in enumerate(runs.to_dict("records")):
        parts = parameters(ModelShape.named(row))
        inner = sum(parts.values()) - parts["token_embedding"] - parts["position_embedding"]
        head = 97 * row["n_embd"] if tied else 0  # an untied one is among the inner ones
        assert found["total"].columns["params"][at] == sum(parts.values())
        assert found["active"].columns["params"][at] == sum(parts.values())
        assert found["non-embedding"].columns["params"][at] == inner
        assert found["with-head"].columns["params"][at] == inner + head
    assert found["with-head"].conventions["params"] == CHOICES["params"]["with-head"]


@pytest.mark.slow
def test_flops_by_convention() -> None:
    runs = plant(seeds=1, rates=(1e-3,))
    counted = study_points(runs)
    np.testing.assert_array_equal(counted.columns["flops"], runs["train_flops"])
    assert counted.conventions["flops"] != "6ND"
    other = study_points(runs, None, Conventions(params="non-embedding", flops="6nd"))
    expected = 6 * runs["n_params_non_embedding"].to_numpy(float) * runs["train_tokens"].to_numpy(float)
    np.testing.assert_array_equal(other.columns["flops"], expected)
    assert other.conventions["flops"] == "6ND"


@pytest.mark.slow
def test_losses_by_convention() -> None:
    runs = plant(seeds=1, rates=(1e-3,))
    best = study_points(runs).columns["loss"]
    np.testing.assert_allclose(
        study_points(runs, None, Conventions(at="final")).columns["loss"], 1.001 * best
    )
    evaluated = runs.assign(best_bits_per_byte=runs["best_val_loss"] / np.log(2) / 1.25)
    for at, factor in (("best", 1.0), ("final", 1.001)):
        bits = study_points(evaluated, None, Conventions(loss="bits-per-byte", at=at))
        np.testing.assert_allclose(bits.columns["loss"], factor * best / np.log(2) / 1.25)
    assert bits.conventions["loss"] == "bits per byte, the last evaluation of a run"
    with pytest.raises(
        BadInput, match="bits per byte need the bytes per token, which the runs do not record"
    ):
        study_points(runs, None, Conventions(loss="bits-per-byte"))


@pytest.mark.slow
def test_laws_are_of_the_whole_validation_split_where_all_runs_have_it() -> None:
    runs = plant(
        seeds=1, rates=(1e-3,), change=lambda run: {"state": "pruned"} if run["max_iters"] == 100 else {}
    )
    ended = runs["state"] == "complete"
    whole = runs.assign(
        best_bits_per_byte=runs["best_val_loss"] / np.log(2) / 1.25,
        best_whole_val_loss=(1.015 * runs["best_val_loss"]).where(ended),
        best_whole_bits_per_byte=(1.015 * runs["best_val_loss"] / np.log(2) / 1.3).where(ended),
    )
    sampled = study_points(runs).columns["loss"]
    found = study_points(whole)
    np.testing.assert_allclose(found.columns["loss"], 1.015 * sampled)
    assert "on the whole validation split" in found.conventions["loss"]
    bits = study_points(whole, None, Conventions(loss="bits-per-byte"))
    np.testing.assert_allclose(bits.columns["loss"], 1.015 * sampled / np.log(2) / 1.3)
    # Not both kinds in one law; and not the best weights' where the last ones are asked for.
    mixed = whole.assign(
        best_whole_val_loss=whole["best_whole_val_loss"].mask(ended & (runs["n_layer"] == 4))
    )
    for table, at, factor in ((mixed, "best", 1.0), (whole, "final", 1.001)):
        other = study_points(table, None, Conventions(at=at))
        np.testing.assert_allclose(other.columns["loss"], factor * sampled)
        assert "whole" not in other.conventions["loss"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("params=all", "--count params=all; allowed: total, active, non-embedding, with-head"),
        ("flops=6n", "--count flops=6n; allowed: counted, 6nd; did you mean '6nd'?"),
        (
            "prams=total",
            "--count has no 'prams'; allowed: params, flops, loss, at, rows; did you mean 'params'?",
        ),
        ("at=best,at=final", "--count names 'at' twice"),
        ("loss", "--count 'loss' is not NAME=VALUE"),
    ],
)
def test_conventions_that_there_are_not(text: str, said: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_conventions(text)
    assert str(error.value) == said
    assert parse_conventions("params=with-head, at=final") == Conventions(params="with-head", at="final")


def write(path: Path, text: str = "params,tokens,flops,loss\n1e6,2e7,2e14,3\n2e6,4e7,8e14,2.8\n") -> Path:
    path.write_text(text)
    return path


def test_a_file_is_counted_as_it_was_written(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv")
    assert read_points(path).columns["flops"][0] == 2e14
    sixfold = read_points(path, None, Conventions(flops="6nd", loss="bits-per-byte"))
    assert (sixfold.columns["flops"][0], sixfold.conventions["flops"]) == (1.2e14, "6ND")
    assert sixfold.conventions["loss"] == "column loss, bits per byte as --count says"
    np.testing.assert_array_equal(sixfold.columns["loss"], read_points(path).columns["loss"])
    with pytest.raises(BadInput) as error:
        read_points(path, None, Conventions(params="total", at="final"))
    assert [str(each) for each in error.value.problems] == [
        f"{path}: --count at=final needs a study's runs; --columns loss=COLUMN names a loss",
    ]
    bare = write(tmp_path / "bare.csv", "params,tokens,loss\n1e6,2e7,3\n")
    with pytest.raises(BadInput, match="--count flops=counted needs a column"):
        read_points(bare, None, Conventions(flops="counted"))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [pytest.param("csv", marks=pytest.mark.slow), "parquet"])
def test_a_file_of_an_exported_study_is_the_study(suffix: str, tmp_path: Path) -> None:
    runs, path = plant(seeds=2), tmp_path / f"runs.{suffix}"
    export(runs, path)
    for conventions in (Conventions(), Conventions(params="with-head", at="final")):
        ours, theirs = study_points(runs, None, conventions), read_points(path, None, conventions)
        for role, column in ours.columns.items():
            np.testing.assert_allclose(theirs.columns[role], column)
        assert (ours.conventions, ours.dropped, ours.names) == (
            theirs.conventions,
            theirs.dropped,
            theirs.names,
        )
    columns = {"params": "n_params", "tokens": "train_tokens", "loss": "best_val_loss"}
    plain = read_points(path, columns, Conventions(rows="all"))
    assert plain.n == len(runs)
    best = read_points(path, columns)
    np.testing.assert_allclose(
        np.sort(best.columns["loss"]), np.sort(study_points(runs).columns["loss"]), rtol=0.01
    )
