"""Figures of a study's runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pandas import DataFrame

from sweeplab.report.drawing.style import GREY, axis_of, colors, padded, symbols
from sweeplab.report.panels.positions import PositionsPanel
from sweeplab.report.panels.runs import CurvesPanel, HeatMapPanel, LossPanel

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Above so many points a curve is drawn by WebGL, which stays quick but prints as pixels.
MANY = 20_000


def draw_loss(panel: LossPanel) -> go.Figure:
    """Draw the trials over a size, the best of each cell in front."""
    import plotly.graph_objects as go

    figure = go.Figure()
    lines = list(dict.fromkeys(panel.data["line"]))
    # Many trials fade, so that the best ones stay in front of them.
    crowd = max(0.3, min(1.0, (200 / len(panel.data)) ** 0.5))
    for name, color, symbol in zip(lines, colors(len(lines)), symbols(), strict=False):
        rows = panel.data[panel.data["line"] == name]
        for pruned, mark, opacity in ((False, symbol, 0.4 * crowd), (True, f"{symbol}-open", 0.65 * crowd)):
            faint = rows[~rows["best"] & ((rows["state"] == "pruned") == pruned)]
            if faint.empty:
                continue
            figure.add_scatter(
                x=faint["x"], y=faint["loss"], mode="markers", legendgroup=name, showlegend=False,
                marker={"color": color, "symbol": mark, "size": 7, "opacity": opacity},
                customdata=faint[["cell", "trial", "state"]], hovertemplate=_hover(panel),
            )  # fmt: skip
        best = rows[rows["best"]]
        spread = (best["loss_high"] - best["loss"], best["loss"] - best["loss_low"])
        figure.add_scatter(
            x=best["x"], y=best["loss"], mode="lines+markers", legendgroup=name, name=name,
            line={"color": color, "width": 2}, marker={"color": color, "symbol": symbol, "size": 9},
            error_y={
                "type": "data", "symmetric": False, "array": spread[0], "arrayminus": spread[1],
                "visible": bool((best["seeds"] > 1).any()), "thickness": 1.2, "width": 4,
            },
            customdata=best[["cell", "trial", "state"]], hovertemplate=_hover(panel),
        )  # fmt: skip
    losses = panel.data[["loss", "loss_low", "loss_high"]]
    low, high = panel.view or padded(losses.min().min(), losses.max().max(), panel.y.log)
    figure.update_yaxes(**axis_of(panel.y, low, high))
    figure.update_xaxes(
        **axis_of(panel.x, *padded(panel.data["x"].min(), panel.data["x"].max(), panel.x.log))
    )
    figure.update_layout(showlegend=len(lines) > 1)
    return figure


def draw_heat_map(panel: HeatMapPanel) -> go.Figure:
    """Draw the best loss of each pair of sizes as a field."""
    import plotly.graph_objects as go

    # Fields too small for their number are read by a scale of colors.
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


def draw_curves(panel: CurvesPanel) -> go.Figure:
    """Draw every run faintly and the best trial of each cell in front."""
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
    for cell, color, symbol in zip(cells, colors(len(cells)), symbols(), strict=False):
        rows = panel.best[panel.best["cell"] == cell]
        trial = rows["trial"].iloc[0]
        figure.add_trace(
            kind(
                x=rows["x"], y=rows["value"], mode=mode, name=str(cell).replace(",", ", "),
                line={"color": color, "width": 2}, marker={"color": color, "symbol": symbol, "size": 5},
                hovertemplate=f"{cell}, trial {trial}<br>%{{x:.4s}}: %{{y:.4f}}<extra></extra>",
            )
        )  # fmt: skip
    for loss in panel.baselines:
        figure.add_hline(
            y=loss, line={"color": GREY, "width": 1.5, "dash": "dash"},
            annotation={"text": f"n-grams {loss:.3f}", "font": {"size": 11}}, annotation_position="top right",
        )  # fmt: skip
    shown = [panel.data["value"].min(), panel.data["value"].max(), *panel.baselines]
    figure.update_yaxes(**axis_of(panel.y, *padded(min(shown), max(shown), panel.y.log)))
    figure.update_xaxes(
        **axis_of(panel.x, *padded(panel.data["x"].min(), panel.data["x"].max(), panel.x.log))
    )
    return figure


def draw_positions(panel: PositionsPanel) -> go.Figure:
    """Draw the loss at each position, a line a length; where training ended is marked."""
    import plotly.graph_objects as go

    figure, (x, y) = go.Figure(), (panel.data["position"], panel.data["loss"])
    times = list(dict.fromkeys(panel.data["times"]))
    for each, color in zip(times, colors(len(times)), strict=True):
        rows = panel.data[panel.data["times"] == each]
        figure.add_scatter(
            x=rows["position"], y=rows["loss"], mode="lines", name=f"{each} x block_size",
            line={"color": color, "width": 1.5},
            hovertemplate=f"{each} x block_size, position %{{x}}: %{{y:.4f}}<extra></extra>",
        )  # fmt: skip
    if times[-1] > 1:
        figure.add_vline(
            x=panel.block_size, line={"color": GREY, "width": 1.5, "dash": "dash"},
            annotation={"text": "block_size", "font": {"size": 11}}, annotation_position="top right",
        )  # fmt: skip
    figure.update_xaxes(**axis_of(panel.x, *padded(0, x.max(), False)))
    figure.update_yaxes(**axis_of(panel.y, *padded(y.min(), y.max(), False)))
    return figure


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
