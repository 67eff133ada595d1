"""Intervals of a number: its profile, calibrated for few rows, or the bootstrap.

A value of a quantity belongs to the interval if the law, refitted with the quantity fixed there, fits not much worse:
the objective may rise until 2 dF E[psi'] / E[psi^2] reaches the quantile of F(1, n - p), and not of chi-squared, which
is too narrow for small tables. For least squares that is the classical profile of the residual variance with n - p
degrees. If the noise is not equal, E[psi^2] / E[psi'] is that of the rows with influence on the number (see `noise`).

Rows may share an error: all runs of one size, or all points of one curve. The errors are modelled as e_i + s_group(i),
all independent. Their two variances come from two moments of the residuals r = M (e + s): E[r'r] and E[r'Z Z'r],
with M the residual projection and Z the groups' columns (Henderson's method). The effect of a shared error on a
number follows from the influence of each row on the number.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sweeplab.laws.estimation.fitting import Fit, Penalty, solve, starts
from sweeplab.laws.estimation.forms import Array, Quantity
from sweeplab.laws.estimation.noise import Noise
from sweeplab.laws.points import Points

LEVEL = 0.9
_STRENGTH = 100.0  # the penalty's strength relative to the profile's own curvature
# Distances at which a profile is evaluated, in half widths of a parabola; beyond 2.5 only if needed.
_REACHES = (np.geomspace(0.4, 2.5, 5), np.geomspace(0.4, 40.0, 10))
_TOLERANCE = 1e-8
_PARTS = np.array([0.25, 0.5, 0.75])  # of a gap, to evaluate
_ROUNDS = 20
_CLOSE = 1e-3
_Steps = Generator[tuple[Array, Array], tuple[Array, Array, Array], float]

N_STARTS = 3  # of a refit, besides the optimum: from the optimum alone up to a third end in another minimum
N_CHECKED = 64
_WIDE_BLOCK = 4  # steps of the grid of exponents: larger blocks give fewer starts
_SAME = 1e-4
_REFIT_TOLERANCE = 1e-8  # an objective this close to its lowest moves no number by a hundredth of its spread
_BATCH = 65_536  # rows times vectors at once: about what stays in a core's cache


def student(freedom: float, level: float = LEVEL) -> float:
    """Return the half width of a two-sided Student's t interval, in standard deviations."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def share_interval(hits: int, n: int) -> tuple[float, float]:
    """Return the interval at LEVEL of a share, seen as `hits` of `n` (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    tail = (1 - LEVEL) / 2
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits else 0.0
    return low, float(betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0


@dataclass(frozen=True)
class Shared:
    """The variances of the rows' own and of their shared errors, and the group of each row, [n].

    A row of weight w has 1/w of the own variance, and all of the shared one. `independent` is the variance of the own
    errors if all errors are taken as independent.
    """

    own: float
    shared: float
    independent: float
    place: NDArray[np.intp]
    weights: Array

    @property
    def n_groups(self) -> int:
        """Return the number of groups."""
        return int(self.place.max()) + 1

    @property
    def share(self) -> float:
        """Return the part of the errors' variance that is shared within a group, 0 to 1."""
        total = self.own + self.shared
        return self.shared / total if total > 0 else 0.0

    def inflation(self, influence: Array) -> float:
        """Return the variance of a number over that with independent errors; 1 or more.

        `influence` is the derivative of the number by each row's error, [n].
        """
        each, together = self._variances(influence)
        if self.shared == 0 or each == 0:
            return 1.0
        return max(1.0, (self.own + self.shared * together / each) / self.independent)

    def freedom(self, influence: Array, own_freedom: float) -> float:
        """Return the degrees of freedom of a number's variance; `own_freedom` if nothing is shared.

        The own variance has `own_freedom`, the shared one the number of groups minus one (Satterthwaite).
        """
        each, together = self._variances(influence)
        own, shared = self.own * each, self.shared * together
        if shared == 0:
            return own_freedom
        return (own + shared) ** 2 / (own**2 / own_freedom + shared**2 / self.grouped(own_freedom))

    def grouped(self, own_freedom: float) -> float:
        """Return the degrees of freedom of the shared variance: the number of groups minus one."""
        return max(1, min(self.n_groups - 1, own_freedom))

    def _variances(self, influence: Array) -> tuple[float, float]:
        """Return a number's variance under own errors of variance 1, and under shared errors of variance 1."""
        own = float(influence @ (influence / self.weights))
        return own, float((np.bincount(self.place, influence) ** 2).sum())


def shared_errors(fit: Fit, groups: Sequence[str], beside: Array | None = None) -> Shared:
    """Return the two variances; the shared one is 0 if groups have one row or the moments imply it.

    `beside` is a possible systematic change of the log loss, [n]: it counts as part of the law, not as an error.
    """
    names, place = np.unique(np.asarray(groups, object).astype(str), return_inverse=True)
    weights, root = fit.rows.weights, np.sqrt(fit.rows.weights)
    if fit.n_points <= len(fit.jacobian) + 1:  # too few rows to separate such a change from errors
        beside = None
    slopes = fit.jacobian if beside is None else np.vstack([fit.jacobian, beside])
    base = np.linalg.qr((slopes * root).T)[0]  # M = I - base base'
    freedom = fit.n_points - len(slopes)
    group_sums = np.stack([np.bincount(place, root * column) for column in base.T])  # Z'base: [p, groups]
    counts = np.bincount(place, weights)
    residual = root * np.clip(fit.residuals(), -3 * fit.rows.delta, 3 * fit.rows.delta)
    beyond = base[:, len(fit.jacobian) :]
    residual -= beyond @ (beyond.T @ residual)
    moments = np.array([residual @ residual, (np.bincount(place, root * residual) ** 2).sum()])
    inside = counts - (group_sums**2).sum(0)  # the diagonal of Z'MZ
    whole = float((counts * (2 * inside - counts)).sum() + ((group_sums @ group_sums.T) ** 2).sum())
    design = np.array([[freedom, inside.sum()], [inside.sum(), whole]])
    variance = float(moments[0] / freedom)
    independent = Shared(variance, 0.0, variance, place, weights)
    if len(names) in (1, fit.n_points) or np.linalg.cond(design) > 1e8:
        return independent
    own, shared = map(float, np.linalg.solve(design, moments))
    return Shared(own, shared, variance, place, weights) if shared > 0 and own >= 0 else independent


def groups_of(points: Points) -> tuple[tuple[str, ...] | None, str]:
    """Return each row's group, and the name of the grouping: the table's own column, or else the sizes.

    A group column with a single value is ignored in favor of the sizes. None if few sizes have two rows, or there are
    only two sizes.
    """
    if points.groups and len(set(points.groups)) > 1:
        return points.groups, points.conventions.get("group", "group")
    names = tuple(f"{size:.6g}" for size in points.columns.get("params", ()))
    alike = 3 <= len(set(names)) <= 0.75 * len(names)
    return (names, "params") if alike else (None, "nothing: each row by itself")


def shared_of(points: Points, fit: Fit, beside: Array | None = None) -> Shared | None:
    """Return the variances of own and shared errors; None if the table has no groups."""
    groups = groups_of(points)[0]
    return shared_errors(fit, groups, beside) if groups else None


@dataclass(frozen=True)
class Interval:
    """The lowest and highest value at LEVEL; an end is infinite if the data give no bound on that side.

    `robust_ratio` is the ratio of the value's robust error to the modelled one; 1 if noise is treated as equal.
    """

    value: float
    low: float
    high: float
    robust_ratio: float = 1.0

    @property
    def open_ends(self) -> list[str]:
        """Return the unbounded sides, of lower and upper."""
        return [side for side, end in (("lower", self.low), ("upper", self.high)) if math.isinf(end)]


def profiles(
    fit: Fit, quantities: Sequence[Quantity], shared: Shared | None = None, noise: Noise | None = None
) -> list[Interval]:
    """Return the quantities' profile intervals, in the units of `measure` (logs if it is a log).

    Shared errors widen them by their part of a quantity's variance, with fewer degrees of freedom. Without `noise` all
    rows are treated as equally noisy. The profiles are computed together, much faster than one by one.
    """
    inverse = inverse_curvature(fit)
    values: list[float] = []
    # By quantity and side: the search for an end, its next targets and penalty; and the ends found.
    searches: dict[tuple[int, int], _Steps] = {}
    wanted: dict[tuple[int, int], tuple[Array, Array]] = {}
    strengths: dict[tuple[int, int], float] = {}
    ends: dict[tuple[int, int], float] = {}
    ratios = dict.fromkeys(range(len(quantities)), 1.0)
    for k, quantity in enumerate(quantities):
        value, slope = (each[0] for each in quantity.measure(fit.theta[None]))
        values.append(float(value))
        if math.isfinite(value) and np.isfinite(slope).all() and slope.any():
            allowed, ratios[k] = (float(each[0]) for each in allowed_rises(fit, slope[None], shared, noise))
            spread, direction = _spread(fit, slope, inverse, allowed)
            for side in (-1, 1):
                searches[k, side] = _end(fit, side, float(value), direction, spread, allowed)
                wanted[k, side], strengths[k, side] = next(searches[k, side]), _STRENGTH / spread
    while wanted:
        counts = [len(targets) for targets, _ in wanted.values()]
        penalty = Penalty(
            [quantity.measure for quantity in quantities],
            np.repeat([k for k, _ in wanted], counts),
            np.concatenate([targets for targets, _ in wanted.values()]),
            np.repeat([strengths[key] for key in wanted], counts),
        )
        found = solve(
            fit.law, np.concatenate([begin for _, begin in wanted.values()]), fit.rows, penalty, _TOLERANCE
        )
        height = np.sqrt(np.maximum(found.objective - fit.objective, 0))
        at, upto = penalty.measured(found.theta)[0], np.cumsum(counts)
        for key, first, last in zip(list(wanted), upto - counts, upto, strict=True):
            rows = slice(first, last)
            try:
                wanted[key] = searches[key].send((at[rows], height[rows], found.theta[rows]))
            except StopIteration as done:
                ends[key] = done.value
                del wanted[key]
    return [
        Interval(value, ends.get((k, -1), -math.inf), ends.get((k, 1), math.inf), ratios[k])
        for k, value in enumerate(values)
    ]


def allowed_rises(fit: Fit, slopes: Array, shared: Shared | None, noise: Noise | None) -> tuple[Array, Array]:
    """Return the allowed rise of the objective within the intervals of quantities with these gradients [q, p]: [q].

    The second result is the ratio of the robust to the modelled errors, [q].
    """
    from scipy.special import fdtri

    own = np.full(len(slopes), float(fit.freedom))
    if noise is None:
        influences = slopes @ inverse_curvature(fit) @ fit.jacobian * fit.rows.weights
        sizes = [(np.full(len(slopes), _mean_size(fit)), own)]
    else:
        modelled, influences = noise.modelled(slopes)
        sizes = [(modelled, own), noise.robust(slopes)]
    wider = np.ones(len(slopes))
    if shared and shared.shared > 0:
        wider = np.array([shared.inflation(each) for each in influences])
    rises = []
    for size, freedom in sizes:
        if shared and shared.shared > 0:
            both = zip(influences, freedom, strict=True)
            freedom = np.array([shared.freedom(influence, known) for influence, known in both])
        rises.append(fdtri(1, freedom, LEVEL) * size * wider / 2)
    return np.max(rises, axis=0), np.asarray(np.sqrt(sizes[-1][0] / sizes[0][0]))


def _spread(fit: Fit, slope: Array, inverse: Array, allowed: float) -> tuple[float, Array]:
    """Return the quantity's inverse curvature, and the derivative of the parameters by it near the optimum, [p].

    If the optimum is flat, as with a term that vanishes, it is limited by the bounds.
    """
    low, high = fit.law.bounds(fit.rows.log_loss)
    room = float(np.abs(slope) @ (high - low)) / _REACHES[0][-1]
    widest = room**2 / max(2 * allowed, 1e-300)
    spread = float(slope @ inverse @ slope)
    if not (math.isfinite(spread) and spread > 1e-12 * widest):
        return widest, slope / (slope @ slope)
    return min(spread, widest), inverse @ slope / spread


def _mean_size(fit: Fit) -> float:
    """Return E[psi^2] / E[psi'] over all rows."""
    residual, delta, weights = fit.residuals(), fit.rows.delta, fit.rows.weights
    clipped = np.clip(residual, -delta, delta)
    squares = float(weights @ clipped**2) / fit.freedom  # a row of weight w has 1/w of the variance
    inside = max(float(weights @ (np.abs(residual) < delta)) / float(weights.sum()), 1 / fit.n_points)
    return squares / inside


def inverse_curvature(fit: Fit) -> Array:
    """Return the inverse of the objective's curvature, [p, p]; a parameter at its bound does not move."""
    inside = np.abs(fit.residuals()) < fit.rows.delta
    weights = fit.rows.weights * max(float(inside.mean()), 1 / fit.n_points)
    curvature = (fit.jacobian * weights) @ fit.jacobian.T
    return np.asarray(np.linalg.pinv(curvature, rcond=1e-13, hermitian=True))


def correlations(fit: Fit) -> Array:
    """Return the correlations of the parameters' errors near the optimum, [p, p]."""
    inverse = inverse_curvature(fit)
    errors = np.sqrt(np.maximum(np.diag(inverse), 1e-300))
    return np.asarray(np.clip(inverse / np.outer(errors, errors), -1, 1))


def _end(fit: Fit, side: int, value: float, direction: Array, spread: float, allowed: float) -> _Steps:
    """Return where the profile crosses `allowed` on one side of `value`; infinite if it never does.

    The generator yields targets and starts, and is sent their solutions: quantity, root of the rise, vectors.
    """
    limit = math.sqrt(allowed)
    for reaches in _REACHES:
        offsets = side * reaches * math.sqrt(2 * allowed * spread)
        at, height, theta = yield value + offsets, fit.theta + offsets[:, None] * direction
        away = side * (at - value)
        order = np.argsort(away)
        order = order[away[order] > 0]
        away, height, theta = away[order], height[order], theta[order]
        beyond = np.flatnonzero(height >= limit)
        if beyond.size and height[-1] >= limit:
            break
    if not beyond.size:
        return side * math.inf
    # The last crossing counts: a profile may dip again after the first.
    within = np.flatnonzero(height < limit)
    last = within[-1] if within.size else -1
    if last > beyond[-1]:
        return side * math.inf
    inner = (away[last], height[last], theta[last]) if within.size else (0.0, 0.0, fit.theta)
    outer = (away[last + 1], height[last + 1])
    for _ in range(_ROUNDS):
        # If the profile is nearly a parabola, the guess is right; if not, a quarter of the gap is left.
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


def run_noise(
    fit: Fit, shared: Shared | None, noise: Noise | None, logs: Mapping[str, Array], seeds: Array
) -> tuple[Array, float]:
    """Return the sd of the log losses of runs about the law, each a mean of `seeds` [n], and the quantile of t.

    Raw residuals count, outliers included: a future run may be one.
    """
    variance, freedom = fit.variance / seeds, float(fit.freedom)
    if shared and shared.shared > 0:  # a future run may be of a new group
        variance, freedom = np.maximum(variance, shared.own / seeds + shared.shared), shared.grouped(freedom)
    relative = noise.at(logs) if noise else 1.0
    return np.asarray(np.sqrt(variance) * relative), student(freedom)


@dataclass(frozen=True)
class Refits:
    """The vectors of the refits, [refits, p], and the share of them that missed their lowest objective.

    `missed` is measured on the first refits, by repeating them from starts over the whole grid. A refit has missed if
    it ends higher by 1e-4 of the objective, or of the mean refit's: a sample of few rows may be fitted exactly.
    """

    theta: Array
    missed: float

    def interval(self, quantity: Quantity) -> tuple[float, float]:
        """Return the interval with the middle LEVEL of the refits' values of a quantity."""
        low, high = np.quantile(quantity.measure(self.theta)[0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)


def bootstrap(
    fit: Fit,
    n_refits: int,
    groups: Sequence[str] | None = None,
    seed: int = 0,
    n_checked: int = N_CHECKED,
    say: Callable[[str], None] = lambda text: None,
) -> Refits:
    """Return refits of tables drawn with replacement, by whole groups if there are groups; `say` gets the progress.

    It only assumes that rows, or groups, are exchangeable.
    """
    names = np.arange(fit.n_points) if groups is None else np.unique(groups, return_inverse=True)[1]
    n_groups = int(names.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=n_refits)
    weights = np.asarray(drawn[:, names] * fit.rows.weights, float)
    few = np.concatenate([fit.theta[None], starts(fit.law, fit.rows, _WIDE_BLOCK)[:N_STARTS]])
    theta, objective = _lowest(fit, weights, few, say)
    n_checked = min(n_checked, n_refits)
    checked, lower = _lowest(fit, weights[:n_checked], starts(fit.law, fit.rows))
    missed = lower < objective[:n_checked] - _SAME * np.maximum(objective[:n_checked], objective.mean())
    theta[:n_checked][missed] = checked[missed]
    return Refits(theta, float(missed.mean()))


def _lowest(
    fit: Fit, weights: Array, begin: Array, say: Callable[[str], None] = lambda text: None
) -> tuple[Array, Array]:
    """Return the best of several starts for every row of weights; batches run in threads, as NumPy frees the GIL."""
    size = max(1, _BATCH // (fit.n_points * len(begin)))

    def of(at: int) -> tuple[Array, Array]:
        some = weights[at : at + size]
        rows = replace(fit.rows, weights=np.repeat(some, len(begin), axis=0))
        solution = solve(fit.law, np.tile(begin, (len(some), 1)), rows, tol=_REFIT_TOLERANCE)
        objective = solution.objective.reshape(len(some), len(begin))
        best = objective.argmin(1)
        each = np.arange(len(some))
        return solution.theta.reshape(len(some), len(begin), -1)[each, best], objective[each, best]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = []
        for each in pool.map(of, range(0, len(weights), size)):
            found.append(each)
            say(f"{min(size * len(found), len(weights)):,} of {len(weights):,} bootstrap refits")
    theta, lowest = zip(*found, strict=True)
    return np.concatenate(theta), np.concatenate(lowest)
