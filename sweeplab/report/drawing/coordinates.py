"""Figures of the coordinate check: a field a step, a line a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeplab.report.drawing.style import axis_of, colors, padded, symbols
from sweeplab.report.panels.coordinates import CoordinatesPanel

if TYPE_CHECKING:
    import plotly.graph_objects as go


def draw_coordinates(panel: CoordinatesPanel) -> go.Figure:
    """Draw each layer's activations over the width, from the start on the left to the last step."""
    from plotly.subplots import make_subplots

    figure = make_subplots(1, len(panel.steps), shared_yaxes=True, horizontal_spacing=0.02)
    layers = list(dict.fromkeys(panel.data["layer"]))
    widths = padded(panel.data["n_embd"].min(), panel.data["n_embd"].max(), True)
    for column, step in enumerate(panel.steps, start=1):
        at = panel.data[panel.data["step"] == step]
        for layer, color, symbol in zip(layers, colors(len(layers)), symbols(), strict=False):
            rows = at[at["layer"] == layer]
            figure.add_scatter(
                x=rows["n_embd"], y=rows["size"], mode="lines+markers", row=1, col=column,
                name=layer, legendgroup=layer, showlegend=column == 1, line={"color": color, "width": 1.5},
                marker={"color": color, "symbol": symbol, "size": 6},
                hovertemplate=f"{layer}, step {step}<br>n_embd %{{x}}: %{{y:.4g}}<extra></extra>",
            )  # fmt: skip
        title = f"{panel.x.title}, {f'step {step}' if step else 'at the start'}"
        figure.update_xaxes(**axis_of(panel.x, *widths) | {"title": {"text": title}}, row=1, col=column)
    figure.update_yaxes(**axis_of(panel.y, *padded(panel.low, panel.high, True)) | {"title": {}})
    figure.update_yaxes(title={"text": panel.y.title}, row=1, col=1)
    return figure
