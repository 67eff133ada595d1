"""A law over one of its columns: the points, the law through them with its band, and where it ends.

A line belongs to one value of what is held: tokens where the law is drawn over parameters, the best use of the
compute where it is drawn over FLOPs. It goes on beyond the points only as far as its loss is identified there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, concat

from sweeplab.analysis.fit.assessment import Assessment
from sweeplab.analysis.fit.forms import Array, Quantity, loss_at, optimum_of
from sweeplab.analysis.fit.intervals import LEVEL
from sweeplab.errors import BadInput
from sweeplab.report.columns import ROLES
from sweeplab.report.panels.bands import Band, band
from sweeplab.report.panels.base import Axis, Panel, PanelSpec
from sweeplab.report.panels.material import Material
from sweeplab.report.panels.method import about_fit
from sweeplab.report.words import listed, short

BEYOND = 10.0  # how far a line goes on beyond the points, as a factor, while it is identified
MOST_LINES = 7
_SOME_LINES = 4  # of a table in which nothing is held
_OTHER = {"params": "tokens", "tokens": "params"}
_BEST_USE = "best use of compute"


@dataclass(frozen=True, kw_only=True)
class LawPanel(Panel):
    """A law over a column. `data`: what (measured, law, beyond), line, x, loss, low, high, measured loss.

    Where no column has few values, a point's `loss` is brought to what its line holds, with its residual kept.
    `low` and `high` are the band at each x by itself; `lines` are the groups of the points, in order; `edge` is
    the largest x of the points.
    """

    x: Axis
    y: Axis
    lines: tuple[str, ...]
    edge: float


@dataclass(frozen=True)
class _Lines:
    """The points' groups by name, the group of each point, and the lines: name, lowest and highest x, the loss.

    `moved` says that points have to be brought to their line.
    """

    names: Sequence[str]
    belongs: NDArray[np.intp]
    lines: Sequence[tuple[str, float, float, Callable[[float], Quantity]]]
    moved: bool = False


def law_panel(spec: PanelSpec, material: Material) -> Panel:
    """Draw a law with its band over N, D or C.

    Raises:
        BadInput: there is no such law for the points, or it does not read the column.
    """
    found = material.assessment(spec.law, spec.delta)
    columns, x = found.points.columns, spec.x or "params"
    if x not in columns:
        raise BadInput(f"the table has no {x}")
    apart = _lines(found, x)
    edge = float(columns[x].max())
    bands = [(name, band(found, at, low, high, BEYOND * edge)) for name, low, high, at in apart.lines]
    measured = DataFrame(
        {
            "what": "measured",
            "line": [apart.names[at] for at in apart.belongs],
            x: columns[x],
            "loss": _at_lines(found, apart, x) if apart.moved else columns["loss"],
            "measured loss": columns["loss"],
        }
    )
    measured = measured.sort_values([x, "loss"])
    return LawPanel(
        title=spec.title or f"{found.fit.law.name}: loss against {ROLES[x]}",
        width=spec.width,
        data=concat([measured, *(_rows(name, each, x) for name, each in bands)], ignore_index=True),
        notes=(
            f"Lines: {found.fit.law.formula}. Band: the {LEVEL:.0%} interval of its loss at each place by itself.",
            *(
                ("Points are brought to what their line holds by the law, each with its residual.",)
                if apart.moved
                else ()
            ),
            *_ended(bands, x),
        ),
        method=about_fit(found),
        x=Axis(x, ROLES[x], True),
        y=Axis("loss", ROLES["loss"], True),
        lines=tuple(apart.names),
        edge=edge,
    )


def _lines(found: Assessment, x: str) -> _Lines:
    """Return how the points and the lines of a law are told apart over one column."""
    columns, law, center = found.points.columns, found.fit.law, found.fit.center
    ends = (float(columns[x].min()), float(columns[x].max()))
    if x == "flops" and {"params", "tokens"} <= set(law.columns):
        per_param_token = found.points.flops_per_param_token
        names, belongs, _ = _groups("params", columns["params"])
        line = (_BEST_USE, *ends, lambda at: optimum_of(law, center, at, per_param_token)[-1])
        return _Lines(names, belongs, [line])
    if x not in law.columns:
        raise BadInput(f"{law.name} does not read {x}")
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


def _at_lines(found: Assessment, apart: _Lines, x: str) -> Array:
    """Return the loss of each point as if it held what its line holds, [n]."""
    fit, column = found.fit, found.points.columns[x]
    at_line = [
        apart.lines[group][3](float(value)).measure(fit.theta[None])[0][0]
        for group, value in zip(apart.belongs, column, strict=True)
    ]
    return np.asarray(np.exp(at_line + fit.residuals()))


def _held(columns: Mapping[str, Array], x: str) -> tuple[str, Array, Callable[[float, float], float]]:
    """Return what a line holds: the other column, or tokens a parameter where these have fewer values."""
    other = columns[_OTHER[x]]
    ratio = columns["tokens"] / columns["params"]
    if len(_distinct(ratio)) < len(_distinct(other)):
        sign = 1.0 if x == "params" else -1.0
        return "tokens a parameter", ratio, lambda value, level: value * level**sign
    return _OTHER[x], other, lambda value, level: level


def _groups(label: str, values: Array) -> tuple[list[str], NDArray[np.intp], list[float]]:
    """Return groups of near values: their names, the group of each value, and the value that stands for each."""
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


def _rows(name: str, line: Band, x: str) -> DataFrame:
    return DataFrame(
        {
            "what": np.where(line.beyond, "beyond", "law"),
            "line": name,
            x: line.x,
            "loss": line.value,
            "low": line.low,
            "high": line.high,
        }
    )


def _ended(bands: Sequence[tuple[str, Band]], x: str) -> list[str]:
    """Say which lines end early, and where; of lines that end at one place the first one's reason is told."""
    places: dict[str, list[tuple[str, str]]] = {}
    for name, line in bands:
        if line.ends:
            far = (
                f"beyond {x} {short(float(f'{line.x[-1]:.2g}'))}"
                if line.beyond.any()
                else "beyond the points"
            )
            places.setdefault(far, []).append((name, line.ends))
    return [
        f"No line goes {far}{'' if len(ended) == len(bands) else f' at {listed([name for name, _ in ended])}'}: "
        f"there the loss is not identified ({ended[0][1]})."
        for far, ended in places.items()
    ]
