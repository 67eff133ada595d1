"""The choice among trials: nearer the truth than the lowest value seen, and silent where little is known."""

import numpy as np
import pytest

from sweeplab.study.choice import Tried, first_of_same, rank

SIZES = [
    {"n_layer": n_layer, "n_embd": n_embd} for n_layer in (1, 2, 4) for n_embd in (16, 32, 64)
]


def valley(size, rate):
    """Return the true log loss: its best rate falls with the width."""
    best = np.log(0.01 * 16 / size["n_embd"])
    return (
        np.log(2.0)
        - 0.05 * np.log(size["n_embd"] * size["n_layer"])
        + 0.02 * (np.log(rate) - best) ** 2
    )


def planted(n_trials, seed, noise=0.02, n_seeds=1, sizes=SIZES):
    draws = np.random.default_rng(seed)
    trials = []
    for size in sizes:
        for number in range(n_trials):
            rate = float(np.exp(draws.uniform(np.log(1e-3), np.log(5e-2))))
            losses = np.exp(valley(size, rate) + noise * draws.standard_normal(n_seeds))
            seeds = dict(enumerate(map(float, losses)))
            trials.append(
                Tried.of(
                    (str(size), number),
                    float(losses.mean()),
                    size,
                    {"learning_rate": rate},
                    seeds,
                )
            )
    return trials


def excess(chosen):
    return float(
        np.mean(
            [
                valley(t.sizes, t.searched["learning_rate"]) - valley_best(t.sizes)
                for t in chosen.values()
            ]
        )
    )


def valley_best(size):
    return valley(size, 0.01 * 16 / size["n_embd"])


@pytest.mark.parametrize(
    ("n_trials", "sizes", "share"), [(4, SIZES, 0.8), (12, SIZES[:1], 0.8), (8, SIZES, 0.6)]
)
def test_the_expected_loss_chooses_nearer_the_truth_than_the_minimum(n_trials, sizes, share):
    by_expected, by_minimum = [], []
    for seed in range(12 if len(sizes) > 1 else 60):
        trials = planted(n_trials, seed, sizes=sizes)
        ranking = rank(trials)
        first = {}
        for trial in ranking.order:
            first.setdefault(trial.cell, trial)
        lowest = {trial.cell: trial for trial in sorted(trials, key=lambda trial: -trial.value)}
        by_expected.append(excess(first))
        by_minimum.append(excess(lowest))
    assert np.mean(by_expected) < share * np.mean(by_minimum)


def test_intervals_hold_the_truth_and_the_value_seen_of_the_lowest_is_below_it():
    held, below = [], []
    for seed in range(10):
        trials = planted(6, seed)
        ranking = rank(trials)
        for trial in trials:
            expected, truth = (
                ranking.expected[trial.place],
                np.exp(valley(trial.sizes, trial.searched["learning_rate"])),
            )
            held.append(expected.low <= truth <= expected.high)
        lowest = min(trials, key=lambda trial: trial.value)
        below.append(
            np.log(lowest.value) - valley(lowest.sizes, lowest.searched["learning_rate"])
        )
    assert 0.8 <= np.mean(held) <= 1.0
    assert np.mean(below) < -0.01


def test_too_few_trials_keep_the_lowest_value_and_say_so():
    trials = planted(3, 0, sizes=SIZES[:1])
    choice = rank(trials).choice()
    assert (
        choice
        and choice.value == min(trial.value for trial in trials)
        and choice.expected is None
    )
    assert choice.in_words("confirm")[0] == (
        "chosen by the lowest value seen: 3 runs are too few for a surrogate, which needs 6"
    )


@pytest.mark.slow
def test_trials_within_the_spread_of_seeds_are_named_and_many_seeds_distinguish():
    choice = rank(planted(6, 1, noise=0.03)).choice(str(SIZES[0]))
    assert choice and choice.rivals and all(cell == str(SIZES[0]) for cell, _ in choice.rivals)
    words = choice.in_words("sweeplab confirm x")
    assert "not distinguishable from trial" in words[1] and "sweeplab confirm x" in words[1]
    many = rank(planted(6, 1, noise=0.03, n_seeds=30)).choice(str(SIZES[0]))
    assert many and len(many.rivals) < len(choice.rivals) and many.n_seeds == 30


def test_a_trial_that_repeats_another_on_other_seeds_counts_as_its_seeds():
    def trial(number, seed, rate=0.1):
        return Tried.of(
            ("all", number),
            2.0 + seed / 1e6,
            {},
            {"learning_rate": rate},
            {seed: 2.0 + seed / 1e6},
        )

    trials = [
        trial(0, 0),
        trial(1, 0, 0.2),
        trial(2, 1000),
        trial(3, 0),
        trial(4, 0, 0.4),
        trial(5, 0, 0.3),
    ]
    first = first_of_same(trials)
    assert [first["all", number] for number in range(6)] == [0, 1, 0, 3, 4, 5], (
        "3 has the seed of 0: it differs"
    )
    choice = rank(
        trials[:1] + trials[2:3] + [trial(number, 0, number / 5) for number in range(3, 9)]
    ).choice()
    assert choice and choice.n_seeds == (2 if choice.place == ("all", 0) else 1)
