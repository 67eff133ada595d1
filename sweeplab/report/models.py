"""Pages about models: attention maps, the loss by position, and the coordinate check of a study's widths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import listed, several, written
from sweeplab.records.runs import MEASURED_ON
from sweeplab.report.panels.base import MissingPanel, Panel, TablePanel
from sweeplab.report.style import Axis, Figure, Look, by_look, colors, marked
from sweeplab.report.summary import Summary
from sweeplab.report.writer import write_single_page
from sweeplab.runs.inspecting import AttentionMap
from sweeplab.runs.models import CoordinateCheck

# A page with more weights is slow to open.
MOST_WEIGHTS = 200_000
# At most this many steps have a figure: the start, powers of two, and the last.
MOST_STEPS = 6
_COLUMNS = 4
_COORDINATE_CHECK = {
    "The coordinate check": "Models of several widths start alike and train for a few steps at the full learning "
    "rate, without dropout and warm-up. The mean absolute activation after each layer is measured on one fixed "
    "batch. If the parametrization is right, it does not depend on the width after those steps, and the best "
    "learning rate of a small model is also best for a large one; if it grows, the best learning rate falls with the "
    "width. Under muP the head's output before the first step falls as 1/sqrt(width), as it should. "
    "Yang, Hu et al., Tensor programs V (2022), appendix D.1.",
}


class AttentionPanel(Panel):
    """One heat map per head: one row per attending token, one column per token that is attended to.

    `data` has one row per nonzero weight; in a decoder, weights on later tokens are zero.
    """

    layer: AttentionMap

    def _draw(self, figure: Figure) -> None:
        heads = range(len(self.layer.weights))
        rows, columns = math.ceil(len(heads) / _COLUMNS), min(len(heads), _COLUMNS)
        titles = [f"head {head}" for head in heads]
        figure.set_subplots(rows, columns, shared_yaxes=True, horizontal_spacing=0.02, subplot_titles=titles)
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
        figure.update_yaxes(type="category", showgrid=False, zeroline=False, autorange="reversed")
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
    panels = [AttentionPanel(title=each.title, data=_weights(each), layer=each) for each in maps]
    write_single_page(file, "attention", Summary(run, entries), panels)


class CoordinatesPanel(Panel):
    """Activation sizes over the width under one parametrization: one plot per step of `steps`, one line per layer.

    `data` has one row per width, step and layer; all parametrizations share the axis `y`.
    """

    ends: tuple[float, float]
    steps: Sequence[int]

    def _draw(self, figure: Figure) -> None:
        titles = [f"step {step}" if step else "at the start" for step in self.steps]
        figure.set_subplots(1, len(titles), shared_yaxes=True, horizontal_spacing=0.02, subplot_titles=titles)
        widths = tuple(map(float, sorted(set(self.data["n_embd"]))))
        x = Axis("n_embd", "n_embd", True, widths).around(self.data["n_embd"])
        for column, step in enumerate(self.steps, start=1):
            for look, rows in by_look(self.data[self.data["step"] == step], "layer"):
                hover = f"{look.name}, step {step}<br>n_embd %{{x}}: %{{y:.4g}}"
                group: dict[str, Any] = {"legendgroup": look.name, "showlegend": column == 1}
                place = {"row": 1, "col": column}
                look.line(
                    figure, rows, "n_embd", "size", hover, line={"width": 1.5}, size=6, **group, **place
                )
        y = Axis("size", "mean absolute activation", True)
        figure.update_xaxes(**x)
        figure.update_yaxes(**y.around(DataFrame([*self.ends])) | {"title": {}})
        figure.update_yaxes(title={"text": y.title}, row=1, col=1)


def write_coordinates(check: CoordinateCheck, file: Path) -> None:
    """Write a page with one figure per parametrization, and the table of the powers of the width.

    Raises:
        BadInput: the file cannot be written.
    """
    entries = {
        "Widths": f"n_embd {listed([str(width) for width in check.widths])}",
        "Trained for": several(check.n_steps, "step"),
    }
    entries |= {name: written(value) for name, value in check.values.items()}
    entries |= dict(steepest_in_words(check))
    data = DataFrame(check.rows)
    sizes = data.loc[data["size"].between(0, math.inf, inclusive="neither"), "size"]
    doubled = [2**power for power in range(MOST_STEPS - 2) if 2**power < check.n_steps]
    panels: list[Panel] = []
    powers = DataFrame({"layer": check.layers})
    for name in check.parametrizations:
        panels.append(
            CoordinatesPanel(
                title=f"{name}: size of activations over the width",
                data=data[data["parametrization"] == name],
                method=_COORDINATE_CHECK,
                ends=(float(sizes.min()), float(sizes.max())),
                steps=(0, *doubled, check.n_steps),
            )
        )
        for when, step in (("at the start", 0), (f"after step {check.n_steps}", check.n_steps)):
            powers[f"{name}, {when}"] = [check.powers[name, step, layer] for layer in check.layers]
    title = "Power of the width with which activations grow"
    note = "0: no dependence on the width; 0.5: activations double when the width is four times as large."
    panels.append(TablePanel(title=title, data=powers, notes=(note,)))
    write_single_page(file, "coordinates", Summary(check.study, entries), panels)


def steepest_in_words(check: CoordinateCheck) -> list[tuple[str, str]]:
    """Return for each parametrization the largest power of the width with which activations grow."""
    steepest = []
    for name in check.parametrizations:
        layer, power = check.steepest(name)
        steepest.append((name, f"activations grow at most as width^{power:.2f}, after {layer}"))
    return steepest


class PositionsPanel(Panel):
    """One line per length. `data`: times (of `block_size`), position from 0, loss; none without a target."""

    block_size: int
    unit: str

    def _draw(self, figure: Figure) -> None:
        times = list(dict.fromkeys(self.data["times"]))
        for multiple, color in zip(times, colors(len(times)), strict=True):
            look, rows = Look(f"{multiple} x block_size", color), self.data[self.data["times"] == multiple]
            hover = f"{look.name}, position %{{x}}: %{{y:.4f}}"
            look.line(figure, rows, "position", "loss", hover, line={"width": 1.5})
        if times[-1] > 1:
            figure.add_vline(x=self.block_size, **marked("block_size"))
        x = Axis("position", "position in the sequence (tokens)").around(self.data["position"], 0.0)
        y = Axis("loss", f"mean loss there ({self.unit})").around(self.data["loss"])
        figure.update_layout(xaxis=x, yaxis=y)


def write_evaluation(evaluation: Mapping[str, Any], page: Path) -> None:
    """Write an evaluation as a page: its measures, and the loss by position.

    Raises:
        BadInput: the page cannot be written.
    """
    unit, rows = evaluation["unit"], []
    entries = {"Validation split": f"of study {evaluation['study']}; val_loss {MEASURED_ON['val_loss']}"}
    entries |= {name: written(value) for name, value in evaluation["measures"].items()}
    for length in evaluation["length_extrapolation"]:
        times = length["times"]
        targets = several(length["targets"], "target")
        entries[f"{times} x block_size"] = f"loss {length['val_loss']:.4f} {unit}, {targets}"
        for at, loss in enumerate(length["by_position"]):
            if math.isfinite(loss):
                rows.append({"times": times, "position": at, "loss": loss})
    title = "Loss by position"
    notes = tuple(
        f"Nothing at {several(length['times'], 'time')} block_size: {length['why']}."
        for length in evaluation["left_out"]
    )
    panel: Panel = MissingPanel(title=title, missing="no length could be evaluated")
    if rows:
        size = evaluation["block_size"]
        panel = PositionsPanel(title=title, data=DataFrame(rows), notes=notes, block_size=size, unit=unit)
    write_single_page(page, "evaluation", Summary(evaluation["run"], entries), [panel])
