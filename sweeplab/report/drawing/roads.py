"""Figures of the roads to the best use of compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.analysis.compute_optimal.approaches import ENVELOPE, ISOFLOP, PARAMETRIC
from sweeplab.report.drawing.style import axis_of, colors, faded, padded, symbols
from sweeplab.report.panels.roads import IsoFlopPanel, RoadsPanel

if TYPE_CHECKING:
    import plotly.graph_objects as go


def draw_isoflop(panel: IsoFlopPanel) -> go.Figure:
    """Draw the rows of each budget with their parabola, and a star with its interval at each minimum."""
    import plotly.graph_objects as go

    figure, data = go.Figure(), panel.data
    looks = zip(panel.budgets.items(), colors(len(panel.budgets)), symbols(), strict=False)
    for (flops, name), color, symbol in looks:
        of = dict(list(data[data["flops"] == flops].groupby("what")))
        hover = f"{name}<br>params %{{x:.4s}}: %{{y:.4f}}<extra></extra>"
        for what, mark, opacity in (("row", symbol, 1.0), ("far row", f"{symbol}-open", 0.7)):
            if what in of:
                figure.add_scatter(
                    x=of[what]["params"], y=of[what]["loss"], mode="markers", name=name, legendgroup=name,
                    showlegend=what == "row", hovertemplate=hover, opacity=opacity,
                    marker={"color": color, "symbol": mark, "size": 7},
                )  # fmt: skip
        figure.add_scatter(
            x=of["parabola"]["params"], y=of["parabola"]["loss"], mode="lines", legendgroup=name,
            showlegend=False, hoverinfo="skip", line={"color": color, "width": 2},
        )  # fmt: skip
        if "minimum" in of:
            at = of["minimum"]
            figure.add_scatter(
                x=at["params"], y=at["loss"], mode="markers", legendgroup=name, showlegend=False,
                marker={"color": color, "symbol": "star", "size": 15, "line": {"width": 1, "color": "white"}},
                error_x={
                    "type": "data", "symmetric": False, "array": at["high"] - at["params"],
                    "arrayminus": at["params"] - at["low"], "thickness": 2, "width": 6, "color": color,
                },
                hovertemplate=f"{name}<br>best size %{{x:.4s}}: %{{y:.4f}}<extra></extra>",
            )  # fmt: skip
    figure.update_xaxes(**axis_of(panel.x, *padded(data["params"].min(), data["params"].max(), True)))
    figure.update_yaxes(**axis_of(panel.y, *padded(data["loss"].min(), data["loss"].max(), False)))
    figure.update_layout(showlegend=True)
    return figure


def draw_roads(panel: RoadsPanel) -> go.Figure:
    """Draw each road's best sizes over compute, with the lines and bands of those that have them."""
    import plotly.graph_objects as go

    figure, data = go.Figure(), panel.data
    for (road, symbol), color in zip(_MARKS.items(), colors(len(_MARKS)), strict=True):
        own = data[data["road"] == road]
        line, marks = own[own["what"] == "line"], own[own["what"] != "line"]
        if len(line):
            figure.add_scatter(
                x=[*line["flops"], *line["flops"][::-1]], y=[*line["high"], *line["low"][::-1]], fill="toself",
                fillcolor=faded(color, 0.16), line={"width": 0}, mode="lines", hoverinfo="skip",
                legendgroup=road, showlegend=False,
            )  # fmt: skip
            figure.add_scatter(
                x=line["flops"], y=line["params"], mode="lines", name=road, legendgroup=road,
                showlegend=marks.empty, line={"color": color, "width": 2},
                hovertemplate=f"{road}<br>%{{x:.4s}} FLOPs: %{{y:.4s}} parameters<extra></extra>",
            )  # fmt: skip
        if len(marks):
            figure.add_scatter(
                x=marks["flops"], y=marks["params"], mode="markers", name=road, legendgroup=road,
                marker={"color": color, "symbol": symbol, "size": 10},
                error_y={
                    "type": "data", "symmetric": False, "array": marks["high"] - marks["params"],
                    "arrayminus": marks["params"] - marks["low"], "thickness": 1.5, "width": 4,
                    "visible": bool(marks["low"].notna().any()),
                },
                hovertemplate=f"{road}<br>%{{x:.4s}} FLOPs: %{{y:.4s}} parameters<extra></extra>",
            )  # fmt: skip
    flops, ends = data["flops"], data[["params", "low", "high"]].astype(float)
    figure.update_xaxes(**axis_of(panel.x, *padded(flops.min(), flops.max(), True)))
    figure.update_yaxes(**axis_of(panel.y, *padded(ends.min().min(), ends.max().max(), True)))
    figure.update_layout(showlegend=True)
    return figure


_MARKS = {PARAMETRIC: "circle", ISOFLOP: "star", ENVELOPE: "square"}
