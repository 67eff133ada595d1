"""Panels drawn with Plotly: one file a family, one table of what draws which."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sweeplab.report.drawing.attention import draw_attention
from sweeplab.report.drawing.attention import rows_of as rows_of_heads
from sweeplab.report.drawing.coordinates import draw_coordinates
from sweeplab.report.drawing.costs import (
    draw_compute,
    draw_differences,
    draw_importances,
    draw_pruning,
)
from sweeplab.report.drawing.laws import draw_backtest, draw_law, draw_residuals
from sweeplab.report.drawing.ledger import draw_calibration, draw_ledger
from sweeplab.report.drawing.roads import draw_isoflop, draw_roads
from sweeplab.report.drawing.runs import draw_curves, draw_heat_map, draw_loss, draw_positions
from sweeplab.report.drawing.shape import draw_shape
from sweeplab.report.drawing.style import FONT
from sweeplab.report.drawing.sweep import (
    draw_edf,
    draw_history,
    draw_parallel,
    draw_rank,
    draw_slice,
    rows_of,
)
from sweeplab.report.panels.attention import AttentionPanel
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.coordinates import CoordinatesPanel
from sweeplab.report.panels.differences import DifferencesPanel
from sweeplab.report.panels.importances import ImportancePanel
from sweeplab.report.panels.laws import LawPanel
from sweeplab.report.panels.ledger import CalibrationPanel, LedgerPanel
from sweeplab.report.panels.misfit import BacktestPanel
from sweeplab.report.panels.positions import PositionsPanel
from sweeplab.report.panels.pruning import ComputePanel, PruningPanel
from sweeplab.report.panels.residuals import ResidualsPanel
from sweeplab.report.panels.roads import IsoFlopPanel, RoadsPanel
from sweeplab.report.panels.runs import CurvesPanel, HeatMapPanel, LossPanel
from sweeplab.report.panels.shape import ShapePanel
from sweeplab.report.panels.sweep import EdfPanel, HistoryPanel, ParallelPanel, RankPanel, SlicePanel

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
    HistoryPanel: draw_history,
    ImportancePanel: draw_importances,
    SlicePanel: draw_slice,
    ParallelPanel: draw_parallel,
    RankPanel: draw_rank,
    EdfPanel: draw_edf,
    PruningPanel: draw_pruning,
    ComputePanel: draw_compute,
    DifferencesPanel: draw_differences,
    AttentionPanel: draw_attention,
    CoordinatesPanel: draw_coordinates,
    PositionsPanel: draw_positions,
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


# Figures that are as high as what they show, in pixels: rows of a heat map or of forecasts stay low.
_HEIGHTS: dict[type[Panel], Callable[[Any], int]] = {
    LawPanel: lambda panel: 470,
    HeatMapPanel: lambda panel: min(_most(panel), 110 + 64 * len(panel.y.marks)),
    LedgerPanel: lambda panel: 120 + 26 * len(panel.data),
    ImportancePanel: lambda panel: (
        110 + max(34, 20 * len(panel.scopes)) * panel.data["hyperparameter"].nunique()
    ),
    SlicePanel: lambda panel: 70 + 230 * rows_of(len(panel.dimensions)),
    RankPanel: lambda panel: 70 + 250 * rows_of(len(panel.dimensions) * (len(panel.dimensions) - 1) // 2),
    PruningPanel: lambda panel: 110 + 26 * len(panel.data),
    ComputePanel: lambda panel: 130 + 60 * panel.data["study"].nunique(),
    DifferencesPanel: lambda panel: max(150, 110 + 26 * len(panel.data)),
    AttentionPanel: lambda panel: 130 + 250 * rows_of_heads(len(panel.heads)),
}


def _most(panel: Panel) -> int:
    return 380 if panel.width == "half" else 440


def _height(panel: Panel) -> int:
    return _HEIGHTS.get(type(panel), _most)(panel)
