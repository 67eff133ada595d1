"""The laws of searched hyperparameters: the best value of each against the size, and what it costs to miss it.

    log x* = a_0 + sum_k a_k log size_k      for each searched value x

in N and D, or in the model's width and depth where those predict cells that were left out better. Every number has a
90% interval, of the rows' noise and of the scatter between cells, and a verdict (`estimation/verdicts.py`). With the
training timescale, weight decay is fitted as tau = B / (lr lambda D), whose law is in D/N (arXiv 2505.13738).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import listed, rounded, several, several_named
from sweeplab.laws.assessment import NOT_IDENTIFIED, WEAK, Verdict, by_width
from sweeplab.laws.hyperparameters.line import LEVEL, Line, Mixture, Optima, average, bends, fit_line
from sweeplab.laws.hyperparameters.runs import SHAPE, SearchedRuns
from sweeplab.laws.hyperparameters.valley import MISFIT, Array, Valley, fit_valley
from sweeplab.laws.points import DECADES, ON_PATH, SPREAD

FEWEST_CELLS = 6  # with an optimum between their values
FEWEST_VALUES = 4  # of a hyperparameter in a cell
COARSEST = 1.5  # factor between neighboring values
FLAT, BAND, TRANSFERS = 0.0025, 0.001, 0.001  # excess of log loss
SURE = 0.95
_BENT = 0.025  # significance of a bend of the law
# By how much the log density of left-out cells must be better for another law than the expected one: in N, or in width
# and depth where the cells vary them apart, so that their logs correlate less than this.
_BETTER, _APART = 2.0, 0.7
_DECADES = DECADES | {"n_embd": 0.4, "n_layer": 0.4}  # params grow as the square of the width
_DISTINCT = 3
YES, NO, UNTOLD = "transfers", "does not transfer", "may transfer or not"
TIMESCALE = "timescale"


@dataclass(frozen=True)
class CellOptimum:
    """The best value in one cell: with all cells' help, and from its own rows alone, if these are enough."""

    value: float
    low: float
    high: float
    alone: tuple[float, float, float] | None
    side: int
    n_values: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        ends = {-1: "at or below the smallest value", 1: "at or above the largest value", 0: ""}
        alone = dict(zip(("value", "low", "high"), self.alone, strict=True)) if self.alone else None
        shown = {"value": self.value, "low": self.low, "high": self.high}
        return shown | {"alone": alone, "edge": ends[self.side], "n_values": self.n_values}


@dataclass(frozen=True)
class HyperparameterLaw:
    """The law of one searched value in some sizes: the fit, and what speaks against it."""

    columns: tuple[str, ...]
    line: Line
    bent: Mapping[str, float]
    lacking: tuple[str, ...]
    doubt: str

    def optimum(self, logs: Mapping[str, float]) -> Mixture:
        """Return the log of the best value at sizes."""
        return self.line.optimum(np.array([logs[name] for name in self.columns]))

    def verdict(self, kind: str, value: float, low: float, high: float) -> Verdict:
        """Return the verdict on a number with its interval, both in logs for a kind with a factor."""
        if self.lacking:
            return Verdict(NOT_IDENTIFIED, "; ".join(self.lacking))
        verdict = by_width(kind, value, low, high)
        if verdict.identified and self.doubt:
            return Verdict(WEAK, self.doubt)
        return verdict


@dataclass(frozen=True)
class Searched:
    """What the table tells about one searched value."""

    name: str
    cells: tuple[CellOptimum, ...]
    laws: tuple[HyperparameterLaw, ...]  # the chosen one first
    numbers: Mapping[str, Mapping[str, Any]]
    flat: tuple[float, float]  # factors below and above the optimum at which the loss is FLAT worse
    transfer: tuple[Mapping[str, Any], ...]
    flags: tuple[str, ...]
    why_none: str = ""

    def optimum(self, logs: Mapping[str, float]) -> Mixture:
        """Return the log of the best value at sizes, by every law of sizes that are named, one of them at least.

        Laws of N and of the width extrapolate differently where N is no power of the width; each counts by how well it
        predicts cells that are left out.
        """
        laws = [law for law in self.laws if set(law.columns) <= logs.keys()]
        return average([law.optimum(logs) for law in laws], [law.line.score for law in laws])

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        columns, bends = None, dict[str, float]()
        if self.laws:
            columns, bends = list(self.laws[0].columns), dict(self.laws[0].bent)
        return {
            "law": columns,
            "numbers": dict(self.numbers),
            "factor_below": self.flat[0],
            "factor_above": self.flat[1],
            "constant": [dict(each) for each in self.transfer],
            "bends": bends,
            "flags": list(self.flags),
            "why_none": self.why_none,
        }


@dataclass(frozen=True)
class HyperparameterLaws:
    """The optima of every cell and the law of every searched value."""

    runs: SearchedRuns
    valley: Valley
    searched: Mapping[str, Searched]
    correlation: Array  # of the cells' distances from the lines, [J, J]
    warnings: tuple[str, ...]
    prediction: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return all as plain values."""
        runs, valley = self.runs, self.valley
        cells = [
            {
                **{name: math.exp(value) for name, value in zip(runs.sizes, runs.logs[c], strict=True)},
                "n_rows": int((runs.cell == c).sum()),
                "tuned_loss": math.exp(float(valley.level[c])),
                "tuned_loss_error": math.exp(float(valley.level[c])) * float(valley.level_error[c]),
                "best": {name: found.cells[c].as_dict() for name, found in self.searched.items()},
            }
            for c in range(runs.n_cells)
        ]
        return {
            "n_rows": len(runs.y),
            "n_used": int(valley.used.sum()),
            "n_cells": runs.n_cells,
            "window": valley.window,
            "noise": valley.noise,
            "conventions": dict(runs.said),
            "dropped": dict(runs.dropped),
            "level": LEVEL,
            "cells": cells,
            "searched": {name: found.as_dict() for name, found in self.searched.items()},
            "prediction": dict(self.prediction) or None,
            "warnings": list(self.warnings),
        }


def assess_hyperparameters(runs: SearchedRuns, timescale: bool = False) -> HyperparameterLaws:
    """Fit the optima of all cells and the laws of the searched values.

    With `timescale`, weight decay is fitted as the training timescale B / (lr lambda D).

    Raises:
        BadInput: the rows are too few, have no minimum, or lack what the timescale needs.
    """
    if timescale:
        runs = _with_timescale(runs)
    varying = [name for name in runs.sizes if np.ptp(runs.log_of(name)) > 1e-6]
    sizes = np.column_stack([runs.log_of(name) for name in varying or runs.sizes])
    runs, valley = _with_minimum(runs, sizes)
    optima = [_optima(runs, valley, j) for j in range(len(runs.names))]
    searched = {name: _searched(runs, valley, optima[j], j, varying) for j, name in enumerate(runs.names)}
    return HyperparameterLaws(runs, valley, searched, _correlation(runs, optima, searched), runs.notes)


def _with_minimum(runs: SearchedRuns, sizes: Array) -> tuple[SearchedRuns, Valley]:
    """Return the fit over most of the searched values, and its runs: without those that show no minimum beside them."""
    fits: list[tuple[tuple[Any, ...], SearchedRuns, Valley]] = []
    for n_values in range(len(runs.names), 0, -1):
        for names in combinations(runs.names, n_values):
            some = runs.over(names)
            valley = fit_valley(some.x, some.y, some.cell, sizes)
            if valley is not None:
                is_seen = all(_is_seen(some, valley, j) for j in range(n_values))
                fits.append(((not is_seen, -n_values, valley.noise), some, valley))
        if any(not rank[0] for rank, *_ in fits):
            break
    if fits:
        return min(fits, key=lambda fit: fit[0])[1:]
    what = f"{several(len(runs.y), 'row')} in {several(runs.n_cells, 'cell')} show no minimum over "
    what += listed(runs.names)
    raise BadInput(Problem(what, "several values of each in a cell, some on each side of the best"))


def _is_seen(runs: SearchedRuns, valley: Valley, j: int) -> bool:
    """Return whether the loss has a minimum over value j, or falls toward one end of three values or more."""
    if valley.bend[j, j] > 2 * valley.bend_error[j]:
        return True
    side = _optima(runs, valley, j).side
    return bool(np.median(runs.steps(j)[0]) >= 3 and max((side < 0).mean(), (side > 0).mean()) > 0.5)


def _with_timescale(runs: SearchedRuns) -> SearchedRuns:
    needed = ("learning_rate", "batch_size", "weight_decay")
    lacks = [name for name in needed[::2] if name not in runs.names]
    lacks += [name for name in ("tokens",) if name not in runs.sizes]
    if lacks:
        raise BadInput(
            Problem(
                f"the timescale needs {listed(lacks)}",
                "learning_rate and weight_decay searched, tokens known",
            )
        )
    x = runs.x.copy()
    at = runs.names.index("weight_decay")
    x[:, at] = -x[:, at] - x[:, runs.names.index("learning_rate")] - runs.log_of("tokens")[runs.cell]
    if "batch_size" in runs.names:
        x[:, at] += x[:, runs.names.index("batch_size")]
    names = tuple(TIMESCALE if name == "weight_decay" else name for name in runs.names)
    words = dict(runs.said) | {TIMESCALE: "batch_size / (learning_rate * weight_decay * tokens)"}
    return replace(runs, x=x, names=names, said=words)


def _optima(runs: SearchedRuns, valley: Valley, j: int) -> Optima:
    """Return the optima of one value; those at or beyond the ends of their cell's values are censored.

    An optimum within half a step of an end is at that end if the lowest loss, the mean of seeds, is there.
    """
    low, high = runs.ends(j)
    values, steps = valley.optimum[:, j], runs.steps(j)[1]
    best = runs.best(j)
    below = (values <= low) | ((best <= low + 1e-3) & (values <= low + steps / 2))
    above = (values >= high) | ((best >= high - 1e-3) & (values >= high - steps / 2))
    side = np.where(below, -1, np.where(above, 1, 0))
    return Optima(values, valley.covariance[:, j, :, j], side, np.where(below, low, high))


def _searched(runs: SearchedRuns, valley: Valley, optima: Optima, j: int, varying: Sequence[str]) -> Searched:
    name = runs.names[j]
    counts, steps = runs.steps(j)
    reach = valley.reach(j, FLAT) if valley.bend[j, j] > 0 else (math.inf, math.inf)
    has_minimum = valley.bend[j, j] > 2 * valley.bend_error[j]
    flags = _flags(runs, optima, counts, steps)
    why = "" if has_minimum else _why_no_minimum(runs, j)
    laws = _laws(runs, optima, varying, name, why)
    numbers = _numbers(laws, name) if laws else {}
    shown = [_cell(runs, valley, optima, laws, j, c, int(counts[c])) for c in range(runs.n_cells)]
    if not laws and not why:
        n_interior = int((optima.side == 0).sum())
        why = f"{several(n_interior, 'cell')} with an optimum between the values tried: too few for a law"
    transfer = _transfer(valley, laws, j)
    flat = (math.exp(-reach[0]), math.exp(reach[1])) if math.isfinite(reach[0]) else (0.0, math.inf)
    return Searched(name, tuple(shown), tuple(laws), numbers, flat, tuple(transfer), tuple(flags), why)


def _why_no_minimum(runs: SearchedRuns, j: int) -> str:
    name, (low, high), best = runs.names[j], runs.ends(j), runs.best(j)
    for ends, where in ((low, "lowest"), (high, "highest")):
        n_there = int((np.abs(best - ends) < 1e-3).sum())
        if 2 * n_there > runs.n_cells:
            return f"the {where} {name} tried is the best in {n_there} of {several(runs.n_cells, 'cell')}"
    return f"the loss hardly depends on {name}: its curvature is not above its error"


def _laws(
    runs: SearchedRuns, optima: Optima, varying: Sequence[str], name: str, why: str
) -> list[HyperparameterLaw]:
    by_size = tuple(size for size in varying if size not in SHAPE)
    shapes = tuple(size for size in varying if size in SHAPE)
    trained = tuple(size for size in by_size if size == "tokens")
    candidates = [shape + trained for shape in (shapes, shapes[:1], shapes[1:]) if shape]
    if by_size:
        candidates.insert(0, by_size)
    distinct = dict.fromkeys(_apart(runs, columns) for columns in candidates)
    laws = [_law(runs, optima, columns, name, why) for columns in distinct]
    fitted = [law for law in laws if law is not None]
    expected = _apart(runs, by_size)
    if len(shapes) == 2:
        correlation = float(np.corrcoef(runs.log_of(shapes[0]), runs.log_of(shapes[1]))[0, 1])
        if abs(correlation) < _APART:
            expected = _apart(runs, shapes + trained)

    def penalized(law: HyperparameterLaw) -> float:
        known = set(law.columns) <= {*expected, "tokens per parameter"}
        return -law.line.score - _BETTER * (known and law.columns[-1:] == expected[-1:])

    return sorted(fitted, key=penalized)


def _apart(runs: SearchedRuns, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns without those that follow from the ones before them, as tokens do on a path from the sizes."""
    kept: list[str] = []
    for column in columns:
        terms = np.column_stack([np.ones(runs.n_cells), *map(runs.log_of, kept)])
        wanted = runs.log_of(column)
        left = wanted - terms @ np.linalg.lstsq(terms, wanted, rcond=None)[0]
        if not kept or left.std() >= ON_PATH:
            kept.append(column)
    return tuple(kept)


def _law(
    runs: SearchedRuns, optima: Optima, columns: tuple[str, ...], name: str, why: str
) -> HyperparameterLaw | None:
    logs = np.column_stack([runs.log_of(size) for size in columns])
    if name == TIMESCALE and {"params", "tokens"} <= set(columns):
        logs = (runs.log_of("tokens") - runs.log_of("params"))[:, None]
        columns = ("tokens per parameter",)
    line = fit_line(optima, logs)
    if line is None:
        return None
    bent, interior = bends(optima, logs, columns), optima.side == 0
    lacking = ([why] if why else []) + _gate(logs[interior], columns)
    doubts = [f"the optima bend in log {size} (p = {p:.2g})" for size, p in bent.items() if p < _BENT]
    if 2 * (~interior).sum() > interior.sum():
        outside = several(int((~interior).sum()), "cell")
        doubts.append(f"the optimum of {outside} lies at an end of the values tried")
    return HyperparameterLaw(columns, line, bent, tuple(lacking), "; ".join(doubts))


def _gate(logs: Array, columns: Sequence[str]) -> list[str]:
    lacking = []
    if len(logs) < FEWEST_CELLS:
        inside = f"{several(len(logs), 'cell')} with an optimum between their values"
        lacking.append(f"{inside}, and {FEWEST_CELLS} are needed")
    for at, name in enumerate(columns):
        decades = float(np.ptp(logs[:, at])) / math.log(10)
        needed = _DECADES.get(name, 0.4)
        if decades < needed:
            lacking.append(f"{name} span {decades:.2f} decades and {needed} are needed")
        elif len(np.unique(logs[:, at].round(2))) < _DISTINCT:
            lacking.append(f"{name} have fewer than {_DISTINCT} distinct values")
    if tuple(columns[:2]) == ("params", "tokens"):
        centered = logs[:, :2] - logs[:, :2].mean(axis=0)
        across = math.sqrt(2 * max(float(np.linalg.eigvalsh(centered.T @ centered / len(logs))[0]), 0.0))
        if across < SPREAD:
            lacking.append(
                f"all cells lie near one line of log tokens against log params ({across:.2f}, {SPREAD} is needed)"
            )
    return lacking


def _numbers(laws: Sequence[HyperparameterLaw], name: str) -> dict[str, Mapping[str, Any]]:
    entries: dict[str, Mapping[str, Any]] = {}
    # A law of width alone says nothing on depth; the law of both does.
    for law in (laws[0], *sorted(laws[1:], key=lambda law: -len(law.columns))):
        for column, number in zip(law.columns, law.line.exponents(), strict=True):
            low, high = number.interval()
            meaning = f"the best {name} grows as {column} to this power"
            entry = law.verdict("exponent", number.mean, low, high).entry((number.mean, low, high), meaning)
            others = [other for other in law.columns if other != column]
            if law is not laws[0]:
                entry["meaning"] += f", in a law of {listed([column, *others])}"
            entries.setdefault(f"exponent of {column}", entry | {"drifts": not low <= 0 <= high})
    law = laws[0]
    largest = law.line.sum(np.ones(1), law.line.places[[law.line.places.sum(axis=1).argmax()]])
    low, high = largest.interval()
    verdict = law.verdict("ratio", largest.mean, low, high)
    shown = (math.exp(largest.mean), math.exp(low), math.exp(high))
    entries["at the largest cell"] = verdict.entry(shown, f"the best {name} there, on the law")
    return entries


def _transfer(valley: Valley, laws: Sequence[HyperparameterLaw], j: int) -> list[Mapping[str, Any]]:
    """Return whether the best value of the smallest model does for the largest: an equivalence test.

    It does if, with 95% confidence, keeping it costs less than 0.1% of the loss; and it does not if it costs more with
    95% confidence. No difference seen is not enough.
    """
    results: list[Mapping[str, Any]] = []
    if not laws or valley.bend[j, j] <= 2 * valley.bend_error[j]:
        return results
    law, bend, error = laws[0], float(valley.bend[j, j]), 1.645 * float(valley.bend_error[j])
    logs = law.line.places
    models = [at for at, name in enumerate(law.columns) if name != "tokens"]
    trained = [at for at, name in enumerate(law.columns) if name == "tokens"]
    for places in (models, trained):
        if not places:
            continue
        order = logs[:, places].sum(axis=1)
        small, large = int(np.argmin(order)), int(np.argmax(order))
        ends = np.stack([law.line.center, law.line.center])
        ends[:, places] = logs[[large, small]][:, places]
        moved = law.line.sum(np.array([1.0, -1.0]), ends)
        within = math.sqrt(2 * TRANSFERS / (bend + error)), math.sqrt(2 * TRANSFERS / max(bend - error, 1e-9))
        inside = [moved.below(limit) - moved.below(-limit) for limit in within]
        verdict = UNTOLD
        if inside[0] >= SURE:
            verdict = YES
        elif inside[1] <= 1 - SURE:
            verdict = NO
        low, high = moved.interval()
        most = max(abs(low), abs(high))
        least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        results.append(
            {
                "over": " and ".join(law.columns[at] for at in places),
                "factor": math.exp(moved.mean),
                "low": math.exp(low),
                "high": math.exp(high),
                "drifts": not low <= 0 <= high,
                "cost": bend * moved.mean**2 / 2,
                "cost_low": (bend - error) * least**2 / 2,
                "cost_high": (bend + error) * most**2 / 2,
                "verdict": verdict,
            }
        )
    return results


def _cell(
    runs: SearchedRuns,
    valley: Valley,
    optima: Optima,
    laws: Sequence[HyperparameterLaw],
    j: int,
    c: int,
    n_values: int,
) -> CellOptimum:
    """Return the optimum of a cell: with the law's help if there is a law, else from the pooled fit alone."""
    side = int(optima.side[c])
    value, sd = float(optima.values[c]), math.sqrt(float(optima.covariance[c, c]))
    low, high = value - 1.645 * sd, value + 1.645 * sd
    if laws:
        mixture = laws[0].line.cell(c)
        value, (low, high) = mixture.mean, mixture.interval()
    alone = None if side else _alone(runs, valley, j, c)
    return CellOptimum(math.exp(value), math.exp(low), math.exp(high), alone, side, n_values)


def _alone(runs: SearchedRuns, valley: Valley, j: int, c: int) -> tuple[float, float, float] | None:
    """Return the optimum by a cell's own rows, with its interval; None if they are few.

    It is of a quadratic in the logs with a curvature of its own, and all cells' skew.
    """
    from scipy.special import stdtrit

    rows = (runs.cell == c) & valley.used
    x, y = runs.x[rows] - valley.optimum[c], runs.y[rows]
    y = y - x**3 @ valley.skew / 6
    n_values = x.shape[1]
    first, second = np.triu_indices(n_values)
    terms = np.column_stack([np.ones(len(x)), x, x[:, first] * x[:, second]])
    freedom = len(y) - terms.shape[1]
    if freedom < 2 or np.linalg.matrix_rank(terms) < terms.shape[1]:
        return None
    # Rows far from the optimum count less: the loss is no exact polynomial.
    weights = 1 / (1 + (MISFIT * valley.excess(x) / valley.noise) ** 2)
    inverse = np.linalg.inv((terms * weights[:, None]).T @ terms)
    at = inverse @ (terms * weights[:, None]).T @ y
    covariance = inverse * float(weights @ (y - terms @ at) ** 2) / freedom * len(y) / weights.sum()

    def optimum(vector: Array) -> Array:
        bend = np.zeros((n_values, n_values))
        bend[first, second] += vector[1 + n_values :]
        bend = bend + bend.T
        return np.asarray(np.linalg.solve(bend, -vector[1 : 1 + n_values]))

    bend = np.zeros((n_values, n_values))
    bend[first, second] += at[1 + n_values :]
    if np.linalg.eigvalsh(bend + bend.T)[0] <= 0:
        return None
    center = optimum(at)
    step = np.sqrt(np.diag(covariance)) * 1e-3
    slopes = np.stack(
        [(optimum(at + step[k] * np.eye(len(at))[k]) - center) / step[k] for k in range(len(at))], 1
    )
    sd = math.sqrt(float((slopes @ covariance @ slopes.T)[j, j]))
    half = float(stdtrit(freedom, 0.95)) * sd
    value = float(center[j] + valley.optimum[c, j])
    if half > 3 or abs(float(center[j])) > 3:
        return None
    return math.exp(value), math.exp(value - half), math.exp(value + half)


def _correlation(
    runs: SearchedRuns, optima: Sequence[Optima], searched_values: Mapping[str, Searched]
) -> Array:
    """Return the correlation between values of the distances of cells from their laws, shrunk to none for few cells."""
    n_values = len(optima)
    away = np.zeros((runs.n_cells, n_values))
    use: NDArray[np.bool_] = np.ones(runs.n_cells, bool)
    for j, searched in enumerate(searched_values.values()):
        use &= optima[j].side == 0
        if searched.laws:
            away[:, j] = optima[j].values - searched.laws[0].line.expected
    products = away[use].T @ away[use]
    scale = np.sqrt(np.maximum(np.diag(products), 1e-12))
    shrunk = products / np.outer(scale, scale) * max(use.sum() - 3, 0) / max(use.sum(), 1)
    np.fill_diagonal(shrunk, 1.0)
    return np.asarray(shrunk)


def _flags(runs: SearchedRuns, optima: Optima, counts: NDArray[np.intp], steps: Array) -> list[str]:
    """Return what is known to spoil exponents: optima at an end, few values, coarse grids."""
    flags = []
    for side, end, place in ((-1, "smallest", "below"), (1, "largest", "above")):
        cells = np.flatnonzero(optima.side == side)
        if len(cells):
            names = several_named([runs.cell_name(int(c)) for c in cells])
            flags.append(
                f"{several(len(cells), 'cell')} best at the {end} value tried: {names}; "
                f"the optimum may lie {place}, and these cells give only a bound"
            )
    few = np.flatnonzero(counts < FEWEST_VALUES)
    if len(few):
        names = several_named([runs.cell_name(int(c)) for c in few])
        flags.append(f"{several(len(few), 'cell')} with fewer than {FEWEST_VALUES} values: {names}")
    coarse = np.flatnonzero(np.exp(steps) > COARSEST * 1.001)
    if len(coarse):
        factor = math.exp(float(np.median(steps[coarse])))
        flags.append(
            f"values of {several(len(coarse), 'cell')} lie a factor {rounded(factor)} apart; "
            f"steps above {COARSEST} spoil exponents"
        )
    return flags
