"""How good a forecast was: its error, whether its interval held, and its CRPS.

The continuous ranked probability score is in log units, like an absolute error, which it is for a forecast without
a spread; lower is better. Of a normal distribution, with z = (x - mean) / sd, it is (Gneiting and Raftery 2007,
Strictly proper scoring rules, prediction, and estimation, equation 21, with the sign turned)

    CRPS = sd * (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

LAW = "law"
LAST_POINT = "last point"
LOG_LINE = "log-linear line"
_STANDARD = NormalDist()


@dataclass(frozen=True)
class Normal:
    """A normal distribution of a log loss; with sd 0 it is a forecast without a spread."""

    mean: float
    sd: float

    def crps(self, value: float) -> float:
        """Return the continuous ranked probability score at `value`."""
        if self.sd == 0:
            return abs(value - self.mean)
        z = (value - self.mean) / self.sd
        within = z * (2 * _STANDARD.cdf(z) - 1) + 2 * _STANDARD.pdf(z) - 1 / math.sqrt(math.pi)
        return self.sd * within

    def pit(self, value: float) -> float:
        """Return the probability of less than `value`: even from 0 to 1 if forecasts are calibrated."""
        if self.sd == 0:
            return 0.5 if value == self.mean else float(value > self.mean)
        return _STANDARD.cdf((value - self.mean) / self.sd)


@dataclass(frozen=True)
class Score:
    """What came of a forecast: `error_log` is log(outcome / predicted), `error_nats` outcome - predicted.

    `crps` has the law's and the naive forecasters' that could be made, in log units.
    """

    outcome: float
    error_log: float
    error_nats: float
    covered: bool
    pit: float
    crps: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self) | {"crps": dict(self.crps)}


def score(predicted: Mapping[str, Any], naive: Mapping[str, Any], outcome: float) -> Score:
    """Return the score of a sealed prediction, given the loss that came of it."""
    at = math.log(outcome)
    law = Normal(**predicted["log_loss"])
    others = {name: Normal(**said["log_loss"]) for name, said in naive.items() if said["log_loss"]}
    return Score(
        outcome=outcome,
        error_log=at - math.log(predicted["loss"]),
        error_nats=outcome - predicted["loss"],
        covered=predicted["low"] <= outcome <= predicted["high"],
        pit=law.pit(at),
        crps={name: each.crps(at) for name, each in ({LAW: law} | others).items()},
    )
