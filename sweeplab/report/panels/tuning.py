"""The best value of every searched hyperparameter over the size, with its law."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pandas import DataFrame, concat

from sweeplab.analysis.studies import tuned_runs
from sweeplab.errors import BadInput
from sweeplab.formatting import rounded
from sweeplab.laws.columns import PLAIN
from sweeplab.laws.core import LEVEL, interval
from sweeplab.laws.hyperparameters.assessment import HyperparameterLaws, assess_hyperparameters
from sweeplab.report.data import ROLES, ReportData, title_of
from sweeplab.report.panels.base import Panel, Params
from sweeplab.report.style import GOOD, GREY, MIDDLE, Axis, Figure, Look, bars

_STEPS = 30  # points of a line
_METHOD = {
    "Optimum": "From all cells at once: the log loss is a quadratic with a skew about each cell's optimum, and "
    "all cells share curvature and skew. Optima at an end of the values tried are drawn as triangles.",
    "Law": f"A power law in the sizes, other sizes at their means; the band is the {LEVEL:.0%} interval of a new cell.",
}


class BestValuesPanel(Panel, name="best_values", heading="Best value against size", source="runs"):
    """The best values over a size. `data`: hyperparameter, what (cell, law), cell, x, best, low, high, edge.

    `size` is the size on the axis.
    """

    size: str

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        """Draw the best value of each numeric hyperparameter that was searched."""
        laws = _laws(report)
        names = [name for name in laws.searched if not params or name in params]
        if not names:
            raise BadInput(f"{', '.join(params)} was not searched as a number")
        size, notes = laws.surface.sizes[0], []
        for name in names:
            searched = laws.searched[name]
            for quantity, entry in searched.numbers.items():
                notes.append(f"{name}, {quantity}: {_in_words(entry)}.")
        return cls(
            title=f"Best {' and '.join(names)} against size".replace("_", " "),
            data=concat([_table(laws, name, size) for name in names], ignore_index=True),
            notes=tuple(notes),
            method=_METHOD,
            result=laws.as_dict(),
            size=size,
        )

    def _draw(self, figure: Figure) -> None:
        names = list(dict.fromkeys(self.data["hyperparameter"]))
        figure.set_subplots(1, len(names), horizontal_spacing=0.3 / len(names))
        hover = "%{cell}: %{y:.3g} (%{low:.3g} to %{high:.3g}) %{edge}"
        for column, name in enumerate(names, start=1):
            data = self.data[self.data["hyperparameter"] == name]
            place = {"row": 1, "col": column}
            law, is_edge = data[data["what"] == "law"], data["edge"] != ""
            inside = data[(data["what"] == "cell") & ~is_edge]
            shown = {"showlegend": column == 1, **place}
            look = Look("law", GOOD)
            look.band(figure, law, "x", **place)
            look.line(figure, law, "x", "best", "%{x:.3s}: %{y:.3g}", legendgroup="law", **shown)
            error = bars(inside, "best")
            Look("best of a cell", MIDDLE).points(figure, inside, "x", "best", hover, error_y=error, **shown)
            Look("at an end", GREY, "triangle-up").points(figure, data[is_edge], "x", "best", hover, **shown)
            x_axis = Axis("x", ROLES.get(self.size, title_of(self.size)), True)
            figure.update_xaxes(**x_axis.around(data["x"]), **place)
            figure.update_yaxes(**Axis("best", title_of(name), True).around(data["best"]), **place)


def _laws(report: ReportData) -> HyperparameterLaws:
    report.check_runs()
    studied = report.studied

    def work() -> HyperparameterLaws:
        counting = studied.settled() if studied else PLAIN
        return assess_hyperparameters(tuned_runs(report.runs, report.study, counting, report.design))

    return report.once("hyperparameters", work)


def _table(laws: HyperparameterLaws, name: str, size: str) -> DataFrame:
    runs, surface, searched = laws.surface.runs, laws.surface, laws.searched[name]
    logs = runs.log_of(size)
    rows = []
    for c in range(runs.n_cells):
        best = searched.cell(c)
        place = {"hyperparameter": name, "what": "cell", "cell": runs.cell_name(c), "x": math.exp(logs[c])}
        rows.append(place | {"best": best["value"]} | {end: best[end] for end in ("low", "high", "edge")})
    # The other sizes follow this one as they do in the cells: on a path, all grow together.
    others = {column: np.polyfit(logs, runs.log_of(column), 1) for column in surface.sizes}
    for x in np.linspace(logs.min(), logs.max(), _STEPS):
        at = {column: float(np.polyval(line, x)) for column, line in others.items()}
        middle, low, high = np.exp(interval(surface.optimum(at)[:, searched.j], LEVEL))
        ends = {"best": middle, "low": low, "high": high, "edge": ""}
        rows.append({"hyperparameter": name, "what": "law", "cell": "", "x": math.exp(x)} | ends)
    return DataFrame(rows)


def _in_words(entry: Any) -> str:
    ends = f"{rounded(entry['low'])} to {rounded(entry['high'])}, {entry['verdict']}"
    if entry["value"] is None:
        return ends
    return f"{rounded(entry['value'])} ({ends})"
