"""Figures of forecasts and what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.report.drawing.style import GREY, axis_of, colors, padded
from sweeplab.report.panels.ledger import HELD, MISSED, CalibrationPanel, LedgerPanel

if TYPE_CHECKING:
    import plotly.graph_objects as go

_KEPT, _, _BROKEN = colors(3)
_LOOKS = {HELD: (_KEPT, "diamond"), MISSED: (_BROKEN, "x")}


def draw_ledger(panel: LedgerPanel) -> go.Figure:
    """Draw an interval a forecast, from the first down, and what came of those that ended."""
    import plotly.graph_objects as go

    figure, data = go.Figure(), panel.data
    names = [f"{number}: {what}" for number, what in zip(data["number"], data["what"], strict=True)]
    figure.add_scatter(
        x=data["loss"], y=names, mode="markers", name="forecast",
        marker={"symbol": "line-ns-open", "size": 12, "color": GREY, "line": {"width": 2}},
        error_x={
            "type": "data", "symmetric": False, "array": data["high"] - data["loss"],
            "arrayminus": data["loss"] - data["low"], "thickness": 5, "width": 0, "color": "rgba(128,128,128,0.45)",
        },
        hovertemplate="%{y}<br>%{x:.4f}<extra>forecast</extra>",
    )  # fmt: skip
    for state, (color, symbol) in _LOOKS.items():
        rows = data[data["state"] == state]
        if len(rows):
            figure.add_scatter(
                x=rows["outcome"], y=[names[at] for at in rows.index], mode="markers", name=f"outcome, {state}",
                marker={"symbol": symbol, "size": 10, "color": color},
                hovertemplate="%{y}<br>%{x:.4f}<extra>outcome</extra>",
            )  # fmt: skip
    ends = data[["low", "high", "outcome"]].astype(float)
    figure.update_xaxes(**axis_of(panel.x, *padded(ends.min().min(), ends.max().max(), panel.x.log)))
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    figure.update_layout(showlegend=True)
    return figure


def draw_calibration(panel: CalibrationPanel) -> go.Figure:
    """Draw the share that was inside over the level, beside the line on which forecasts are calibrated."""
    import plotly.graph_objects as go

    figure, data = go.Figure(), panel.data
    figure.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", name="calibrated", hoverinfo="skip",
        line={"color": GREY, "width": 1, "dash": "4px 4px"},
    )  # fmt: skip
    figure.add_scatter(
        x=data["level"], y=data["share"], mode="markers", name="forecasts", marker={"color": _KEPT, "size": 9},
        error_y={
            "type": "data", "symmetric": False, "array": data["high"] - data["share"],
            "arrayminus": data["share"] - data["low"], "thickness": 1.5, "width": 5,
        },
        customdata=data[["covered", "n"]],
        hovertemplate="%{x:.0%}: %{customdata[0]} of %{customdata[1]} inside<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(**axis_of(panel.x, 0.4, 1.0))
    figure.update_yaxes(**axis_of(panel.y, 0.0, 1.04))
    return figure
