"""Which runs tell most of one number for their FLOPs, allowing for a law that is a little wrong.

Legend: B parameter vectors, p parameters, m candidates, K departures, n_k how often candidate k is run.

A c-optimal choice (Elfving 1952; Atkinson, Donev and Tobias 2007, chapter 10) makes the variance of one number of
the parameters small. For a law that is not linear this rests on the parameters, so the log of the variance is
averaged over vectors that the table allows (Chaloner and Larntz 1989). Such a choice leans on the law's form: it
goes to the ends, where a law that is a little wrong misleads most. So the variance has the square of a bias beside
it (Box and Draper 1959): what departures of a given size, products of the logs of the columns, do to the number,
over what they do to a fit of all rows and candidates alike. Departure from these: few departures, of one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.fit.forms import Array

_SWEEPS = 20
_WEIGHTS = (0.2, 1.0, 5.0)  # of a run's price in runs against that in FLOPs
_BETTER = 1e-6  # an exchange has to gain at least this share


@dataclass(frozen=True)
class Prospect:
    """What a table tells of a number, and what every candidate would add; all errors are in units of the noise.

    `known` is the table's information [B, p, p] and `leaning` its pull by each departure [B, p, K]; `slope` is the
    number's gradient [B, p]; `jacobian` [B, p, m] and `departures` [B, K, m] are the candidates'.
    """

    known: Array
    leaning: Array
    slope: Array
    jacobian: Array
    departures: Array

    def error(self, counts: Array) -> Array:
        """Return the number's expected squared error when candidates are run `counts` [m] times: [B]."""
        lean, leaning, _ = self._state(counts)
        off = (lean[:, :, None] * leaning).sum(1)
        return np.asarray((lean * self.slope).sum(1) + (off**2).sum(1))

    def variance(self, counts: Array) -> Array:
        """Return the part of it that noise has, [B]."""
        return np.asarray((self._state(counts)[0] * self.slope).sum(1))

    def after_each(self, counts: Array) -> Array:
        """Return the expected squared error after one more run of each candidate: [B, m]."""
        lean, leaning, inverse = self._state(counts)
        moved = inverse @ self.jacobian
        told = (lean[:, None, :] @ self.jacobian)[:, 0]
        known = 1 + (self.jacobian * moved).sum(1)
        off = (lean[:, None, :] @ leaning)[:, 0, :, None]
        off = off + (told / known)[:, None] * (self.departures - leaning.transpose(0, 2, 1) @ moved)
        return np.asarray((lean * self.slope).sum(1)[:, None] - told**2 / known + (off**2).sum(1))

    def shares(self, counts: Array) -> Array:
        """Return the share of the number's information that the runs of each candidate have, of all rows': [m]."""
        lean = self._state(counts)[0]
        each = counts * (lean[:, None, :] @ self.jacobian)[:, 0] ** 2
        return np.asarray((each / (lean * self.slope).sum(1)[:, None]).mean(0))

    def _state(self, counts: Array) -> tuple[Array, Array, Array]:
        repeated = self.jacobian * counts
        inverse = np.asarray(
            np.linalg.inv(self.known + repeated @ self.jacobian.transpose(0, 2, 1)), np.float64
        )
        leaning = self.leaning + repeated @ self.departures.transpose(0, 2, 1)
        return (inverse @ self.slope[:, :, None])[:, :, 0], leaning, inverse


@dataclass(frozen=True)
class Limits:
    """What a choice may spend: FLOPs in all, runs in all and of one candidate, on those that are `allowed`, [m].

    `cost` is by candidate, [m]; those at the `corners`, [m], may have `most_share` of the runs.
    """

    budget: float
    cost: Array
    allowed: NDArray[np.bool_]
    corners: NDArray[np.bool_]
    most_runs: int
    most_each: int
    most_share: float

    @cached_property
    def most_corners(self) -> int:
        """Return how many runs may be at the corners."""
        return int(self.most_share * self.most_runs)

    def left(self, counts: Array) -> float:
        """Return the FLOPs that are left."""
        return self.budget - float(counts @ self.cost)

    def open(self, counts: Array) -> NDArray[np.bool_]:
        """Return which candidates may be run once more: [m]."""
        free = self.allowed & (self.cost <= self.left(counts)) & (counts < self.most_each)
        if counts.sum() >= self.most_runs:
            free[:] = False
        if counts[self.corners].sum() >= self.most_corners:
            free &= ~self.corners
        return np.asarray(free)


def choose(prospect: Prospect, limits: Limits) -> Array:
    """Return how often each candidate is run: greedily by what a run tells for its price, then by exchanges.

    A run's price is its share of the FLOPs that are left and of the runs that are left; how the two are weighed is
    tried in several ways, and the best choice is taken.
    """
    found = []
    for weight in _WEIGHTS:
        counts = _greedy(prospect, limits, weight)
        for _ in range(_SWEEPS):
            if not _exchanged(prospect, limits, counts):
                break
        found.append(counts)
    return min(found, key=lambda counts: float(np.log(prospect.error(counts)).mean()))


def _greedy(prospect: Prospect, limits: Limits, weight: float) -> Array:
    counts = np.zeros(len(limits.cost))
    while (free := limits.open(counts)).any():
        gain = np.log(prospect.error(counts))[:, None] - np.log(prospect.after_each(counts))
        price = limits.cost / limits.left(counts) + weight / (limits.most_runs - counts.sum())
        worth = np.where(free, gain.mean(0) / price, -np.inf)
        best = int(worth.argmax())
        if worth[best] <= 0:
            break
        counts[best] += 1
    return counts


def _exchanged(prospect: Prospect, limits: Limits, counts: Array) -> bool:
    """Put every run where it tells most, in place, and a further one where there is room; return whether any moved."""
    any_moved = False
    for here in [*np.flatnonzero(counts), None]:
        now = np.log(prospect.error(counts)).mean()
        if here is not None:
            counts[here] -= 1
        then = np.where(limits.open(counts), np.log(prospect.after_each(counts)).mean(0), np.inf)
        best = int(then.argmin())
        if then[best] < now - _BETTER:
            counts[best] += 1
            any_moved = True
        elif here is not None:
            counts[here] += 1
    return any_moved
