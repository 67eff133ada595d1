"""Pages about models: what a run attends to, its loss by position, and the coordinate check of a study's widths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import listed, several, written
from sweeplab.report.panels.base import MissingPanel, Panel, TablePanel
from sweeplab.report.style import GREY, ORDERED, Axis, Figure, Look, by_look, colors
from sweeplab.report.summary import Summary
from sweeplab.report.writer import write_single_page
from sweeplab.runs.inspecting import AttentionMap
from sweeplab.runs.models import CoordinateCheck

# A page of more weights is slow to open.
MOST_WEIGHTS = 200_000
# At most so many steps have a figure: the start, powers of two, and the last.
MOST_STEPS = 6
_COLUMNS = 4
_MOST_TICKS = 24
_RGB = [",".join(map(str, each)) for each in ORDERED]
# From nothing, whatever the ground, by the colors of all figures.
_SCALE = [
    [0.0, f"rgba({_RGB[0]},0)"],
    *([at, f"rgb({c})"] for at, c in zip((0.4, 0.7, 1.0), _RGB, strict=True)),
]
_COORDINATE_CHECK = (
    (
        "The coordinate check",
        "Models of several widths start alike and train for a few steps at the full learning rate, without dropout "
        "and warm-up. After each layer the mean absolute activation is measured on one fixed batch. Where the "
        "parametrization is right, it does not depend on the width after those steps, and a learning rate that is "
        "best in a small model is best in a large one; where it grows, the best learning rate falls with the width. "
        "Under muP the head's output falls as the root of the width before the first step, as it should. "
        "Yang, Hu et al., Tensor programs V (2022), appendix D.1.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class AttentionPanel(Panel):
    """One field per head: one row per token that attends, one column per token that is attended to.

    `data` has one row per weight that is not zero, as what follows a token is to a decoder.
    """

    heads: Sequence[int]
    queries: Sequence[str]
    keys: Sequence[str]

    def draw(self, figure: Figure) -> None:
        """Draw the weights of each head: who attends from top to bottom, to whom from left to right."""
        rows, columns = math.ceil(len(self.heads) / _COLUMNS), min(len(self.heads), _COLUMNS)
        figure.set_subplots(rows, columns, shared_yaxes=True, horizontal_spacing=0.02)
        keys = [f"{key} ({column})" for column, key in enumerate(self.keys)]
        words = [[f"{query} ({row}) → {key}" for key in keys] for row, query in enumerate(self.queries)]
        for index, head in enumerate(self.heads):
            own = self.data[self.data["head"] == head]
            weights = np.zeros((len(self.queries), len(self.keys)))
            weights[own["query"], own["key"]] = own["weight"]
            place = {"row": index // _COLUMNS + 1, "col": index % _COLUMNS + 1}
            figure.add_heatmap(
                z=weights.round(4).tolist(),
                text=words,
                coloraxis="coloraxis",
                hovertemplate=f"head {head}: %{{text}}<br>%{{z:.4f}}<extra></extra>",
                xgap=1,
                ygap=1,
                **place,
            )
            figure.update_xaxes(title={"text": f"head {head}"}, **place)
        figure.update_xaxes(showgrid=False, zeroline=False, tickangle=-90, **_ticks(self.keys))
        figure.update_yaxes(showgrid=False, zeroline=False, autorange="reversed", **_ticks(self.queries))
        bar = {"thickness": 12, "outlinewidth": 0, "title": {"text": "weight"}}
        most = float(self.data["weight"].max())
        scale = {"colorscale": _SCALE, "cmin": 0.0, "cmax": most, "colorbar": bar}
        figure.update_layout(coloraxis=scale, height=130 + 250 * rows)


def _ticks(words: Sequence[str]) -> dict[str, object]:
    places = range(0, len(words), -(-len(words) // _MOST_TICKS))
    return {"tickvals": list(places), "ticktext": [words[place] for place in places]}


def attention_panel(found: AttentionMap) -> AttentionPanel:
    """Return the panel of one layer."""
    head, query, key = np.nonzero(found.weights)
    data = {
        "head": np.array(found.heads)[head],
        "query": query,
        "query token": np.array(found.queries)[query],
        "key": key,
        "key token": np.array(found.keys)[key],
        "weight": found.weights[head, query, key],
    }
    return AttentionPanel(
        title=found.title, data=DataFrame(data), heads=found.heads, queries=found.queries, keys=found.keys
    )


def write_attention(run: str, prompt: str, maps: Sequence[AttentionMap], file: Path) -> None:
    """Write a page with one panel per layer.

    Raises:
        BadInput: there are too many weights for a page, or the file cannot be written.
    """
    n_weights = sum(each.weights.size for each in maps)
    if n_weights > MOST_WEIGHTS:
        what = f"a page of {n_weights:,} attention weights"
        raise BadInput(Problem(what, f"at most {MOST_WEIGHTS:,}: --layer, --head or a shorter prompt"))
    entries = [("Prompt", prompt), ("Tokens", " ".join(maps[0].keys))]
    if maps[-1].place == "cross":
        entries.append(("Target", " ".join(maps[-1].queries)))
    entries.append(("Shown", f"{several(len(maps), 'map')} of {several(len(maps[0].heads), 'head')}"))
    write_single_page(file, "attention", Summary(run, tuple(entries)), map(attention_panel, maps))


@dataclass(frozen=True, kw_only=True)
class CoordinatesPanel(Panel):
    """Sizes over the width under one parametrization: one field for each of `steps`, one line per layer.

    `data` has one row per width, step and layer; the axis reaches over all parametrizations, from `low` to `high`.
    """

    low: float
    high: float
    steps: Sequence[int]

    def draw(self, figure: Figure) -> None:
        """Draw each layer's activations over the width, from the start on the left to the last step."""
        figure.set_subplots(1, len(self.steps), shared_yaxes=True, horizontal_spacing=0.02)
        data, widths = self.data, sorted(set(self.data["n_embd"]))
        x = Axis("n_embd", "n_embd", True, tuple(map(float, widths)))
        y = Axis("size", "mean absolute activation", True)
        for column, step in enumerate(self.steps, start=1):
            place = {"row": 1, "col": column}
            at = data[data["step"] == step]
            for look, rows in by_look(at, "layer"):
                hover = f"{look.name}, step {step}<br>n_embd %{{x}}: %{{y:.4g}}"
                group = {"legendgroup": look.name, "showlegend": column == 1, **place}
                look.line(figure, rows, "n_embd", "size", hover, line={"width": 1.5}, size=6, **group)
            title = f"{x.title}, {f'step {step}' if step else 'at the start'}"
            figure.update_xaxes(**x.around(data["n_embd"]) | {"title": {"text": title}}, **place)
        figure.update_yaxes(**y.around(DataFrame([self.low, self.high])) | {"title": {}})
        figure.update_yaxes(title={"text": y.title}, row=1, col=1)


class PowersPanel(TablePanel):
    """By which power of the width the activations after each layer grow."""


def coordinates_panels(found: CoordinateCheck) -> list[Panel]:
    """Return one figure per parametrization, and the table of powers."""
    data = DataFrame(found.rows)
    sizes = data.loc[data["size"].between(0, math.inf, inclusive="neither"), "size"]
    doubled = [2**power for power in range(MOST_STEPS - 2) if 2**power < found.n_steps]
    figures = [
        CoordinatesPanel(
            title=f"{name}: size of activations over the width",
            data=data[data["parametrization"] == name],
            method=_COORDINATE_CHECK,
            low=float(sizes.min()),
            high=float(sizes.max()),
            steps=(0, *doubled, found.n_steps),
        )
        for name in found.parametrizations
    ]
    columns = {
        f"{name}, {when}": [found.powers[name, step, layer] for layer in found.layers]
        for name in found.parametrizations
        for when, step in (("at the start", 0), (f"after step {found.n_steps}", found.n_steps))
    }
    powers = PowersPanel(
        title="Power of the width with which activations grow",
        data=DataFrame({"layer": found.layers, **columns}),
        notes=("0 is flat; 0.5 doubles the activations where the width is four times as large.",),
    )
    return [*figures, powers]


def write_coordinates(found: CoordinateCheck, file: Path) -> None:
    """Write a page with one figure per parametrization, and the powers of the width.

    Raises:
        BadInput: the file cannot be written.
    """
    entries = [
        ("Widths", f"n_embd {listed([str(width) for width in found.widths])}"),
        ("Trained for", several(found.n_steps, "step")),
        *((name, written(value)) for name, value in found.values.items()),
        *steepest_in_words(found),
    ]
    write_single_page(file, "coordinates", Summary(found.study, tuple(entries)), coordinates_panels(found))


def steepest_in_words(found: CoordinateCheck) -> list[tuple[str, str]]:
    """Say for each parametrization by which power of the width its activations grow at the most."""
    return [
        (name, f"activations grow as the width to the {power:.2f} after {layer}")
        for name in found.parametrizations
        for layer, power in [found.steepest(name)]
    ]


@dataclass(frozen=True, kw_only=True)
class PositionsPanel(Panel):
    """One line per length. `data`: times (of `block_size`), position from 0, loss; none without a target."""

    block_size: int

    def draw(self, figure: Figure) -> None:
        """Draw the loss at each position; the length of the training sequences is marked."""
        times = list(dict.fromkeys(self.data["times"]))
        for each, color in zip(times, colors(len(times)), strict=True):
            look, rows = Look(f"{each} x block_size", color), self.data[self.data["times"] == each]
            hover = f"{look.name}, position %{{x}}: %{{y:.4f}}"
            look.line(figure, rows, "position", "loss", hover, line={"width": 1.5})
        if times[-1] > 1:
            said, line = (
                {"text": "block_size", "font": {"size": 11}},
                {"color": GREY, "width": 1.5, "dash": "dash"},
            )
            figure.add_vline(x=self.block_size, line=line, annotation=said, annotation_position="top right")
        x, y = (
            Axis("position", "position in the sequence (tokens)"),
            Axis("loss", "mean loss there (nats/token)"),
        )
        figure.update_xaxes(**x.around(self.data["position"], 0.0))
        figure.update_yaxes(**y.around(self.data["loss"]))


def positions_panel(found: Mapping[str, Any]) -> Panel:
    """Return the figure of an evaluation's losses by position."""
    data = DataFrame(
        [
            {"times": length["times"], "position": position, "loss": loss}
            for length in found["length_extrapolation"]
            for position, loss in enumerate(length["by_position"])
            if math.isfinite(loss)
        ]
    )
    title = "Loss by position"
    if data.empty:
        return MissingPanel(title=title, missing="no length could be evaluated")
    left_out = [f"Nothing at {each['times']} times block_size: {each['why']}." for each in found["left_out"]]
    return PositionsPanel(title=title, data=data, notes=tuple(left_out), block_size=found["block_size"])


def write_evaluation(found: Mapping[str, Any], page: Path) -> None:
    """Write an evaluation as a page: its measures, and the loss by position.

    Raises:
        BadInput: the page cannot be written.
    """
    lengths = [
        (
            f"{each['times']} x block_size",
            f"loss {each['val_loss']:.4f} nats/token, {each['targets']:,} targets",
        )
        for each in found["length_extrapolation"]
    ]
    measures = [(name, written(value)) for name, value in found["measures"].items()]
    entries = [("Validation split", f"of study {found['study']}"), *measures, *lengths]
    write_single_page(page, "evaluation", Summary(found["run"], tuple(entries)), [positions_panel(found)])
