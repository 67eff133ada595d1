"""The page of a model's attention maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pandas import DataFrame

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import Figure
from sweeplab.report.summary import Summary
from sweeplab.report.writer import write_single_page
from sweeplab.runs.inspecting import AttentionMap

# A page with more weights is slow to open.
MOST_WEIGHTS = 200_000
_COLUMNS = 4


class AttentionPanel(Panel):
    """One heat map per head: one row per attending token, one column per token that is attended to.

    `data` has one row per nonzero weight; in a decoder, weights on later tokens are zero.
    """

    layer: AttentionMap

    def _draw(self, figure: Figure) -> None:
        heads = range(len(self.layer.weights))
        rows, columns = math.ceil(len(heads) / _COLUMNS), min(len(heads), _COLUMNS)
        titles = [f"head {head}" for head in heads]
        figure.set_subplots(
            rows, columns, shared_yaxes=True, horizontal_spacing=0.02, subplot_titles=titles
        )
        # A token may stand at several places.
        queries, keys = (
            [f"{place} {token}" for place, token in enumerate(tokens)]
            for tokens in (self.layer.queries, self.layer.keys)
        )
        for index, weights in enumerate(self.layer.weights):
            figure.add_heatmap(
                z=weights.astype(float).round(4).tolist(),
                x=keys,
                y=queries,
                coloraxis="coloraxis",
                hovertemplate="%{y} → %{x}<br>%{z:.4f}<extra></extra>",
                row=index // _COLUMNS + 1,
                col=index % _COLUMNS + 1,
            )
        figure.update_xaxes(type="category", showgrid=False, zeroline=False, tickangle=-90)
        figure.update_yaxes(
            type="category", showgrid=False, zeroline=False, autorange="reversed"
        )
        scale = {"colorscale": "Cividis", "cmin": 0.0, "cmax": float(self.data["weight"].max())}
        figure.update_layout(coloraxis=scale, height=130 + 250 * rows)


def _weights(layer: AttentionMap) -> DataFrame:
    head, query, key = np.nonzero(layer.weights)
    data = {"head": head}
    data |= {"query": query, "query token": np.array(layer.queries)[query]}
    data |= {"key": key, "key token": np.array(layer.keys)[key]}
    return DataFrame({**data, "weight": layer.weights[head, query, key]})


def write_attention(run: str, prompt: str, maps: Sequence[AttentionMap], file: Path) -> None:
    """Write a page with one panel per layer.

    Raises:
        BadInput: there are too many weights for a page, or the file cannot be written.
    """
    n_weights = sum(each.weights.size for each in maps)
    if n_weights > MOST_WEIGHTS:
        what = f"a page of {several(n_weights, 'attention weight')}"
        raise BadInput(Problem(what, f"at most {MOST_WEIGHTS:,}: --layer or a shorter prompt"))
    entries = {"Prompt": prompt, "Tokens": " ".join(maps[0].keys)}
    if maps[-1].place == "cross":
        entries["Target"] = " ".join(maps[-1].queries)
    entries["Shown"] = f"{several(len(maps), 'map')} of {several(len(maps[0].weights), 'head')}"
    panels = [
        AttentionPanel(title=each.title, data=_weights(each), layer=each) for each in maps
    ]
    write_single_page(file, "attention", Summary(run, entries), panels)
