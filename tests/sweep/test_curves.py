from __future__ import annotations

from sweeplab.sweep.work.trial import SeedCurves


def test_the_mean_waits_for_every_seed() -> None:
    curves = SeedCurves([0, 1])
    assert curves.add(0, 0, 4.0) == []
    assert curves.add(0, 10, 3.0) == []
    assert curves.add(1, 0, 5.0) == [(0, 4.5)]
    assert curves.add(1, 10, 2.0) == [(10, 2.5)]
    assert curves.value("best") == 2.5


def test_a_seed_that_ended_counts_with_its_last_loss() -> None:
    curves = SeedCurves([0, 1])
    for iteration, loss in ((0, 4.0), (10, 3.0)):
        curves.add(0, iteration, loss, ended=iteration == 10)
        curves.add(1, iteration, loss)
    assert curves.add(1, 20, 1.0) == [(20, 2.0)]
    assert curves.add(1, 30, 5.0, ended=True) == [(30, 4.0)]
    assert (curves.value("best"), curves.value("final")) == (2.0, 4.0)


def test_told_again_after_a_resume_nothing_is_new() -> None:
    curves = SeedCurves([0])
    assert curves.add(0, 0, 4.0) == [(0, 4.0)]
    assert curves.add(0, 0, 4.0) == []
    assert SeedCurves([0]).value("best") is None
