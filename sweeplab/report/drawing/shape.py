"""Figures of shapes: the frontier, and what depth or width buy at equal parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.report.drawing.style import GREY, axis_of, colors, padded, symbols
from sweeplab.report.panels.shape import ShapePanel

if TYPE_CHECKING:
    import plotly.graph_objects as go


def draw_shape(panel: ShapePanel) -> go.Figure:
    """Draw each shape's loss; lines join what is fixed, and over parameters the shapes of the frontier."""
    import plotly.graph_objects as go

    figure, x, y = go.Figure(), panel.x.column, panel.y.column
    shapes, law = (panel.data[panel.data["what"] == what] for what in ("shape", "size alone"))
    over_size = x == "params"
    if len(law):
        figure.add_scatter(
            x=law["params"], y=law["loss"], mode="lines", name="size alone", hoverinfo="skip",
            line={"color": GREY, "width": 1.5, "dash": "4px 4px"},
        )  # fmt: skip
    values = sorted(shapes[panel.line].unique())
    for value, color, symbol in zip(values, colors(len(values)), symbols(), strict=False):
        rows = shapes[shapes[panel.line] == value].sort_values([x, y])
        sizes = [11 if on else 6 for on in rows["on_frontier"]] if over_size else 8
        single = rows["tokens"].nunique() <= 1 and rows[x].is_unique
        figure.add_scatter(
            x=rows[x], y=rows[y], mode="lines+markers" if single and not over_size else "markers",
            name=f"{panel.line} {value:g}", line={"color": color, "width": 1.5},
            marker={"color": color, "symbol": symbol, "size": sizes, "opacity": 1},
            customdata=rows[["name", "n_layer", "n_embd"]],
            hovertemplate="%{customdata[0]}<br>n_layer %{customdata[1]:g}, n_embd %{customdata[2]:g}<br>"
            f"{x} %{{x:.4s}}: %{{y:.4f}}<extra></extra>",
        )  # fmt: skip
    losses = [shapes[y].min(), shapes[y].max()]
    figure.update_xaxes(**axis_of(panel.x, *padded(shapes[x].min(), shapes[x].max(), panel.x.log)))
    figure.update_yaxes(**axis_of(panel.y, *padded(min(losses), max(losses), panel.y.log)))
    figure.update_layout(showlegend=True)
    return figure
