"""Planted tables with the trials of every point over learning rates, which reach the best rate of each size or not."""

import numpy as np
import pandas as pd
from laws.planted_laws import GOOD, TRUTHS, losses

NOISE = 0.005
# The best rate falls with N and grows with D as published (arXiv 2503.04715). A rate that is right for the smallest
# size of the 30 points costs about 3% of the loss at the largest.
_RATE, _BOWL = (-0.713, 0.307), 0.0065
_TRIALS = 6
RIGHT, HIGH, FEW = "right", "rates too high for large sizes", "one trial of large sizes"


def mistuned_table(kind, design, truth, random):
    """Return the trials of a design's points, a row each: N, D, lr, loss."""
    n, d = GOOD[design]
    best = _RATE[0] * np.log(n / 1e8) + _RATE[1] * np.log(d / 1e9) - 5
    low, high = best.min() - 0.5, best.max() + 0.5
    if kind == HIGH:  # every range ends where the smallest size has its best rate
        low = float(np.median(best[n <= np.quantile(n, 0.1)])) - 0.3
        high = low + 2.0
    rows = []
    log_n = np.log(n)
    for at, mean in enumerate(losses(TRUTHS[truth], n, d)):
        # Evenly spaced rates from a random begin, as a search that spreads its first trials.
        place = (np.arange(_TRIALS) + random.uniform()) / _TRIALS
        if kind == FEW and log_n[at] > log_n.min() + 0.6 * np.ptp(log_n):
            place = random.uniform(size=1)
        rates = low + place * (high - low)
        if kind == RIGHT:  # a range about the best of each size
            rates = best[at] + 3.0 * (place - 0.5)
        away = rates - best[at]
        errors = NOISE * random.standard_normal(len(rates))
        loss = mean * np.exp(_BOWL / 2 * away**2 + errors)
        rows += [
            (n[at], d[at], np.exp(rate), value) for rate, value in zip(rates, loss, strict=True)
        ]
    return pd.DataFrame(rows, columns=["N", "D", "lr", "loss"])
