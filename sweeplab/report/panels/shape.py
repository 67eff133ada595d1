"""Depth against width: what the shape of a model is worth beside its size."""

from __future__ import annotations

from dataclasses import dataclass

from pandas import DataFrame, concat

from sweeplab.analysis.compute_optimal.shape import Shape, shape_of
from sweeplab.analysis.trials import marks_of
from sweeplab.errors import BadInput
from sweeplab.report.columns import ROLES, title_of
from sweeplab.report.panels.base import Axis, Panel, PanelSpec
from sweeplab.report.panels.material import Material
from sweeplab.report.panels.numbers import shown_of
from sweeplab.report.panels.runs import HeatMapPanel
from sweeplab.report.words import several, short

SHAPES = ("params", "n_layer", "n_embd", "aspect_ratio")
EQUAL = "loss_at_equal_params"
_AT_EQUAL = "loss at equal parameters"
_TITLES = {
    "params": "The frontier of shapes",
    "n_layer": "Depth at equal parameters",
    "n_embd": "Width at equal parameters",
    "aspect_ratio": "Aspect ratio at equal parameters",
}
_METHOD = (
    (
        "Comparison",
        "The log losses of the shapes are regressed on a curve in log N and on log(n_embd / n_layer): the second is "
        "what shape buys at equal parameters. A shape that was trained for several lengths is one row.",
    ),
    (
        "Frontier",
        "A shape is on it if none with as many tokens has fewer or as many parameters and a loss as low.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class ShapePanel(Panel):
    """Losses of shapes. `data`: what (shape, size alone), name, n_layer, n_embd, aspect_ratio, params, tokens, loss, …

    `y` is the loss itself over params, and otherwise what it would be at `middle` parameters; `line` tells the lines
    apart.
    """

    x: Axis
    y: Axis
    line: str


def shape_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show what depth and width buy: over parameters as they are, over n_layer or n_embd at equal parameters.

    Raises:
        BadInput: the points have no shapes, or shapes of unlike sizes that cannot be compared.
    """
    found, x = _shape(material), spec.x or "params"
    cells = DataFrame([each.as_dict() for each in found.cells]).assign(what="shape")
    is_size = x == "params"
    if not is_size:
        _check(found)
    said = found.as_dict()
    law = (
        DataFrame(said["size_law"]).assign(what="size alone") if is_size and said["size_law"] else DataFrame()
    )
    sentence = f"{found.says[0].upper()}{found.says[1:]}."
    level = f"Each loss brought to {short(float(f'{found.middle_params:.3g}'))} parameters by the curve in N."
    return ShapePanel(
        title=spec.title or _TITLES[x],
        width=spec.width,
        data=concat([cells, law], ignore_index=True),
        shown=shown_of(said["numbers"]) if is_size else None,
        notes=(f"{several(found.n_shapes, 'shape')}. Large: on the frontier.", sentence)
        if is_size
        else (level,),
        method=_METHOD,
        result=said if is_size else {},
        x=Axis(x, ROLES["params"] if is_size else title_of(x), True, () if is_size else marks_of(cells[x])),
        y=Axis("loss", ROLES["loss"]) if is_size else Axis(EQUAL, _AT_EQUAL),
        line="n_embd" if x == "n_layer" else "n_layer",
    )


def shape_map_panel(spec: PanelSpec, material: Material) -> Panel:
    """Draw the loss at equal parameters over n_layer and n_embd.

    Raises:
        BadInput: the points have no shapes, or shapes of unlike sizes that cannot be compared.
    """
    found = _shape(material)
    _check(found)
    cells = DataFrame([each.as_dict() for each in found.cells])
    lowest = cells.groupby(["n_layer", "n_embd"])[EQUAL].idxmin()
    best = cells.loc[sorted(lowest), ["n_layer", "n_embd", EQUAL, "name"]].rename(columns={EQUAL: "loss"})
    return HeatMapPanel(
        title=spec.title or "Shape alone: loss at equal parameters",
        width=spec.width,
        data=best.reset_index(drop=True),
        notes=(
            f"What size does is taken out: each loss as if of {short(float(f'{found.middle_params:.3g}'))} parameters.",
        ),
        method=_METHOD,
        x=Axis("n_embd", title_of("n_embd"), marks=marks_of(best["n_embd"], most=None)),
        y=Axis("n_layer", title_of("n_layer"), marks=marks_of(best["n_layer"], most=None)),
    )


def _shape(material: Material) -> Shape:
    return material.once("shape", lambda: shape_of(material.points))


def _check(found: Shape) -> None:
    if not found.numbers["depth at equal parameters"].identified:
        raise BadInput(found.says)
