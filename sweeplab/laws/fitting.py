"""Fit one law to one table: Levenberg-Marquardt from many starts at once.

The objective is the sum of Huber losses of log residuals, within bounds. Starts are a grid of exponents, with the
best scales for each in closed form: for given exponents and g a form is linear in the scales (variable
projection, Golub and Pereyra 1973).

Legend: S parameter vectors at once, p parameters, n rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.laws.forms import Array, Law, Measure
from sweeplab.laws.points import Points

EFFICIENT = 1.345  # Huber's delta in sigmas: 95% as efficient as least squares under normal noise
LITERATURE = 1e-3  # the delta of Hoffmann et al. 2022
LEAST_SQUARES = math.inf
_SMALLEST_DELTA = 1e-9

MAX_STEPS = 300
TOL = 1e-13
_NEAR = 1e-8  # of the objective: how far each start converges before the best is polished
_AT_ONCE = 16_384  # rows times vectors
_EXACT = 1e-14  # log residuals of this size are rounding errors
_LEAST = 1e-12
_FREE = 1e-9  # damping too small to shorten a step: a shortened step promises little along a flat valley
_SAME = 1e-6  # a start within this share of the lowest objective has reached it
_ROUNDS = 3
_SETTLED = 0.5  # of the scale of residuals for which delta was chosen: less is another optimum
_POLISHES = 10
_KEPT, _ROWS_KEPT = 256, 10_000  # the size of the cache, and the most rows of a cached fit

GRID = np.geomspace(0.03, 1.8, 12)
POWERS = (0.5, 1.0, 2.0)
BLOCK = 3  # the best of each 3 x 3 exponents is a start, so that starts lead to different minima
ENOUGH = 1000  # the most rows used to choose starts
_SEEN = 1e-2  # of the loss: the size of a steep term at the smallest row
_ABSENT = 1e-3  # of the mean loss: the start of a term whose best scale is zero


@dataclass(frozen=True)
class Rows:
    """The data of a fit: centered logs of the columns, logs of the losses and weights, each [n] or [S, n], and delta.

    delta is where the Huber loss turns from a square into a line; infinite is least squares.
    """

    logs: dict[str, Array]
    log_loss: Array
    weights: Array
    delta: float

    def huber(self, size: Array) -> Array:
        """Return the sum of weighted Huber losses of residuals of these sizes, [S, n]: [S]."""
        inside = np.minimum(size, self.delta)
        return np.asarray((self.weights * (inside * (size - 0.5 * inside))).sum(1))

    def blocks(self, n_vectors: int) -> Iterator[Rows]:
        """Yield the rows in blocks that fit into a core's cache with this number of vectors."""
        n, size = self.log_loss.shape[-1], max(1, _AT_ONCE // n_vectors)
        if n <= size:
            yield self
            return
        for first in range(0, n, size):
            yield self.at(slice(first, first + size))

    def at(self, part: slice | NDArray[np.intp]) -> Rows:
        """Return some of the rows, for all vectors."""
        logs = {name: column[..., part] for name, column in self.logs.items()}
        return replace(self, logs=logs, log_loss=self.log_loss[..., part], weights=self.weights[..., part])

    def of(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the rows with the weights and losses of the chosen vectors."""
        if self.weights.ndim == 1:
            return self
        log_loss = self.log_loss if self.log_loss.ndim == 1 else self.log_loss[chosen]
        return replace(self, log_loss=log_loss, weights=self.weights[chosen])


class Penalty(NamedTuple):
    """A quadratic penalty of each vector, 0.5 * strength * (quantity - target)^2.

    At the minimum of the penalized objective, the objective is lowest among all vectors with the same value of the
    quantity: every solution is a point of its profile, however strong the penalty is.
    """

    measures: Sequence[Measure]
    which: NDArray[np.intp]  # [S]: the measure of each vector
    targets: Array  # [S]
    strengths: Array  # [S]

    def measured(self, theta: Array) -> tuple[Array, Array]:
        """Return each vector's own quantity, [S], and its gradient, [S, p]."""
        value, slope = np.empty(len(theta)), np.empty_like(theta)
        for k in np.unique(self.which):
            mine = self.which == k
            value[mine], slope[mine] = self.measures[k](theta[mine])
        return value, slope

    def of(self, chosen: NDArray[np.bool_]) -> Penalty:
        """Return the penalties of the chosen vectors."""
        return Penalty(self.measures, self.which[chosen], self.targets[chosen], self.strengths[chosen])


class Solution(NamedTuple):
    """Vectors [S, p], their objectives [S] without penalty, and which of them converged."""

    theta: Array
    objective: Array
    converged: Array


def solve(law: Law, theta: Array, rows: Rows, penalty: Penalty | None = None, tol: float = TOL) -> Solution:
    """Minimize the objective from each vector of `theta`, [S, p], independently.

    An undamped step that promises to gain less than the share `tol` of the objective is the last.
    """
    low, high = law.bounds(rows.log_loss)
    theta = np.clip(theta, low, high)
    solution = Solution(theta.copy(), np.empty(len(theta)), np.zeros(len(theta), bool))
    damping, beyond = np.full(len(theta), 1e-3), np.ones(len(theta))
    rounding = np.broadcast_to(_EXACT**2 * rows.weights.sum(-1) / 2, len(theta))
    active = np.arange(len(theta))  # the index in `found` of each vector that still moves
    here = _evaluate(law, theta, rows, beyond, penalty)
    for left in reversed(range(MAX_STEPS)):
        step, promised = _step(here, theta, damping, low, high)
        there = np.clip(theta + step, low, high)
        beyond = np.maximum(beyond * 0.2, _LEAST)
        new = _evaluate(law, there, rows, beyond, penalty)
        better = new.value <= here.value
        little = promised <= tol * here.value
        ended = (little & (~better | (damping <= _FREE))) | (here.value <= rounding)
        ended |= (there == theta).all(1) & better
        ended |= ~better & (damping > 1e12)
        eased = np.maximum(damping * np.where(little, 1e-3, 0.2), _LEAST)
        if better.all():
            here, theta, damping = new, there, eased
        else:
            for old, other in zip(here, new, strict=True):
                old[better] = other[better]
            theta = np.where(better[:, None], there, theta)
            damping = np.where(better, eased, damping * 4)
            beyond = np.where(better, beyond, 1.0)
        if not left or ended.any():
            for whole, part in zip(solution, (theta, here.objective, ended), strict=True):
                whole[active] = part
            if ended.all():
                break
            kept = ~ended
            here, theta, damping = _Evaluation(*(each[kept] for each in here)), theta[kept], damping[kept]
            active, beyond, rounding, rows = active[kept], beyond[kept], rounding[kept], rows.of(kept)
            penalty = penalty and penalty.of(kept)
    return solution


class _Evaluation(NamedTuple):
    """The objective at some vectors, without and with the penalty, its gradient, curvature and step scale."""

    objective: Array  # [S]
    value: Array  # [S]
    gradient: Array  # [S, p]
    hessian: Array  # [S, p, p]
    scale: Array  # [S, p]: the unit of the damping


def _evaluate(law: Law, theta: Array, rows: Rows, beyond: Array, penalty: Penalty | None) -> _Evaluation:
    """Evaluate the objective at `theta`; `beyond` is the share of the curvature of rows beyond delta, [S].

    Beyond delta the Huber loss is linear and has no curvature. With the curvature of the parabola that touches it
    (share 1) no step overshoots, but steps are tiny if many rows are beyond; so the share falls as steps succeed.
    """
    sums = [_sums(law, theta, block, beyond) for block in rows.blocks(len(theta))]
    objective, gradient, hessian, scale = (np.asarray(sum(parts)) for parts in zip(*sums, strict=True))
    if penalty is None:
        return _Evaluation(objective, objective, gradient, hessian, scale)
    at, slope = penalty.measured(theta)
    away = at - penalty.targets
    gradient += (penalty.strengths * away)[:, None] * slope
    hessian += penalty.strengths[:, None, None] * slope[:, :, None] * slope[:, None, :]
    scale += penalty.strengths[:, None] * slope**2
    return _Evaluation(objective, objective + 0.5 * penalty.strengths * away**2, gradient, hessian, scale)


def _sums(law: Law, theta: Array, rows: Rows, beyond: Array) -> tuple[Array, Array, Array, Array]:
    fitted, jacobian = law.derivatives(theta, rows.logs)
    residual = rows.log_loss - fitted
    size = np.abs(residual)
    objective = rows.huber(size)
    weights = rows.weights * np.minimum(1.0, rows.delta / np.maximum(size, 1e-300))
    gradient = -(jacobian @ (weights * residual)[:, :, None])[:, :, 0]
    curvature = weights
    if not math.isinf(rows.delta):
        curvature = np.where(size < rows.delta, weights, beyond[:, None] * weights)
    hessian = (jacobian * curvature[:, None, :]) @ jacobian.transpose(0, 2, 1)
    diagonal = np.arange(theta.shape[1])
    scale = hessian[:, diagonal, diagonal]
    if not math.isinf(rows.delta):
        scale = (jacobian**2 @ weights[:, :, None])[:, :, 0]
    return objective, gradient, hessian, scale


def _step(view: _Evaluation, theta: Array, damping: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """A damped step of each vector, [S, p], and the decrease that it promises, [S]."""
    # A parameter at its bound that would leave the range stays fixed in this step.
    held = ((theta <= low) & (view.gradient > 0)) | ((theta >= high) & (view.gradient < 0))
    gradient = np.where(held, 0.0, view.gradient)
    diagonal = np.arange(theta.shape[1])
    curvature = view.hessian[:, diagonal, diagonal]
    hessian = np.where(held[:, :, None] | held[:, None, :], 0.0, view.hessian)
    floor = 1e-12 * view.scale.max(1, keepdims=True) + 1e-300
    damped = damping[:, None] * np.maximum(view.scale, floor)
    hessian[:, diagonal, diagonal] = np.maximum(curvature, floor) + damped
    step = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
    return step, np.asarray(-0.5 * (gradient * step).sum(1))


def starts(law: Law, rows: Rows, block: int = BLOCK) -> Array:
    """Return the starting vectors, best first: [S, p]. The rows' weights are those of one table, [n].

    The best of each block of `block` x `block` exponents is a start.
    """
    if len(rows.log_loss) > ENOUGH:  # drawn at random, but the same every time
        rows = rows.at(np.random.default_rng(0).choice(len(rows.log_loss), ENOUGH, replace=False))
    exponents = tuple(dict.fromkeys(exponent for exponent, _ in law.powers))
    free_power = bool(law.power) and law.power not in exponents
    axes = [range(len(GRID))] * len(exponents) + [range(len(POWERS))] * free_power
    where = np.array(list(product(*axes)))
    theta = np.zeros((len(where), len(law.parameters)))
    for at, name in enumerate(exponents):
        theta[:, law.index(name)] = GRID[where[:, at]]
    if free_power:
        theta[:, law.index(law.power)] = np.array(POWERS)[where[:, -1]]
    theta[:, [law.index(name) for name in law.scales]] = _best_scales(law, theta, rows)
    objective = rows.huber(np.abs(rows.log_loss - law.log_loss(theta, rows.logs)))
    blocks = where.copy()
    blocks[:, : len(exponents)] //= block
    order = np.argsort(objective, kind="stable")
    _, first = np.unique(blocks[order], axis=0, return_index=True)
    return theta[order[np.sort(first)]]


def _alternatives(law: Law, theta: Array, rows: Rows) -> Array:
    """A vector, [p], and alternatives that it may have missed, [S, p], for designs that barely separate terms.

    Valleys of the objective in which a term vanishes are long and curved: one alternative per term is without it. A
    term with the steepest exponent, visible only in the smallest rows, is a minimum of its own; and two terms may be
    swapped.
    """
    low, high = law.bounds(rows.log_loss)
    scale = {term: law.index(term.scale) for term in law.terms}
    powers = {term: [law.index(exponent) for exponent, _ in term.powers] for term in law.terms if term.powers}
    vectors = [theta]
    for term, at in scale.items():
        gone = theta.copy()
        gone[at] = low[at]
        vectors.append(gone)
        for other in powers.keys() - {term}:  # takes over its share
            gone[scale[other]] = np.logaddexp(theta[scale[other]], theta[at])
        for power, (_, column) in zip(powers.get(term, ()), term.powers, strict=True):
            steep = gone.copy()
            steep[power] = high[power]
            steep[at] = rows.log_loss.mean() + np.log(_SEEN) + high[power] * rows.logs[column].min()
            vectors.append(steep)
    if len(powers) == 2 and len(law.powers) == 2:
        first, second = ([scale[term], *places] for term, places in powers.items())
        swapped = theta.copy()
        swapped[first + second] = theta[second + first]
        vectors.append(swapped)
    return np.array(vectors)


def _best_scales(law: Law, theta: Array, rows: Rows) -> Array:
    """The logs of the best non-negative scales of each vector, [S, k], by trying every set of terms."""
    g = law.joined_by(theta)[:, None]
    columns = np.ones((len(theta), len(law.terms), len(rows.log_loss)))
    for k, term in enumerate(law.terms):
        for exponent, column in term.powers:
            columns[:, k] *= np.exp(-theta[:, law.index(exponent), None] * rows.logs[column] / g)
    # After division by L^(1/g), residuals equal those of the log loss, to first order and up to the factor g.
    columns *= np.exp(-rows.log_loss / g)[:, None, :]
    normal = (columns * rows.weights) @ columns.transpose(0, 2, 1)
    aim = (columns * rows.weights).sum(2)
    n_terms = len(law.terms)
    best, gained = np.zeros((len(theta), n_terms)), np.full(len(theta), -np.inf)
    for count in range(1, n_terms + 1):
        for chosen in combinations(range(n_terms), count):
            part = normal[:, chosen][:, :, chosen]
            part = part + 1e-12 * np.trace(part, axis1=1, axis2=2)[:, None, None] * np.eye(count)
            scales = np.linalg.solve(part, aim[:, chosen, None])[:, :, 0]
            gain = np.where((scales > 0).all(1), (scales * aim[:, chosen]).sum(1), -np.inf)
            better = gain > gained
            gained = np.where(better, gain, gained)
            best[better] = 0.0
            best[np.ix_(better, np.array(chosen))] = scales[better]
    absent = np.exp(float(rows.log_loss.mean()) / g) * _ABSENT ** (1 / g)
    return np.asarray(g * np.log(np.maximum(best, absent)))


@dataclass(frozen=True)
class Fit:
    """The vector of lowest objective, and how it was found.

    `theta` [p] is at the `center` of the table (the mean logs of the columns); `sigma` is the robust scale of
    the residuals, in shares of the loss; `objective` is the sum of Huber losses.
    """

    law: Law
    rows: Rows
    center: Mapping[str, float]
    theta: Array
    objective: float
    sigma: float
    n_starts: int
    n_reached: int
    converged: bool

    @property
    def n_points(self) -> int:
        """Return the number of rows."""
        return len(self.rows.log_loss)

    @property
    def freedom(self) -> int:
        """Return the residual degrees of freedom: rows minus parameters."""
        return self.n_points - len(self.theta)

    @property
    def variance(self) -> float:
        """Return the variance of a row of weight 1 about the law, from the raw residuals, outliers included."""
        return float(self.rows.weights @ self.residuals() ** 2) / self.freedom

    @cached_property
    def jacobian(self) -> Array:
        """Return the derivatives of the rows' log losses by the parameters, [p, n]."""
        return np.asarray(self.law.derivatives(self.theta[None], self.rows.logs)[1][0])

    def residuals(self) -> Array:
        """Return the log residuals, [n]."""
        return np.asarray(self.rows.log_loss - self.law.log_loss(self.theta[None], self.rows.logs)[0])

    def at_bound(self) -> tuple[str, ...]:
        """Return the parameters at a bound of their range."""
        low, high = self.law.bounds(self.rows.log_loss)
        margin = 1e-6 * (high - low)
        at = (self.theta <= low + margin) | (self.theta >= high - margin)
        return tuple(name for name, bound in zip(self.law.parameters, at, strict=True) if bound)

    def minimizer(self) -> dict[str, float]:
        """Return the parameters as in the law's formula, without intervals."""
        natural = dict(zip(self.law.parameters, map(float, self.theta), strict=True))
        for term in self.law.terms:
            shift = sum(natural[exponent] * self.center[column] for exponent, column in term.powers)
            natural[term.scale] = math.exp(min(natural[term.scale] + shift, 700.0))
        return natural

    def centered(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Return the centered logs of the columns that the law uses."""
        return {name: np.log(np.asarray(columns[name])) - self.center[name] for name in self.law.columns}

    def predict(self, columns: Mapping[str, Array]) -> Array:
        """Return the law's loss at rows of the columns it uses, [n]."""
        return np.asarray(np.exp(self.law.log_loss(self.theta[None], self.centered(columns))[0]))


def fit(points: Points, law: Law, delta: float | None = None) -> Fit:
    """Return the law's fit; `delta` in log units, infinite for least squares, None for 1.345 robust sigmas.

    Raises:
        BadInput: no more rows than the law has parameters, a column that is missing or does not vary, or losses
            that are all equal.
    """
    _check(points, law)
    columns = tuple(points.sizes[name].tobytes() for name in (*law.columns, "loss"))
    fitted = _fitted if points.n <= _ROWS_KEPT else _fitted.__wrapped__
    return fitted(law, delta, columns, points.weights.tobytes())


@lru_cache(maxsize=_KEPT)
def _fitted(law: Law, delta: float | None, columns: tuple[bytes, ...], weights: bytes) -> Fit:
    """The fit to the bytes of the law's columns and the loss; cached, as a page repeats many fits."""
    logs = {
        name: np.log(np.frombuffer(column))
        for name, column in zip((*law.columns, "loss"), columns, strict=True)
    }
    log_loss = logs.pop("loss")
    center = {name: float(column.mean()) for name, column in logs.items()}
    centered = {name: column - center[name] for name, column in logs.items()}
    rows = Rows(centered, log_loss, np.frombuffer(weights), LEAST_SQUARES)
    begin, sigma, n_params = starts(law, rows), math.nan, len(law.parameters)
    is_auto = delta is None
    if is_auto:
        theta, sigma = _noise(law, rows, begin)
        begin = np.concatenate([theta[None], begin])
    while True:
        rows = replace(rows, delta=max(EFFICIENT * sigma, _SMALLEST_DELTA) if delta is None else delta)
        solution = solve(law, begin, rows, tol=_NEAR)
        last = _polished(law, solution, rows)
        seen = robust_sigma(rows.log_loss - law.log_loss(last.theta, rows.logs)[0], n_params)
        # Where a gross outlier has led to a wrong optimum at first, this one leaves much less.
        if not (is_auto and seen < _SETTLED * sigma and sigma > _EXACT):
            break
        sigma = seen
    lowest = float(last.objective[0])
    reached = int((solution.objective <= lowest * (1 + _SAME) + 1e-300).sum())
    scale = sigma if is_auto else seen
    return Fit(law, rows, center, last.theta[0], lowest, scale, len(begin), reached, bool(last.converged[0]))


def robust_sigma(residuals: Array, n_params: int) -> float:
    """Return 1.4826 times the median of the n - p largest sizes, because a fit makes about p residuals near zero."""
    sizes = np.sort(np.abs(residuals))[n_params:]
    return float(1.4826 * np.median(sizes))


def _polished(law: Law, solution: Solution, rows: Rows) -> Solution:
    """The best vector alone, [1, p], converged, after trying alternatives that starts rarely reach."""
    for _ in range(_POLISHES):
        best = np.argmin(solution.objective)
        before = float(solution.objective[best])
        solution = solve(law, _alternatives(law, solution.theta[best], rows), rows)
        best = np.argmin(solution.objective)
        if solution.converged[best] and solution.objective[best] >= before * (1 - TOL):
            break
    return Solution(*(each[[best]] for each in solution))


def _noise(law: Law, rows: Rows, begin: Array) -> tuple[Array, float]:
    """A fit and the scale of its residuals, iterated to agree with each other from least squares on."""
    sigma = math.inf
    for _ in range(_ROUNDS):
        huber = replace(rows, delta=max(EFFICIENT * sigma, _SMALLEST_DELTA))
        solution = solve(law, begin, huber, tol=_NEAR if len(begin) > 1 else TOL)
        begin = solution.theta[[int(np.argmin(solution.objective))]]
        residuals = rows.log_loss - law.log_loss(begin, rows.logs)[0]
        sigma = robust_sigma(residuals, len(law.parameters))
    return begin[0], sigma


def _check(points: Points, law: Law) -> None:
    problems: list[Problem | str] = []
    n_params = len(law.parameters)
    if points.n <= n_params:
        few = f"{several(points.n, 'row')} for the {several(n_params, 'parameter')} of {law.name}"
        problems.append(f"{few}; it needs {n_params + 1} or more")
    for name in law.columns:
        if name not in points.sizes:
            problems.append(points.lacks(law.name, name))
        elif points.n and np.ptp(np.log(points.sizes[name])) < 1e-9:
            problems.append(f"all rows have {name} {points.sizes[name][0]:.4g}; {law.name} needs several")
    if points.n and np.ptp(np.log(points.columns["loss"])) < 1e-12:
        problems.append(f"all losses are {points.columns['loss'][0]:.4g}; no law can be fitted to that")
    if problems:
        raise BadInput(*problems)
