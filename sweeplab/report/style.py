"""The style of every figure: colors, axes with round numbers, and common marks.

Text, grid and background colors are left to the page's style, so that a figure can be dark.
Colors run in order of size from indigo over magenta to orange: color-blind readers tell them apart along blue-yellow,
and each has a contrast of at least 3:1 against white and near-black. The marker's shape repeats the information.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np
from pandas import DataFrame, Series

from sweeplab.formatting import short

# Plotly's, which has no types, and is imported when the first figure is made.
Figure: TypeAlias = Any
ORDERED = ((72, 92, 214), (190, 70, 160), (222, 110, 30))
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "cross",
    "star",
    "hexagon",
)
DASHES = ("solid", "8px 4px", "2px 3px", "10px 3px 2px 3px")
GREY = "rgb(128,128,128)"
FRONT = "rgb(214,48,49)"
FAINT = "rgba(128,128,128,0.45)"
SHADE = "rgba(128,128,128,0.13)"
_FEW_COLORS = 5  # more are told apart by their dashes too
_FEW_DECADES, _MANY_DECADES = 0.7, 4.0
_LARGE = 1e4  # from here on ticks are 20k, 3M …
MOST_LINES = 8  # in a legend; if there are more, it names only the best
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def colors(n: int) -> list[str]:
    """Return `n` colors in order, evenly spread from the scale's one end to the other."""
    places = np.linspace(0, len(ORDERED) - 1, n)
    channels = [
        np.interp(places, range(len(ORDERED)), each) for each in zip(*ORDERED, strict=True)
    ]
    return [
        f"rgb({','.join(f'{part:.0f}' for part in color)})"
        for color in zip(*channels, strict=True)
    ]


GOOD, MIDDLE, BAD = colors(3)


@dataclass(frozen=True)
class Look:
    """The name, color, marker and dash of one line or group of points."""

    name: str
    color: str
    symbol: str = "circle"
    dash: str = "solid"

    def points(
        self, figure: Figure, rows: DataFrame, x: Any, y: Any, hover: str = "", **settings: Any
    ) -> None:
        """Draw a marker for each row.

        `x` and `y` are columns, or the values themselves; `hover` is as `hovering` takes it.
        """
        marker = {
            "color": self.color,
            "symbol": self.symbol,
            "size": 7,
            **settings.pop("marker", {}),
        }
        self._add(figure, rows, x, y, hover, mode="markers", marker=marker, **settings)

    def line(
        self, figure: Figure, rows: DataFrame, x: Any, y: Any, hover: str = "", **settings: Any
    ) -> None:
        """Draw a line through the rows, with arguments like `points`; markers are drawn if `size` is given."""
        size, mode = settings.pop("size", 0), "lines"
        if size:
            mode = "lines+markers"
            settings["marker"] = {"color": self.color, "symbol": self.symbol, "size": size}
        line = {"color": self.color, "width": 2, "dash": self.dash, **settings.pop("line", {})}
        self._add(figure, rows, x, y, hover, mode=mode, line=line, **settings)

    def band(self, figure: Figure, rows: DataFrame, x: str, **settings: Any) -> None:
        """Shade the band between the columns low and high; it belongs to the look's legend entry."""
        around = DataFrame(
            {"x": [*rows[x], *rows[x][::-1]], "y": [*rows["high"], *rows["low"][::-1]]}
        )
        faded = self.color.replace("rgb(", "rgba(").replace(")", ",0.16)")
        shade: dict[str, Any] = {"fill": "toself", "fillcolor": faded, "line": {"width": 0}}
        self.line(
            figure,
            around,
            "x",
            "y",
            legendgroup=self.name,
            showlegend=False,
            **shade,
            **settings,
        )

    def _add(
        self, figure: Figure, rows: DataFrame, x: Any, y: Any, hover: str, **settings: Any
    ) -> None:
        x, y = (rows[at] if isinstance(at, str) else at for at in (x, y))
        if {"cell", "trial"} <= set(rows):  # so that the page can show and open the trial
            studies = rows.get("study", [""] * len(rows))
            trials = list(zip(studies, rows["cell"], rows["trial"], strict=True))
            settings["meta"] = {**settings.get("meta", {}), "trials": trials}
        add = getattr(figure, f"add_{settings.pop('type', 'scatter')}")
        add(x=x, y=y, **{"name": self.name} | hovering(hover, rows) | settings)


def hovering(hover: str, rows: DataFrame) -> dict[str, Any]:
    """Return Plotly's settings of a hover text, which names x, y, z and columns: %{x}, %{loss:.4f}; none if empty."""
    if not hover:
        return {"hoverinfo": "skip"}
    named = dict.fromkeys(re.findall(r"%\{(\w+)", hover))
    columns = [name for name in named if name in rows and name not in "xyz"]
    for at, name in enumerate(columns):
        hover = re.sub(rf"%\{{{name}\b", f"%{{customdata[{at}]", hover)
    settings: dict[str, Any] = {"hovertemplate": f"{hover}<extra></extra>"}
    if columns:
        settings["customdata"] = rows[columns]
    return settings


def looks(names: Sequence[object]) -> list[Look]:
    """Return a look for each name: the colors in order, the symbols over and over, and dashes where colors are near."""
    dashes = DASHES if len(names) > _FEW_COLORS else DASHES[:1]
    alike = zip(
        map(str, names), colors(len(names)), cycle(SYMBOLS), cycle(dashes), strict=False
    )
    return [Look(*each) for each in alike]


def by_look(
    data: DataFrame, column: str, known: Mapping[str, Look] | None = None
) -> Iterator[tuple[Look, DataFrame]]:
    """Yield the rows of each value of a column with its look; those that are `known` come in that order."""
    known = known or {}
    names = list(dict.fromkeys(map(str, data[column])))
    if set(names) <= known.keys():
        names = [name for name in known if name in names]
    for look in looks(names):
        yield known.get(look.name, look), data[data[column].astype(str) == look.name]


@dataclass(frozen=True)
class Axis:
    """One axis: the column it shows, its title with the unit, and the values to mark if there are few."""

    column: str
    title: str
    log: bool = False
    marks: tuple[float, ...] = ()

    def over(self, low: float, high: float) -> dict[str, Any]:
        """Return Plotly's settings of an axis that shows `low` to `high`."""
        settings: dict[str, Any] = {
            "type": "linear",
            "range": [low, high],
            "title": {"text": self.title},
            "tickformat": "~s" if high >= _LARGE else "~g",
            "zeroline": False,
        }
        if self.log:
            ends = [math.log10(low), math.log10(high)]
            settings |= {"type": "log", "range": ends}
            if _FEW_DECADES < ends[1] - ends[0] < _MANY_DECADES:
                settings["dtick"] = "D2"  # 1, 2 and 5 of each decade
        if self.marks:
            settings |= {
                "tickvals": self.marks,
                "ticktext": [short(mark) for mark in self.marks],
            }
        return settings

    def around(self, values: DataFrame | Series, *others: float) -> dict[str, Any]:
        """Return Plotly's settings of an axis that shows all values, with some room on both sides."""
        known = np.append(values.to_numpy(float), others)
        return self.over(*padded(float(np.nanmin(known)), float(np.nanmax(known)), self.log))


def padded(low: float, high: float, log: bool) -> tuple[float, float]:
    """Return a range with some room on both sides."""
    if log:
        room = (high / low) ** 0.05 if high > low else 1.1
        return low / room, high * room
    room = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return low - room, high + room


def main_range(kept: Series, values: Series, room: float = 0.0) -> tuple[float, float] | None:
    """Return the range that shows all values up to those `kept`, with a `room` of their range above; None if it is all.

    A few values far above the others would press these together.
    """
    if kept.empty:
        return None
    low, high = float(kept.min()), float(kept.max())
    top = high + room * ((high - low) or 0.1 * abs(high))
    if values.max() <= top:
        return None
    return padded(float(values.min()), top, False)


def bars(
    rows: DataFrame, value: str, low: str = "low", high: str = "high", **more: Any
) -> dict[str, Any]:
    """Return Plotly's settings of error bars from one column to another."""
    ends = {"array": rows[high] - rows[value], "arrayminus": rows[value] - rows[low]}
    return {"type": "data", "symmetric": False, **ends, "thickness": 1.5, "width": 4, **more}


def marked(text: str) -> dict[str, Any]:
    """Return Plotly's settings of a dashed line across a figure with a text at its end."""
    line, label = (
        {"color": GREY, "width": 1.5, "dash": "dash"},
        {"text": text, "font": {"size": 11}},
    )
    return {"line": line, "annotation": label, "annotation_position": "top right"}


def name_rows(figure: Figure, names: Sequence[str]) -> None:
    """Name the rows of a figure from top to bottom."""
    marks = {"tickvals": list(range(len(names))), "ticktext": list(names), "automargin": True}
    figure.update_yaxes(**marks, range=[len(names) - 0.5, -0.5], showgrid=False, zeroline=False)


def spaced(name: object) -> str:
    """Return a cell's name with a space after each comma, so that lines can wrap there."""
    return str(name).replace(",", ", ")
