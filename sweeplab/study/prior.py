"""What a person believes of the best value of a range, as the density of a sampler's first points and proposals.

piBO (Hvarfner et al. 2022, arXiv 2204.11051) multiplies the acquisition of a point by its density to the power of
BETA / n after n trials. Two departures: half of the density is even over the range, so that a wrong belief costs
little, and n counts the trials of all cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from sweeplab.laws.surrogate import Floats
from sweeplab.study.search import CONFIDENCES, MEDIUM, Range

BETA = 10.0
EVEN = 0.5
_GRID = np.linspace(0.0, 1.0, 1025)


@dataclass(frozen=True)
class Prior:
    """A normal density over the shares of a range from 0 to 1, cut off at its ends, and an even one."""

    center: float
    sd: float

    @classmethod
    def of(cls, entry: Range) -> Self | None:
        """Return the prior of a range; None where it has none."""
        if entry.prior is None:
            return None
        return cls(entry.share(entry.prior), CONFIDENCES[entry.confidence or MEDIUM])

    def density(self, shares: Floats) -> Floats:
        """Return the density at some shares."""
        ends = [math.erf((end - self.center) / self.sd / math.sqrt(2)) / 2 for end in (0.0, 1.0)]
        inside = self.sd * math.sqrt(2 * math.pi) * (ends[1] - ends[0])
        bell = np.exp(-0.5 * ((shares - self.center) / self.sd) ** 2) / inside
        return np.asarray(EVEN + (1 - EVEN) * bell)

    def quantile(self, share: float) -> float:
        """Return the share of the range below which this share of the density lies."""
        return float(np.interp(share, self._cumulated, _GRID))

    @cached_property
    def _cumulated(self) -> Floats:
        density = self.density(_GRID)
        sums = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
        return np.asarray(sums / sums[-1])
