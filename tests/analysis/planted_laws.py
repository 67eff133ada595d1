"""Tables whose law is known because it was planted: two truths, good designs and bad ones."""

from __future__ import annotations

import numpy as np

from sweeplab.analysis.points import Points

TRUTHS = {
    "hoffmann": {"E": 1.69, "A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28},
    "steep": {"E": 1.8172, "A": 482.0, "alpha": 0.3478, "B": 2085.4, "beta": 0.3658},
}


def _grid(sizes, tokens_per_param) -> tuple[np.ndarray, np.ndarray]:
    n = np.repeat(sizes, len(tokens_per_param))
    return n, n * np.tile(tokens_per_param, len(sizes))


def _scattered() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    n = np.exp(random.uniform(np.log(5e7), np.log(1.6e10), 245))
    flops = np.exp(random.uniform(np.log(6e18), np.log(3e21), 245))
    return n, flops / (6 * n)


_RAY = np.geomspace(1e6, 1e9, 12)
_STEPS = np.random.default_rng(5).normal(0, 0.25, 12)
GOOD = {
    "9 points, 3 x 3": _grid(np.geomspace(1e6, 1e8, 3), (5, 20, 80)),
    "12 points, 4 x 3": _grid(np.geomspace(1e6, 1e8, 4), (5, 20, 80)),
    "30 points, 6 x 5": _grid(np.geomspace(1e6, 1e8, 6), (2, 6, 20, 60, 200)),
    "245 scattered": _scattered(),
}
BAD = {
    "one ray, D = 20 N": (_RAY, 20 * _RAY),
    "near a ray, sd 0.25": (_RAY, 20 * _RAY * np.exp(_STEPS)),
    "half a decade of N": _grid(np.geomspace(1e7, 3.2e7, 4), (2, 6, 20, 60, 200)),
}


def losses(truth: dict[str, float], n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Return the losses of L = E + A/N^alpha + B/D^beta."""
    return truth["E"] + truth["A"] / n ** truth["alpha"] + truth["B"] / d ** truth["beta"]


def plant(truth: str, where, noise: float, random, shared: float = 0.0) -> Points:
    """Return a table with log-normal errors, of which the share `shared` of the variance is one a size."""
    n, d = where
    sizes, place = np.unique(n, return_inverse=True)
    own = np.sqrt(1 - shared) * random.standard_normal(len(n))
    error = noise * (own + np.sqrt(shared) * random.standard_normal(len(sizes))[place])
    loss = losses(TRUTHS[truth], n, d) * np.exp(error)
    return Points({"params": n, "tokens": d, "flops": 6 * n * d, "loss": loss}, np.ones(len(n)))
