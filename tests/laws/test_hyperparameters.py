"""The laws of hyperparameters on planted tables: optima, exponents, predictions, verdicts, and what is refused."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from laws.planted_tuning import BATCH, RATE, Planted, World, excess, planted, published_like

from sweeplab.errors import BadInput
from sweeplab.laws.hyperparameters.assessment import NO, YES, HyperparameterLaws, assess_hyperparameters
from sweeplab.laws.hyperparameters.line import Optima, fit_line
from sweeplab.laws.hyperparameters.prediction import with_prediction
from sweeplab.laws.hyperparameters.runs import parse_at, parse_searched, runs_of_frame
from sweeplab.laws.reading import read_frame

DATA = Path(__file__).parents[1] / "benchmarks" / "data"


@cache
def fitted(world: World, seed: int = 0) -> tuple[Planted, HyperparameterLaws]:
    table = planted(world, seed)
    return table, assess_hyperparameters(runs_of_frame(table.frame, "table"))


@pytest.mark.slow
def test_planted_exponents_lie_in_their_intervals_and_are_identified() -> None:
    _, laws = fitted(World(scatter=0.03))
    for searched, (_, *exponents) in zip(laws.searched.values(), (RATE, BATCH), strict=True):
        for size, true in zip(("params", "tokens"), exponents, strict=True):
            number = searched.numbers[f"exponent of {size}"]
            assert number["verdict"] == "identified"
            # A 99.9% interval, about twice as wide as the 90% interval: the test is of one table.
            assert abs(number["value"] - true) < number["high"] - number["low"]
            assert number["drifts"] or true == 0


@pytest.mark.slow
def test_large_cells_are_predicted_from_small_ones_at_a_fraction_of_the_cost_of_copying() -> None:
    table, small = published_like(1)
    rows = table.frame.set_index(["N", "D"]).index.isin([tuple(size) for size in table.sizes[small]])
    laws = assess_hyperparameters(runs_of_frame(table.frame[rows], "table"))
    best = int(np.argmax(np.where(small, table.sizes.prod(axis=1), 0)))
    regrets, copied, held = [], [], []
    for c in np.flatnonzero(~small):
        logs = dict(zip(("params", "tokens"), np.log(table.sizes[c]), strict=True))
        predicted = [searched.laws[0].optimum(logs) for searched in laws.searched.values()]
        ends = [each.interval() for each in predicted]
        held += [low <= optimum <= high for (low, high), optimum in zip(ends, table.optima[c], strict=True)]
        regrets.append(table.regret(c, np.array([each.mean for each in predicted])))
        copied.append(table.regret(c, table.optima[best]))
    assert np.mean(held) >= 0.75 and np.mean(regrets) < 0.0007 and np.mean(regrets) < np.mean(copied) / 5
    n, d = table.sizes.max(axis=0)
    prediction = with_prediction(laws, {"params": n, "tokens": d}).prediction
    assert prediction["loss"]["low"] < 1.69 + 406 / n**0.34 + 411 / d**0.28 < prediction["loss"]["high"]
    assert 0 < prediction["regret"] < 0.001


@pytest.mark.parametrize("edge", [np.log(2) / 4, np.log(2)])
def test_no_law_is_identified_where_optima_lie_at_the_end_of_the_values(edge: float) -> None:
    _, laws = fitted(World(searched=1, edge=edge, around=5))
    searched = laws.searched["learning_rate"]
    assert sum(cell.side == 1 for cell in searched.cells) >= 10
    assert all(number["verdict"] != "identified" for number in searched.numbers.values())
    assert "best at the largest value tried" in searched.flags[0]


def test_nothing_gives_a_value_away_that_is_not_identified() -> None:
    table = planted(World(searched=1), 0)
    cap = np.exp(
        np.median(table.optima[:, 0])
    )  # above it nothing was tried: half of the best rates lie there
    laws = assess_hyperparameters(runs_of_frame(table.frame[table.frame["lr"] <= cap], "table"))
    target = {"params": 3e9, "tokens": 1e11, "learning_rate": 1e-3}
    prediction = with_prediction(laws, target).prediction
    best, asked = prediction["best"]["learning_rate"], prediction["asked"]
    assert best["value"] is None and "band" not in best
    assert asked["excess"] is None and "the best one is not identified" in asked["why"]


def test_rates_far_below_the_best_are_not_said_to_matter_little() -> None:
    table = planted(World(searched=1, noise=0.001), 0)
    optimum = table.frame.groupby(["N", "D"])["loss"].transform("idxmin").map(table.frame["lr"])
    frame = table.frame[table.frame["lr"] < optimum / 3]
    searched = assess_hyperparameters(runs_of_frame(frame, "table")).searched["learning_rate"]
    assert not searched.laws or all(law.lacking for law in searched.laws)
    assert searched.why_none == "the highest learning_rate tried is the best in 12 of 12 cells"


def test_what_a_value_costs_is_told_as_far_as_rows_tell_it() -> None:
    table, laws = fitted(World(searched=1, scatter=0.0))
    size = dict(zip(("params", "tokens"), table.sizes[-1], strict=True))
    rate = float(np.exp(table.optima[-1, 0]))
    near = with_prediction(laws, size | {"learning_rate": 1.8 * rate}).prediction
    assert near["asked"]["excess"] == pytest.approx(excess(np.log([[1.8]]), table.bend)[0], rel=0.25)
    far = with_prediction(laws, size | {"learning_rate": 300 * rate}).prediction
    assert far["asked"]["excess"] is far["asked"]["loss"] is None
    assert "the rows say what a factor of " in far["asked"]["why"]


@pytest.mark.slow
def test_best_rates_of_real_runs_move_with_the_width_and_not_with_the_depth() -> None:
    for name in ("sweep_small", "sweep_stable"):
        path = DATA / f"{name}.csv"
        laws = assess_hyperparameters(runs_of_frame(read_frame(path), str(path)))
        searched = laws.searched["learning_rate"]
        width, depth = searched.numbers["exponent of n_embd"], searched.numbers["exponent of n_layer"]
        assert searched.laws[0].columns[0] == "n_embd"
        assert width["high"] < 0 and width["drifts"] and not depth["drifts"]
        assert searched.transfer[0]["verdict"] == NO
        assert "factor" in searched.flags[-1] and "spoil exponents" in searched.flags[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log2_optima", "verdict"),
    [
        ((-8.7, -9.6, -10.7, -11.3), NO),
        ((-9.0, -9.02, -8.99, -9.0), YES),
        ((-9.0, -9.4, -8.8, -9.1), "may transfer or not"),
    ],
)
def test_one_rate_for_all_widths_is_an_equivalence(log2_optima: tuple[float, ...], verdict: str) -> None:
    random = np.random.default_rng(0)
    rows = []
    for width, best in zip((96, 192, 384, 768), log2_optima, strict=True):
        for log2_rate in np.arange(-14, -5, 0.5):
            excess = 0.015 * (math.log(2) * (log2_rate - best)) ** 2 / 2
            rows.append((width, 1e9, 2**log2_rate, math.exp(1.2 + excess + 0.0005 * random.normal())))
    frame = pd.DataFrame(rows, columns=["width", "D", "lr", "loss"])
    searched = assess_hyperparameters(runs_of_frame(frame, "table")).searched["learning_rate"]
    assert searched.transfer[0]["over"] == "n_embd" and searched.transfer[0]["verdict"] == verdict
    # Four cells are too few for a number.
    assert all(number["verdict"] == "not identified" for number in searched.numbers.values())


def test_a_bend_of_the_law_is_seen_and_leaves_no_number_identified() -> None:
    _, laws = fitted(World(5, 3, kind="kink", scatter=0.03, searched=1))
    law = laws.searched["learning_rate"].laws[0]
    assert law.bent["params"] < 0.025 and "bend in log params" in law.doubt
    assert all(
        number["verdict"] != "identified" for number in laws.searched["learning_rate"].numbers.values()
    )


def test_on_a_path_there_is_a_law_of_one_size() -> None:
    sizes = np.geomspace(6e7, 1e9, 8)[:, None] * [1, 20]
    laws = assess_hyperparameters(runs_of_frame(planted(World(searched=1), 3, sizes).frame, "table"))
    assert [law.columns for law in laws.searched["learning_rate"].laws] == [("params",)]
    number = laws.searched["learning_rate"].numbers["exponent of params"]
    assert number["low"] < RATE[1] + RATE[2] < number["high"] < number["low"] + 0.3, "tokens grow as params"
    on = with_prediction(laws, {"params": 2e9, "tokens": 4e10}).prediction
    assert on["best"]["learning_rate"]["value"] and on["loss"]["law"] == "power-n"
    assert with_prediction(laws, {"params": 2e9}).prediction["best"] == on["best"]
    with pytest.raises(BadInput, match="hold along one path"):
        with_prediction(laws, {"params": 2e9, "tokens": 4e12})


@pytest.mark.parametrize("seed", [3, 4])
def test_a_value_that_shows_no_minimum_counts_as_noise(seed: int) -> None:
    frame = planted(World(searched=1), seed).frame.assign(weight_decay=0.1)
    frame.loc[::2, "weight_decay"] = 0.01  # every cell is tried at two values, whose losses do not differ
    laws = assess_hyperparameters(runs_of_frame(frame, "table"))
    assert [*laws.searched] == ["learning_rate"] and any("weight_decay" in note for note in laws.warnings)


def test_censored_cells_tell_that_the_optimum_lies_beyond() -> None:
    logs = np.linspace(0, 4, 9)[:, None]
    truth = -0.5 * logs[:, 0]
    bound = np.full(9, -0.8)
    side = np.where(truth >= bound, 1.0, 0.0)  # cells whose values end at -0.8
    optima = Optima(np.where(side > 0, bound, truth), np.eye(9) * 1e-4, side, bound)
    line = fit_line(optima, logs)
    assert line is not None and line.n_interior == 5
    assert line.exponents()[0].mean == pytest.approx(-0.5, abs=0.03)


@pytest.mark.slow
def test_the_timescale_gives_the_weight_decay() -> None:
    random = np.random.default_rng(1)
    rows = []
    for n in (1e7, 3e7, 1e8, 3e8):
        for d in (1e9, 3e9, 1e10):
            tau = math.exp(-1.0 - 0.5 * math.log(d / n))
            rate = 10 * n**-0.5
            for _ in range(40):
                lr, scale = rate * math.exp(random.uniform(-1.2, 1.2)), math.exp(random.uniform(-1.5, 1.5))
                decay = 1e5 / (lr * tau * scale * d)
                excess = 0.01 * math.log(lr / rate) ** 2 + 0.006 * math.log(scale) ** 2
                loss = 2 + 400 / n**0.34 + 410 / d**0.28
                rows.append((n, d, lr, decay, 1e5, loss * math.exp(excess + 0.0005 * random.normal())))
    frame = pd.DataFrame(rows, columns=["N", "D", "lr", "wd", "bs", "loss"])
    laws = assess_hyperparameters(runs_of_frame(frame, "table"), timescale=True)
    number = laws.searched["timescale"].numbers["exponent of tokens per parameter"]
    assert number["value"] == pytest.approx(-0.5, abs=0.05)
    found = with_prediction(laws, {"params": 1e9, "tokens": 2e10}).prediction["best"]["weight_decay"]
    wanted = 1e5 / (10 * 1e9**-0.5 * math.exp(-1.0 - 0.5 * math.log(20)) * 2e10)
    assert found["value"] == pytest.approx(wanted, rel=0.15)


def test_names_and_noise_of_tables() -> None:
    table = planted(World(2, 2, searched=1), 0).frame
    renamed = table.rename(columns={"lr": "peak", "loss": "smooth loss"})
    renamed["D"] *= np.random.default_rng(0).uniform(0.99, 1.01, len(table))  # batches do not divide tokens
    roles, named = parse_searched("learning_rate=peak,params=N")
    runs = runs_of_frame(renamed, "table", roles, named)
    assert (runs.names, runs.n_cells, runs.sizes) == (("learning_rate",), 4, ("params", "tokens"))
    with_decay = table.assign(min_lr=table["lr"] / 10, wd=0.1)
    runs = runs_of_frame(with_decay, "table")
    assert runs.names == ("learning_rate",) and "min_lr follows learning_rate" in runs.notes[0]
    assert parse_at("N=1e9,D=2e10") == {"params": 1e9, "tokens": 2e10}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="lr"), "no numeric hyperparameter has several positive values"),
        (lambda table: table.drop(columns="loss"), "which column is the loss"),
        (lambda table: table.drop(columns=["N", "D"]), "no column is a size"),
        (lambda table: table.assign(lr=["x", *table["lr"][1:].astype(str)]), "'x' in row 0 is not a number"),
        (lambda table: table.head(4), "show no minimum"),
    ],
)
def test_a_table_that_tells_nothing_is_refused_in_a_line(change, message: str) -> None:
    table = planted(World(2, 2, searched=1), 0).frame
    with pytest.raises(BadInput) as refused:
        assess_hyperparameters(runs_of_frame(change(table), "table"))
    assert message in refused.value.problems[0].what


@pytest.mark.parametrize(
    ("text", "message"), [("N=0", "--at 'N=0'"), ("size=3", "--at has no 'size'"), ("N", "--at 'N'")]
)
def test_a_target_that_is_no_size_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_at(text)
    assert message in refused.value.problems[0].what
