"""A law over one of its columns: the measured points, the fitted line with its band, and where the line ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, concat

from sweeplab.errors import BadInput
from sweeplab.formatting import listed, short
from sweeplab.hyperparameters import AUTO
from sweeplab.laws.assessment import Assessment
from sweeplab.laws.estimation.forms import Array, Quantity, loss_at, optimum_of
from sweeplab.laws.estimation.intervals import LEVEL, Interval, profiles
from sweeplab.laws.estimation.verdicts import NOT_IDENTIFIED, gate, judge
from sweeplab.report.data import ROLES, ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.fit import Delta, Law, Size, about_fit
from sweeplab.report.style import GREY, SHADE, Axis, Figure, Look, looks

BEYOND = 10.0  # a line is extended beyond the points by at most this factor, while it is identified
MOST_LINES = 7
_SOME_LINES = 4  # if no column has few values
_OTHER = {"params": "tokens", "tokens": "params"}
_OPTIMAL = "compute-optimal"
_KNOTS = 4  # where the band is computed within the points; its width is interpolated in between
_MORE_KNOTS = 3
_STEPS = 8  # points of the line from one knot to the next


class LawPanel(Panel, name="law", heading="Scaling law", source="points"):
    """A law over a column. `data`: what (measured, law, beyond), line, x, loss, low, high, measured loss.

    Each line holds the other column, or the tokens per parameter, fixed; over FLOPs it follows the compute-optimal
    sizes. If no column has few values, a point's `loss` is moved by the law to the value that its line holds fixed, and
    keeps its residual. `low` and `high` are the pointwise band; `lines` are the groups of the points, in order; `edge`
    is the largest x of the points.
    """

    lines: tuple[str, ...]
    edge: float

    @classmethod
    def of(cls, report: ReportData, law: Law = AUTO, delta: Delta = AUTO, x: Size = "params") -> Panel:
        """Draw a law with its band over N, D or C."""
        report.check_differs("params" if x == "params" else "tokens")
        found = report.assessment(law, delta)
        columns = found.points.columns
        if x not in columns:
            raise BadInput(f"the table has no {x}")
        groups = _lines(found, x)
        edge = float(columns[x].max())
        bands = lines_of(report, found, x)
        lines = [
            rows.rename(columns={"x": x, "value": "loss"}).assign(line=name)
            for name, (rows, _) in bands.items()
        ]
        measured = DataFrame(
            {
                "what": "measured",
                "line": [groups.names[at] for at in groups.belongs],
                x: columns[x],
                "loss": _at_lines(found, groups, x) if groups.moved else columns["loss"],
                "measured loss": columns["loss"],
            }
        ).sort_values([x, "loss"])
        notes = [f"Lines: {found.fit.law.formula}. Band: the pointwise {LEVEL:.0%} interval of the loss."]
        if groups.moved:
            notes.append("The law moves each point to the value that its line holds, with its residual.")
        return cls(
            title=f"{found.fit.law.name}: loss against {ROLES[x]}",
            data=concat([measured, *lines], ignore_index=True),
            notes=(*notes, *_ended(bands, x)),
            method=about_fit(found),
            x=Axis(x, ROLES[x], True),
            y=Axis("loss", ROLES["loss"], True),
            lines=tuple(groups.names),
            edge=edge,
        )

    def _draw(self, figure: Figure) -> None:
        data, x = self.data, self.x.column
        own = [name for name in dict.fromkeys(data["line"]) if name not in self.lines]
        for look in [*looks(self.lines), *(Look(name, GREY) for name in own)]:
            rows, group = data[data["line"] == look.name], {"legendgroup": look.name}
            line, points = rows[rows["what"] != "measured"], rows[rows["what"] == "measured"]
            if len(line):
                look.band(figure, line, x)
            hover = f"{look.name}<br>{x} %{{x:.4s}}: %{{y:.4f}}"
            for what, dash in (("law", "solid"), ("beyond", "4px 4px")):
                part = line[line["what"] == what]
                if what == "beyond" and len(part):  # starts at the last point
                    part = line.loc[[part.index[0] - 1, *part.index]]
                if len(part) > 1:
                    ends = f"{hover} (%{{low:.4f}} to %{{high:.4f}})"
                    is_named = what == "law" and look.name in own
                    named = {**group, "showlegend": is_named, "line": {"dash": dash}}
                    look.line(figure, part, x, "loss", ends, **named)
            if len(points):
                size = {"size": 8 if len(data) < 600 else 5}
                look.points(figure, points, x, "loss", hover, marker=size, **group)
        settings = self.x.around(data[x])
        if (data["what"] == "beyond").any():
            high = settings["range"][1]
            figure.add_vrect(x0=self.edge, x1=10**high, fillcolor=SHADE, line_width=0, layer="below")
            at = {"x": high, "xanchor": "right", "y": 1, "yref": "paper", "yanchor": "top"}
            figure.add_annotation(text="beyond the points", font={"size": 12}, showarrow=False, **at)
        figure.update_layout(xaxis=settings, yaxis=self.y.around(data[["loss", "low", "high"]]), height=470)
        figure.update_layout(showlegend=len(self.lines) + len(own) > 1)


def lines_of(report: ReportData, found: Assessment, x: str) -> dict[str, tuple[DataFrame, str]]:
    """Return a law's lines over a column by their names, each as `band` returns it."""

    def work() -> dict[str, tuple[DataFrame, str]]:
        limit = BEYOND * float(found.points.columns[x].max())
        return {name: band(found, at, low, high, limit) for name, low, high, at in _lines(found, x).lines}

    return report.once(("lines", found.fit.law.name, found.delta, x), work)


class _Lines(NamedTuple):
    """The points' groups by name, the group of each point, and the lines: name, lowest and highest x, the loss.

    `moved` says that points have to be moved to the value that their line holds fixed.
    """

    names: Sequence[str]
    belongs: NDArray[np.intp]
    lines: Sequence[tuple[str, float, float, Callable[[float], Quantity]]]
    moved: bool = False


def _lines(found: Assessment, x: str) -> _Lines:
    """Return how the points and the lines of a law are grouped over one column."""
    columns, law, center = found.points.columns, found.fit.law, found.fit.center
    ends = (float(columns[x].min()), float(columns[x].max()))
    if x == "flops" and {"params", "tokens"} <= set(law.columns):
        per_param_token = found.points.flops_per_param_token
        names, belongs, _ = _groups("params", columns["params"])
        line = (_OPTIMAL, *ends, lambda at: optimum_of(law, center, at, per_param_token)[-1])
        return _Lines(names, belongs, [line])
    if x not in law.columns:
        raise BadInput(f"{law.name} does not use {x}")
    if law.columns == (x,):
        line = (law.name, *ends, lambda at: loss_at(law, center, {x: at}))
        return _Lines(["measured"], np.zeros(found.points.n, np.intp), [line])
    label, values, other_at = _held(columns, x)
    names, belongs, levels = _groups(label, values)
    lines = []
    for group, (name, level) in enumerate(zip(names, levels, strict=True)):
        own = columns[x][belongs == group]

        def at(value: float, level: float = level) -> Quantity:
            return loss_at(law, center, {x: value, _OTHER[x]: other_at(value, level)})

        lines.append((name, float(own.min()), float(own.max()), at))
    return _Lines(names, belongs, lines, moved=len(levels) < len(_distinct(values)))


def _at_lines(found: Assessment, groups: _Lines, x: str) -> Array:
    """Return the loss of each point at the value that its line holds fixed, [n]."""
    fit, column = found.fit, found.points.columns[x]
    at_line = [
        groups.lines[group][3](float(value)).measure(fit.theta[None])[0][0]
        for group, value in zip(groups.belongs, column, strict=True)
    ]
    return np.asarray(np.exp(at_line + fit.residuals()))


def _held(columns: Mapping[str, Array], x: str) -> tuple[str, Array, Callable[[float, float], float]]:
    """Return what a line holds fixed: the other column, or tokens per parameter if that has fewer values."""
    other = columns[_OTHER[x]]
    ratio = columns["tokens"] / columns["params"]
    if len(_distinct(ratio)) < len(_distinct(other)):
        sign = 1.0 if x == "params" else -1.0
        return "tokens per parameter", ratio, lambda value, level: value * level**sign
    return _OTHER[x], other, lambda value, level: level


def _groups(label: str, values: Array) -> tuple[list[str], NDArray[np.intp], list[float]]:
    """Return groups of near values: their names, the group of each value, and the value of each group."""
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


def _ended(bands: Mapping[str, tuple[DataFrame, str]], x: str) -> list[str]:
    """Say which lines end early and where; lines that end at one place get the reason of the first."""
    places: dict[str, list[str]] = {}
    for name, (line, ends) in bands.items():
        if ends:
            last = line.iloc[-1]
            reached = float(f"{last['x']:.2g}")
            at = f"{x} {short(reached)}" if last["what"] == "beyond" else "the points"
            places.setdefault(f"beyond {at}", []).append(name)
    return [
        f"{'No line' if len(names) == len(bands) else f'No line at {listed(names)}'} goes {far}: "
        f"the loss is not identified there ({bands[names[0]][1]})."
        for far, names in places.items()
    ]


def band(
    found: Assessment, at: Callable[[float], Quantity], low: float, high: float, limit: float
) -> tuple[DataFrame, str]:
    """Return the line of a loss, or of another log quantity, from `low` to `high`, the points' range, up to `limit`.

    The columns are what (law, beyond), x, value, low and high: the pointwise profile interval. If the design does not
    identify the loss, the band is from the bootstrap and the line does not leave the points' range. The text says why
    the line stops before `limit`; it is empty if it does not.
    """
    fit = found.fit
    lacking = gate(at(high), found.points, fit)
    inside = np.geomspace(low, high, _KNOTS) if high > low * (1 + 1e-9) else np.array([high])
    outside = np.geomspace(high, limit, _MORE_KNOTS + 1)[1:] if limit > high and not lacking else np.array([])
    of = {x: at(x) for x in map(float, np.concatenate([inside, outside]))}
    profiled: dict[float, Interval] = {}
    if not lacking:
        intervals = zip(of.values(), profiles(fit, [*of.values()], found.shared, found.noise), strict=True)
        widened = (found.form_error.widened(fit, *each) for each in intervals)
        profiled = dict(zip(of, widened, strict=True))
    knots = [(x, *_sides(found, of[x], profiled.get(x))) for x in map(float, inside)]
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


def _sides(found: Assessment, quantity: Quantity, interval: Interval | None) -> tuple[float, float]:
    """Return the distances below and above the log value; an unbounded interval is replaced by the bootstrap's."""
    if interval and not interval.open_ends:
        return interval.value - interval.low, interval.high - interval.value
    if found.refits is None:
        return 0.0, 0.0
    value = float(quantity.measure(found.fit.theta[None])[0][0])
    low, high = found.refits.interval(quantity)
    return max(value - low, 0.0), max(high - value, 0.0)
