"""The compute-optimal size by the envelope of training curves: the size of the lowest curve at each compute.

A curve is loss over FLOPs, one for each run of a study or each group of a table.

Hoffmann et al. 2022, Training compute-optimal large language models, approach 1. Departures: the line is fitted to
the points where the best size changes, not to every compute: N_opt lies between the two sizes there, while between
changes N_opt grows and the best of the given sizes stays. The best size never shrinks as compute grows: of all such
paths the one with the lowest summed log loss is taken, so that noise does not make it jump back and forth. A change
counts only if both sizes have a curve on both sides of it; a curve that begins or ends causes no change. Intervals
are from a bootstrap that draws runs with replacement.

Legend: T computes, R curves, S sizes, B draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.formatting import several
from sweeplab.laws.compute_optimal import lines
from sweeplab.laws.compute_optimal.lines import FEWEST, N_AT, Number
from sweeplab.laws.forms import D_OPT, N_OPT, Array
from sweeplab.laws.intervals import LEVEL
from sweeplab.laws.points import Points

if TYPE_CHECKING:
    pass


FEWEST_POINTS = 3  # of a curve
N_COMPUTES = 256
N_DRAWS = 400
_MOST_LOST = 0.2  # the largest share of draws without a line
_FAR = 1e3  # stands for a missing log loss
# Cautions about losses before a run's end, by the schedule of the learning rate.
SCHEDULES = {
    "constant": "",
    "decays": "the learning rate was still decaying where the curves are compared: a run that ended there would have a "
    "lower loss, so the runs nearest to their end are favored",
    "unknown": "a table does not show whether the learning rate had decayed where the curves are compared; if it had "
    "not, the runs nearest to their end are favored",
}


@dataclass(frozen=True)
class Curve:
    """One run: its parameters, and log loss over log FLOPs, increasing, [m]."""

    name: str
    params: float
    log_flops: Array
    log_loss: Array


@dataclass(frozen=True)
class Curves:
    """The runs' curves; `schedule` is one of SCHEDULES, `why_none` says why there are no curves."""

    runs: tuple[Curve, ...]
    schedule: str
    why_none: str = ""


def curves_of_points(points: Points) -> Curves:
    """Return a curve for each group of a table that has one size, and a row at each of several FLOPs."""
    if not points.groups:
        none = "no curves: --columns group=COLUMN names the column that tells which rows are one run"
        return Curves((), "unknown", none)
    names = np.asarray(points.groups, object)
    log_n, log_c = np.log(points.columns["params"]), np.log(points.columns["flops"])
    curves = []
    for name in dict.fromkeys(points.groups):
        rows = np.flatnonzero(names == name)
        rows = rows[np.argsort(log_c[rows], kind="stable")]
        rows = rows[np.diff(log_c[rows], prepend=-np.inf) > 0]
        if len(rows) >= FEWEST_POINTS and lines.n_sizes(log_n[rows]) == 1:
            size = float(points.columns["params"][rows].mean())
            curves.append(Curve(name, size, log_c[rows], np.log(points.columns["loss"][rows])))
    if not curves:
        none = f"no curves: no group has {FEWEST_POINTS} rows of one size at different FLOPs"
        return Curves((), "unknown", none)
    return Curves(tuple(curves), "unknown")


def _sizes_of(curves: Sequence[Curve]) -> tuple[Array, Array]:
    """Log N of the sizes, increasing, [sizes], and the curves of each, [sizes, curves] of 0 and 1."""
    log_n = np.log([curve.params for curve in curves])
    order = np.argsort(log_n, kind="stable")
    place = np.empty(len(log_n), int)
    place[order] = np.cumsum(np.diff(log_n[order], prepend=-np.inf) > lines.SAME_SIZE) - 1
    belongs = np.eye(place.max() + 1)[place].T
    return np.asarray(belongs @ log_n / belongs.sum(1)), belongs


@dataclass(frozen=True)
class Envelope:
    """The lowest loss at each compute with its size, the changes of the best size, and the line through them.

    `envelope` has flops, loss and params, [T]; `changes` are the FLOPs and params between two sizes.
    """

    n_runs: int
    n_sizes: int
    schedule: str
    numbers: dict[str, Number]
    envelope: dict[str, list[float]]
    changes: tuple[dict[str, float], ...] = ()
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, with the data of the figure."""
        numbers = {name: each.as_dict() for name, each in self.numbers.items()}
        lists = {"changes": list(self.changes), "warnings": list(self.warnings)}
        return vars(self) | {"numbers": numbers} | lists


def envelope(curves: Curves, budget: float) -> Envelope:
    """Return the envelope of training curves, its exponents, and N_opt at a budget in FLOPs."""
    log_n, belongs = np.empty(0), np.empty(0)
    if curves.runs:
        log_n, belongs = _sizes_of(curves.runs)
    about = (len(curves.runs), len(log_n), curves.schedule)
    why = curves.why_none
    if not why and len(log_n) <= FEWEST:
        why = f"the curves are of {several(len(log_n), 'size')}; {FEWEST + 1} or more are needed"
    if why:
        nothing: dict[str, list[float]] = {"flops": [], "loss": [], "params": []}
        return Envelope(*about, lines.no_optimum(why, math.log(budget)), nothing)
    begin = min(curve.log_flops[0] for curve in curves.runs)
    log_c = np.linspace(begin, max(curve.log_flops[-1] for curve in curves.runs), N_COMPUTES)
    losses = np.stack([np.interp(log_c, each.log_flops, each.log_loss, _FAR, _FAR) for each in curves.runs])
    by_size = _lowest(losses, belongs, np.ones((1, len(losses)), bool))
    path = _path(by_size)[0]
    lowest = by_size[0, path, np.arange(N_COMPUTES)]
    held = lowest < _FAR
    changes = _changes(by_size[0], path, log_c, log_n)
    random = np.random.default_rng(0)
    drawn = random.multinomial(len(losses), np.full(len(losses), 1 / len(losses)), size=N_DRAWS) > 0
    by_size = _lowest(losses, belongs, drawn)
    moved = [_changes(table, best, log_c, log_n) for table, best in zip(by_size, _path(by_size), strict=True)]
    redrawn = np.array([_line(table) for table in moved])
    caution = SCHEDULES[curves.schedule]
    numbers = _numbers(changes, redrawn, math.log(budget), caution)
    drawn_as = {"flops": log_c[held], "loss": lowest[held], "params": log_n[path][held]}
    return Envelope(
        *about,
        numbers,
        {name: np.exp(column).tolist() for name, column in drawn_as.items()},
        tuple({"flops": math.exp(c), "params": math.exp(n)} for c, n in changes),
        (caution,) if caution and len(changes) >= FEWEST else (),
    )


def _lowest(losses: Array, belongs: Array, present: NDArray[np.bool_]) -> Array:
    """The lowest log loss among the present curves of each size, [B, S, T]."""
    members = belongs.astype(bool)
    return np.stack([np.where(present[:, of, None], losses[of], _FAR).min(1) for of in members], axis=1)


def _path(losses: Array) -> NDArray[np.intp]:
    """The non-decreasing path of sizes with the lowest summed log loss over T: [B, T]."""
    n_draws, n_sizes, n_computes = losses.shape
    total = losses[:, :, 0]
    previous = np.zeros((n_computes, n_draws, n_sizes), int)
    sizes = np.arange(n_sizes)
    for at in range(1, n_computes):
        best = np.minimum.accumulate(total, axis=1)
        previous[at] = np.maximum.accumulate(np.where(total <= best, sizes, 0), axis=1)
        total = best + losses[:, :, at]
    path = np.empty((n_draws, n_computes), int)
    path[:, -1] = total.argmin(1)
    for at in range(n_computes - 1, 0, -1):
        path[:, at - 1] = previous[at, np.arange(n_draws), path[:, at]]
    return path


def _changes(losses: Array, path: NDArray[np.intp], log_c: Array, log_n: Array) -> Array:
    """Log C and log N of each change between two sizes with curves on both sides, [changes, 2]."""
    at = np.flatnonzero(np.diff(path))
    old, new = path[at], path[at + 1]
    both = (losses[old, at + 1] < _FAR) & (losses[new, at] < _FAR)
    at, old, new = at[both], old[both], new[both]
    return np.stack([(log_c[at] + log_c[at + 1]) / 2, (log_n[old] + log_n[new]) / 2], axis=1)


def _line(changes: Array) -> tuple[float, float]:
    if len(changes) < 2:
        return math.nan, math.nan
    slope, at = np.polyfit(changes[:, 0], changes[:, 1], 1)
    return float(slope), float(at)


def _numbers(changes: Array, draws: Array, at: float, caution: str) -> dict[str, Number]:
    if len(changes) < FEWEST:
        why = f"the best size changes {several(len(changes), 'time')} between sizes that both have curves"
        why += f"; a line needs {FEWEST}"
        return lines.no_optimum(why, at)
    lacking = lines.short_span("changes", changes[:, 0])
    held = draws[np.isfinite(draws[:, 0])]
    if len(held) < (1 - _MOST_LOST) * len(draws):
        lacking.append("too few bootstrap tables have a line: the runs give it no bounds")
    slope, offset = _line(changes)
    draws = held if len(held) else draws
    blank, numbers = lines.optimum_at(at), {}
    for name, value, drawn in (
        (N_OPT, slope, draws[:, 0]),
        (D_OPT, 1 - slope, 1 - draws[:, 0]),
        (N_AT, offset + slope * at, draws @ np.array([at, 1.0])),
    ):
        low, high = map(float, np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        numbers[name] = blank[name].of(value, min(low, value), max(high, value), lacking, caution)
    return numbers
