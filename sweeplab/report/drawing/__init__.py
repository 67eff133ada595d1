"""Panels drawn with Plotly: one file a family, one table of what draws which."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sweeplab.report.drawing.laws import draw_backtest, draw_law, draw_residuals
from sweeplab.report.drawing.ledger import draw_calibration, draw_ledger
from sweeplab.report.drawing.roads import draw_isoflop, draw_roads
from sweeplab.report.drawing.runs import draw_curves, draw_heat_map, draw_loss
from sweeplab.report.drawing.shape import draw_shape
from sweeplab.report.drawing.style import FONT
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.laws import LawPanel
from sweeplab.report.panels.ledger import CalibrationPanel, LedgerPanel
from sweeplab.report.panels.misfit import BacktestPanel
from sweeplab.report.panels.residuals import ResidualsPanel
from sweeplab.report.panels.roads import IsoFlopPanel, RoadsPanel
from sweeplab.report.panels.runs import CurvesPanel, HeatMapPanel, LossPanel
from sweeplab.report.panels.shape import ShapePanel

if TYPE_CHECKING:
    import plotly.graph_objects as go

_DRAWN: dict[type[Panel], Callable[[Any], go.Figure]] = {
    LossPanel: draw_loss,
    HeatMapPanel: draw_heat_map,
    CurvesPanel: draw_curves,
    LawPanel: draw_law,
    ResidualsPanel: draw_residuals,
    BacktestPanel: draw_backtest,
    IsoFlopPanel: draw_isoflop,
    RoadsPanel: draw_roads,
    ShapePanel: draw_shape,
    LedgerPanel: draw_ledger,
    CalibrationPanel: draw_calibration,
}
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


def _height(panel: Panel) -> int:
    """Return the figure's height in pixels: rows of a heat map or of forecasts stay low."""
    most = 380 if panel.width == "half" else 440
    if isinstance(panel, LawPanel):
        return 470
    if isinstance(panel, HeatMapPanel):
        return min(most, 110 + 64 * len(panel.y.marks))
    if isinstance(panel, LedgerPanel):
        return 120 + 26 * len(panel.data)
    return most
