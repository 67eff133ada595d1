"""The gradients of the best run, by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.trials import are_best, trials_table
from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import read_gradients
from sweeplab.report.data import PROGRESS, ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import Axis, Figure

_SHOWN = {"gradient": "gradient norm", "relative_update": "update / weights"}
_ROW = 24  # pixels of a layer's row
_METHOD = (
    "At each point of the curve: the norm of a layer's gradient in that step, before clipping; and the norm of the "
    "step's weight update, divided by the norm of the weights before it. If the first blocks have much smaller "
    "gradients than the last, gradients vanish on the way back; updates of about a thousandth of the weights are usual."
)


class GradientFlowPanel(Panel, name="gradient_flow", heading="Gradient flow by layer"):
    """The norms of gradients, and of updates over weights, by layer and iteration, of the best trial's first run.

    `data`: cell, trial, seed, iteration, layer, gradient, update, weights, relative_update.
    """

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        rows = []
        trials = trials_table(report.runs)
        best = trials[are_best(trials, ["study"])].to_dict("records")
        for trial in best if report.lab else ():
            run = {name: trial[name] for name in ("cell", "trial", "seed")}
            folder = StudyFolder(report.lab or Path(), report.study).run(*run.values())
            for point in read_gradients(folder):
                for layer, (gradient, update, weights) in point.layers.items():
                    norms = {"gradient": gradient, "update": update, "weights": weights}
                    rows.append({**run, "iteration": point.iteration, "layer": layer, **norms})
        if not rows:
            raise BadInput(
                "the best run has not recorded the norms of its layers; track: {gradients: true} in the study does"
            )
        data = DataFrame(rows).astype({"gradient": float, "update": float, "weights": float})
        data["relative_update"] = data["update"] / data["weights"].where(data["weights"] > 0)
        note = "The best trial, the first layer on top; colors are powers of ten."
        x = Axis("iteration", PROGRESS["iteration"])
        return cls(data=data, notes=(note,), method={"Gradient flow": _METHOD}, x=x)

    def _draw(self, figure: Figure) -> None:
        layers = list(dict.fromkeys(self.data["layer"]))
        figure.set_subplots(len(_SHOWN), 1, shared_xaxes=True, subplot_titles=list(_SHOWN.values()))
        for row, (column, title) in enumerate(_SHOWN.items(), start=1):
            table = self.data.pivot(index="layer", columns="iteration", values=column).loc[layers]
            bar = {"thickness": 10, "outlinewidth": 0, "len": 0.45, "y": 1.28 - row / 2, "tickprefix": "1e"}
            figure.add_heatmap(
                x=table.columns,
                y=layers,
                z=np.log10(table.where(table > 0).to_numpy()),
                customdata=table.to_numpy(),
                colorscale="Cividis",
                colorbar=bar,
                hovertemplate=f"%{{y}}, iteration %{{x}}<br>{title} %{{customdata:.3g}}<extra></extra>",
                row=row,
                col=1,
            )
        plain = {"showgrid": False, "zeroline": False}
        figure.update_yaxes(type="category", autorange="reversed", automargin=True, **plain)
        figure.update_xaxes(**plain)
        iterations = self.data["iteration"].unique()
        if len(iterations) == 1:  # an axis of numbers would mark others beside it, by halves
            figure.update_xaxes(tickvals=[*iterations])
        figure.update_xaxes(title={"text": self.x.title}, row=len(_SHOWN), col=1)
        figure.update_layout(height=160 + 2 * _ROW * max(4, len(layers)))
