"""How wide a number is: its profile, calibrated for few rows.

A value of a quantity belongs to the interval if the law, held to it, fits not much worse: the objective may rise
until 2 dF E[psi'] / E[psi^2] reaches the quantile of F(1, n - p), and not of chi-squared, which is too narrow for
small tables. For least squares that is the classical profile of the residual variance with n - p degrees.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from sweeplab.analysis.fit.fitting import Fit
from sweeplab.analysis.fit.forms import Array
from sweeplab.analysis.fit.groups import Shared
from sweeplab.analysis.fit.quantities import Quantity
from sweeplab.analysis.fit.solver import Pull, solve

LEVEL = 0.9
_FIRM = 100.0  # the spring against the profile's own curvature
# How far a profile is followed, in units of its half width where it is a parabola; beyond 2.5 only if it must be.
_REACHES = (np.geomspace(0.4, 2.5, 5), np.geomspace(0.4, 40.0, 10))
_STILL = 1e-8
_PARTS = np.array([0.25, 0.5, 0.75])  # of a gap, to look at
_ROUNDS = 20
_CLOSE = 1e-3
_Steps = Generator[tuple[Array, Array], tuple[Array, Array, Array], float | None]


@dataclass(frozen=True)
class Interval:
    """The lowest and highest value at `level`; an end is open where the data set no limit on that side."""

    value: float
    low: float
    high: float
    open_low: bool
    open_high: bool


def profile(fit: Fit, quantity: Quantity, shared: Shared | None = None, level: float = LEVEL) -> Interval:
    """Return the profile interval of a quantity, in what its `measure` gives (logs where it is a log).

    Errors that are `shared` widen it by what they add to the quantity's variance, with fewer degrees of freedom.
    """
    return profiles(fit, [quantity], shared, level)[0]


def profiles(
    fit: Fit, quantities: Sequence[Quantity], shared: Shared | None = None, level: float = LEVEL
) -> list[Interval]:
    """Return the profile intervals of several quantities, followed side by side: many times faster than one by one."""
    inverse = inverse_curvature(fit)
    values: list[float] = []
    asking: dict[tuple[int, int], _Search] = {}  # by quantity and side
    ends: dict[tuple[int, int], float | None] = {}
    for k, quantity in enumerate(quantities):
        value, slope = (each[0] for each in quantity.measure(fit.theta[None]))
        values.append(float(value))
        if math.isfinite(value) and np.isfinite(slope).all() and slope.any():
            allowed = _allowed(fit, slope, inverse, shared, level)
            spread, lean = _spread(fit, slope, inverse, allowed)
            for side in (-1, 1):
                asking[k, side] = _Search(_end(fit, side, float(value), lean, spread, allowed), spread)
    while asking:
        parts = {key: search.wanted for key, search in asking.items()}
        counts = [len(targets) for targets, _ in parts.values()]
        pull = Pull(
            [quantity.measure for quantity in quantities],
            np.repeat([k for k, _ in parts], counts),
            np.concatenate([targets for targets, _ in parts.values()]),
            np.repeat([_FIRM / search.spread for search in asking.values()], counts),
        )
        found = solve(fit.law, np.concatenate([begin for _, begin in parts.values()]), fit.rows, pull, _STILL)
        height = np.sqrt(np.maximum(found.objective - fit.objective, 0))
        at, upto = pull.measured(found.theta)[0], np.cumsum(counts)
        for (key, search), first, last in zip(list(asking.items()), upto - counts, upto, strict=True):
            rows = slice(first, last)
            try:
                search.wanted = search.steps.send((at[rows], height[rows], found.theta[rows]))
            except StopIteration as done:
                ends[key] = done.value
                del asking[key]
    return [_interval(value, ends.get((k, -1)), ends.get((k, 1))) for k, value in enumerate(values)]


def _interval(value: float, low: float | None, high: float | None) -> Interval:
    return Interval(
        value,
        -math.inf if low is None else low,
        math.inf if high is None else high,
        low is None,
        high is None,
    )


def _allowed(fit: Fit, slope: Array, inverse: Array, shared: Shared | None, level: float) -> float:
    """Return how much higher the objective may be inside of a quantity's interval."""
    if not (shared and shared.shared > 0):
        return rise(fit, fit.spare, level)
    jacobian = fit.law.derivatives(fit.theta[None], fit.rows.logs)[1][0]
    moved = fit.rows.weights * (slope @ inverse @ jacobian)
    return rise(fit, shared.freedom(moved, fit.spare), level) * shared.inflation(moved)


def _spread(fit: Fit, slope: Array, inverse: Array, allowed: float) -> tuple[float, Array]:
    """Return the quantity's inverse curvature, and how the parameters move with it near the optimum, [p].

    Where the optimum is flat, as with a term that is none, it is only as large as the bounds leave room for.
    """
    low, high = fit.law.bounds(fit.rows.log_loss)
    room = float(np.abs(slope) @ (high - low)) / _REACHES[0][-1]
    widest = room**2 / max(2 * allowed, 1e-300)
    spread = float(slope @ inverse @ slope)
    if not (math.isfinite(spread) and spread > 1e-12 * widest):
        return widest, slope / (slope @ slope)
    return min(spread, widest), inverse @ slope / spread


def rise(fit: Fit, freedom: float, level: float = LEVEL) -> float:
    """Return how much higher the objective may be inside of an interval; `freedom` is F's second degree."""
    from scipy.stats import f as f_distribution

    residual, delta = fit.residuals(), fit.rows.delta
    weights = fit.rows.weights
    bent = np.clip(residual, -delta, delta)
    squares = float(weights @ bent**2) / fit.spare  # a row that weighs w has 1/w of the variance
    inside = max(float(weights @ (np.abs(residual) < delta)) / float(weights.sum()), 1 / fit.n_points)
    return float(f_distribution.ppf(level, 1, freedom)) * squares / inside / 2


def inverse_curvature(fit: Fit) -> Array:
    """Return the inverse of the objective's curvature, [p, p]; a parameter at its bound does not move."""
    jacobian = fit.law.derivatives(fit.theta[None], fit.rows.logs)[1][0]
    inside = np.abs(fit.residuals()) < fit.rows.delta
    weights = fit.rows.weights * max(float(inside.mean()), 1 / fit.n_points)
    curvature = (jacobian * weights) @ jacobian.T
    return np.asarray(np.linalg.pinv(curvature, rcond=1e-13, hermitian=True))


def correlations(fit: Fit) -> Array:
    """Return the correlations of the parameters' errors near the optimum, [p, p]."""
    inverse = inverse_curvature(fit)
    errors = np.sqrt(np.maximum(np.diag(inverse), 1e-300))
    return np.asarray(np.clip(inverse / np.outer(errors, errors), -1, 1))


class _Search:
    """One end that is being looked for: what it wants solved next, as targets [m] and vectors to start from [m, p]."""

    def __init__(self, steps: _Steps, spread: float) -> None:
        self.steps, self.spread = steps, spread
        self.wanted = next(steps)


def _end(fit: Fit, side: int, value: float, lean: Array, spread: float, allowed: float) -> _Steps:
    """Return where the profile crosses `allowed` on one side of `value`; None where it never does.

    Yields targets and starts, and is sent their solutions: quantity, root of the rise in objective, vectors.
    """
    limit = math.sqrt(allowed)
    for reaches in _REACHES:
        offsets = side * reaches * math.sqrt(2 * allowed * spread)
        at, height, theta = yield value + offsets, fit.theta + offsets[:, None] * lean
        away = side * (at - value)
        order = np.argsort(away)
        order = order[away[order] > 0]
        away, height, theta = away[order], height[order], theta[order]
        beyond = np.flatnonzero(height >= limit)
        if beyond.size and height[-1] >= limit:
            break
    if not beyond.size:
        return None
    # The last crossing counts: a profile may dip again behind the first.
    within = np.flatnonzero(height < limit)
    last = within[-1] if within.size else -1
    if last > beyond[-1]:
        return None
    inner = (away[last], height[last], theta[last]) if within.size else (0.0, 0.0, fit.theta)
    outer = (away[last + 1], height[last + 1])
    for _ in range(_ROUNDS):
        # Where the profile is nearly a parabola the guess is right; where it is not, a quarter of the gap is left.
        gap = outer[0] - inner[0]
        ahead = np.sort(np.r_[_between(inner, outer, limit), inner[0] + gap * _PARTS])
        at, high, here = yield value + side * ahead, np.tile(inner[2], (len(ahead), 1))
        at = side * (at - value)
        order = np.argsort(at)
        order = order[(at[order] > inner[0]) & (at[order] < outer[0])]
        for each in order[high[order] < limit][-1:]:
            inner = (at[each], high[each], here[each])
        for each in order[(high[order] >= limit) & (at[order] > inner[0])][:1]:
            outer = (at[each], high[each])
        close = min(limit - inner[1], outer[1] - limit) < _CLOSE * limit
        if close or outer[0] - inner[0] >= gap:
            break
    return value + side * _between(inner, outer, limit)


def _between(inner: tuple[float, float, Array], outer: tuple[float, float], limit: float) -> float:
    """Return where the straight line through two points of the root of a profile reaches the limit."""
    part = (limit - inner[1]) / (outer[1] - inner[1])
    return float(inner[0] + min(max(part, 0.0), 1.0) * (outer[0] - inner[0]))
