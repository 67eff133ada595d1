"""Where in the space trials failed or diverged: the range of each hyperparameter in which they crowd.

Ranges are looked for, so the smallest of many p-values is small by chance: each is multiplied by the number of ranges
that were looked at (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, Series

from sweeplab.analysis.sweep.dimensions import Dimension
from sweeplab.analysis.sweep.trials import Sweep
from sweeplab.analysis.trials import STATES

STATES_LOOKED_AT = ("diverged", "failed")
FOUND, NOT_FOUND = "crowds here", "spread evenly"
# A p-value that is this small is no accident of the sweep.
ALPHA = 0.05
CUTS = np.linspace(0, 1, 11)[1:-1]


@dataclass(frozen=True)
class Region:
    """The range of one hyperparameter where trials of a state are most out of proportion.

    `inside` of the `n_inside` trials in it ended so, `outside` of the `n_outside` others. `p` is that of Fisher's
    exact test, one-sided, times the number of ranges.
    """

    study: str
    state: str
    hyperparameter: str
    range: str
    inside: int
    n_inside: int
    outside: int
    n_outside: int
    p: float

    @property
    def verdict(self) -> str:
        """Say whether this is more than what chance gives."""
        return FOUND if self.p < ALPHA else NOT_FOUND


def regions(sweep: Sweep) -> list[Region]:
    """Return the range of each hyperparameter in which most trials diverged, or failed; the surest first."""
    ended = sweep.trials[
        sweep.trials["state"].isin(STATES) & ~sweep.trials["state"].isin(("running", "waiting"))
    ]
    both = {each.name: each for each in (*sweep.dimensions, *sweep.grid)}
    found = []
    for state in STATES_LOOKED_AT:
        hit = ended["state"] == state
        if not hit.any() or hit.all():
            continue
        ranges = [(each, *part) for each in both.values() for part in _parts(each, ended)]
        chances = _p_values(hit, [inside for _, _, inside in ranges]) * len(ranges)
        tested = [(float(p), *each) for p, each in zip(chances, ranges, strict=True)]
        for name in both:
            own = [each for each in tested if each[1].name == name]
            if own:
                p, _, said, inside = min(own, key=lambda each: each[0])
                found.append(_region(sweep.name, state, name, said, hit, inside, min(1.0, p)))
    return sorted(found, key=lambda each: (STATES_LOOKED_AT.index(each.state), each.p))


def _region(study: str, state: str, name: str, said: str, hit: Series, inside: Series, p: float) -> Region:
    counts = (int((hit & inside).sum()), int(inside.sum()), int((hit & ~inside).sum()), int((~inside).sum()))
    return Region(study, state, name, said, *counts, p)


def _parts(dimension: Dimension, trials: DataFrame) -> Iterator[tuple[str, Series]]:
    """Yield the ranges to look at, in words, and which trials lie in each: each choice, or either side of a cut."""
    column = trials[dimension.name]
    if dimension.choices:
        for choice in dimension.choices:
            yield choice, column.astype(str) == choice
        return
    places = dimension.coordinates(column)
    # Cuts at deciles of the trials: an adaptive sampler leaves much of a range nearly empty.
    for cut in np.unique(np.nanquantile(places, CUTS)) if places.notna().any() else ():
        value = f"{dimension.value_at(float(cut)):.3g}"
        yield f"above {value}", places > cut
        yield f"up to {value}", places <= cut


def _p_values(hit: Series, insides: Sequence[Series]) -> NDArray[np.float64]:
    """Return for each range the chance of as many hits inside, or more, were they spread over all trials alike."""
    from scipy.stats import hypergeom

    n, is_hit = len(hit), hit.to_numpy(bool)
    among = np.array([inside.to_numpy(bool) for inside in insides]).reshape(-1, n)
    n_inside = among.sum(1)
    chances = hypergeom.sf((among & is_hit).sum(1) - 1, n, int(is_hit.sum()), n_inside)
    return np.where((n_inside == 0) | (n_inside == n), 1.0, chances)
