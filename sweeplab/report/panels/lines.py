"""The lines of a law over a column, with their bands, and the points moved to what a line holds fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from sweeplab.errors import BadInput
from sweeplab.formatting import listed, short
from sweeplab.laws.assessment import Assessment, Estimate
from sweeplab.laws.core import Array
from sweeplab.laws.forms import Quantity, has_optimum, loss_at, optimum_of
from sweeplab.report.data import ReportData

BEYOND = 10.0  # a line is extended beyond the points by at most this factor, while it is identified
MOST_LINES = 7
_SOME_LINES = 4  # if no column has few values
_OTHER = {"params": "tokens", "tokens": "params"}
_OPTIMAL = "compute-optimal"
_INSIDE, _OUTSIDE = 25, 12  # points of a line within the points and beyond


def lines_of(report: ReportData, assessment: Assessment, x: str) -> dict[str, tuple[DataFrame, str]]:
    """Return a law's lines over a column by their names, each as `band` returns it."""

    def work() -> dict[str, tuple[DataFrame, str]]:
        limit = BEYOND * float(assessment.points.columns[x].max())
        return {
            name: band(assessment, at, low, high, limit)
            for name, low, high, at in lines_by(assessment, x).lines
        }

    return report.once(("lines", assessment.law.name, x), work)


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
    columns, law = assessment.points.columns, assessment.law
    ends = (float(columns[x].min()), float(columns[x].max()))
    if x == "flops" and has_optimum(law):
        per_param_token = assessment.points.flops_per_param_token
        names, belongs, _ = _groups("params", columns["params"])
        line = (_OPTIMAL, *ends, lambda at: optimum_of(law, at, per_param_token)[-1])
        return LawLines(names, belongs, [line])
    if x not in law.columns:
        raise BadInput(f"{law.name} does not use {x}")
    if law.columns == (x,):
        line = (law.name, *ends, lambda at: loss_at(law, {x: at}))
        named = "less the tuning excess" if assessment.tuning.record else "measured"
        return LawLines([named], np.zeros(assessment.points.n, np.intp), [line])
    label, values, other_at = _held(columns, x)
    names, belongs, levels = _groups(label, values)
    lines = []
    for group, (name, level) in enumerate(zip(names, levels, strict=True)):
        within = columns[x][belongs == group]

        def at(value: float, level: float = level) -> Quantity:
            return loss_at(law, {x: value, _OTHER[x]: other_at(value, level)})

        lines.append((name, float(within.min()), float(within.max()), at))
    return LawLines(names, belongs, lines, moved=len(levels) < len(_distinct(values)))


def at_lines(assessment: Assessment, groups: LawLines, x: str) -> Array:
    """Compute the loss of each point that the law is fitted to, at the value that its line holds fixed, [n]."""
    if not groups.moved:
        return assessment.tuning.points.columns["loss"]
    fit, column = assessment.fit, assessment.points.columns[x]
    at_line = [
        float(np.median(groups.lines[group][3](float(value)).measure(fit.values)))
        for group, value in zip(groups.belongs, column, strict=True)
    ]
    return np.asarray(np.exp(at_line + fit.residuals))


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

    The columns are what (law, beyond), x, value, low and high: the pointwise 90% interval. The line does not leave the
    points' range where the loss is not identified. The text says why it stops before `limit`; it is empty if
    it does not.
    """
    inside, outside = np.array([high]), np.array([])
    if high > low * (1 + 1e-9):
        inside = np.geomspace(low, high, _INSIDE)
    if limit > high:
        outside = np.geomspace(high, limit, _OUTSIDE + 1)[1:]
    rows, ends = list[dict[str, Any]](), ""
    for x in map(float, np.concatenate([inside, outside])):
        there = assessment.estimate(at(x))
        is_beyond = x > high * (1 + 1e-9)
        if is_beyond and not there.verdict.identified:
            ends = there.verdict.reason
            break
        rows.append({"what": "beyond" if is_beyond else "law", "x": x} | _shown(there))
    return DataFrame(rows), ends


def _shown(estimate: Estimate) -> dict[str, float]:
    value, low, high = (estimate.quantity.shown(end) for end in (estimate.value, estimate.low, estimate.high))
    return {"value": value, "low": low, "high": high}
