"""The gradients of the best runs, by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.trials import trials_table
from sweeplab.errors import BadInput
from sweeplab.formatting import short
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import read_gradients
from sweeplab.report.data import PROGRESS, ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import Axis, Figure

_SHOWN = {"gradient": "gradient norm", "relative_update": "update / weights"}
# In pixels: a layer's row, and the scale of colors above each of the two maps.
_ROW, _SCALE = 24, 72
_METHOD = (
    "At each point of the curve: the norm of a layer's gradient in that step, before clipping; and the norm of the "
    "step's weight update, divided by the norm of the weights before it. If the first blocks have much smaller "
    "gradients than the last, gradients vanish on the way back; updates of about a thousandth of the weights are usual."
)


class GradientFlowPanel(Panel, name="gradient_flow", heading="Gradient flow by layer"):
    """The norms of gradients, and of updates over weights, by layer and iteration, of the best run of each cell.

    `data`: cell, trial, seed, iteration, layer, gradient, update, weights, relative_update.
    """

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        study, lab = report.study, report.lab or Path()
        trials = trials_table(report.runs).sort_values("best", ascending=False, kind="stable")
        best = trials.drop_duplicates("cell").sort_values("loss")[["cell", "trial", "seed"]]
        rows = []
        for cell, trial, seed in best.values.tolist() if report.lab else ():
            run = {"cell": cell, "trial": trial, "seed": seed}
            folder = StudyFolder(lab, study).run(cell, trial, seed)
            for point in read_gradients(folder):
                for layer, (gradient, update, weights) in point.layers.items():
                    norms = {"gradient": gradient, "update": update, "weights": weights}
                    rows.append({**run, "iteration": point.iteration, "layer": layer, **norms})
        if not rows:
            raise BadInput(
                "no run has recorded the norms of its layers; track: {gradients: true} in the study records them"
            )
        data = DataFrame(rows).astype({"gradient": float, "update": float, "weights": float})
        data["relative_update"] = data["update"] / data["weights"].where(data["weights"] > 0)
        return cls(
            data=data,
            notes=("The best run of each cell; the first layer is on top. The color scale is logarithmic.",),
            method={"Gradient flow": _METHOD},
            x=Axis("iteration", PROGRESS["iteration"]),
        )

    def _draw(self, figure: Figure) -> None:
        cells = list(dict.fromkeys(self.data["cell"]))
        rows_high = _ROW * max(4, self.data["layer"].nunique())
        height = 2 * (rows_high + _SCALE)
        tops = {"y": 1 - _SCALE / height, "y2": 0.5 - _SCALE / height}  # of the maps, in shares of the figure
        for cell, rows in self.data.groupby("cell", sort=False):
            layers = list(dict.fromkeys(rows["layer"]))
            for (column, title), (axis, top) in zip(_SHOWN.items(), tops.items(), strict=True):
                table = rows.pivot(index="layer", columns="iteration", values=column).loc[layers]
                known = self.data[column][self.data[column] > 0]  # one color scale for all cells
                low, high = map(float, known.agg(["min", "max"]).fillna(1.0))
                ticks = np.unique(np.geomspace(low, high, 4))
                figure.add_heatmap(
                    x=table.columns,
                    y=layers,
                    z=np.log10(table.where(table > 0).to_numpy()),
                    zmin=np.log10(low),
                    zmax=np.log10(high),
                    customdata=[[f"{each:.3g}" for each in row] for row in table.to_numpy()],
                    colorscale="Cividis",
                    colorbar={
                        "title": {"text": title, "side": "top"},
                        "orientation": "h",
                        "thickness": 10,
                        "outlinewidth": 0,
                        "y": top,
                        "yanchor": "bottom",
                        "tickvals": [float(np.log10(tick)) for tick in ticks],
                        "ticktext": [short(tick) for tick in ticks],
                    },
                    yaxis=axis,
                    visible=cell == cells[0],
                    meta={"of_line": {"cell": cell}},
                    hovertemplate=f"%{{y}}, iteration %{{x}}<br>{title} %{{customdata}}<extra>{cell}</extra>",
                )
        x_axis: dict[str, Any] = {"title": {"text": self.x.title}, "anchor": "y2"}
        x_axis |= {"showgrid": False, "zeroline": False}
        iterations = self.data["iteration"].unique()
        if len(iterations) == 1:  # an axis of numbers would mark others beside it, by halves
            x_axis["tickvals"] = [*iterations]
        plain = {"type": "category", "autorange": "reversed", "showgrid": False, "automargin": True}
        figure.update_layout(
            xaxis=x_axis,
            yaxis={**plain, "domain": [tops["y"] - rows_high / height, tops["y"]]},
            yaxis2={**plain, "domain": [tops["y2"] - rows_high / height, tops["y2"]]},
            height=height + 64,  # with the margins
        )
        if len(cells) > 1:
            figure.update_layout(
                meta={"select": {"cell": {"values": cells, "shown": cells[0], "single": True}}}
            )
