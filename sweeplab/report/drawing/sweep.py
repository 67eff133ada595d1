"""Figures of a sweep's trials.

Places of a hyperparameter run from 0 to 1 over its range, so that numbers, logarithms and choices are drawn alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pandas import DataFrame

from sweeplab.analysis.sweep.trials import Dimension, has_ended
from sweeplab.report.drawing.style import GREY, axis_of, colors, padded, symbols, ticks_of
from sweeplab.report.panels.sweep import (
    CUT_SHORT,
    EdfPanel,
    HistoryPanel,
    ParallelPanel,
    RankPanel,
    SlicePanel,
    SpacePanel,
)
from sweeplab.report.words import short

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLUMNS = 3
_FIFTHS = ("best fifth", "second", "third", "fourth", "worst fifth")
_FEW_TICKS = 4
_LONGEST = 12  # letters of a choice on an axis


def draw_history(panel: HistoryPanel) -> go.Figure:
    """Draw the best so far as steps, and each trial that ended as a dot."""
    import plotly.graph_objects as go

    figure, data = go.Figure(), panel.data
    lines = list(dict.fromkeys(data["line"]))
    for line, color, symbol in zip(lines, colors(len(lines)), symbols(), strict=False):
        rows = data[data["line"] == line]
        ended = rows[rows["loss"].notna()]
        figure.add_scatter(
            x=ended["trial"], y=ended["loss"], mode="markers", legendgroup=line, showlegend=False,
            marker={"color": color, "symbol": symbol, "size": 5, "opacity": 0.45},
            hovertemplate=f"{line}<br>trial %{{x}}: %{{y:.4f}}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=rows["trial"], y=rows["best"], mode="lines", name=str(line).replace(",", ", "), legendgroup=line,
            line={"color": color, "width": 2, "shape": "hv"},
            hovertemplate=f"{line}<br>best of %{{x}} trials: %{{y:.4f}}<extra></extra>",
        )  # fmt: skip
    best = data["best"]
    # The first trials of a sweep may be far worse than what it is about.
    worst = float(max(best.max(), data["loss"].max()))
    top = min(float(best.max()) + 0.5 * float(best.max() - best.min()), worst)
    figure.update_xaxes(**axis_of(panel.x, *padded(1, max(2, float(data["trial"].max())), False)))
    figure.update_yaxes(**axis_of(panel.y, *padded(float(best.min()), top, False)))
    figure.update_layout(showlegend=len(lines) > 1)
    return figure


def draw_edf(panel: EdfPanel) -> go.Figure:
    """Draw each study's distribution as steps."""
    import plotly.graph_objects as go

    figure, data = go.Figure(), panel.data
    studies = list(dict.fromkeys(data["study"]))
    dashes = itertools.cycle(("solid", "8px 4px", "2px 3px", "10px 3px 2px 3px"))
    for study, color, dash in zip(studies, colors(len(studies)), dashes, strict=False):
        rows = data[data["study"] == study]
        figure.add_scatter(
            x=rows["loss"], y=rows["share"], mode="lines", name=study,
            line={"color": color, "width": 2, "shape": "hv", "dash": dash},
            hovertemplate=f"{study}<br>%{{y:.0%}} of trials at %{{x:.4f}} or below<extra></extra>",
        )  # fmt: skip
    low, high = float(data["loss"].min()), float(data["loss"].quantile(0.95))
    figure.update_xaxes(**axis_of(panel.x, *padded(low, high, False)))
    figure.update_yaxes(**axis_of(panel.y, 0.0, 1.02))
    figure.update_layout(showlegend=len(studies) > 1)
    return figure


def draw_slice(panel: SlicePanel) -> go.Figure:
    """Draw loss over each hyperparameter, side by side on one scale; what has no loss stands on top."""
    figure, places = _grid(panel, len(panel.dimensions), share_y=True)
    data = panel.data[panel.data["drawn"]]
    studies = list(dict.fromkeys(data["study"]))
    low = float(data.loc[has_ended(data), panel.y.column].min())
    bottom, top = padded(low, panel.top, False) if panel.top > low else padded(low, low + 1e-3, False)
    for (row, column), dimension in zip(places, panel.dimensions, strict=False):
        x = dimension.coordinates(data[dimension.name])
        for study, color, symbol in zip(studies, colors(len(studies)), symbols(), strict=False):
            of_study = data["study"] == study
            ended = has_ended(data) & of_study
            figure.add_scatter(
                x=x[ended], y=data.loc[ended, panel.y.column], mode="markers", row=row, col=column,
                name=study, legendgroup=study, showlegend=(row, column) == (1, 1),
                marker={"color": color, "symbol": symbol, "size": 5, "opacity": _opacity(len(data))},
                customdata=_told(data[ended], dimension), hovertemplate=_hover(dimension, "loss"),
            )  # fmt: skip
            lost = data["state"].isin(CUT_SHORT) & of_study
            figure.add_scatter(
                x=x[lost], y=[top] * int(lost.sum()), mode="markers", row=row, col=column, showlegend=False,
                marker={"color": GREY if len(studies) == 1 else color, "symbol": "x-thin-open", "size": 6},
                cliponaxis=False, customdata=_told(data[lost], dimension), hovertemplate=_hover(dimension, ""),
            )  # fmt: skip
        figure.update_xaxes(**_axis(dimension), row=row, col=column)
        figure.update_yaxes(**axis_of(panel.y, bottom, top) | {"title": {}}, row=row, col=column)
    figure.update_yaxes(title={"text": panel.y.title}, row=places[-1][0] // 2 + 1, col=1)
    figure.update_layout(showlegend=len(studies) > 1)
    return figure


def draw_rank(panel: RankPanel) -> go.Figure:
    """Draw the trials over each pair of hyperparameters, the best fifth in front."""
    pairs = list(itertools.combinations(panel.dimensions, 2))
    figure, places = _grid(panel, len(pairs), share_y=False)
    data = panel.data[panel.data["drawn"]]
    for at, ((row, column), (first, second)) in enumerate(zip(places, pairs, strict=True)):
        x, y = (each.coordinates(data[each.name]) for each in (first, second))
        for name, color, symbol, chosen in _fifths(data):
            figure.add_scatter(
                x=x[chosen], y=y[chosen], mode="markers", row=row, col=column, name=name, legendgroup=name,
                showlegend=at == 0, marker={"color": color, "symbol": symbol, "size": 5, "opacity": 0.8},
                customdata=_told(data[chosen], first, second), hovertemplate=_hover(first, "", second),
            )  # fmt: skip
        figure.update_xaxes(**_axis(first), row=row, col=column)
        figure.update_yaxes(automargin=True, **_axis(second), row=row, col=column)
    figure.update_layout(legend={"traceorder": "reversed"})
    return figure


def draw_parallel(panel: ParallelPanel) -> go.Figure:
    """Draw each trial as a line from hyperparameter to hyperparameter, the best fifth in front.

    As ordinary lines: Plotly's own parallel coordinates need WebGL, and print as pixels.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    data = panel.data[panel.data["drawn"]]
    columns = [each.coordinates(data[each.name]) for each in panel.dimensions]
    for name, color, _, chosen in _fifths(data):
        x: list[int | None] = []
        y: list[float | None] = []
        for row in zip(*(column[chosen] for column in columns), strict=True):
            x += [*range(len(columns)), None]
            y += [*(None if math.isnan(place) else round(place, 4) for place in row), None]
        front = name == _FIFTHS[0]
        figure.add_scatter(
            x=x, y=y, mode="lines+markers" if len(columns) == 1 else "lines", name=name, hoverinfo="skip",
            line={"color": color, "width": 1.6 if front else 1}, opacity=(1.0 if front else 0.7) * _opacity(len(data)),
        )  # fmt: skip
    for at, dimension in enumerate(panel.dimensions):
        figure.add_vline(x=at, line={"color": GREY, "width": 1})
        for place, label in _ticks(dimension):
            figure.add_annotation(
                x=at, y=place, text=label, showarrow=False, xanchor="left", xshift=4, font={"size": 11}
            )
    figure.update_xaxes(
        tickvals=list(range(len(panel.dimensions))), ticktext=[each.name for each in panel.dimensions],
        range=[-0.1, len(panel.dimensions) - 1 + 0.35], showgrid=False, zeroline=False,
    )  # fmt: skip
    figure.update_yaxes(range=[-0.05, 1.05], visible=False)
    figure.update_layout(legend={"traceorder": "reversed"})
    return figure


def rows_of(count: int) -> int:
    """Return how many rows so many small figures take."""
    return math.ceil(count / COLUMNS)


def _grid(panel: SpacePanel, count: int, share_y: bool) -> tuple[go.Figure, list[tuple[int, int]]]:
    from plotly.subplots import make_subplots

    n_rows, n_columns = rows_of(count), min(COLUMNS, count)
    figure = make_subplots(
        n_rows, n_columns, shared_yaxes=share_y,
        horizontal_spacing=(0.03 if share_y else 0.27) / n_columns, vertical_spacing=0.36 / max(2, n_rows),
    )  # fmt: skip
    return figure, [(at // n_columns + 1, at % n_columns + 1) for at in range(count)]


def _fifths(data: DataFrame) -> Iterator[tuple[str, str, str, Any]]:
    """Yield each fifth of the trials by where they stand, the worst first, so that the best are drawn over it."""
    order = data["standing"].rank(method="average", pct=True)
    looks = list(zip(_FIFTHS, colors(len(_FIFTHS)), symbols(), strict=False))
    for at, (name, color, symbol) in reversed(list(enumerate(looks))):
        chosen = (order > at / 5) & (order <= (at + 1) / 5)
        if chosen.any():
            yield name, color, symbol, chosen


def _axis(dimension: Dimension) -> dict[str, object]:
    ticks = list(_ticks(dimension))
    return {
        "range": [-0.05, 1.05],
        "title": {"text": dimension.name},
        "tickvals": [place for place, _ in ticks],
        "ticktext": [label for _, label in ticks],
        "zeroline": False,
    }


def _ticks(dimension: Dimension) -> Iterator[tuple[float, str]]:
    """Yield the places that are marked on an axis, with what stands there."""
    if dimension.choices:
        last = max(1, len(dimension.choices) - 1)
        for at, choice in enumerate(dimension.choices):
            yield at / last, choice if len(choice) <= _LONGEST else f"{choice[: _LONGEST - 1]}…"
        return
    values = ticks_of(dimension.low, dimension.high, dimension.log)
    values = [value for value in values if dimension.low <= value <= dimension.high]
    for value in values[:: max(1, math.ceil(len(values) / _FEW_TICKS))]:
        place = (value - dimension.low) / (dimension.high - dimension.low)
        if dimension.log:
            place = math.log(value / dimension.low) / math.log(dimension.high / dimension.low)
        yield place, short(value)


def _opacity(n: int) -> float:
    """Return how opaque a mark is among so many."""
    return max(0.35, min(0.9, math.sqrt(150 / max(1, n))))


def _told(data: DataFrame, *dimensions: Dimension) -> DataFrame:
    return data[["cell", "trial", "state", *dict.fromkeys(each.name for each in dimensions)]].astype(str)


def _hover(first: Dimension, loss: str, second: Dimension | None = None) -> str:
    values = f"{first.name} %{{customdata[3]}}" + (f"<br>{second.name} %{{customdata[4]}}" if second else "")
    measured = "<br>loss %{y:.4f}" if loss else ""
    return f"%{{customdata[0]}}, trial %{{customdata[1]}}, %{{customdata[2]}}<br>{values}{measured}<extra></extra>"
