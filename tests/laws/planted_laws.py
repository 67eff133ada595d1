"""Tables whose law is known because it was planted.

Two truths, good designs and bad ones were looked at when the method and its gates were made. HELD_OUT truths and
NEAR designs, some just beyond the gates and some bad in ways of their own, were not.
"""

import numpy as np

from sweeplab.laws.points import EACH, Points

TRUTHS = {
    "hoffmann": {"E": 1.69, "A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28},
    "steep": {"E": 1.8172, "A": 482.0, "alpha": 0.3478, "B": 2085.4, "beta": 0.3658},
}
HELD_OUT = {
    "flat": {"E": 1.0, "A": 4.425, "alpha": 0.076, "B": 7.366, "beta": 0.095},
    "steeper": {"E": 2.2, "A": 1897.0, "alpha": 0.5, "B": 2718.0, "beta": 0.45},
    "unlike": {"E": 0.7, "A": 17.58, "alpha": 0.2, "B": 485.0, "beta": 0.35},
}


def _grid(sizes, tokens_per_param):
    n = np.repeat(sizes, len(tokens_per_param))
    return n, n * np.tile(tokens_per_param, len(sizes))


def _scattered():
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


def _near_a_ray(sd, n_rows, slope=1.0):
    away = np.random.default_rng(n_rows).standard_normal(n_rows)
    n = np.geomspace(1e6, 1e9, n_rows)
    return n, 2e8 * (n / 1e7) ** slope * np.exp(sd * (away - away.mean()) / away.std())


def _narrow(decades, n_rows):
    random = np.random.default_rng(n_rows)
    n = 1e8 * 10 ** random.uniform(0, decades, n_rows)
    return n, n * np.exp(random.uniform(np.log(2), np.log(200), n_rows))


def _with_row(where, n, d):
    return np.append(where[0], n), np.append(where[1], d)


NEAR = {
    "one ray, D = 5 N": (_RAY, 5 * _RAY),
    "one ray, D = 100 N": (_RAY, 100 * _RAY),
    "near a ray, sd 0.3": _near_a_ray(0.3, 20),
    "near a ray, sd 0.38": _near_a_ray(0.38, 30),
    "near a ray, sd 0.45": _near_a_ray(0.45, 60),
    "near D as the root of N": _near_a_ray(0.3, 24, slope=0.5),
    "0.6 decades of N": _grid(np.geomspace(1e7, 4e7, 5), (2, 6, 20, 60, 200)),
    "0.7 decades of N": _narrow(0.7, 60),
    "a ray and one row": _with_row((_RAY, 20 * _RAY), 3e7, 1.2e10),
    "half a decade and one row": _with_row(BAD["half a decade of N"], 4e8, 8e9),
    "one budget": (np.geomspace(1e7, 1e9, 20), 1e18 / np.geomspace(1e7, 1e9, 20)),
}


def losses(truth, n, d):
    """Return the losses of L = E + A/N^alpha + B/D^beta."""
    return truth["E"] + truth["A"] / n ** truth["alpha"] + truth["B"] / d ** truth["beta"]


EQUAL, FALLS, HEAVY = "equal", "falls with D", "t3"
SIZE, RATIO = "size", "D/N"  # of rows that share an error


def plant(truth, where, noise, random, shared=0.0, kind=EQUAL, by=SIZE):
    """Return a table with log-normal errors, of which the share `shared` of the variance is one a size, or a D/N.

    Of a kind that falls with D they go as D^-0.25, about what they do in published tables; t3 are Student's.
    """
    n, d = where
    return spoilt(
        n, d, losses((TRUTHS | HELD_OUT)[truth], n, d), noise, random, shared, kind, by
    )


def spoilt(
    n,
    d,
    loss,
    noise,
    random,
    shared=0.0,
    kind=EQUAL,
    by=SIZE,
):
    """Return a table of losses with errors as `plant` makes them."""
    sizes, place = np.unique((n if by == SIZE else d / n).round(6), return_inverse=True)
    drawn = (
        random.standard_t(3, len(n)) / np.sqrt(3)
        if kind == HEAVY
        else random.standard_normal(len(n))
    )
    own = np.sqrt(1 - shared) * drawn
    if kind == FALLS:
        own *= np.exp(-0.25 * (np.log(d) - np.log(d).mean()))
    error = noise * (own + np.sqrt(shared) * random.standard_normal(len(sizes))[place])
    columns = {"params": n, "tokens": d, "flops": 6 * n * d, "loss": loss * np.exp(error)}
    return Points(columns, np.ones(len(n)), tuned=EACH)


def of_law(law, truth):
    """Return a truth of the law's own: the same exponents, with scales that give losses of the same size."""
    own = dict((TRUTHS | HELD_OUT)[truth])
    if law.name == "tied":
        own["B"] = own["B"] / 2e8 ** own["beta"] * 2e8 ** own["alpha"]
    elif law.name == "power-c":
        own |= {"alpha": own["alpha"] / 2, "A": 1.2 * 1.2e16 ** (own["alpha"] / 2)}
    return {name: own[name] for name in law.parameters}


def values_of(truth):
    """Return a truth as one draw of a fit."""
    return {name: np.array([value]) for name, value in truth.items()}


def plant_law(law, truth, where, noise, random):
    """Return a table of any law."""
    n, d = where
    sizes = {"params": n, "tokens": d, "flops": 6 * n * d}
    return spoilt(n, d, law.loss(values_of(of_law(law, truth)), sizes)[0], noise, random)
