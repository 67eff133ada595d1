"""Whether two studies differ, against pairs that do and pairs that do not."""

import pytest
from analysis.planted_sweep import CELLS, DESIGN, plant_sweep

from sweeplab.analysis.differences import ALL_CELLS, differences
from sweeplab.analysis.sweep import sweep_of
from sweeplab.laws.comparing import DIFFERENT, NOT_SEEN


def planted(name, key, **how):
    return sweep_of(
        plant_sweep(**{"n_trials": 8, "noise": 0.02} | how, name=name, key=key), DESIGN
    )


def test_a_planted_difference_is_seen_over_the_cells_with_its_size():
    found = differences([planted("a", 1), planted("b", 2, shift=0.2)])
    first = found[0]
    assert (first.a, first.b, first.cell, first.n) == ("a", "b", ALL_CELLS, 6)
    assert first.verdict == DIFFERENT
    assert first.low < 0.2 < first.high
    assert [each.cell for each in found[1:]] == [f"n_layer={a},n_embd={b}" for a, b in CELLS]


@pytest.mark.slow
def test_no_difference_is_seldom_called_one():
    """Each study draws its trials anew, so that one is lucky: the over-all verdict has to allow for it."""
    alarms = sum(
        differences([planted("a", 2 * key), planted("b", 2 * key + 1)])[0].verdict == DIFFERENT
        for key in range(16)
    )
    assert alarms <= 3, "more than 5%, allowing for sixteen pairs' own noise"


def test_a_true_difference_lies_in_the_interval_as_often_as_none_does():
    """A shift of one study shifts the interval and leaves its width: how often it holds is told above."""
    pair = [planted("a", 2), planted("b", 3)]
    shifted = [pair[0], planted("b", 3, shift=0.05)]
    for none, true in zip(differences(pair), differences(shifted), strict=True):
        assert true.difference == pytest.approx(none.difference + 0.05)
    none, true = differences(pair)[0], differences(shifted)[0]
    assert (true.low, true.high) == pytest.approx((none.low + 0.05, none.high + 0.05))


@pytest.mark.slow
def test_more_trials_of_one_study_are_no_difference_over_all_cells():
    """The best of 32 trials lies below the best of 2 in every cell, by the same luck."""
    few = sweep_of(plant_sweep(n_trials=2, noise=0.02, seeds=3, name="few", key=1), DESIGN)
    many = sweep_of(plant_sweep(n_trials=32, noise=0.02, seeds=3, name="many", key=2), DESIGN)
    first = differences([few, many])[0]
    assert (first.cell, first.n) == (ALL_CELLS, 6)
    assert first.difference < 0
    assert first.verdict == NOT_SEEN


@pytest.mark.slow
def test_several_pairs_share_one_rate_of_false_alarms():
    found = differences([planted(name, key) for key, name in enumerate("abc")])
    assert {(each.a, each.b) for each in found} == {("a", "b"), ("a", "c"), ("b", "c")}
    assert {each.level for each in found if each.cell == ALL_CELLS} == {1 - 0.05 / 3}
