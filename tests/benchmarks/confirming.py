"""Measure what a confirmation promises, on simulated searches: false differences, and how often its intervals hold.

Run: python tests/benchmarks/confirming.py [studies]. A study has 6 cells with 10 trials each, valued with one seed; the
best 3 race on 5 fresh seeds, and the winner is scored with 5 more. A false alarm is a study of identical cells
and trials in which any two cells are called different. The 90% intervals are those of a winner's test loss and of its
difference from the reference's, where trials differ by twice what a seed does. The last column is how far the loss that
the search found lies below the truth. Noise is equal, or up to four times as large in some cells.
"""

import math
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import numpy as np
from analysis.planted_confirmation import SEED_SD, plant_confirmation
from benchmarks.setting import print_table, setting
from laws.planted_cells import NOISES

from sweeplab.analysis.differences import confirmed_cells
from sweeplab.laws.comparing import DIFFERENT


def row(noise, studies):
    """Return the rates for one kind of noise."""
    random = np.random.default_rng(1)
    alarms = 0
    for _ in range(studies):
        found, _ = plant_confirmation(random, spread=0.0, noise=noise)
        alarms += any(
            each.evidence and each.evidence.verdict == DIFFERENT
            for each in confirmed_cells(found)
        )
    held, apart, bias = [], [], []
    for _ in range(studies):
        found, truth = plant_confirmation(random, spread=2 * SEED_SD, noise=noise)
        cells = confirmed_cells(found)
        reference = next(each for each in cells if each.apart is None)
        for each in cells:
            true = truth[each.cell, each.trial]
            held.append(each.test.low <= true <= each.test.high)
            bias.append(true - each.searched)
            if each.apart:
                difference = true - truth[reference.cell, reference.trial]
                apart.append(each.apart.low <= difference <= each.apart.high)
    rate = alarms / studies
    return [
        noise,
        f"{rate:.1%} ({math.sqrt(rate * (1 - rate) / studies):.1%})",
        f"{np.mean(held):.1%}",
        f"{np.mean(apart):.1%}",
        f"{np.mean(bias) / SEED_SD:+.2f}",
    ]


def main(studies=1000):
    """Print a row per kind of noise."""
    print(setting())
    headings = [
        "noise",
        "false alarms (se)",
        "test loss in its interval",
        "difference in its interval",
    ]
    headings.append("the search's loss below the truth, seed sd")
    print_table(headings, [row(noise, studies) for noise in NOISES])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
