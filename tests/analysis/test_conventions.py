"""What is counted, and how: parameters, operations, losses, against the model's own accounting."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from analysis.planted_study import plant

from sweeplab.analysis.studies import study_points
from sweeplab.analysis.table import export
from sweeplab.errors import BadInput
from sweeplab.laws.columns import CHOICES, Conventions, Counting, parse_conventions
from sweeplab.laws.hyperparameters.excess import file_points
from sweeplab.model.accounting import terms
from sweeplab.model.shape import ModelShape

ONE = {"seeds": 1, "rates": (1e-3,)}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_by_convention(tied):
    runs = plant(**ONE, tie_weights=tied, n_expert=4, n_expert_active=1)
    found = {
        how: study_points(runs, Counting(Conventions(params=how))) for how in CHOICES["params"]
    }
    for at, row in enumerate(runs.to_dict("records")):
        parts = Counter()
        for term in terms(ModelShape.named(row)):
            parts[term.component] += term.count
        idle = 3 * row["n_layer"] * 2 * row["n_embd"] * row["d_ff"]
        inner = sum(parts.values()) - parts["token_embedding"] - parts["position_embedding"]
        counted = {how: points.columns["params"][at] for how, points in found.items()}
        total = sum(parts.values())
        assert counted == {"total": total, "active": total - idle, "non-embedding": inner}
    assert found["active"].conventions["params"] == CHOICES["params"]["active"]
    np.testing.assert_array_equal(found["total"].columns["flops"], runs["train_flops"])


@pytest.mark.slow
def test_losses_by_convention():
    runs = plant(**ONE)
    best, bits = study_points(runs).columns["loss"], Conventions(loss="bits-per-byte")
    evaluated = runs.assign(best_bits_per_byte=runs["best_val_loss"] / np.log(2) / 1.25)
    for how, factor in (
        (Conventions(at="final"), 1.001),
        (bits, 1 / np.log(2) / 1.25),
        (Conventions(loss="bits-per-byte", at="final"), 1.001 / np.log(2) / 1.25),
    ):
        np.testing.assert_allclose(
            study_points(evaluated, Counting(how)).columns["loss"], factor * best
        )
    with pytest.raises(
        BadInput, match="bits per byte need the bytes per token, which the runs do not record"
    ):
        study_points(runs, Counting(bits))


@pytest.mark.slow
def test_laws_are_of_the_whole_validation_split_where_all_cells_have_it():
    runs = plant(
        **ONE, change=lambda run: {"state": "pruned"} if run["max_iters"] == 100 else {}
    )
    ended = runs["state"] == "complete"
    whole = runs.assign(best_whole_val_loss=(1.015 * runs["best_val_loss"]).where(ended))
    # Not both kinds in one law; and not the best weights' where the last ones are asked for.
    mixed = whole.assign(
        best_whole_val_loss=whole["best_whole_val_loss"].mask(ended & (runs["n_layer"] == 4))
    )
    sampled = study_points(runs).columns["loss"]
    for table, at, factor in (
        (whole, "best", 1.015),
        (mixed, "best", 1.0),
        (whole, "final", 1.001),
    ):
        found = study_points(table, Counting(Conventions(at=at)))
        np.testing.assert_allclose(found.columns["loss"], factor * sampled)
        assert ("on the whole validation split" in found.conventions["loss"]) == (
            factor == 1.015
        )
    # Where some runs of each cell have it, the others' is theirs plus the difference of these.
    seeds = pd.concat([runs[ended], runs[ended].assign(seed=1)], ignore_index=True)
    every = seeds.assign(best_whole_val_loss=seeds["best_val_loss"] + 0.02 * seeds["n_layer"])
    some = every.assign(
        best_whole_val_loss=every["best_whole_val_loss"].where(every["seed"] == 1)
    )
    np.testing.assert_allclose(
        study_points(some).columns["loss"], study_points(every).columns["loss"]
    )
    # The whole split has its own number of bits per nat.
    bits = some.assign(
        best_bits_per_byte=some["best_val_loss"],
        best_whole_bits_per_byte=2 * some["best_whole_val_loss"],
    )
    found = study_points(bits, Counting(Conventions(loss="bits-per-byte"))).columns["loss"]
    np.testing.assert_allclose(found, 2 * study_points(every).columns["loss"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("params=all", "--count params=all; allowed: total, active, non-embedding"),
        (
            "prams=total",
            "--count has no 'prams'; allowed: params, loss, at, rows; did you mean 'params'?",
        ),
        ("at=best,at=final", "--count names 'at' twice"),
        ("loss", "--count 'loss' is not NAME=VALUE"),
    ],
)
def test_conventions_that_there_are_not(text, said):
    with pytest.raises(BadInput) as error:
        parse_conventions(text)
    assert str(error.value) == said


def test_a_file_is_counted_as_it_was_written(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("params,tokens,flops,loss\n1e6,2e7,2e14,3\n2e6,4e7,8e14,2.8\n")
    assert file_points(path).columns["flops"][0] == 2e14
    with pytest.raises(
        BadInput, match="--count at=final needs a study's runs; --columns loss=COLUMN names"
    ):
        file_points(path, Counting(Conventions(params="total", at="final")))


@pytest.mark.slow
def test_a_file_of_an_exported_study_has_the_best_of_its_runs_that_ended(tmp_path):
    runs, path = (
        plant(seeds=2, change=lambda run: {"state": "pruned"} if run["trial"] == 2 else {}),
        tmp_path / "runs.csv",
    )
    export(runs, path)
    ours, theirs = study_points(runs), file_points(path)
    for role in ("params", "tokens", "flops", "loss"):
        np.testing.assert_allclose(
            np.sort(theirs.columns[role]), np.sort(ours.columns[role]), 1e-3
        )
    assert theirs.dropped["not ended"] == (runs["state"] == "pruned").sum()
    columns = {"params": "n_params", "tokens": "train_tokens", "loss": "best_val_loss"}
    assert (
        file_points(path, Counting(Conventions(rows="all"), columns)).n
        == (runs["state"] != "pruned").sum()
    )
