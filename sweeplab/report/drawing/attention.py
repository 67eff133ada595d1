"""Figures of attention: a field a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.report.drawing.style import ORDERED
from sweeplab.report.panels.attention import AttentionPanel

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLUMNS = 4
MOST_TICKS = 24
# From nothing, whatever the ground, by the colors of all figures.
_SCALE = [
    [0.0, f"rgba({','.join(map(str, ORDERED[0]))},0)"],
    *(
        [share, f"rgb({','.join(map(str, color))})"]
        for share, color in zip((0.4, 0.7, 1.0), ORDERED, strict=True)
    ),
]


def rows_of(n_heads: int) -> int:
    """Return how many rows of fields there are."""
    return -(-n_heads // COLUMNS)


def draw_attention(panel: AttentionPanel) -> go.Figure:
    """Draw the weights of each head: who attends from top to bottom, to whom from left to right."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    n_heads = len(panel.heads)
    figure = make_subplots(
        rows_of(n_heads), min(n_heads, COLUMNS), shared_yaxes=True, horizontal_spacing=0.02,
    )  # fmt: skip
    words = np.array(
        [[f"{query} ({row}) → {key} ({column})" for column, key in enumerate(panel.keys)]
         for row, query in enumerate(panel.queries)]
    )  # fmt: skip
    for index, head in enumerate(panel.heads):
        rows = panel.data[panel.data["head"] == head]
        weights = np.zeros((len(panel.queries), len(panel.keys)))
        weights[rows["query"], rows["key"]] = rows["weight"]
        field = go.Heatmap(
            z=weights.round(4).tolist(), text=words.tolist(), coloraxis="coloraxis", xgap=1, ygap=1,
            hovertemplate=f"head {head}: %{{text}}<br>%{{z:.4f}}<extra></extra>",
        )  # fmt: skip
        place = {"row": index // COLUMNS + 1, "col": index % COLUMNS + 1}
        figure.add_trace(field, **place)
        figure.update_xaxes(title={"text": f"head {head}"}, **place)
    figure.update_xaxes(showgrid=False, zeroline=False, tickangle=-90, **_ticks(panel.keys))
    figure.update_yaxes(showgrid=False, zeroline=False, autorange="reversed", **_ticks(panel.queries))
    figure.update_layout(
        coloraxis={
            "colorscale": _SCALE, "cmin": 0.0, "cmax": float(panel.data["weight"].max()),
            "colorbar": {"thickness": 12, "outlinewidth": 0, "title": {"text": "weight"}},
        }
    )  # fmt: skip
    return figure


def _ticks(words: Sequence[str]) -> dict[str, object]:
    places = range(0, len(words), -(-len(words) // MOST_TICKS))
    return {"tickvals": list(places), "ticktext": [words[place] for place in places]}
