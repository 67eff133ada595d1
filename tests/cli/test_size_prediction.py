"""`sweeplab laws predict`: the best values and the loss of a size that a study has not tried."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from analysis.planted_study import planted_run

from sweeplab.analysis.predicting import Prediction, predict_size
from sweeplab.analysis.studies import Counting, read_studies
from sweeplab.analysis.table import validate
from sweeplab.lab.listing import find_study
from sweeplab.study.file.reading import read_study

RATES = 1e-3 * 1.4 ** np.arange(-3, 4)


def best_rate(width: int) -> float:
    return 2e-3 * (width / 32) ** -0.7


def loss_of(run: dict[str, float]) -> float:
    return 1.2 + 40 / run["n_params"] ** 0.4


@pytest.fixture
def predict(finished):
    """Return what is predicted for the finished study had it had eight widths, by losses of known laws."""
    folder = find_study(finished.lab, "tiny")
    random, rows = np.random.default_rng(5), []
    for width in (8, 12, 16, 24, 32, 48, 64, 96):
        for trial, rate in enumerate(best_rate(width) * RATES / 1e-3 * random.uniform(0.9, 1.1)):
            values = {
                "n_layer": 1,
                "n_embd": width,
                "n_head": 2,
                "max_iters": 20,
                "batch_size": 4,
                "block_size": 16,
            }
            run = planted_run(values | {"learning_rate": rate}, ("n_embd",), trial)
            away = np.log(rate / best_rate(width))
            run["best_val_loss"] = loss_of(run) * np.exp(0.04 * away**2 + 0.001 * random.standard_normal())
            rows.append(
                run
                | {
                    "value": run["best_val_loss"],
                    "final_val_loss": run["best_val_loss"],
                    "seed": 0,
                    "run_id": f"{width}/{trial}",
                    "study": "tiny",
                }
            )
    frame = pd.DataFrame(rows)
    frame["betas"] = frame["betas"].map(str)
    studies = replace(read_studies(finished.lab, ["tiny"]), runs=validate(frame))
    counting = Counting(studies.settled())

    def predicted(*sizes: str) -> Prediction:
        points = studies.points(conventions=counting.conventions)
        return predict_size(folder, studies, points, [f"--at {size}" for size in sizes], counting)

    return predicted


@pytest.mark.slow
def test_values_and_loss_follow_their_laws(predict) -> None:
    predicted = predict("n_embd=192")
    rate = predicted.values["learning_rate"]
    assert rate.verdict == "identified" and rate.low < best_rate(192) < rate.high
    assert rate.value == pytest.approx(best_rate(192), rel=0.15)
    assert predicted.beyond["n_embd"] == pytest.approx(2)
    # Of one table: an interval twice as wide holds more than 99%.
    truth = loss_of(predicted.target.at | {"n_params": predicted.target.at["params"]})
    assert predicted.loss and abs(predicted.loss.loss - truth) < predicted.loss.high - predicted.loss.low
    assert predicted.regret and predicted.loss.regret == predicted.target.regret.mean == predicted.regret
    assert predicted.spec.name == "tiny-n_embd192" and predicted.spec.fixed["learning_rate"] == rate.value
    assert predicted.spec.budget.trials_per_cell == 1 and not predicted.spec.grid


@pytest.mark.slow
def test_a_study_of_few_trials_gives_the_nearest_cell_s_values_and_a_file_that_runs(
    cli, finished, folder
) -> None:
    asked = ("laws", "predict", "tiny", "--lab", finished.lab, "--at", "n_embd=32")
    (found,) = json.loads(cli(*asked, "--write", "big.yaml", "--json").out)["sizes"]
    rate = found["values"]["learning_rate"]
    best = read_studies(finished.lab, ["tiny"]).runs.query("n_embd == 16").sort_values("value").iloc[0]
    assert rate["value"] == best["learning_rate"] and rate["low"] is None and "n_embd=16" in rate["why"]
    assert found["loss"]["value"] is None and found["loss"]["why"]
    assert read_study(folder / "big.yaml").fixed["learning_rate"] == rate["value"]
    said = cli(*asked, "--write", "big.yaml")
    assert said.code == 2 and "the file exists already" in said.err
    assert "one of the sizes of tiny" in cli(*asked[:-1], "n_embd=16").out
    assert "of the nearest cell, n_embd=16" in cli(*asked).out
