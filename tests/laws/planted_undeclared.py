"""Tables whose rows are not what they seem: larger sizes mistuned, embeddings counted or not, checkpoints that were not
annealed, runs that stopped early, and one batch size for all. Their truth is that of tuned and whole runs."""

import numpy as np
from laws.planted_laws import TRUTHS, losses, spoilt

from sweeplab.laws.points import UNKNOWN, Points


def _share(x):
    logs = np.log(x)
    return (logs - logs.min()) / np.ptp(logs)


def _longest(n, d):
    return np.array([d[n == each].max() for each in n])


def _embeddings(n, share):
    return share * n * (n / n.min()) ** (-2 / 3)


# The params and tokens that count for a row that has n and d, and the excess of its log loss.
WORLDS = {
    "as declared": lambda n, d: (n, d, 0.0),
    "mistuned by 1%": lambda n, d: (n, d, 0.01 * _share(n) ** 2),
    "mistuned by 2%": lambda n, d: (n, d, 0.02 * _share(n) ** 2),
    "embeddings counted": lambda n, d: (n - _embeddings(n, 0.4), d, 0.0),
    "embeddings not counted": lambda n, d: (n + _embeddings(n, 0.4), d, 0.0),
    "not annealed": lambda n, d: (n, d, 0.025 * (1 - d / _longest(n, d))),
    "stopped early": lambda n, d: (n, d * (1 - 0.25 * _share(d)), 0.0),
    "large batch": lambda n, d: (n, d / (1 + 0.4 * np.sqrt(d.min() / d)), 0.0),
}


def undeclared_table(world, truth, where, noise, random):
    """Return a table of such rows, of which nobody says how they came about."""
    n, d, excess = WORLDS[world](*where)
    points = spoilt(*where, losses(TRUTHS[truth], n, d) * np.exp(excess), noise, random)
    return Points(points.columns, points.weights, tuned=UNKNOWN, undeclared=("params",))
