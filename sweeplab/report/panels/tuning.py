"""The best value of every searched hyperparameter over the size, with its law."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pandas import DataFrame, concat

from sweeplab.analysis.studies import tuned_runs
from sweeplab.errors import BadInput
from sweeplab.formatting import rounded
from sweeplab.laws.hyperparameters.assessment import HyperparameterLaws, assess_hyperparameters
from sweeplab.laws.hyperparameters.line import LEVEL
from sweeplab.report.data import ROLES, ReportData, title_of
from sweeplab.report.options import Params
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import GOOD, GREY, MIDDLE, Axis, Figure, Look, bars

_STEPS = 30  # points of a line
_METHOD = {
    "Optimum": "From all cells at once: the log loss is a quadratic with a skew about each cell's optimum, and "
    "all cells share curvature and skew. Optima at an end of the values tried are bounds, drawn as triangles.",
    "Law": f"A power law in the sizes, other sizes at their means; the band is the {LEVEL:.0%} interval of a new cell.",
}


class BestValuesPanel(Panel, name="best_values", heading="Best value against size", source="runs"):
    """The best values over a size. `data`: hyperparameter, what (cell, law), x, best, low, high, edge.

    `sizes` is the size on each hyperparameter's axis, by name.
    """

    sizes: dict[str, str]

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        """Draw the best value of each numeric hyperparameter that was searched."""
        laws = _laws(report)
        names = [name for name in laws.searched if not params or name in params]
        if not names:
            raise BadInput(f"{', '.join(params)} was not searched as a number")
        sizes, tables, notes = {}, [], []
        for name in names:
            searched = laws.searched[name]
            sizes[name] = searched.laws[0].columns[0] if searched.laws else laws.runs.sizes[0]
            tables.append(_table(laws, name, sizes[name]))
            notes += [
                f"{name}, {quantity}: {_in_words(entry)}." for quantity, entry in searched.numbers.items()
            ]
            notes += [f"One {name} for every {each['over']} {each['verdict']}." for each in searched.transfer]
            if searched.why_none:
                notes.append(f"{name} has no law: {searched.why_none}.")
        first = names[0]
        return cls(
            title=f"Best {' and '.join(names)} against size".replace("_", " "),
            data=concat(tables, ignore_index=True),
            notes=tuple(notes),
            warnings=tuple(f"{name}: {flag}" for name in names for flag in laws.searched[name].flags),
            method=_METHOD,
            result=laws.as_dict(),
            x=Axis("x", _size_title(sizes[first]), True),
            y=Axis("best", title_of(first), True),
            sizes=sizes,
        )

    def _draw(self, figure: Figure) -> None:
        names = list(self.sizes)
        if len(names) > 1:
            figure.set_subplots(1, len(names), horizontal_spacing=0.3 / len(names))
        for at, name in enumerate(names, 1):
            data = self.data[self.data["hyperparameter"] == name]
            place: dict[str, Any] = {"row": 1, "col": at} if len(names) > 1 else {}
            line, cells = data[data["what"] == "law"], data[data["what"] == "cell"]
            shown = {"showlegend": at == 1, **place}
            if len(line):
                look = Look("law", GOOD)
                for end in ("low", "high"):
                    look.line(
                        figure,
                        line,
                        "x",
                        end,
                        line={"width": 1, "dash": "2px 3px"},
                        showlegend=False,
                        **place,
                    )
                look.line(figure, line, "x", "best", "%{x:.3s}: %{y:.3g}", **shown)
            for is_edge, look in (
                (False, Look("best of a cell", MIDDLE)),
                (True, Look("at an end", GREY, "triangle-up")),
            ):
                rows = cells[(cells["edge"] != "") == is_edge]
                hover = "%{cell}: %{y:.3g} (%{low:.3g} to %{high:.3g}) %{edge}"
                if len(rows):
                    errors = {} if is_edge else {"error_y": bars(rows, "best")}
                    look.points(figure, rows, "x", "best", hover, **errors, **shown)
            x = Axis("x", _size_title(self.sizes[name]), True).around(data["x"])
            y = Axis("best", title_of(name), True).around(data["best"])
            figure.update_xaxes(**x, **place)
            figure.update_yaxes(**y, **place)


def _laws(report: ReportData) -> HyperparameterLaws:
    report.check_runs()
    studied = report.studied

    def work() -> HyperparameterLaws:
        conventions = studied.settled() if studied else None
        return assess_hyperparameters(tuned_runs(report.runs, report.study, report.design, conventions))

    return report.once("hyperparameters", work)


def _table(laws: HyperparameterLaws, name: str, size: str) -> DataFrame:
    runs, searched = laws.runs, laws.searched[name]
    sizes = np.exp(runs.log_of(size))
    rows = [
        {
            "hyperparameter": name,
            "what": "cell",
            "cell": laws.cell_name(c),
            "x": float(sizes[c]),
            **{"best": cell.value, "low": cell.low, "high": cell.high, "edge": cell.as_dict()["edge"]},
        }
        for c, cell in enumerate(searched.cells)
    ]
    if searched.laws:
        law = searched.laws[0]
        # The other sizes follow this one as they do in the cells: on a path, all grow together.
        others = {column: np.polyfit(np.log(sizes), runs.log_of(column), 1) for column in law.columns}
        for x in np.linspace(math.log(sizes.min()), math.log(sizes.max()), _STEPS):
            mixture = law.optimum({column: float(np.polyval(line, x)) for column, line in others.items()})
            low, high = mixture.interval()
            values = {"best": math.exp(mixture.mean), "low": math.exp(low), "high": math.exp(high)}
            rows.append(
                {"hyperparameter": name, "what": "law", "cell": "", "x": math.exp(x), **values, "edge": ""}
            )
    return DataFrame(rows)


def _size_title(size: str) -> str:
    return ROLES.get(size, title_of(size))


def _in_words(entry: Any) -> str:
    ends = f"{rounded(entry['low'])} to {rounded(entry['high'])}, {entry['verdict']}"
    if entry["value"] is None:
        return ends
    return f"{rounded(entry['value'])} ({ends})"
