"""Intervals of a number: its profile, calibrated for few rows, or the bootstrap; and the noise that they allow for.

A value of a quantity belongs to the interval if the law, refitted with the quantity fixed there, fits not much worse:
the objective may rise until 2 dF E[psi'] / E[psi^2] reaches the quantile of F(1, n - p), and not of chi-squared, which
is too narrow for small tables. For least squares that is the classical profile of the residual variance with n - p
degrees. If the noise is not equal, E[psi^2] / E[psi'] is that of the rows with influence on the number (`Noise`).

Errors in published tables are not equal: they fall with D, and have heavy tails. So the log of their sd is modelled as
linear in the logs of the columns, and fitted to the residuals by the likelihood of Student's t, on which outliers have
little influence (Lange, Little and Taylor 1989). The slopes are shrunk by what chance would give, as by James and
Stein: without evidence the noise is equal.

The error of a number is that of an M-estimator, the sandwich A^-1 B A^-1 (Huber 1967), with A the curvature and B the
sum of squares of the rows' scores (the residuals clipped at delta). It is computed twice. The modelled error takes
both from the variance function; it is stable, but wrong if the noise varies in another way. The robust error takes the
observed scores, corrected for leverage (HC2, MacKinnon and White 1985), with the degrees of freedom of Bell and
McCaffrey 2002. The wider interval of the two counts.

Rows may share an error: all runs of one size, or all points of one curve. The errors are modelled as e_i + s_group(i),
all independent. Their two variances come from two moments of the residuals r = M (e + s): E[r'r] and E[r'Z Z'r],
with M the residual projection and Z the groups' columns (Henderson's method). The effect of a shared error on a
number follows from the influence of each row on the number.

Legend: n rows, p parameters, q quantities.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweeplab.formatting import several
from sweeplab.laws.fitting import Fit, Penalty, robust_sigma, solve, starts
from sweeplab.laws.forms import Array, Quantity
from sweeplab.laws.points import Points

OBSERVED = 0.75  # weight of a row's observed curvature; the rest is expected, as few rows may have none
_TAILS = 5.0  # degrees of freedom of the t likelihood
_FEWEST = 4  # rows beyond the parameters, for each slope
_EXACT = 1e-14
_STEPS = 60
_SETTLED = 1e-6
_MOST_LEVERAGE = 0.95


@dataclass(frozen=True)
class Noise:
    """The errors of a fit's rows; `slopes` are those of the log of their sd, by column, 0 if the noise is equal."""

    fit: Fit
    slopes: Mapping[str, float]

    @cached_property
    def relative(self) -> Array:
        """Return each row's sd at weight 1 over the root of the mean variance, [n]."""
        return np.asarray(np.exp(self._log_sd(self.fit.rows.logs) - self._middle))

    def at(self, logs: Mapping[str, Array]) -> Array:
        """Return the same at other points; beyond the table's range the value at its end."""
        ends = {name: np.clip(logs[name], own.min(), own.max()) for name, own in self.fit.rows.logs.items()}
        return np.asarray(np.exp(self._log_sd(ends) - self._middle))

    def _log_sd(self, logs: Mapping[str, Array]) -> Array:
        return np.asarray(sum(slope * logs[name] for name, slope in self.slopes.items()))

    @cached_property
    def _middle(self) -> float:
        variances, left = np.exp(2 * self._log_sd(self.fit.rows.logs)), 1 - self.leverage
        return 0.5 * math.log(float(left @ variances) / float(left.sum()))

    @cached_property
    def leverage(self) -> Array:
        """Return the leverage of each row: the share of its error that the fit absorbs, [n]."""
        return np.asarray((self._base**2).sum(1))

    @cached_property
    def _base(self) -> Array:
        return np.asarray(np.linalg.qr((self.fit.jacobian * np.sqrt(self.fit.rows.weights)).T)[0])

    @cached_property
    def _expected(self) -> tuple[Array, Array]:
        """Each row's expected curvature and squared score, E[psi'] and E[psi^2] of a normal error, [n].

        Both are scaled to agree with the residuals over all rows.
        """
        from scipy.special import ndtr

        fit, root = self.fit, np.sqrt(self.fit.rows.weights)
        raw, delta = fit.residuals(), fit.rows.delta
        sd = self.relative / root
        sd = sd * max(robust_sigma(raw / sd, len(fit.theta)), _EXACT)
        bound = np.minimum(delta / sd, 1e3)
        curvature = 2 * ndtr(bound) - 1
        density = np.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi)
        squares = sd**2 * (curvature - 2 * bound * density + bound**2 * (1 - curvature))
        weighted = fit.rows.weights * squares
        inside = max(
            float(fit.rows.weights @ (np.abs(raw) < delta)) / float(fit.rows.weights.sum()), 1 / len(raw)
        )
        curvature *= inside * fit.rows.weights.sum() / (fit.rows.weights @ curvature)
        return curvature, squares * self.squares * fit.freedom / (weighted @ (1 - self.leverage))

    @cached_property
    def squares(self) -> float:
        """Return the mean squared score of a row of weight 1, with the residual degrees of freedom."""
        return float(self.fit.rows.weights @ self._scores**2) / self.fit.freedom

    @cached_property
    def _scores(self) -> Array:
        return np.clip(self.fit.residuals(), -self.fit.rows.delta, self.fit.rows.delta)

    def modelled(self, slopes: Array) -> tuple[Array, Array]:
        """Return E[psi^2] / E[psi'] of quantities with gradients [q, p] by the variance function: [q].

        The second result are their influences [q, n]: the derivative of a quantity by each row's score.
        """
        influences, spread = self._influences(slopes, self._expected[0])
        return np.asarray(influences**2 @ self._expected[1] / spread), influences

    def robust(self, slopes: Array) -> tuple[Array, Array]:
        """Return the same by the observed residuals, [q], and its degrees of freedom, [q]."""
        weights, inside = self.fit.rows.weights, np.abs(self.fit.residuals()) < self.fit.rows.delta
        influences, spread = self._influences(slopes, OBSERVED * inside + (1 - OBSERVED) * self._expected[0])
        effects = influences**2 / weights  # the effect of an error of variance 1 / weight
        over = effects / (1 - np.minimum(self.leverage, _MOST_LEVERAGE))
        crossed = np.einsum("np,qn,nr->qpr", self._base, over, self._base, optimize=True)
        known = (over**2 * (1 - 2 * self.leverage)).sum(1) + (crossed**2).sum((1, 2))
        freedom = effects.sum(1) ** 2 / np.maximum(known, 1e-300)
        return over @ (weights * self._scores**2) / spread, np.clip(freedom, 1.0, self.fit.freedom)

    def _influences(self, slopes: Array, curvatures: Array) -> tuple[Array, Array]:
        jacobian, weights = self.fit.jacobian, self.fit.rows.weights
        curvature = (jacobian * weights * curvatures) @ jacobian.T
        moved = slopes @ np.linalg.pinv(curvature, rcond=1e-13, hermitian=True)
        return moved @ jacobian * weights, np.maximum((moved * slopes).sum(1), 1e-300)


def noise_of(fit: Fit) -> Noise:
    """Return the variance function of a fit's residuals; equal noise if they are too few."""
    logs, weights = fit.rows.logs, fit.rows.weights
    names = list(logs)
    equal = Noise(fit, dict.fromkeys(names, 0.0))
    raw = fit.residuals() * np.sqrt(weights)
    if fit.freedom < _FEWEST * len(names) - 1 or np.median(np.abs(raw)) < _EXACT:
        return equal
    left = raw / np.sqrt(1 - np.minimum(equal.leverage, _MOST_LEVERAGE))
    columns = np.column_stack([np.ones(len(left)), *(logs[name] for name in names)])
    information = columns.T @ columns * (2 * _TAILS / (_TAILS + 3))
    theta = np.zeros(len(names) + 1)
    theta[0] = math.log(1.4826 * float(np.median(np.abs(left))))
    for _ in range(_STEPS):
        squares = (left / np.exp(columns @ theta)) ** 2
        score = (_TAILS + 1) * squares / (_TAILS + squares) - 1
        step = np.clip(np.linalg.lstsq(information, columns.T @ score, rcond=None)[0], -1, 1)
        theta = theta + step
        if np.abs(step).max() < _SETTLED:
            break
    slopes = theta[1:]
    among = np.linalg.pinv(np.linalg.pinv(information)[1:, 1:])
    # Under equal noise this is chi-squared with one degree of freedom per slope.
    evidence = float(slopes @ among @ slopes)
    kept = max(0.0, 1 - len(names) / max(evidence, 1e-300))
    return Noise(fit, dict(zip(names, map(float, kept * slopes), strict=True)))


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
    high = float(betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return low, high


@dataclass(frozen=True)
class Shared:
    """The variances of the rows' own and of their shared errors, and the group of each row, [n].

    A row of weight w has 1/w of the own variance, and all of the shared one. `independent` is the variance of the own
    errors if all errors are taken as independent.
    """

    alone: float
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
        return self.shared / max(self.alone + self.shared, 1e-300)

    def inflation(self, influence: Array) -> float:
        """Return the variance of a number over that with independent errors; 1 or more.

        `influence` is the derivative of the number by each row's error, [n].
        """
        alone, together = self._variances(influence)
        if self.shared == 0 or alone == 0:
            return 1.0
        return max(1.0, (self.alone + self.shared * together / alone) / self.independent)

    def freedom(self, influence: Array, own_freedom: float) -> float:
        """Return the degrees of freedom of a number's variance; `own_freedom` if nothing is shared.

        The own variance has `own_freedom`, the shared one the number of groups minus one (Satterthwaite).
        """
        alone, together = self._variances(influence)
        of_rows, of_groups = self.alone * alone, self.shared * together
        if of_groups == 0:
            return own_freedom
        return (of_rows + of_groups) ** 2 / (
            of_rows**2 / own_freedom + of_groups**2 / self.grouped(own_freedom)
        )

    def grouped(self, own_freedom: float) -> float:
        """Return the degrees of freedom of the shared variance: the number of groups minus one."""
        return max(1, min(self.n_groups - 1, own_freedom))

    def _variances(self, influence: Array) -> tuple[float, float]:
        alone = float(influence @ (influence / self.weights))
        return alone, float((np.bincount(self.place, influence) ** 2).sum())


def shared_errors(fit: Fit, groups: Sequence[str], beside: Array | None = None) -> Shared:
    """Return the two variances; the shared one is 0 if groups have one row or the moments imply it.

    `beside` is a possible systematic change of the log loss, [n]: it counts as part of the law, not as an error.
    """
    names, place = np.unique(np.asarray(groups, object).astype(str), return_inverse=True)
    weights, root = fit.rows.weights, np.sqrt(fit.rows.weights)
    slopes = fit.jacobian
    # With too few rows such a change cannot be separated from errors.
    if beside is not None and fit.n_points > len(fit.jacobian) + 1:
        slopes = np.vstack([slopes, beside])
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
    alone, shared = map(float, np.linalg.solve(design, moments))
    if shared <= 0 or alone < 0:
        return independent
    return Shared(alone, shared, variance, place, weights)


def groups_of(points: Points) -> tuple[tuple[str, ...] | None, str]:
    """Return each row's group, and the name of the grouping: the table's own column, or else the sizes.

    A group column with a single value is ignored in favor of the sizes. None if few sizes have two rows, or there are
    only two sizes.
    """
    if points.groups and len(set(points.groups)) > 1:
        return points.groups, points.conventions.get("group", "group")
    names = tuple(f"{size:.6g}" for size in points.columns.get("params", ()))
    if 3 <= len(set(names)) <= 0.75 * len(names):
        return names, "params"
    return None, "nothing: each row by itself"


def shared_of(points: Points, fit: Fit, beside: Array | None = None) -> Shared | None:
    """Return the variances of own and shared errors; None if the table has no groups."""
    groups = groups_of(points)[0]
    if groups:
        return shared_errors(fit, groups, beside)
    return None


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
    def half(self) -> float:
        """Return half of the interval's width."""
        return (self.high - self.low) / 2

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
        (value,), (slope,) = quantity.measure(fit.theta[None])
        values.append(float(value))
        if math.isfinite(value) and np.isfinite(slope).all() and slope.any():
            (rise,), (ratio,) = allowed_rises(fit, slope[None], shared, noise)
            allowed, ratios[k] = float(rise), float(ratio)
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
        solution = solve(
            fit.law, np.concatenate([begin for _, begin in wanted.values()]), fit.rows, penalty, _TOLERANCE
        )
        height = np.sqrt(np.maximum(solution.objective - fit.objective, 0))
        at, upto = penalty.measured(solution.theta)[0], np.cumsum(counts)
        for key, first, last in zip(list(wanted), upto - counts, upto, strict=True):
            rows = slice(first, last)
            try:
                wanted[key] = searches[key].send((at[rows], height[rows], solution.theta[rows]))
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

    freedoms = np.full(len(slopes), float(fit.freedom))
    if noise is None:
        influences = slopes @ inverse_curvature(fit) @ fit.jacobian * fit.rows.weights
        sizes = [(np.full(len(slopes), _mean_size(fit)), freedoms)]
    else:
        modelled, influences = noise.modelled(slopes)
        sizes = [(modelled, freedoms), noise.robust(slopes)]
    wider = np.ones(len(slopes))
    if shared and shared.shared > 0:
        wider = np.array([shared.inflation(each) for each in influences])
    rises = []
    for size, freedom in sizes:
        if shared and shared.shared > 0:
            both = zip(influences, freedom, strict=True)
            freedom = np.array([shared.freedom(influence, known) for influence, known in both])
        rises.append(fdtri(1, freedom, LEVEL) * size * wider / 2)
    modelled_size, robust_size = sizes[0][0], sizes[-1][0]
    # Without noise both are zero, and neither is larger.
    ratio = np.divide(robust_size, modelled_size, out=np.ones(len(slopes)), where=modelled_size > 0)
    return np.max(rises, axis=0), np.asarray(np.sqrt(ratio))


def _spread(fit: Fit, slope: Array, inverse: Array, allowed: float) -> tuple[float, Array]:
    """The quantity's inverse curvature, and the derivative of the parameters by it near the optimum, [p].

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
    """E[psi^2] / E[psi'] over all rows."""
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
    """Where the profile crosses `allowed` on one side of `value`; infinite if it never does.

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
    last = max(np.flatnonzero(height < limit), default=-1)
    if last > beyond[-1]:
        return side * math.inf
    inner, outer = (0.0, 0.0, fit.theta), (away[last + 1], height[last + 1])
    if last >= 0:
        inner = (away[last], height[last], theta[last])
    for _ in range(_ROUNDS):
        # If the profile is nearly a parabola, the guess is right; if not, a quarter of the gap is left.
        gap = outer[0] - inner[0]
        ahead = np.sort(np.r_[_between(inner, outer, limit), inner[0] + gap * _PARTS])
        at, high, here = yield value + side * ahead, np.tile(inner[2], (len(ahead), 1))
        at = side * (at - value)
        order = np.argsort(at)
        order = order[(at[order] > inner[0]) & (at[order] < outer[0])]
        for k in order[high[order] < limit][-1:]:
            inner = (at[k], high[k], here[k])
        for k in order[(high[order] >= limit) & (at[order] > inner[0])][:1]:
            outer = (at[k], high[k])
        close = min(limit - inner[1], outer[1] - limit) < _CLOSE * limit
        if close or outer[0] - inner[0] >= gap:
            break
    return value + side * _between(inner, outer, limit)


def _between(inner: tuple[float, float, Array], outer: tuple[float, float], limit: float) -> float:
    if outer[1] <= inner[1]:  # the rows have no noise: nothing rises
        return float(outer[0])
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
        variance = np.maximum(variance, shared.alone / seeds + shared.shared)
        freedom = shared.grouped(freedom)
    sd = np.sqrt(variance)
    if noise:
        sd = sd * noise.at(logs)
    return np.asarray(sd), student(freedom)


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
    names = np.arange(fit.n_points)
    if groups is not None:
        names = np.unique(groups, return_inverse=True)[1]
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
    """The best of several starts for every row of weights; batches run in threads, as NumPy frees the GIL."""
    size = max(1, _BATCH // (fit.n_points * len(begin)))

    def of(at: int) -> tuple[Array, Array]:
        some = weights[at : at + size]
        rows = replace(fit.rows, weights=np.repeat(some, len(begin), axis=0))
        solution = solve(fit.law, np.tile(begin, (len(some), 1)), rows, tol=_REFIT_TOLERANCE)
        objective = solution.objective.reshape(len(some), len(begin))
        best = np.arange(len(some)), objective.argmin(1)
        return solution.theta.reshape(len(some), len(begin), -1)[best], objective[best]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = []
        for part in pool.map(of, range(0, len(weights), size)):
            parts.append(part)
            say(f"{min(size * len(parts), len(weights)):,} of {several(len(weights), 'bootstrap refit')}")
    theta, lowest = zip(*parts, strict=True)
    return np.concatenate(theta), np.concatenate(lowest)
