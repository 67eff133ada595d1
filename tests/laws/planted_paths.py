"""Runs along a path: tokens follow params, exactly or nearly."""

import numpy as np
import pandas as pd

from sweeplab.laws.columns import Conventions, Counting
from sweeplab.laws.points import EACH, points_of_frame

RATIO, N_SEEDS, NOISE = 20.0, 4, 0.004


def loss(params, truth):
    """The loss on the path: E + A / N^alpha."""
    e, a, alpha = truth
    return e + a * params**-alpha


def plant_path(n_sizes, jitter, truth, random, slope=1.0):
    """Plant runs of sizes over 1.3 decades, with tokens of `jitter` (sd of logs) around the path."""
    params = np.geomspace(8e3, 1.6e5, n_sizes)
    tokens = (
        RATIO
        * params[0]
        * (params / params[0]) ** slope
        * np.exp(jitter * random.standard_normal(n_sizes))
    )
    rows = [
        (n, d, seed, loss(n, truth) * np.exp(NOISE * random.standard_normal()))
        for n, d in zip(params, tokens, strict=True)
        for seed in range(N_SEEDS)
    ]
    frame = pd.DataFrame(rows, columns=["params", "tokens", "seed", "loss"])
    return points_of_frame(frame, "path.csv", Counting(Conventions(params="total"))).tuned_as(
        EACH
    )
