"""Rows of a file at one N and D: a search gives its best, seeds their mean, and what cannot be told is asked."""

import numpy as np
import pandas as pd
import pytest

from sweeplab.errors import BadInput
from sweeplab.laws.columns import Conventions, Counting
from sweeplab.laws.fitting import fit
from sweeplab.laws.forms import LAWS
from sweeplab.laws.hyperparameters.excess import file_points

SIZES = [(n, n * ratio) for n in (1e6, 4e6, 16e6, 64e6) for ratio in (5, 20, 80)]
RATES = (1e-4, 3e-4, 1e-3, 3e-3)


def best_loss(n, d):
    return 1.69 + 406.4 / n**0.34 + 410.7 / d**0.28


def searched(seeds=1):
    """Return a search of the learning rate at each size: the loss is the law's at 1e-3 only."""
    random = np.random.default_rng(0)
    rows = [
        (
            n,
            d,
            rate,
            seed,
            best_loss(n, d) * np.exp(0.1 * np.log(rate / 1e-3) ** 2 + 0.002 * random.normal()),
        )
        for n, d in SIZES
        for rate in RATES
        for seed in range(seeds)
    ]
    frame = pd.DataFrame(rows, columns=["N", "D", "lr", "seed", "loss"])
    return frame.assign(wall_seconds=random.uniform(1, 2, len(frame)))


def read(frame, folder, rows=""):
    frame.to_csv(folder / "runs.csv", index=False)
    return file_points(folder / "runs.csv", Counting(Conventions(rows=rows)))


def test_a_search_gives_the_best_of_each_point_and_says_so(tmp_path):
    points = read(searched(), tmp_path)
    assert points.n == len(SIZES) and set(points.weights) == {1.0}
    assert points.dropped == {"not the best of its point": 3 * len(SIZES)}
    assert points.conventions["rows"] == (
        "the best at each point, which differ in lr (48 rows at 12 points of params and tokens); "
        "--count rows=all takes every row"
    )
    best, everything = (
        fit(each, LAWS["chinchilla"]).sigma
        for each in (points, read(searched(), tmp_path, "all"))
    )
    assert best < 0.01 < 0.1 < everything, "rates that are wrong are no noise of a law"
    assert points.names[0] == "line 4", "the row of the best"


def test_seeds_alone_are_averaged_and_weigh_as_many(tmp_path):
    frame = searched(seeds=2).query("lr == 1e-3").iloc[:-1]
    points = read(frame.drop(columns="lr"), tmp_path)
    assert list(points.weights) == [2.0] * 11 + [1.0]
    assert points.conventions["rows"].startswith(
        "the mean of the rows at each point, which differ in seed"
    )
    assert points.dropped == {"averaged with another row of its point": 11}


def test_what_cannot_be_told_is_asked_and_what_is_said_is_done(tmp_path):
    bare = searched()[["N", "D", "loss"]]
    with pytest.raises(BadInput) as error:
        read(bare, tmp_path)
    assert str(error.value).endswith(
        "runs.csv: 48 rows at 12 points of params and tokens, and no column says why: --count rows=best takes the best "
        "of each (a search), rows=mean their mean (seeds), rows=all every row"
    )
    assert [read(bare, tmp_path, how).n for how in ("best", "mean", "all")] == [12, 12, 48]
    assert (
        read(bare, tmp_path, "best").columns["loss"]
        == bare.groupby(["N", "D"])["loss"].min().to_numpy()
    ).all()
    few = pd.concat([bare.iloc[::4], bare.iloc[:1] * [1, 1, 1.01]])
    assert read(few, tmp_path).n == 13, "one row that comes again is no search"
