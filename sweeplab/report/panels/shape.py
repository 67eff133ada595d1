"""Depth against width: what the shape of a model is worth beside its size."""

from __future__ import annotations

from dataclasses import dataclass

from pandas import DataFrame, concat

from sweeplab.analysis.compute_optimal.shape import Shape, shape_of
from sweeplab.analysis.trials import marks_of
from sweeplab.errors import BadInput
from sweeplab.formatting import rounded, sentence, several
from sweeplab.report.data import ROLES, ReportData, title_of
from sweeplab.report.options import Option
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.fit import shown_of
from sweeplab.report.panels.losses import LossMap, map_axis
from sweeplab.report.style import GREY, Axis, Figure, Look, looks

_EQUAL = "loss_at_equal_params"
_SIZE_ALONE = "size alone"
_TITLES = {
    "params": "Loss by depth and width, over parameters",
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
class ShapePanel(
    Panel,
    name="shape",
    heading="Loss by depth and width",
    source="points",
    options={"x": Option(tuple(_TITLES))},
):
    """Losses of shapes. `data`: what (shape, size alone), name, n_layer, n_embd, aspect_ratio, params, tokens, loss, …

    `y` is the loss itself over params, and otherwise what it would be at `middle` parameters; `line` is the column
    that names the lines.
    """

    line: str

    @classmethod
    def of(cls, report: ReportData, x: str = "params") -> Panel:
        """Show what depth and width buy: over parameters as they are, or over either at equal parameters."""
        if x != "params":
            return cls._at_equal_parameters(_compared(report), x)
        found = _shape(report)
        said = found.as_dict()
        law = DataFrame(said["size_law"]).assign(what=_SIZE_ALONE) if said["size_law"] else DataFrame()
        shapes = f"{several(found.n_shapes, 'shape')}. Large: on the frontier."
        return cls(
            title=_TITLES[x],
            data=concat([_cells(found), law], ignore_index=True),
            shown=shown_of(said["numbers"]),
            notes=(shapes, sentence(found.says)),
            method=_METHOD,
            result=said,
            x=Axis(x, ROLES[x], True),
            y=Axis("loss", ROLES["loss"]),
            line="n_layer",
        )

    @classmethod
    def _at_equal_parameters(cls, found: Shape, x: str) -> Panel:
        cells = _cells(found)
        return cls(
            title=_TITLES[x],
            data=cells,
            notes=(f"Each loss is brought to {rounded(found.middle_params)} parameters by the curve in N.",),
            method=_METHOD,
            x=Axis(x, title_of(x), True, marks_of(cells[x])),
            y=Axis(_EQUAL, "loss at equal parameters"),
            line="n_embd" if x == "n_layer" else "n_layer",
        )

    def draw(self, figure: Figure) -> None:
        """Draw each shape's loss; lines join the shapes of one depth or width."""
        x, y, over_size = self.x.column, self.y.column, self.x.column == "params"
        shapes, law = (self.data[self.data["what"] == what] for what in ("shape", _SIZE_ALONE))
        if len(law):
            dashed = {"width": 1.5, "dash": "4px 4px"}
            Look(_SIZE_ALONE, GREY).line(figure, law, "params", "loss", line=dashed)
        columns = ["name", "n_layer", "n_embd"]
        hover = "%{customdata[0]}<br>n_layer %{customdata[1]:g}, n_embd %{customdata[2]:g}<br>"
        hover += f"{x} %{{x:.4s}}: %{{y:.4f}}"
        groups = list(shapes.groupby(self.line))
        names = [f"{self.line} {value:g}" for value, _ in groups]
        for look, (_, shown) in zip(looks(names), groups, strict=True):
            rows = shown.sort_values([x, y])
            if over_size or rows["tokens"].nunique() > 1 or not rows[x].is_unique:
                sizes = [11 if on else 6 for on in rows["on_frontier"]] if over_size else 8
                look.points(figure, rows, x, y, hover, columns, marker={"size": sizes, "opacity": 1})
            else:
                look.line(figure, rows, x, y, hover, columns, line={"width": 1.5}, size=8)
        figure.update_xaxes(**self.x.around(shapes[x]))
        figure.update_yaxes(**self.y.around(shapes[y]))
        figure.update_layout(showlegend=True)


class ShapeMapPanel(
    LossMap, name="shape_map", heading="Loss by depth and width at equal parameters", source="points"
):
    """The loss at equal parameters over n_layer and n_embd. `data`: n_layer, n_embd, loss, name."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Give the lowest loss at equal parameters of each depth and width."""
        found = _compared(report)
        cells = _cells(found)
        lowest = sorted(cells.groupby(["n_layer", "n_embd"])[_EQUAL].idxmin())
        columns = {"n_layer": "n_layer", "n_embd": "n_embd", _EQUAL: "loss", "name": "name"}
        best = cells.loc[lowest, list(columns)].rename(columns=columns).reset_index(drop=True)
        level = rounded(found.middle_params)
        return cls(
            data=best,
            notes=(f"The effect of size is taken out: each loss is brought to {level} parameters.",),
            method=_METHOD,
            x=map_axis("n_embd", best),
            y=map_axis("n_layer", best),
        )


def _shape(report: ReportData) -> Shape:
    return report.once("shape", lambda: shape_of(report.points))


def _compared(report: ReportData) -> Shape:
    found = _shape(report)
    if not found.numbers["depth at equal parameters"].identified:
        raise BadInput(found.says)
    return found


def _cells(found: Shape) -> DataFrame:
    return found.cells.assign(what="shape")
