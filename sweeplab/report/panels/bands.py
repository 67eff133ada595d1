"""A law's line with its band, and how far it goes: no further than what it shows is identified."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.fit.assessment import NOT_IDENTIFIED, Assessment, gate, judge
from sweeplab.analysis.fit.forms import Array, Quantity
from sweeplab.analysis.fit.intervals import LEVEL, Interval, profiles

_KNOTS = 4  # where the band is computed inside of the points; between them its width is interpolated
_MORE_KNOTS = 3
_STEPS = 8  # points of the line from one knot to the next


@dataclass(frozen=True)
class Band:
    """A line at `x` with its pointwise band; `beyond` marks what is outside of the points.

    `ends` says why the line stops before the end that was asked for, and is empty where it does not.
    """

    x: Array
    value: Array
    low: Array
    high: Array
    beyond: NDArray[np.bool_]
    ends: str


def band(found: Assessment, at: Callable[[float], Quantity], low: float, high: float, limit: float) -> Band:
    """Return the line of a loss, or of another log, from `low` to `high`, where the points are, and on to `limit`.

    The band is the profile's interval at each x by itself; where the design cannot hold the law, it is that of
    the bootstrap, and the line stays with the points.
    """
    fit = found.fit
    lacking = gate(at(high), found.points, fit)
    inside = np.geomspace(low, high, _KNOTS) if high > low * (1 + 1e-9) else np.array([high])
    outside = np.geomspace(high, limit, _MORE_KNOTS + 1)[1:] if limit > high and not lacking else np.array([])
    of = {x: at(x) for x in map(float, np.concatenate([inside, outside]))}
    if lacking:
        knots = [(x, *_refitted(found, quantity)) for x, quantity in of.items()]
    else:
        intervals = dict(zip(of, profiles(fit, list(of.values()), found.shared), strict=True))
        knots = [(x, *_profiled(found, of[x], intervals[x])) for x in map(float, inside)]
    ends = "; ".join(lacking)
    for x in map(float, outside):
        interval = intervals[x]
        verdict = judge(of[x], interval, fit, ())
        if verdict.verdict == NOT_IDENTIFIED:
            ends = verdict.reason
            break
        knots.append((x, interval.value - interval.low, interval.high - interval.value))
    known, below, above = np.array(knots).T
    log_x = np.unique(
        np.concatenate([np.linspace(start, end, _STEPS + 1) for start, end in pairwise(np.log(known))])
        if len(known) > 1
        else np.log(known)
    )
    log_value = np.array([at(math.exp(x)).measure(fit.theta[None])[0][0] for x in log_x])
    widths = [np.interp(log_x, np.log(known), side) for side in (below, above)]
    return Band(
        x=np.exp(log_x),
        value=np.exp(log_value),
        low=np.exp(log_value - widths[0]),
        high=np.exp(log_value + widths[1]),
        beyond=log_x > math.log(high) + 1e-9,
        ends=ends,
    )


def _profiled(found: Assessment, quantity: Quantity, interval: Interval) -> tuple[float, float]:
    """Return how far the interval goes below and above the log; a limit that is not there is far."""
    if interval.open_low or interval.open_high:
        return _refitted(found, quantity)
    return interval.value - interval.low, interval.high - interval.value


def _refitted(found: Assessment, quantity: Quantity) -> tuple[float, float]:
    value = float(quantity.measure(found.fit.theta[None])[0][0])
    if found.refits is None:
        return 0.0, 0.0
    low, high = np.quantile(quantity.measure(found.refits.theta)[0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return max(value - float(low), 0.0), max(float(high) - value, 0.0)
