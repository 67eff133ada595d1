"""The optimum of searched hyperparameters in every cell of a table, from all cells at once.

A cell is a size of the model and a number of training tokens. In cell c, with z = x - m_c the distance of the log
searched values x from the cell's optimum m_c,

    log loss = level_c + z'Hz / 2 + sum_j skew_j z_j^3 / 6 + noise

H and skew are the same in all cells. Only rows count whose fitted excess z'Hz / 2 is small: the widest window counts in
which no z^4 is seen. Rows far from the fit count less (Huber), and the noise may grow with the searched values.

Legend: n rows, J searched values, C cells, q numbers that all cells share (H and skew).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.intp]

WINDOWS = (0.01, 0.02, 0.04, 0.08, 0.16)  # the largest excess of the rows that count, in log loss
_HUBER = 1.345
_SHRUNK = 0.86  # of Huber's weights and normal errors: the weighted mean of the squares over their variance
_NO_WORSE, _LIKE = 1.05, 2.0  # by noise and by curvature
MISFIT = 0.1  # of the excess: what the form of the loss may be wrong by, so that near rows count more
_FREE = (
    1.5  # sd of a cell's optimum about the start before its rows are seen: a cell without rows must have one
)
_MOST_SKEW = 1.5  # of H's diagonal
_ROUNDS = 6
_FARTHEST = 3.0  # log units from the optimum
_LEAST_BEND = 1e-4


@dataclass(frozen=True)
class Valley:
    """The fitted optima [C, J], their covariance [C, J, C, J], and what the cells share.

    `level` [C] is the log loss at the optimum and `level_error` its standard error; `bend` is H, and `bend_error` the
    standard errors of its diagonal; `noise` is the sd of a row at the optimum, `used` the rows that count.
    """

    optimum: Array
    covariance: Array
    level: Array
    level_error: Array
    bend: Array
    bend_error: Array
    skew: Array
    noise: float
    window: float
    used: NDArray[np.bool_]
    freedom: float

    def excess(self, z: Array) -> Array:
        """Return the excess of log loss at distances [n, J] from the optimum."""
        return np.asarray(np.einsum("ij,jk,ik->i", z, self.bend, z) / 2 + (z**3) @ self.skew / 6)

    def reach(self, j: int, excess: float) -> tuple[float, float]:
        """Return how far below and above the optimum value j may lie, in log units, for an excess of log loss."""
        ends = []
        for sign in (-1.0, 1.0):
            bend = float(self.bend[j, j])
            far = math.sqrt(2 * excess / bend)
            for _ in range(30):
                bent = max(bend + sign * float(self.skew[j]) * far / 3, bend / 10)
                far = math.sqrt(2 * excess / bent)
            ends.append(far)
        return ends[0], ends[1]


def fit_valley(x: Array, y: Array, cell: Ints, sizes: Array) -> Valley | None:
    """Fit rows of log searched values [n, J] and log losses [n] in cells [n] of sizes [C, k].

    None if the rows are too few, or have no minimum in some direction.
    """
    candidates = []
    for window in WINDOWS:
        state = _begun(x, y, cell, sizes, window)
        plain = _converged(x, y, cell, sizes, window, state, False)
        rich = _converged(x, y, cell, sizes, window, state, True)
        if plain is not None:
            candidates.append((plain, False))
        if plain is not None and rich is not None and _is_sound(rich, plain):
            candidates.append((rich, True))
    if not candidates:
        return None
    # A window must be wider than the noise, which few rows understate, and the curvature be known.
    noise = min(valley.noise for valley, _ in candidates[-4:])
    sure = [(valley, is_rich) for valley, is_rich in candidates if _is_sure(valley, noise)]
    scored = [_with_bias(sure, at) for at in range(len(sure))]
    if not scored:
        return max(
            (valley for valley, is_rich in candidates if not is_rich),
            key=lambda valley: valley.freedom,
            default=None,
        )
    return min(scored, key=_cost)


def _is_sound(rich: Valley, plain: Valley) -> bool:
    """Return whether a richer model converged: one that fits worse, or is much flatter or steeper, did not."""
    bends = np.diag(rich.bend) / np.diag(plain.bend)
    return bool(rich.noise <= _NO_WORSE * plain.noise and (np.abs(np.log(bends)) < math.log(_LIKE)).all())


def _is_sure(valley: Valley, noise: float) -> bool:
    known = valley.bend_error < 0.3 * np.diag(valley.bend)
    return bool(valley.window >= 4 * noise and valley.freedom >= 6 and known.all())


def _cost(valley: Valley) -> float:
    variances = np.einsum("cjcj->cj", valley.covariance).mean(axis=0)
    return float(np.diag(valley.bend) @ variances)


def _with_bias(candidates: list[tuple[Valley, bool]], at: int) -> Valley:
    """Return a candidate with the error that it shares in all cells, as narrower windows and richer models see it.

    Their mean optimum differs from its own by chance; what is beyond is its bias.
    """
    valley, is_rich = candidates[at]
    squares = np.zeros(valley.optimum.shape[1])
    for other, other_is_rich in candidates:
        narrower = other.window < valley.window and other_is_rich >= is_rich
        richer = other.window <= valley.window and other_is_rich > is_rich
        if narrower or richer:
            apart = (valley.optimum - other.optimum).mean(axis=0)
            chance = np.einsum("cjdj->j", other.covariance) / len(other.optimum) ** 2
            squares = np.maximum(squares, apart**2 - chance)
    covariance = valley.covariance.copy()
    for j, square in enumerate(squares):
        covariance[:, j, :, j] += square
    return replace(valley, covariance=covariance)


def _begun(x: Array, y: Array, cell: Ints, sizes: Array, window: float) -> _State | None:
    n_cells, n_values = len(sizes), x.shape[1]
    lowest = np.full(n_cells, np.inf)
    np.minimum.at(lowest, cell, y)
    start = _start(x, y, cell, sizes, lowest, window)
    state = _State(start, np.eye(n_values) * 2 * window / 0.7**2, np.zeros(n_values), window / 4)
    used = y - lowest[cell] <= 1.5 * window
    weights = np.ones(len(y))
    for _ in range(3):
        solved = _solve(x, y, cell, used, weights, state)
        if solved is None:
            return None
        weights, state = solved.weights(x, y, cell, used), solved.state(sizes)
        used = _near(x, cell, state, window)
    return state


def _converged(
    x: Array, y: Array, cell: Ints, sizes: Array, window: float, state: _State | None, is_rich: bool
) -> Valley | None:
    if state is None:
        return None
    weights = np.ones(len(y))
    for _ in range(_ROUNDS):
        used = _near(x, cell, state, window)
        solved = _solve(x, y, cell, used, weights, state, is_rich)
        if solved is None:
            return None
        weights, state = solved.weights(x, y, cell, used), solved.state(sizes)
    final = _solve(x, y, cell, used, weights, state, is_rich)
    if final is None or final.flat:
        return None
    return final.valley(window, used)


def _near(x: Array, cell: Ints, state: _State, window: float) -> NDArray[np.bool_]:
    z = x - state.optimum[cell]
    near = np.einsum("ij,jk,ik->i", z, state.bend, z) / 2 <= window
    return np.asarray(near & (np.abs(z) <= _FARTHEST).all(axis=1))


def _start(x: Array, y: Array, cell: Ints, sizes: Array, lowest: Array, window: float) -> Array:
    """Return a first guess of the optima: a line through the places of the lowest losses of each cell."""
    weight = np.exp(-np.clip((y - lowest[cell]) / (window / 2), 0, 50))
    total = np.bincount(cell, weight, len(sizes))
    lows = np.stack([np.bincount(cell, weight * column, len(sizes)) / total for column in x.T], 1)
    even = np.ones(len(sizes))
    return np.stack([_lined(column, even, sizes) for column in lows.T], 1)


def _shrunk(values: Array, variances: Array, sizes: Array) -> Array:
    shrunk = np.empty_like(values)
    for j, column in enumerate(values.T):
        scatter = 0.1
        for _ in range(10):
            weights = 1 / (variances[:, j] + scatter)
            line = _lined(column, weights, sizes)
            squares = (column - line) ** 2 - variances[:, j]
            scatter = max(float(weights**2 @ squares / (weights**2).sum()), 1e-4)
        shrunk[:, j] = line + scatter / (scatter + variances[:, j]) * (column - line)
    return shrunk


def _lined(values: Array, weights: Array, sizes: Array) -> Array:
    terms = np.column_stack([np.ones(len(sizes)), sizes - sizes.mean(axis=0)])
    ridge = np.diag([0.0, *[0.1] * sizes.shape[1]]) * weights.mean()
    weighted = terms * weights[:, None]
    return np.asarray(terms @ np.linalg.solve(weighted.T @ terms + ridge, weighted.T @ values))


@dataclass(frozen=True)
class _State:
    optimum: Array
    bend: Array
    skew: Array
    noise: float


@dataclass(frozen=True)
class _Solved:
    """The linear fit about the optima of a state: levels and slopes of cells, and what they share."""

    start: _State
    block: Array  # [C, 1 + J]: level and slopes
    shared: Array  # [q]
    block_covariance: Array  # [C, 1 + J, 1 + J], given the shared numbers, per unit of noise variance
    shared_covariance: Array  # [q, q], per unit of noise variance
    moved: Array  # [C, 1 + J, q]: the change of a block with the shared numbers
    noise: float
    flat: bool = False
    is_rich: bool = False
    freedom: float = 1.0

    @property
    def bend_and_skew(self) -> tuple[Array, Array]:
        n_values = len(self.start.skew)
        bend = np.zeros((n_values, n_values))
        pairs = np.triu_indices(n_values)
        bend[pairs] = self.shared[: len(pairs[0])]
        bend = bend + bend.T - np.diag(np.diag(bend))
        return bend, self.shared[len(pairs[0]) :][:n_values]

    def shift(self) -> Array:
        """Return the optimum of each cell minus that of the state [C, J], by Newton's method."""
        bend, skew = self.bend_and_skew
        bend = _positive(bend)
        shift = np.zeros((len(self.block), len(skew)))
        for _ in range(8):
            slope = self.block[:, 1:] + shift @ bend + shift**2 * skew / 2
            curved = bend[None] + np.einsum("cj,jk->cjk", np.clip(shift, -0.7, 0.7) * skew, np.eye(len(skew)))
            step = np.linalg.solve(_positive_all(curved, bend), -slope[:, :, None])[:, :, 0]
            shift = np.clip(shift + np.clip(step, -0.5, 0.5), -_FARTHEST, _FARTHEST)
        return shift

    def residuals(self, x: Array, y: Array, cell: Ints) -> Array:
        z = x - self.start.optimum[cell]
        level = np.einsum("ij,ij->i", self.block[cell], np.column_stack([np.ones(len(z)), z]))
        return np.asarray(y - level - _shared_terms(z, self.is_rich) @ self.shared)

    def weights(self, x: Array, y: Array, cell: Ints, used: NDArray[np.bool_]) -> Array:
        """Return the rows' weights: less for rows far from the fit, and where noise is larger."""
        residual = self.residuals(x, y, cell)
        z = x - self.start.optimum[cell]
        n_used = int(used.sum())
        # Where cells have hardly more rows than numbers, most residuals are nearly zero.
        noise = self.noise
        if 2 * self.freedom > n_used:
            typical = 1.4826 * float(np.median(np.abs(residual[used])))
            noise = max(typical, 1e-7) * math.sqrt(n_used / self.freedom)
        scale = np.full(len(y), noise)
        if self.freedom >= 40:
            scale *= np.exp(_noise_slope(residual[used] / noise, z[used], z))
        scale = np.hypot(scale, MISFIT * np.einsum("ij,jk,ik->i", z, self.start.bend, z) / 2)
        far = np.abs(residual) / np.maximum(scale, 1e-12)
        return np.asarray(np.minimum(1, _HUBER / np.maximum(far, 1e-9)) * (noise / scale) ** 2)

    def state(self, sizes: Array) -> _State:
        """Return the next state: its optima lie between each cell's own and a line in the sizes, by their errors."""
        bend, skew = self.bend_and_skew
        bend = _positive(bend)
        inverse = np.linalg.inv(bend)
        variances = np.einsum("ij,cjk,ki->ci", inverse, self.block_covariance[:, 1:, 1:], inverse)
        optimum = _shrunk(self.start.optimum + self.shift(), variances * self.noise**2, sizes)
        most = _MOST_SKEW * np.diag(bend)
        return _State(optimum, bend, np.clip(skew, -most, most), self.noise)

    def valley(self, window: float, used: NDArray[np.bool_]) -> Valley:
        bend, skew = self.bend_and_skew
        shift, n_cells, n_values = self.shift(), len(self.block), len(skew)
        inverse = np.linalg.inv(_positive(bend))
        # The optimum moves by -H^-1 (slope + dH shift + dskew shift^2 / 2).
        turned = np.zeros((n_cells, n_values, len(self.shared)))
        pairs = [(int(j), int(k)) for j, k in zip(*np.triu_indices(n_values), strict=True)]
        for at, (j, k) in enumerate(pairs):
            turned[:, j, at] += shift[:, k]
            if j != k:
                turned[:, k, at] += shift[:, j]
        for value in range(n_values):
            turned[:, value, len(pairs) + value] += shift[:, value] ** 2 / 2
        by_shared = np.einsum("jk,ckq->cjq", -inverse, self.moved[:, 1:] + turned)
        covariance = np.einsum("cjq,qr,dkr->cjdk", by_shared, self.shared_covariance, by_shared)
        for c in range(n_cells):
            covariance[c, :, c, :] += inverse @ self.block_covariance[c, 1:, 1:] @ inverse
        there = np.column_stack([np.ones(n_cells), shift])
        near = _shared_terms(shift, self.is_rich)
        level = np.einsum("cj,cj->c", there, self.block) + near @ self.shared
        level_variance = np.einsum("cj,cjk,ck->c", there, self.block_covariance, there)
        by_level = np.einsum("cj,cjq->cq", there, self.moved) + near
        level_variance += np.einsum("cq,qr,cr->c", by_level, self.shared_covariance, by_level)
        diagonal = [at for at, (j, k) in enumerate(pairs) if j == k]
        variances = np.diag(self.shared_covariance)[diagonal]
        return Valley(
            optimum=self.start.optimum + shift,
            covariance=covariance * self.noise**2,
            level=level,
            level_error=np.sqrt(np.maximum(level_variance, 1e-12)) * self.noise,
            bend=bend,
            bend_error=np.sqrt(np.where(variances > 0, variances, np.inf)) * self.noise,
            skew=skew,
            noise=self.noise,
            window=window,
            used=used,
            freedom=self.freedom,
        )


def _shared_terms(z: Array, is_rich: bool = False) -> Array:
    """Return the terms of H's upper triangle and of the skews, [n, q]; a rich model has more of higher order."""
    first, second = np.triu_indices(z.shape[1])
    halved = np.where(first == second, 0.5, 1.0)
    squares = z * z  # much faster than powers
    terms = [z[:, first] * z[:, second] * halved, squares * z / 6]
    if is_rich:
        left, right = np.nonzero(~np.eye(z.shape[1], dtype=bool))
        terms += [squares * squares, squares[:, left] * z[:, right]]
    return np.hstack(terms)


def _solve(
    x: Array,
    y: Array,
    cell: Ints,
    used: NDArray[np.bool_],
    weights: Array,
    state: _State,
    is_rich: bool = False,
) -> _Solved | None:
    """Return the weighted linear fit about the state's optima; each cell's block is eliminated.

    None if the rows that count are too few for what the cells share, or do not determine it.
    """
    n_cells, n_values = state.optimum.shape
    if used.sum() < n_values * (n_values + 3) // 2 + is_rich * n_values**2 + 3:
        return None
    z = (x - state.optimum[cell])[used]
    losses, weight, rows_of = y[used], weights[used], cell[used]
    terms = _shared_terms(z, is_rich)
    n_shared = terms.shape[1]
    # A slope's prior, from an optimum's sd of _FREE; the levels have none.
    prior = np.zeros((1 + n_values, 1 + n_values))
    spread = state.bend @ state.bend * _FREE**2
    prior[1:, 1:] = np.linalg.inv(spread + 1e-12 * np.eye(n_values)) * state.noise**2
    columns = np.column_stack([np.ones(len(z)), z, terms, losses])
    products = np.zeros((n_cells, columns.shape[1], columns.shape[1]))
    order = np.argsort(rows_of, kind="stable")
    there, begins = np.unique(rows_of[order], return_index=True)
    outer = columns[order, :, None] * (columns * weight[:, None])[order, None, :]
    products[there] = np.add.reduceat(outer, begins, axis=0)
    k = 1 + n_values
    inside = products[:, :k, :k]
    block_covariance = np.linalg.inv(inside + prior + 1e-9 * np.eye(k))
    n_blocks = float(np.einsum("cij,cji->", block_covariance, inside))
    alone = np.einsum("cij,cj->ci", block_covariance, products[:, :k, -1])
    moved = -block_covariance @ products[:, :k, k:-1]
    normal = (products[:, k:-1, k:-1] + products[:, k:-1, :k] @ moved).sum(axis=0)
    right = (products[:, k:-1, -1] + np.einsum("ciq,ci->cq", moved, products[:, :k, -1])).sum(axis=0)
    scale = np.sqrt(np.maximum(np.diag(normal), 1e-300))
    normal += np.diag(scale**2 * 1e-8)
    try:
        shared_covariance = np.linalg.inv(normal / np.outer(scale, scale)) / np.outer(scale, scale)
    except np.linalg.LinAlgError:
        return None
    shared = shared_covariance @ right
    freedom = max(len(losses) - n_blocks - n_shared, 1.0)
    solved = _Solved(
        start=state,
        block=alone + moved @ shared,
        shared=shared,
        block_covariance=np.asarray(block_covariance, np.float64),
        shared_covariance=shared_covariance,
        moved=np.asarray(moved, np.float64),
        noise=1.0,
        is_rich=is_rich,
        freedom=freedom,
    )
    residual = solved.residuals(x, y, cell)[used]
    noise = math.sqrt(float(weight @ residual**2) / freedom)
    # Weights below one shrink the squares, Huber's those of far rows the most.
    noise *= math.sqrt(len(losses) / max(float(weight.sum()), 1.0) / _SHRUNK)
    bend = solved.bend_and_skew[0]
    is_flat = bool(np.linalg.eigvalsh(bend)[0] <= _LEAST_BEND)
    return replace(solved, noise=max(noise, 1e-7), flat=is_flat)


def _noise_slope(residual: Array, z: Array, at: Array) -> Array:
    """Return the log of the noise's sd at places, relative to the optimum: linear in the searched values."""
    logs = np.log(np.maximum(np.abs(residual), 0.05))
    terms = np.column_stack([np.ones(len(z)), z])
    ridge = np.diag([0.0, *[5.0] * z.shape[1]])
    slopes = np.linalg.solve(terms.T @ terms + ridge, terms.T @ logs)[1:]
    return np.clip(at @ slopes, -0.7, 0.7)


def _positive(bend: Array) -> Array:
    values, vectors = np.linalg.eigh(bend)
    least = max(_LEAST_BEND, 0.03 * float(values[-1]))
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def _positive_all(bends: Array, otherwise: Array) -> Array:
    least = np.linalg.eigvalsh(bends)[:, 0]
    is_good = least > 0.2 * np.linalg.eigvalsh(otherwise)[0]
    return np.where(is_good[:, None, None], bends, otherwise[None])
