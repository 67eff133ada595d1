"""Panels of a sweep that Optuna draws too: the loss over pairs of hyperparameters, and when trials ran."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from pandas import DataFrame, to_datetime

from sweeplab.analysis.sweep import has_ended
from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.report.data import ReportData
from sweeplab.report.options import Params
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.sweep import SpacePanel, axis_of, drawn_trials, hover_of, paired
from sweeplab.report.style import GREY, STATE_COLORS, Axis, Figure, Look, name_rows, spaced

_GRID = 30  # places along each side of a map
_FEWEST = 5  # trials for a map
_MOST_BARS = 200


class ContourPanel(SpacePanel, name="contour", heading="Loss over pairs of hyperparameters"):
    """The loss between the trials that ended, interpolated over each pair of hyperparameters."""

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        data, y = drawn_trials(report)
        ended = data[has_ended(data)]
        if len(ended) < _FEWEST:
            raise BadInput(f"a map needs {_FEWEST} trials that ended; there are {len(ended)}")
        note = "Colors: interpolated between the trials, which are the dots; the worst tenth count as the next best."
        return cls(data=ended, notes=(note,), dimensions=tuple(paired(report, params, "maps")), y=y)

    def _draw(self, figure: Figure) -> None:
        pairs, places = list(combinations(self.dimensions, 2)), np.linspace(0, 1, _GRID)
        data, rows = self.data[self.data["drawn"]], self.grid(figure, len(pairs), share_y=False)
        losses = data[self.y.column].to_numpy(float)
        losses = np.minimum(losses, np.quantile(losses, 0.9))
        words, dot = data.astype(str), {"size": 4, "line": {"width": 1, "color": "white"}}
        for place, (first, second) in zip(rows, pairs, strict=True):
            x, y = (each.coordinates(data[each.name]) for each in (first, second))
            known = x.notna() & y.notna()
            # Inverse distances: unlike a triangulation they need no points around a place, nor two different values.
            at = np.stack(np.meshgrid(places, places), -1)[..., None, :] - np.stack([x[known], y[known]], -1)
            weights = 1 / ((at**2).sum(-1) ** 1.5 + 1e-4)
            z = (weights * losses[known]).sum(-1) / weights.sum(-1)
            figure.add_contour(
                x=places,
                y=places,
                z=z.round(5),
                coloraxis="coloraxis",
                hoverinfo="skip",
                line={"width": 0.5},
                **place,
            )
            look = Look("trials", GREY)
            hover = f"{hover_of(first, second)}<br>loss %{{loss}}"
            look.points(
                figure, words[known], x[known], y[known], hover, marker=dot, showlegend=False, **place
            )
            figure.update_xaxes(**axis_of(first) | {"range": [0, 1]}, **place)
            figure.update_yaxes(automargin=True, **axis_of(second) | {"range": [0, 1]}, **place)
        bar = {"title": {"text": "loss", "side": "top"}, "thickness": 12, "outlinewidth": 0}
        figure.update_layout(coloraxis={"colorscale": "Cividis", "colorbar": bar})


class TimelinePanel(Panel, name="timeline", source="sweeps"):
    """When each trial ran. `data`: study, cell, trial, state, begin and end (seconds since the first began)."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        rows = []
        for study in dict.fromkeys(report.runs["study"]) if len(report.runs) else ():
            folder = report.folder(str(study))
            for run in folder.runs() if folder else ():
                start, end = run.read_start(), run.read_end()
                if end and end.ended:
                    place = {"study": study, "cell": run.cell, "trial": run.trial, "seed": run.seed}
                    rows.append(place | {"state": str(end.state), "begin": start.started, "end": end.ended})
        if not rows:
            raise BadInput("no run has ended")
        data = DataFrame(rows).sort_values("begin", ignore_index=True)
        first = float(data["begin"].min())
        notes = [f"From {to_datetime(first, unit='s'):%Y-%m-%d %H:%M} UTC."]
        if len(data) > _MOST_BARS:
            notes.append(f"Drawn: the first {_MOST_BARS} of {several(len(data), 'run')}.")
        data = data.assign(begin=data["begin"] - first, end=data["end"] - first)
        return cls(data=data, notes=tuple(notes), x=Axis("end", "seconds since the first run began"))

    def _draw(self, figure: Figure) -> None:
        data = self.data.head(_MOST_BARS)
        for state, rows in data.groupby("state"):
            figure.add_bar(
                x=rows["end"] - rows["begin"],
                base=rows["begin"],
                y=rows.index,
                orientation="h",
                textposition="none",
                name=state,
                marker={"color": STATE_COLORS[str(state)]},
                customdata=rows[["cell", "trial", "seed", "end"]],
                hovertemplate="%{customdata[0]}, trial %{customdata[1]}, seed %{customdata[2]}"
                "<br>%{base:.1f} to %{customdata[3]:.1f} s<extra></extra>",
                meta={"trials": list(zip(rows["study"], rows["cell"], rows["trial"], strict=True))},
            )
        names = data["trial"].map("#{}".format)
        if data["cell"].nunique() > 1:
            names = data["cell"].map(spaced) + " " + names
        name_rows(figure, [name if len(data) <= 40 else "" for name in names])
        height = max(160, min(640, 110 + 16 * len(data)))
        figure.update_layout(
            xaxis=self.x.over(0.0, float(data["end"].max()) or 1.0), height=height, showlegend=True
        )
