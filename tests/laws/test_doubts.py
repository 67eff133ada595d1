"""What speaks against a fit of a file: large residuals, and columns that they go with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from laws.planted_laws import GOOD, TRUTHS, losses

from sweeplab.laws.fitting import fit
from sweeplab.laws.forms import LAWS
from sweeplab.laws.misfit import doubts
from sweeplab.laws.points import Points, read_points

CHINCHILLA = LAWS["chinchilla"]


def table(seed: int = 0, noise: float = 0.005, moved: float = 0.0, **others) -> pd.DataFrame:
    """Return 30 runs with five columns that the law does not use; losses are `moved` by the log of the epochs."""
    random = np.random.default_rng(seed)
    n, d = GOOD["30 points, 6 x 5"]
    epochs = random.choice([1, 2, 4, 8, 16], len(n))
    loss = losses(TRUTHS["steep"], n, d) * np.exp(
        noise * random.standard_normal(len(n)) + moved * np.log(epochs)
    )
    spare = {
        "epochs": epochs,
        "batch_size": random.choice([64, 128, 256], len(n)),
        "weight_decay": random.choice([0.0, 0.01, 0.1], len(n)),
        "year": random.integers(2019, 2025, len(n)),
        "lr": np.exp(random.normal(-7, 1, len(n))),
    }
    measured = {"train_loss": loss, "Perplexity": np.exp(loss), "run_id": np.argsort(loss)}
    return pd.DataFrame({"N": n, "D": d, "loss": loss, **spare, **measured, **others})


def read(frame: pd.DataFrame, folder: Path) -> Points:
    frame.to_csv(folder / "runs.csv", index=False)
    return read_points(folder / "runs.csv")


def test_every_other_column_is_tested_and_no_measured_one(tmp_path: Path) -> None:
    points = read(table(note=["x"] * 30, one=3, holes=[1.0, *[np.nan] * 29]), tmp_path)
    assert points.extra_columns.keys() == {"epochs", "batch_size", "weight_decay", "year", "lr"}
    assert doubts(points, fit(points, CHINCHILLA)) == []


def test_a_column_that_moves_the_loss_is_found_and_so_is_what_it_leaves(tmp_path: Path) -> None:
    points = read(table(moved=0.06), tmp_path)
    spread, epochs = doubts(points, fit(points, CHINCHILLA))
    assert spread.startswith("residuals of ") and "every number is in doubt; 1 of 5 other columns (" in spread
    assert epochs.startswith("the residuals correlate with epochs, which the law does not use: +")
    assert epochs.endswith(", 5 columns tested)")


def test_a_column_with_holes_is_tested_on_the_rows_that_have_it(tmp_path: Path) -> None:
    frame = table(moved=0.02)
    frame.loc[::5, "epochs"] = np.nan
    points = read(frame, tmp_path)
    (said,) = doubts(points, fit(points, CHINCHILLA))
    assert "correlate with epochs" in said


def test_large_residuals_are_doubted_without_any_other_column(tmp_path: Path) -> None:
    points = read(table(noise=0.064)[["N", "D", "loss"]], tmp_path)
    (said,) = doubts(points, fit(points, CHINCHILLA))
    assert said.endswith("every number is in doubt; the table has no other column that could explain it")


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.003, 0.02])
def test_columns_that_move_nothing_are_hardly_ever_accused(noise: float, tmp_path: Path) -> None:
    alarms = 0
    for seed in range(50):
        points = read(table(seed, noise), tmp_path)
        alarms += any("goes with" in each for each in doubts(points, fit(points, CHINCHILLA)))
    assert alarms <= 6, "5% of 50 tables, and what chance adds"
