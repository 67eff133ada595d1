"""Planted studies predicted at a size that they did not try: `tests/benchmarks/predicting.py` has many of each."""

import numpy as np
import pytest
from analysis.planted_transfer import World, predicted


@pytest.mark.slow
@pytest.mark.parametrize("trials", [4, 8])
def test_a_best_learning_rate_beyond_all_that_were_tried_is_never_identified(trials, tmp_path):
    rate = predicted(World("edge", trials=trials), trials, tmp_path).prediction.values[
        "learning_rate"
    ]
    assert rate.verdict != "identified"
    assert "of the nearest cell, n_embd=96,max_iters=1000" in rate.why


@pytest.mark.slow
def test_a_law_is_followed_and_its_loss_is_held(tmp_path):
    found = predicted(World(scatter=0.0), 2, tmp_path)
    rate, loss = found.prediction.values["learning_rate"], found.prediction.loss
    assert rate.verdict == "identified" and rate.low < np.exp(found.best) < rate.high
    assert loss and loss.low < np.exp(found.log_loss) < loss.high and found.excess < 0.002
