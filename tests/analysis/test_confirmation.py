"""What is told of a confirmed study holds as often as it says."""

import numpy as np
import pytest
from analysis.planted_confirmation import plant_confirmation
from laws.planted_cells import NOISES, SEED_SD

from sweeplab.analysis.differences import confirmed_cells
from sweeplab.laws.comparing import DIFFERENT
from sweeplab.records.kept import Confirmed


def confirmed(cell, searched, test):
    return Confirmed(
        cell, 0, searched, True, {}, {seed: loss - 0.1 for seed, loss in test.items()}, test
    )


def test_cells_are_ranked_by_their_test_loss_and_compared_with_the_searchs_best():
    base = {0: 2.00, 1: 2.02, 2: 2.01, 3: 2.02}
    lower = {seed: loss - 0.5 + 0.001 * seed for seed, loss in base.items()}
    found = confirmed_cells(
        [
            confirmed("first", 1.9, base),
            confirmed("lower", 1.95, lower),
            confirmed("lost", 2.0, {}),
        ]
    )
    assert [each.cell for each in found] == ["lower", "first", "lost"]
    best, reference, lost = found
    assert reference.apart is None and lost.test is None and lost.optimism is None
    assert best.apart.value == pytest.approx(-0.4985) and best.apart.high < -0.49
    assert best.evidence.verdict == DIFFERENT
    assert best.evidence.tested_on == "fresh seeds and the test split"
    assert reference.optimism == pytest.approx(2.0125 - 1.9)
    assert reference.selection_bias == pytest.approx(1.9125 - 1.9)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_intervals_hold_after_the_selection_and_false_differences_are_rare(noise):
    random, held, alarms = np.random.default_rng(3), [], 0
    for _ in range(200):
        found, truth = plant_confirmation(random, noise=noise, spread=2 * SEED_SD)
        cells = confirmed_cells(found)
        reference = next(each for each in cells if each.apart is None)
        for each in cells:
            true = truth[each.cell, each.trial]
            held.append(each.test.low <= true <= each.test.high)
            if each.apart:
                true -= truth[reference.cell, reference.trial]
                held.append(each.apart.low <= true <= each.apart.high)
        alike, _ = plant_confirmation(random, noise=noise, spread=0.0)
        alarms += any(
            each.evidence and each.evidence.verdict == DIFFERENT
            for each in confirmed_cells(alike)
        )
    assert 0.88 <= np.mean(held) <= 0.95
    assert alarms <= 25, "7%, and three standard errors"
