"""The lines of a law over a column, with their bands, and the points moved to what a line holds fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from sweeplab.errors import BadInput
from sweeplab.formatting import listed, short
from sweeplab.laws.assessment import NOT_IDENTIFIED, Assessment, gate, judge
from sweeplab.laws.columns import SHAPE
from sweeplab.laws.forms import Array, Quantity, loss_at, optimum_of
from sweeplab.laws.intervals import Interval, profiles
from sweeplab.laws.points import Points
from sweeplab.laws.shape import Plane, plane_of
from sweeplab.report.data import ASPECT, ReportData

BEYOND_SHAPES = 2.0
BEYOND = 10.0  # a line is extended beyond the points by at most this factor, while it is identified
MOST_LINES = 7
_SOME_LINES = 4  # if no column has few values
_OTHER = {"params": "tokens", "tokens": "params"}
_HELD = {  # by a line of a law of the shape, over x
    "params": "n_layer",
    "n_embd": "n_layer",
    "n_layer": "n_embd",
    "tokens": "params",
    ASPECT: "params",
}
_OPTIMAL = "compute-optimal"
_KNOTS = 4  # where the band is computed within the points; its width is interpolated in between
_MORE_KNOTS = 3
_STEPS = 8  # points of the line from one knot to the next


def lines_of(report: ReportData, assessment: Assessment, x: str) -> dict[str, tuple[DataFrame, str]]:
    """Return a law's lines over a column by their names, each as `band` returns it."""

    def work() -> dict[str, tuple[DataFrame, str]]:
        beyond = {"n_layer": BEYOND_SHAPES, "n_embd": BEYOND_SHAPES, ASPECT: 1.0}.get(x, BEYOND)
        limit = beyond * float(columns_of(assessment.points)[x].max())
        return {
            name: band(assessment, at, low, high, limit)
            for name, low, high, at in lines_by(assessment, x).lines
        }

    return report.once(("lines", assessment.fit.law.name, assessment.delta, x), work)


class LawLines(NamedTuple):
    """The points' groups by name, the group of each point, and the lines: name, lowest and highest x, the loss.

    `moved` says that points have to be moved to the value that their line holds fixed.
    """

    names: Sequence[str]
    belongs: NDArray[np.intp]
    lines: Sequence[tuple[str, float, float, Callable[[float], Quantity]]]
    moved: bool = False


def lines_by(assessment: Assessment, x: str) -> LawLines:
    """Group the points and the lines of a law over one column."""
    columns, law, center = columns_of(assessment.points), assessment.fit.law, assessment.fit.center
    if law.reads_shape:
        return _lines_of_shapes(assessment, x)
    ends = (float(columns[x].min()), float(columns[x].max()))
    if x == "flops" and {"params", "tokens"} <= set(law.columns):
        per_param_token = assessment.points.flops_per_param_token
        names, belongs, _ = _groups("params", columns["params"])
        line = (_OPTIMAL, *ends, lambda at: optimum_of(law, center, at, per_param_token)[-1])
        return LawLines(names, belongs, [line])
    if x not in law.columns:
        raise BadInput(f"{law.name} does not use {x}")
    if law.columns == (x,):
        line = (law.name, *ends, lambda at: loss_at(law, center, {x: at}))
        named = "less the tuning excess" if assessment.tuning.record else "measured"
        return LawLines([named], np.zeros(assessment.points.n, np.intp), [line])
    label, values, other_at = _held(columns, x)
    names, belongs, levels = _groups(label, values)
    lines = []
    for group, (name, level) in enumerate(zip(names, levels, strict=True)):
        within = columns[x][belongs == group]

        def at(value: float, level: float = level) -> Quantity:
            return loss_at(law, center, {x: value, _OTHER[x]: other_at(value, level)})

        lines.append((name, float(within.min()), float(within.max()), at))
    return LawLines(names, belongs, lines, moved=len(levels) < len(_distinct(values)))


def columns_of(points: Points) -> dict[str, Array]:
    """The columns over which a line may be drawn."""
    columns = points.sizes
    if set(SHAPE) <= columns.keys():
        columns[ASPECT] = columns["n_embd"] / columns["n_layer"]
    return columns


def _lines_of_shapes(assessment: Assessment, x: str) -> LawLines:
    """Lines of a law of the shape: at one n_layer, one n_embd or one size, and at the largest number of tokens.

    Over the aspect ratio there is one, at the mean log size.
    """
    columns, law, center = columns_of(assessment.points), assessment.fit.law, assessment.fit.center
    if x not in _HELD or (x == "tokens" and x not in law.columns):
        raise BadInput(f"{law.name} does not use {x}")
    plane, most = plane_of(assessment.points), {name: float(columns[name].max()) for name in columns}
    names, belongs, levels = _groups(_HELD[x], columns[_HELD[x]])
    if x == ASPECT:
        names, belongs = [f"N = {short(math.exp(plane.means['params']))}"], np.zeros_like(belongs)
    lines = []
    for group, name in enumerate(names):
        mine = {column: values[belongs == group] for column, values in columns.items()}
        shape = _shape_along(x, plane, mine)

        def at(value: float, shape: Callable[[float], tuple[float, float]] = shape) -> Quantity:
            target = most | dict(zip(SHAPE, shape(value), strict=True)) | {"tokens": most.get("tokens", 1.0)}
            if x == "tokens":
                target |= {"tokens": value}
            return loss_at(law, center, target)

        lines.append((name, float(mine[x].min()), float(mine[x].max()), at))
    moved = x == ASPECT or "tokens" in law.columns or len(levels) < len(_distinct(columns[_HELD[x]]))
    return LawLines(names, belongs, lines, moved)


def _shape_along(x: str, plane: Plane, mine: Mapping[str, Array]) -> Callable[[float], tuple[float, float]]:
    """The n_layer and n_embd at a value of x along the line of one group of points."""
    layer, embd = (float(np.exp(np.log(mine[name]).mean())) for name in SHAPE)
    order = np.argsort(mine["params"])
    log_n, log_embd = np.log(mine["params"][order]), np.log(mine["n_embd"][order])

    def over_params(value: float) -> tuple[float, float]:  # beyond the depth's own sizes by the growth of N
        n = math.log(value)
        inside = float(np.clip(n, log_n[0], log_n[-1]))
        return layer, math.exp(float(np.interp(inside, log_n, log_embd)) + (n - inside) / plane.q)

    def over_aspect(value: float) -> tuple[float, float]:  # at the mean log size
        grown = plane.p * plane.means["n_layer"] + plane.q * (plane.means["n_embd"] - math.log(value))
        deep = math.exp(grown / (plane.p + plane.q))
        return deep, value * deep

    return {
        "params": over_params,
        ASPECT: over_aspect,
        "n_embd": lambda value: (layer, value),
        "n_layer": lambda value: (value, embd),
        "tokens": lambda value: (layer, embd),
    }[x]


def at_lines(assessment: Assessment, groups: LawLines, x: str) -> Array:
    """Compute the loss of each point that the law is fitted to, at the value that its line holds fixed, [n]."""
    if not groups.moved:
        return assessment.tuning.points.columns["loss"]
    fit, column = assessment.fit, columns_of(assessment.points)[x]
    at_line = [
        groups.lines[group][3](float(value)).measure(fit.theta[None])[0][0]
        for group, value in zip(groups.belongs, column, strict=True)
    ]
    return np.asarray(np.exp(at_line + fit.residuals()))


def less_excess(assessment: Assessment) -> list[str]:
    """Say that the law is fitted to losses less their tuning excess; nothing where none is known."""
    if assessment.tuning.record is None:
        return []
    low, mean, high = (math.expm1(each) for each in assessment.tuning.ends)
    return [
        f"The law is fitted to losses less their expected tuning excess, {mean:.2%} ({low:.2%} to {high:.2%}): solid."
    ]


def _held(columns: Mapping[str, Array], x: str) -> tuple[str, Array, Callable[[float, float], float]]:
    """Choose what a line holds fixed: the other column, or tokens per parameter if that has fewer values."""
    other = columns[_OTHER[x]]
    ratio = columns["tokens"] / columns["params"]
    if len(_distinct(ratio)) < len(_distinct(other)):
        sign = {"params": 1.0, "tokens": -1.0}[x]
        return "tokens per parameter", ratio, lambda value, level: value * level**sign
    return _OTHER[x], other, lambda value, level: level


def _groups(label: str, values: Array) -> tuple[list[str], NDArray[np.intp], list[float]]:
    """Group near values: the groups' names, the group of each value, and the value of each group."""
    levels = _distinct(values)
    about = ""
    if len(levels) > MOST_LINES:
        inner = (np.arange(_SOME_LINES) + 0.5) / _SOME_LINES
        levels, about = np.exp(np.quantile(np.log(values), inner)), "about "
    belongs = np.abs(np.log(values)[:, None] - np.log(levels)).argmin(1)
    names = [f"{label} {about}{short(level)}" for level in levels]
    return names, belongs, [float(level) for level in levels]


def _distinct(values: Array) -> Array:
    return np.asarray(np.unique([float(f"{value:.3g}") for value in values]))


def ended(bands: Mapping[str, tuple[DataFrame, str]], x: str) -> list[str]:
    """Say which lines end early and where; lines that end at one place get the reason of the first."""
    places: dict[str, list[str]] = {}
    for name, (line, ends) in bands.items():
        if ends:
            last, at = line.iloc[-1], "the points"
            if last["what"] == "beyond":
                reached = float(f"{last['x']:.2g}")
                at = f"{x} {short(reached)}"
            places.setdefault(at, []).append(name)
    texts = []
    for at, names in places.items():
        lines = "No line" if len(names) == len(bands) else f"No line at {listed(names)}"
        texts.append(f"{lines} goes beyond {at}: the loss is not identified there ({bands[names[0]][1]}).")
    return texts


def band(
    assessment: Assessment, at: Callable[[float], Quantity], low: float, high: float, limit: float
) -> tuple[DataFrame, str]:
    """Return the line of a loss, or of another log quantity, from `low` to `high`, the points' range, up to `limit`.

    The columns are what (law, beyond), x, value, low and high: the pointwise profile interval. If the design does not
    identify the loss, the band is from the bootstrap and the line does not leave the points' range. The text says why
    the line stops before `limit`; it is empty if it does not.
    """
    fit = assessment.fit
    lacking = gate(at(high), assessment.points, fit)
    inside, outside = np.array([high]), np.array([])
    if high > low * (1 + 1e-9):
        inside = np.geomspace(low, high, _KNOTS)
    if limit > high and not lacking:
        outside = np.geomspace(high, limit, _MORE_KNOTS + 1)[1:]
    of = {x: at(x) for x in map(float, np.concatenate([inside, outside]))}
    profiled: dict[float, Interval] = {}
    if not lacking:
        intervals = zip(
            of.values(), profiles(fit, [*of.values()], assessment.shared, assessment.noise), strict=True
        )
        widened = (assessment.form_error.widened(fit, *each) for each in intervals)
        profiled = dict(zip(of, widened, strict=True))
    knots = [(x, *_sides(assessment, of[x], profiled.get(x))) for x in map(float, inside)]
    ends = "; ".join(lacking)
    for x in map(float, outside):
        interval = profiled[x]
        verdict = judge(of[x], interval, fit, ())
        if verdict.verdict == NOT_IDENTIFIED:
            ends = verdict.reason
            break
        knots.append((x, interval.value - interval.low, interval.high - interval.value))
    known, below, above = np.array(knots).T
    steps = [np.linspace(start, end, _STEPS + 1) for start, end in pairwise(np.log(known))]
    log_x = np.unique(np.concatenate(steps or [np.log(known)]))
    log_value = np.array([at(math.exp(x)).measure(fit.theta[None])[0][0] for x in log_x])
    below, above = (np.interp(log_x, np.log(known), side) for side in (below, above))
    what = np.where(log_x > math.log(high) + 1e-9, "beyond", "law")
    logs = {"x": log_x, "value": log_value, "low": log_value - below, "high": log_value + above}
    return DataFrame({"what": what} | {name: np.exp(each) for name, each in logs.items()}), ends


def _sides(assessment: Assessment, quantity: Quantity, interval: Interval | None) -> tuple[float, float]:
    """Measure the distances below and above the log value; an unbounded interval is replaced by the bootstrap's."""
    if interval and not interval.open_ends:
        return interval.value - interval.low, interval.high - interval.value
    if assessment.refits is None:
        return 0.0, 0.0
    value = float(quantity.measure(assessment.fit.theta[None])[0][0])
    low, high = assessment.refits.interval(quantity)
    return max(value - low, 0.0), max(high - value, 0.0)
