"""Cells that never ran: trials drawn around a cell's mean, seeds around each trial."""

import numpy as np

from sweeplab.laws.comparing import CellTrials

SEED_SD = 0.01
# How far the noise of the noisiest cell lies above that of the quietest, by how it is spread over the cells.
NOISES = {
    "equal": lambda n: np.ones(n),
    "one of 4": lambda n: np.where(np.arange(n) == 0, 4.0, 1.0),
    "half of 4": lambda n: np.where(np.arange(n) % 2 == 0, 4.0, 1.0),
    "1 to 4": lambda n: np.geomspace(1.0, 4.0, n),
}


def plant_cells(
    random,
    n_cells=6,
    n_trials=2,
    n_seeds=3,
    spread=0.02,
    noise="equal",
    shifts=None,
):
    """Return cells of mean 2, but for `shifts`, whose trials differ by `spread` and whose seeds by SEED_SD and more."""
    cells = []
    for at, sd in enumerate(SEED_SD * NOISES[noise](n_cells)):
        mean = 2.0 + (shifts or {}).get(at, 0.0)
        trials = mean + spread * random.standard_normal((n_trials, 1))
        losses = trials + sd * random.standard_normal((n_trials, n_seeds))
        cells.append(
            CellTrials([dict(enumerate(map(float, each))) for each in losses], n_trials)
        )
    return cells
