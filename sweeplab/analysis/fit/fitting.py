"""One law fitted to one table: its noise, its optimum, and how the optimum was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweeplab.analysis.fit.forms import Array, Law
from sweeplab.analysis.fit.solver import STILL, Rows, Solution, solve
from sweeplab.analysis.fit.starts import starts, turns
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput

EFFICIENT = 1.345  # Huber's delta in sigmas: 95% as efficient as least squares under normal noise
LITERATURE = 1e-3  # the delta of Hoffmann et al. 2022
LEAST_SQUARES = math.inf
_SMALLEST_DELTA = 1e-9
_SAME = 1e-6  # starts within this share of the lowest objective have reached it
_ROUNDS = 3
_POLISHES = 10
_NEAR = 1e-8  # of the objective: how near to rest a start goes before the best is polished


@dataclass(frozen=True)
class Fit:
    """The vector of lowest objective, and all that says how it was found.

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
    def spare(self) -> int:
        """Return how many more rows than parameters there are."""
        return self.n_points - len(self.theta)

    def residuals(self) -> Array:
        """Return the log residuals, [n]."""
        return np.asarray(self.rows.log_loss - self.law.log_loss(self.theta[None], self.rows.logs)[0])

    def at_bound(self) -> tuple[str, ...]:
        """Return the parameters that stand at the end of what a fit may reach."""
        low, high = self.law.bounds(self.rows.log_loss)
        margin = 1e-6 * (high - low)
        at = (self.theta <= low + margin) | (self.theta >= high - margin)
        return tuple(name for name, bound in zip(self.law.parameters, at, strict=True) if bound)

    def minimizer(self) -> dict[str, float]:
        """Return the parameters as the law's formula has them. No estimate: that takes an interval."""
        natural = dict(zip(self.law.parameters, map(float, self.theta), strict=True))
        for term in self.law.terms:
            shift = natural[term.exponent] * self.center[term.column] if term.exponent else 0.0
            natural[term.scale] = math.exp(min(natural[term.scale] + shift, 700.0))
        return natural

    def predict(self, columns: Mapping[str, Array]) -> Array:
        """Return the law's loss at rows of the columns it reads, [n]."""
        logs = {
            name: np.log(np.asarray(columns[name], float)) - self.center[name] for name in self.law.columns
        }
        return np.asarray(np.exp(self.law.log_loss(self.theta[None], logs)[0]))


def fit(points: Points, law: Law, delta: float | None = None) -> Fit:
    """Return the law's fit; `delta` in log units, infinite for least squares, None for 1.345 robust sigmas.

    Raises:
        BadInput: fewer rows than the law has parameters and one to spare, a column that is missing or never
            varies, losses that are all equal.
    """
    _check(points, law)
    rows, center = _rows(points, law)
    begin = starts(law, rows)
    sigma = math.nan
    if delta is None:
        theta, sigma = _noise(law, rows, begin)
        rows = replace(rows, delta=max(EFFICIENT * sigma, _SMALLEST_DELTA))
        begin = np.concatenate([theta[None], begin])
    else:
        rows = replace(rows, delta=delta)
    solution = solve(law, begin, rows, still=_NEAR)
    last = _polished(law, solution, rows)
    lowest = float(last.objective[0])
    found = Fit(
        law=law,
        rows=rows,
        center=center,
        theta=last.theta[0],
        objective=lowest,
        sigma=sigma,
        n_starts=len(begin),
        n_reached=int((solution.objective <= lowest * (1 + _SAME) + 1e-300).sum()),
        converged=bool(last.converged[0]),
    )
    return found if delta is None else replace(found, sigma=robust_sigma(found.residuals(), len(found.theta)))


def robust_sigma(residuals: Array, n_params: int) -> float:
    """Return 1.4826 times the median of the n - p largest sizes: a fit brings about p residuals near zero."""
    sizes = np.sort(np.abs(residuals))[n_params:]
    return float(1.4826 * np.median(sizes))


def _polished(law: Law, solution: Solution, rows: Rows) -> Solution:
    """Return the best vector alone, [1, p], at rest, after looking where starts hardly lead."""
    for _ in range(_POLISHES):
        best = np.argmin(solution.objective)
        before = float(solution.objective[best])
        solution = solve(law, turns(law, solution.theta[best], rows), rows)
        best = np.argmin(solution.objective)
        if solution.converged[best] and solution.objective[best] >= before * (1 - STILL):
            break
    return Solution(*(each[[best]] for each in solution))


def _noise(law: Law, rows: Rows, begin: Array) -> tuple[Array, float]:
    """Return a fit and the scale of its residuals that agree with each other, from least squares on."""
    sigma = math.inf
    for _ in range(_ROUNDS):
        bent = replace(rows, delta=max(EFFICIENT * sigma, _SMALLEST_DELTA))
        solution = solve(law, begin, bent, still=_NEAR if len(begin) > 1 else STILL)
        begin = solution.theta[[int(np.argmin(solution.objective))]]
        residuals = rows.log_loss - law.log_loss(begin, rows.logs)[0]
        sigma = robust_sigma(residuals, len(law.parameters))
    return begin[0], sigma


def _rows(points: Points, law: Law) -> tuple[Rows, dict[str, float]]:
    logs = {name: np.log(points.columns[name]) for name in law.columns}
    center = {name: float(column.mean()) for name, column in logs.items()}
    centered = {name: column - center[name] for name, column in logs.items()}
    return Rows(centered, np.log(points.columns["loss"]), points.weights, LEAST_SQUARES), center


def _check(points: Points, law: Law) -> None:
    problems: list[Any] = []
    n_params = len(law.parameters)
    if points.n <= n_params:
        problems.append(
            f"{points.n} rows for the {n_params} parameters of {law.name}; it takes {n_params + 1} or more"
        )
    for name in law.columns:
        if name not in points.columns:
            problems.append(
                f"{law.name} reads {name!r}, which the table has not; --columns says where it stands"
            )
        elif np.ptp(np.log(points.columns[name])) < 1e-9 and points.n:
            problems.append(f"all rows have {name} {points.columns[name][0]:.4g}; {law.name} needs several")
    if points.n and np.ptp(np.log(points.columns["loss"])) < 1e-12:
        problems.append(f"all losses are {points.columns['loss'][0]:.4g}; no law can be told from that")
    if problems:
        raise BadInput(*problems)
