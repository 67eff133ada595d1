from sweeplab.sweep.trial import SeedCurves


def test_the_mean_waits_for_every_seed():
    curves = SeedCurves([0, 1])
    assert curves.add(0, 0, 4.0) == []
    assert curves.add(0, 10, 3.0) == []
    assert curves.add(1, 0, 5.0) == [(0, 4.5)]
    assert curves.add(1, 10, 2.0) == [(10, 2.5)]
    assert curves.value("best") == 2.5


def test_a_seed_that_ended_counts_with_its_last_loss():
    curves = SeedCurves([0, 1])
    for iteration, loss in ((0, 4.0), (10, 3.0)):
        curves.add(0, iteration, loss, ended=iteration == 10)
        curves.add(1, iteration, loss)
    assert curves.add(1, 20, 1.0) == [(20, 2.0)]
    assert curves.add(1, 30, 5.0, ended=True) == [(30, 4.0)]
    assert (curves.value("best"), curves.value("final")) == (2.0, 4.0)


def test_the_losses_where_a_trial_is_valued_are_of_one_iteration():
    """Their mean is the trial's value; that of the seeds' own minima, at 10 and at 20, would be 1."""
    curves = SeedCurves([0, 1])
    for seed, losses in enumerate(((4.0, 1.0, 3.0), (5.0, 2.5, 1.0))):
        for at, loss in enumerate(losses):
            curves.add(seed, 10 * at, loss, ended=at == 2)
    assert (curves.valued_at("best"), curves.value("best")) == (10, 1.75)
    assert (curves.valued_at("final"), curves.value("final")) == (20, 2.0)
    assert SeedCurves([0]).value("best") is None
