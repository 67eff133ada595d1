"""The laws of hyperparameters on planted tables: optima, exponents, predictions, verdicts, and what is refused."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from laws.planted_tuning import BATCH, RATE, World, dense, planted, published_like

from sweeplab.errors import BadInput
from sweeplab.laws.columns import Counting
from sweeplab.laws.core import interval
from sweeplab.laws.hyperparameters.assessment import (
    assess_hyperparameters,
    predict_values,
)
from sweeplab.laws.hyperparameters.runs import parse_at, runs_of_frame
from sweeplab.laws.reading import read_frame

DATA = Path(__file__).parents[1] / "benchmarks" / "data"


@cache
def fitted(world, seed=0):
    table = planted(world, seed)
    return table, assess_hyperparameters(runs_of_frame(table.frame, "table"))


@pytest.mark.slow
def test_planted_exponents_lie_in_their_intervals_and_are_identified():
    _, laws = fitted(World(scatter=0.03))
    for searched, (_, *exponents) in zip(laws.searched.values(), (RATE, BATCH), strict=True):
        for size, true in zip(("params", "tokens"), exponents, strict=True):
            number = searched.numbers[f"exponent of {size}"]
            assert number["verdict"] == "identified"
            # A 99.9% interval, about twice as wide as the 90% interval: the test is of one table.
            assert abs(number["value"] - true) < number["high"] - number["low"]


@pytest.mark.slow
def test_large_cells_are_predicted_from_small_ones_at_a_fraction_of_the_cost_of_copying():
    table, small = published_like(1)
    rows = table.frame.set_index(["N", "D"]).index.isin(
        [tuple(size) for size in table.sizes[small]]
    )
    laws = assess_hyperparameters(runs_of_frame(table.frame[rows], "table"))
    best = int(np.argmax(np.where(small, table.sizes.prod(axis=1), 0)))
    regrets, copied, held = [], [], []
    for c in np.flatnonzero(~small):
        logs = dict(zip(("params", "tokens"), np.log(table.sizes[c]), strict=True))
        draws = laws.surface.optimum(logs)
        ends = [interval(column)[1:] for column in draws.T]
        held += [
            low <= optimum <= high
            for (low, high), optimum in zip(ends, table.optima[c], strict=True)
        ]
        regrets.append(table.regret(c, np.median(draws, axis=0)))
        copied.append(table.regret(c, table.optima[best]))
    assert (
        np.mean(held) >= 0.75
        and np.mean(regrets) < 0.0007
        and np.mean(regrets) < np.mean(copied) / 5
    )
    n, d = table.sizes.max(axis=0)
    assert 0 < predict_values(laws, {"params": n, "tokens": d})["regret"] < 0.001


@pytest.mark.parametrize("edge", [np.log(2) / 4, np.log(2)])
def test_where_optima_lie_at_the_end_of_the_values_no_number_is_identified(edge):
    try:
        _, laws = fitted(World(searched=1, edge=edge, around=5))
    except BadInput as refused:
        assert "the highest learning_rate tried is the best in " in refused.problems[0].what
        return
    searched = laws.searched["learning_rate"]
    assert (searched.edges == "at or above the largest value").sum() >= 10
    assert all(number["verdict"] == "not identified" for number in searched.numbers.values())


def test_nothing_gives_a_value_away_that_is_not_identified():
    table = planted(World(searched=1), 0)
    cap = np.exp(
        np.median(table.optima[:, 0])
    )  # above it nothing was tried: half of the best rates lie there
    laws = assess_hyperparameters(runs_of_frame(table.frame[table.frame["lr"] <= cap], "table"))
    prediction = predict_values(laws, {"params": 3e9, "tokens": 1e11})
    assert prediction["best"]["learning_rate"]["value"] is None


def test_rates_far_below_the_best_are_not_said_to_matter_little():
    table = planted(World(searched=1, noise=0.001), 0)
    optimum = table.frame.groupby(["N", "D"])["loss"].transform("idxmin").map(table.frame["lr"])
    frame = table.frame[table.frame["lr"] < optimum / 3]
    try:
        searched = assess_hyperparameters(runs_of_frame(frame, "table")).searched[
            "learning_rate"
        ]
        said = searched.lacking.words if searched.lacking else ""
    except BadInput as refused:
        said = refused.problems[0].what
    assert "12 of 12 cells" in said


@pytest.mark.slow
def test_best_rates_of_real_runs_move_with_the_width_and_not_with_the_depth():
    for name in ("sweep_small", "sweep_stable"):
        path = DATA / f"{name}.csv"
        laws = assess_hyperparameters(runs_of_frame(read_frame(path), str(path)))
        searched = laws.searched["learning_rate"]
        width, depth = (
            searched.numbers["exponent of n_embd"],
            searched.numbers["exponent of n_layer"],
        )
        assert laws.surface.sizes == ("n_embd", "n_layer")
        assert width["high"] < 0 and depth["low"] <= 0 <= depth["high"]


def test_a_bend_of_the_law_is_seen_and_leaves_no_number_identified():
    _, laws = fitted(World(5, 3, kind="kink", scatter=0.03, searched=1))
    assert laws.surface.bend_chance > 0.5
    doubt = laws.searched["learning_rate"].doubt
    assert doubt is not None and doubt.code == "bent"
    assert all(
        number["verdict"] != "identified"
        for number in laws.searched["learning_rate"].numbers.values()
    )


def test_on_a_path_there_is_a_law_of_one_size():
    sizes = np.geomspace(6e7, 1e9, 8)[:, None] * [1, 20]
    laws = assess_hyperparameters(
        runs_of_frame(planted(World(searched=1), 3, sizes).frame, "table")
    )
    assert laws.surface.sizes == ("params",)
    number = laws.searched["learning_rate"].numbers["exponent of params"]
    assert number["low"] < RATE[1] + RATE[2] < number["high"] < number["low"] + 0.3, (
        "tokens grow as params"
    )
    on = predict_values(laws, {"params": 2e9, "tokens": 4e10})
    assert on["best"]["learning_rate"]["value"]
    assert predict_values(laws, {"params": 2e9})["best"] == on["best"]
    with pytest.raises(BadInput, match="hold along one path"):
        predict_values(laws, {"params": 2e9, "tokens": 4e12})


@pytest.mark.parametrize("seed", [3, 4])
def test_a_value_that_shows_no_minimum_counts_as_noise(seed):
    frame = planted(World(searched=1), seed).frame.assign(weight_decay=0.1)
    # Every cell is tried at two values, whose losses do not differ.
    frame.loc[::2, "weight_decay"] = 0.01
    laws = assess_hyperparameters(runs_of_frame(frame, "table"))
    assert [*laws.searched] == ["learning_rate"] and any(
        "weight_decay" in note for note in laws.surface.runs.notes
    )


def test_a_dense_table_gives_rates_that_cost_next_to_nothing():
    table = dense(3)
    runs = runs_of_frame(table.frame, "table")
    assert len(runs.y) > 1500 and runs.n_cells == 17
    surface = assess_hyperparameters(runs).surface
    regrets, held = [], []
    for c, size in enumerate(table.sizes):
        logs = dict(zip(("params", "tokens"), np.log(size), strict=True))
        regrets.append(
            table.regret(c, np.median(surface.optimum(logs, scatters=False), axis=0))
        )
        there = np.argmin(np.abs(surface.runs.logs - np.log(size)).sum(axis=1))
        ends = [interval(surface.optima[:, there, j])[1:] for j in range(2)]
        held += [
            low <= optimum <= high
            for (low, high), optimum in zip(ends, table.optima[c], strict=True)
        ]
    assert np.mean(regrets) < 0.0003 and np.mean(held) > 0.75


def test_names_and_noise_of_tables():
    table = planted(World(2, 2, searched=1), 0).frame
    renamed = table.rename(columns={"lr": "peak"})
    # Batches do not divide tokens.
    renamed["D"] *= np.random.default_rng(0).uniform(0.99, 1.01, len(table))
    named = {"learning_rate": "peak", "params": "N"}
    runs = runs_of_frame(renamed, "table", Counting(columns=named))
    assert (runs.names, runs.n_cells, runs.sizes) == (
        ("learning_rate",),
        4,
        ("params", "tokens"),
    )
    with_decay = table.assign(min_lr=table["lr"] / 10, wd=0.1)
    runs = runs_of_frame(with_decay, "table")
    assert runs.names == ("learning_rate",) and "min_lr follows learning_rate" in runs.notes[0]
    assert parse_at("N=1e9,D=2e10") == {"params": 1e9, "tokens": 2e10}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda table: table.drop(columns="lr"),
            "no numeric hyperparameter has several positive values",
        ),
        (lambda table: table.drop(columns="loss"), "which column is the loss"),
        (lambda table: table.drop(columns=["N", "D"]), "no column is a size"),
        (
            lambda table: table.assign(lr=["x", *table["lr"][1:].astype(str)]),
            "'x' in row 0 is not a number",
        ),
        (lambda table: table.head(4), "show no minimum"),
    ],
)
def test_a_table_that_tells_nothing_is_refused_in_a_line(change, message):
    table = planted(World(2, 2, searched=1), 0).frame
    with pytest.raises(BadInput) as refused:
        assess_hyperparameters(runs_of_frame(change(table), "table"))
    assert message in refused.value.problems[0].what


@pytest.mark.parametrize(
    ("text", "message"),
    [("N=0", "--at 'N=0'"), ("size=3", "--at has no 'size'"), ("N", "--at 'N'")],
)
def test_a_target_that_is_no_size_is_refused(text, message):
    with pytest.raises(BadInput) as refused:
        parse_at(text)
    assert message in refused.value.problems[0].what
