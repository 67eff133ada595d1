"""Searches that never ran, and their confirmation: true losses, and what seeds make of them."""

import numpy as np
from laws.planted_cells import NOISES, SEED_SD

from sweeplab.records.kept import Confirmed

FIRST_FRESH = 100


N_CELLS, N_TRIALS, TOP, N_SEEDS = 6, 10, 3, 5


def plant_confirmation(random, spread, noise):
    """Return what is confirmed of cells that are alike, and the true loss of every trial.

    Trials differ by `spread`; the search chose by one seed. Validation and test losses of a seed are the same.
    """
    sd = dict(zip(map(str, range(N_CELLS)), SEED_SD * NOISES[noise](N_CELLS), strict=True))
    truth = {
        (cell, trial): 2.0 + spread * random.standard_normal()
        for cell in sd
        for trial in range(N_TRIALS)
    }
    searched = {
        found: loss + sd[found[0]] * random.standard_normal() for found, loss in truth.items()
    }
    ranked = [
        sorted(((cell, trial) for trial in range(N_TRIALS)), key=searched.__getitem__)[:TOP]
        for cell in sd
    ]

    def train(configurations, seeds):
        return {
            found: {
                seed: truth[found] + sd[found[0]] * random.standard_normal() for seed in seeds
            }
            for found in configurations
        }

    raced = train(
        [found for best in ranked for found in best], range(FIRST_FRESH, FIRST_FRESH + N_SEEDS)
    )
    winners = [
        min(best, key=lambda found: np.mean([*raced[found].values()])) for best in ranked
    ]
    final = train(winners, range(FIRST_FRESH + N_SEEDS, FIRST_FRESH + 2 * N_SEEDS))
    confirmed = [
        Confirmed(
            *found,
            searched[found],
            found in winners,
            raced[found],
            final.get(found, {}),
            final.get(found, {}),
        )
        for cell in ranked
        for found in cell
    ]
    return confirmed, truth
