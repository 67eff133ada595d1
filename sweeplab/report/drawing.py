"""Panels drawn with Plotly; ink, grid and ground are left to the page's style, so that it can be dark.

Colours run in order of size from indigo over magenta to orange: apart for the colour-blind along blue-yellow,
and each at least 3:1 against white and against near-black. Shape of the marker says the same once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pandas import DataFrame

from sweeplab.report.panels import Axis, CurvesPanel, HeatMapPanel, LossPanel, Panel

if TYPE_CHECKING:
    import plotly.graph_objects as go

ORDERED = ((72, 92, 214), (190, 70, 160), (222, 110, 30))
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "hexagon")
GREY = "rgb(128,128,128)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# Above so many points a curve is drawn by WebGL, which stays quick but prints as pixels.
MANY = 20_000
_LEGENDS = {
    "full": {"x": 1.01, "y": 1, "font": {"size": 12}},
    "half": {"x": 0, "y": 1.02, "yanchor": "bottom", "orientation": "h", "font": {"size": 12}},
}


def draw(panel: Panel) -> go.Figure:
    """Draw a panel that has data.

    Raises:
        KeyError: it is of a kind that is not drawn, such as a table.
    """
    figure = _DRAWN[type(panel)](panel)
    figure.update_layout(
        font={"family": FONT, "size": 13},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 64, "r": 16, "t": 12, "b": 52},
        height=_height(panel),
        hoverlabel={"font": {"family": FONT, "size": 12}},
        legend=_LEGENDS[panel.width],
    )
    return figure


def colours(n: int) -> list[str]:
    """Return `n` colours in order, evenly spread from the scale's one end to the other."""
    if n == 1:
        return [_rgb(ORDERED[0])]
    result = []
    for index in range(n):
        place = index / (n - 1) * (len(ORDERED) - 1)
        low = min(int(place), len(ORDERED) - 2)
        share = place - low
        pairs = zip(ORDERED[low], ORDERED[low + 1], strict=True)
        result.append(_rgb(tuple(round(a + share * (b - a)) for a, b in pairs)))
    return result


def short(number: float) -> str:
    """Write a number for an axis: 812k, 1.4M, 2e-05."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(number) < 1e15:
            return f"{number / size:.3g}{letter}"
    return f"{number:.4g}"


def _draw_loss(panel: LossPanel) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    lines = list(dict.fromkeys(panel.data["line"]))
    # Many trials fade, so that the best ones stay in front of them.
    crowd = max(0.3, min(1.0, (200 / len(panel.data)) ** 0.5))
    for name, colour, symbol in zip(lines, colours(len(lines)), _symbols(), strict=False):
        rows = panel.data[panel.data["line"] == name]
        for pruned, mark, opacity in ((False, symbol, 0.4 * crowd), (True, f"{symbol}-open", 0.65 * crowd)):
            faint = rows[~rows["best"] & ((rows["state"] == "pruned") == pruned)]
            if faint.empty:
                continue
            figure.add_scatter(
                x=faint["x"], y=faint["loss"], mode="markers", legendgroup=name, showlegend=False,
                marker={"color": colour, "symbol": mark, "size": 7, "opacity": opacity},
                customdata=faint[["cell", "trial", "state"]], hovertemplate=_hover(panel),
            )  # fmt: skip
        best = rows[rows["best"]]
        spread = (best["loss_high"] - best["loss"], best["loss"] - best["loss_low"])
        figure.add_scatter(
            x=best["x"], y=best["loss"], mode="lines+markers", legendgroup=name, name=name,
            line={"color": colour, "width": 2}, marker={"color": colour, "symbol": symbol, "size": 9},
            error_y={
                "type": "data", "symmetric": False, "array": spread[0], "arrayminus": spread[1],
                "visible": bool((best["seeds"] > 1).any()), "thickness": 1.2, "width": 4,
            },
            customdata=best[["cell", "trial", "state"]], hovertemplate=_hover(panel),
        )  # fmt: skip
    losses = panel.data[["loss", "loss_low", "loss_high"]]
    low, high = panel.view or _padded(losses.min().min(), losses.max().max(), panel.y.log)
    figure.update_yaxes(**_axis(panel.y, low, high))
    figure.update_xaxes(**_axis(panel.x, *_padded(panel.data["x"].min(), panel.data["x"].max(), panel.x.log)))
    figure.update_layout(showlegend=len(lines) > 1)
    return figure


def _draw_heat_map(panel: HeatMapPanel) -> go.Figure:
    import plotly.graph_objects as go

    # Fields too small for their number are read by a scale of colours.
    crowded = len(panel.data) > 80
    table = panel.data.pivot_table(index=panel.y.column, columns=panel.x.column, values="loss", aggfunc="min")
    figure = go.Figure(
        go.Heatmap(
            z=table.to_numpy(), x=[f"{x:g}" for x in table.columns], y=[f"{y:g}" for y in table.index],
            colorscale="Cividis", xgap=3, ygap=3, showscale=crowded,
            texttemplate="" if crowded else "%{z:.3f}", textfont={"size": 13},
            colorbar={"thickness": 12, "outlinewidth": 0},
            hovertemplate=f"{panel.y.column} %{{y}}<br>{panel.x.column} %{{x}}<br>%{{z:.4f}}<extra></extra>",
            hoverongaps=False,
        )
    )  # fmt: skip
    for update, axis in ((figure.update_xaxes, panel.x), (figure.update_yaxes, panel.y)):
        update(type="category", title={"text": axis.title}, showgrid=False, zeroline=False)
    return figure


def _draw_curves(panel: CurvesPanel) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    kind = go.Scattergl if len(panel.data) > MANY else go.Scatter
    x, y = _joined(panel.data)
    figure.add_trace(
        kind(
            x=x, y=y, mode="lines", name="every run", hoverinfo="skip",
            line={"color": GREY, "width": 1}, opacity=0.45,
        )
    )  # fmt: skip
    cells = list(dict.fromkeys(panel.best["cell"]))
    mode = "lines+markers" if len(panel.best) <= 40 * len(cells) else "lines"
    for cell, colour, symbol in zip(cells, colours(len(cells)), _symbols(), strict=False):
        rows = panel.best[panel.best["cell"] == cell]
        trial = rows["trial"].iloc[0]
        figure.add_trace(
            kind(
                x=rows["x"], y=rows["value"], mode=mode, name=str(cell).replace(",", ", "),
                line={"color": colour, "width": 2}, marker={"color": colour, "symbol": symbol, "size": 5},
                hovertemplate=f"{cell}, trial {trial}<br>%{{x:.4s}}: %{{y:.4f}}<extra></extra>",
            )
        )  # fmt: skip
    low, high = panel.data["value"].min(), panel.data["value"].max()
    figure.update_yaxes(**_axis(panel.y, *_padded(low, high, panel.y.log)))
    figure.update_xaxes(**_axis(panel.x, *_padded(panel.data["x"].min(), panel.data["x"].max(), panel.x.log)))
    return figure


_DRAWN: dict[type[Panel], Callable[[Any], go.Figure]] = {
    LossPanel: _draw_loss,
    HeatMapPanel: _draw_heat_map,
    CurvesPanel: _draw_curves,
}


def _height(panel: Panel) -> int:
    """Return the figure's height in pixels: rows of a heat map stay low."""
    most = 380 if panel.width == "half" else 440
    return min(most, 110 + 64 * len(panel.y.marks)) if isinstance(panel, HeatMapPanel) else most


def _axis(axis: Axis, low: float, high: float) -> dict[str, object]:
    """Return Plotly's settings of an axis that shows `low` to `high`."""
    ticks = [tick for tick in axis.marks or _ticks(low, high, axis.log) if low <= tick <= high]
    return {
        "type": "log" if axis.log else "linear",
        "range": [math.log10(low), math.log10(high)] if axis.log else [low, high],
        "title": {"text": axis.title},
        "tickvals": ticks,
        "ticktext": [short(tick) for tick in ticks],
        "zeroline": False,
    }


def _padded(low: float, high: float, log: bool) -> tuple[float, float]:
    if log:
        room = (high / low) ** 0.05 if high > low else 1.1
        return low / room, high * room
    room = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return low - room, high + room


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Return four to nine round values from `low` to `high`; on a log axis of decades 1, 2 and 5 of each."""
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1,), (1, 3), (1, 2, 5)):
            values = [digit * 10.0**decade for decade in decades for digit in digits]
            inside = [value for value in values if low <= value <= high]
            if len(inside) >= 4:
                return inside
    power = 10.0 ** math.floor(math.log10((high - low) / 8))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= (high - low) / 8)
    return [round(index * step, 12) for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _joined(data: DataFrame) -> tuple[list[float | None], list[float | None]]:
    """Return the runs' curves as one, with a gap after each."""
    x: list[float | None] = []
    y: list[float | None] = []
    for _, rows in data.groupby(["cell", "trial", "seed"], sort=False):
        x += [*rows["x"], None]
        y += [*rows["value"], None]
    return x, y


def _hover(panel: LossPanel) -> str:
    return (
        f"%{{customdata[0]}}<br>trial %{{customdata[1]}}, %{{customdata[2]}}<br>"
        f"{panel.x.column} %{{x}}<br>loss %{{y:.4f}}<extra></extra>"
    )


def _symbols() -> Iterator[str]:
    while True:
        yield from SYMBOLS


def _rgb(colour: Sequence[int]) -> str:
    return f"rgb({','.join(str(part) for part in colour)})"
