"""Figures of a law: lines with bands, and what they leave over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.report.drawing.style import GREY, axis_of, colors, faded, padded, symbols, ticks_of
from sweeplab.report.panels.laws import LawPanel
from sweeplab.report.panels.misfit import BacktestPanel
from sweeplab.report.panels.residuals import ResidualsPanel
from sweeplab.report.words import short

if TYPE_CHECKING:
    import plotly.graph_objects as go

_FEW_TICKS = 3  # of a figure a third as wide
_SHADE = "rgba(128,128,128,0.13)"


def draw_law(panel: LawPanel) -> go.Figure:
    """Draw points, lines and bands; a line is dashed beyond the points, and what lies there is shaded."""
    import plotly.graph_objects as go

    figure, data, x = go.Figure(), panel.data, panel.x.column
    looks = dict(zip(panel.lines, zip(colors(len(panel.lines)), symbols(), strict=False), strict=False))
    own = [name for name in dict.fromkeys(data["line"]) if name not in looks]
    for name, (color, symbol) in (looks | dict.fromkeys(own, (GREY, "circle"))).items():
        rows = data[data["line"] == name]
        line = rows[rows["what"] != "measured"]
        if len(line):
            figure.add_scatter(
                x=[*line[x], *line[x][::-1]], y=[*line["high"], *line["low"][::-1]], fill="toself",
                fillcolor=faded(color, 0.16), line={"width": 0}, mode="lines", hoverinfo="skip",
                legendgroup=name, showlegend=False,
            )  # fmt: skip
        for beyond, dash in ((False, "solid"), (True, "4px 4px")):
            part = line[line["what"].eq("beyond") if beyond else line["what"].eq("law")]
            if beyond and len(part):  # from the last point on
                part = line.loc[[part.index[0] - 1, *part.index]]
            if len(part) > 1:
                figure.add_scatter(
                    x=part[x], y=part["loss"], mode="lines", legendgroup=name, name=name,
                    showlegend=not beyond and name in own, line={"color": color, "width": 2, "dash": dash},
                    customdata=part[["low", "high"]],
                    hovertemplate=f"{name}<br>{x} %{{x:.4s}}: %{{y:.4f}} "
                    "(%{customdata[0]:.4f} to %{customdata[1]:.4f})<extra></extra>",
                )  # fmt: skip
        points = rows[rows["what"] == "measured"]
        if len(points):
            figure.add_scatter(
                x=points[x], y=points["loss"], mode="markers", legendgroup=name, name=name,
                marker={"color": color, "symbol": symbol, "size": 8 if len(data) < 600 else 5},
                hovertemplate=f"{name}<br>{x} %{{x:.4s}}: %{{y:.4f}}<extra></extra>",
            )  # fmt: skip
    losses = data[["loss", "low", "high"]]
    figure.update_yaxes(**axis_of(panel.y, *padded(losses.min().min(), losses.max().max(), panel.y.log)))
    low, high = padded(data[x].min(), data[x].max(), panel.x.log)
    figure.update_xaxes(**axis_of(panel.x, low, high))
    if (data["what"] == "beyond").any():
        _shade_beyond(figure, panel.edge, high)
    figure.update_layout(showlegend=len(looks) + len(own) > 1)
    return figure


def draw_residuals(panel: ResidualsPanel) -> go.Figure:
    """Draw the residuals over each column side by side, on one scale."""
    from plotly.subplots import make_subplots

    data = panel.data
    figure = make_subplots(1, len(panel.axes), shared_yaxes=True, horizontal_spacing=0.03)
    reach = 1.1 * max(float(data["residual"].abs().max()), 2 * panel.sigma)
    # One color a size, where sizes are few, so that a pattern of one size in another's plot is seen.
    sizes = data["params"] if "params" in data else np.zeros(len(data))
    distinct = sorted(set(sizes))
    apart = distinct if len(distinct) <= 12 else [None]
    for at, axis in enumerate(panel.axes, start=1):
        for size, color, symbol in zip(apart, colors(len(apart)), symbols(), strict=False):
            rows = data if size is None else data[sizes == size]
            figure.add_scatter(
                x=rows[axis.column], y=rows["residual"], mode="markers", row=1, col=at,
                marker={"color": color, "symbol": symbol, "size": 7 if len(data) < 200 else 5},
                name="" if size is None else f"params {short(float(size))}", legendgroup=str(size),
                showlegend=at == 1 and len(apart) > 1, customdata=rows[["loss", "fitted"]],
                hovertemplate=f"{axis.column} %{{x:.4s}}<br>loss %{{customdata[0]:.4f}}, "
                "law %{customdata[1]:.4f}: %{y:.2f}%<extra></extra>",
            )  # fmt: skip
        low, high = padded(data[axis.column].min(), data[axis.column].max(), axis.log)
        ticks = ticks_of(low, high, axis.log)
        marks = ticks[:: max(1, round(len(ticks) / _FEW_TICKS))]
        settings = {"tickvals": marks, "ticktext": [short(mark) for mark in marks]}
        figure.update_xaxes(**axis_of(axis, low, high) | settings, row=1, col=at)
        figure.add_hrect(
            y0=-2 * panel.sigma,
            y1=2 * panel.sigma,
            fillcolor=_SHADE,
            line_width=0,
            layer="below",
            row=1,
            col=at,
        )
        figure.add_hline(y=0, line={"color": GREY, "width": 1}, row=1, col=at)
    ticks = ticks_of(-reach, reach, False)
    figure.update_yaxes(
        range=[-reach, reach], tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks], zeroline=False
    )
    figure.update_yaxes(title={"text": "residual (%)"}, row=1, col=1)
    return figure


def draw_backtest(panel: BacktestPanel) -> go.Figure:
    """Draw each law's errors over compute, a symbol a cut; what lies above zero was predicted too high."""
    import plotly.graph_objects as go

    figure, data, x = go.Figure(), panel.data, panel.x.column
    marks = dict(zip(panel.cuts, symbols(), strict=False))
    for law, color in zip(panel.laws, colors(len(panel.laws)), strict=True):
        rows = data[data["law"] == law]
        figure.add_scatter(
            x=rows[x], y=rows[panel.y.column], mode="markers", name=law,
            marker={"color": color, "symbol": [marks[cut] for cut in rows["cut"]], "size": 7},
            customdata=rows[["cut"]],
            hovertemplate=f"{law}, fitted up to %{{customdata[0]:.3s}}<br>{x} %{{x:.4s}}: %{{y:+.2f}}%<extra></extra>",
        )  # fmt: skip
    figure.add_hline(y=0, line={"color": GREY, "width": 1})
    for cut in panel.cuts:
        figure.add_vline(x=cut, line={"color": GREY, "width": 1, "dash": "2px 3px"}, layer="below")
    ends = padded(min(*panel.cuts, data[x].min()), data[x].max(), panel.x.log)
    figure.update_xaxes(**axis_of(panel.x, *ends))
    errors = data[panel.y.column]
    figure.update_yaxes(**axis_of(panel.y, *padded(min(0.0, errors.min()), max(0.0, errors.max()), False)))
    figure.update_layout(showlegend=True)
    return figure


def _shade_beyond(figure: go.Figure, edge: float, high: float) -> None:
    figure.add_vrect(x0=edge, x1=high, fillcolor=_SHADE, line_width=0, layer="below")
    figure.add_annotation(
        text="beyond the points", font={"size": 12}, showarrow=False,
        x=math.log10(high), xanchor="right", y=1, yref="paper", yanchor="top",
    )  # fmt: skip
