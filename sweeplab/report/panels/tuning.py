"""The best value of every searched hyperparameter over the size, with its law, and what its predictions cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pandas import DataFrame, concat

from sweeplab.analysis.predicting import RATE, Transferred, read_transferred
from sweeplab.analysis.studies import tuned_runs
from sweeplab.errors import BadInput
from sweeplab.formatting import rounded
from sweeplab.laws.core import LEVEL, interval
from sweeplab.laws.hyperparameters.assessment import HyperparameterLaws, assess_hyperparameters
from sweeplab.report.data import ROLES, ReportData, title_of
from sweeplab.report.options import Params
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import FAINT, GOOD, GREY, MIDDLE, Axis, Figure, Look, bars, by_look

_STEPS = 30  # points of a line
_METHOD = {
    "Optimum": "From all cells at once: the log loss is a quadratic with a skew about each cell's optimum, and "
    "all cells share curvature and skew. Optima at an end of the values tried are drawn as triangles.",
    "Law": f"A power law in the sizes, other sizes at their means; the band is the {LEVEL:.0%} interval of a new cell.",
}
_TRANSFER = {
    "Prediction": "The learning rate follows its law over the tuned sizes, or is that of the nearest cell. It was made "
    "before a run at the held-out size began; the forecast of the loss was sealed where a law gives one.",
    "Ladder": "Runs at the predicted learning rate, at that of the largest tuned size, and around them; losses are "
    "means over seeds. The lowest of several noisy losses is low by luck, so regrets are too large rather than small.",
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
            warnings=tuple(f"{name}: {flag}" for name in names for flag in laws.searched[name].flags),
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
            place: dict[str, Any] = {"row": 1, "col": column}
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
        conventions = studied.settled() if studied else None
        return assess_hyperparameters(tuned_runs(report.runs, report.study, report.design, conventions))

    return report.once("hyperparameters", work)


def _table(laws: HyperparameterLaws, name: str, size: str) -> DataFrame:
    runs, surface, searched = laws.runs, laws.surface, laws.searched[name]
    logs = runs.log_of(size)
    rows: list[dict[str, Any]] = []
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


class TransferPanel(Panel, name="transfer", heading="Predicted sizes", source="runs"):
    """The ladders. `data`: size, learning_rate, loss, cost (a share), what (predicted, copied), interval low, high."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        results = read_transferred(report.lab, report.study) if report.lab else []
        if not results:
            raise BadInput("no size was predicted and trained; sweeplab transfer does")
        return cls(
            title="Loss at sizes that were predicted, not tuned",
            data=concat([_ladder(each) for each in results], ignore_index=True),
            notes=tuple(_ladder_in_words(each) for each in results),
            method=_TRANSFER,
            result={"sizes": [each.as_dict() for each in results]},
            x=Axis(RATE, title_of(RATE), True),
            y=Axis("loss", report.measure_title("val_loss"), True),
        )

    def _draw(self, figure: Figure) -> None:
        hover = "%{size}: %{y:.4f} at %{x:.3g}, %{cost:.2%} above the best"
        for look, rows in by_look(self.data, "size"):
            look.line(figure, rows, RATE, "loss", hover, size=6)
            predicted = rows[rows["what"] == "predicted"]
            bar = bars(predicted, RATE, thickness=5, width=0, color=FAINT)
            marker = {"size": 12, "symbol": "diamond"}
            look.points(figure, predicted, RATE, "loss", hover, marker=marker, error_x=bar, showlegend=False)
        figure.update_layout(xaxis=self.x.around(self.data[RATE]), yaxis=self.y.around(self.data["loss"]))


def _ladder(result: Transferred) -> DataFrame:
    rungs = DataFrame(result.as_dict()["losses"]).astype({"loss": float, "cost": float})
    marks = {result.copied: "copied", result.predicted: "predicted"}
    rungs = rungs.assign(size=_name(result), what=rungs[RATE].map(marks).fillna(""))
    predicted = result.prediction["values"][RATE]
    for end in ("low", "high"):
        value = np.nan if predicted[end] is None else predicted[end]
        rungs[end] = np.where(rungs["what"] == "predicted", value, np.nan)
    return rungs


def _ladder_in_words(result: Transferred) -> str:
    costs = [result.cost(rate) for rate in (result.predicted, result.copied)]
    shares = ["diverged" if cost is None else f"costs {cost:.2%}" for cost in costs]
    loss = "is not known"
    if result.is_held is not None:
        loss = "holds the loss seen" if result.is_held else "does not hold it"
    rates = rounded(result.predicted), rounded(result.best or 0.0)
    return (
        f"{_name(result)}: the predicted learning rate {rates[0]} {shares[0]} against the ladder's best, {rates[1]}; "
        f"that of {result.copied_from} {shares[1]}. The predicted interval of the loss {loss}."
    )


def _name(result: Transferred) -> str:
    return f"{result.large.removeprefix(f'{result.small}-')}, {result.parametrization}"
