"""A law's fit: its numbers with their verdicts, its residuals, whether its form is right, and how it predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Annotated, Any

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.assessment import DELTAS, Assessment
from sweeplab.analysis.fit.forms import LAWS
from sweeplab.analysis.fit.intervals import LEVEL, correlations
from sweeplab.analysis.fit.verdicts import IDENTIFIED
from sweeplab.analysis.misfit.comparison import SHARE_ABOVE, SHARE_BELOW, Comparison, compare, suited
from sweeplab.errors import BadInput
from sweeplab.formatting import counts, rounded, sentence, several, short, span, written
from sweeplab.hyperparameters import AUTO
from sweeplab.report.data import ROLES, ReportData
from sweeplab.report.options import Option
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.style import GREY, SHADE, SYMBOLS, Axis, Figure, by_look, looks, ticks_of

Law = Annotated[str, Option((AUTO, *LAWS))]
Delta = Annotated[str, Option(tuple(DELTAS))]
ROLES_OF_SIZE = ("params", "tokens", "flops")
Size = Annotated[str, Option(ROLES_OF_SIZE)]
_Sizes = Annotated[Sequence[str], Option(ROLES_OF_SIZE, many=True)]
_Laws = Annotated[Sequence[str], Option(tuple(LAWS), many=True)]
Entries = Mapping[str, Mapping[str, Any]]

_FEW_TICKS = 3  # of a figure a third as wide
_MOST_COLORS = 12
_ERROR = "error (%)"
_TEST = {
    "Test": "Rao's score test in many directions: what a departure from the law's form would leave in the "
    "residuals, once the law's own slopes are projected off. The largest is compared with what errors alone give, "
    "drawn many times (Davies 1987).",
    "Power": "The share of such draws that would be flagged if the departure were there, in a size that makes the "
    "law's forecast at ten times the compute 5% wrong. Where it is small, that nothing was flagged says nothing.",
}
_BACKTEST = {
    "Back-test": f"A law is fitted to the rows below a compute cut, {SHARE_BELOW:.0%} of them or more, and predicts "
    f"those above, {SHARE_ABOVE:.0%} or more; for several cuts. Laws are compared by these errors, not by how they "
    "fit.",
    "Lead": "A challenger predicts better only if its errors are smaller by more than they are on tables drawn from "
    "the first law's own fit, with its noise; the share of such tables with a lead as large stands below the lead.",
}


class VerdictsPanel(TablePanel, name="verdicts", source="points"):
    """Every number of a law: its value, or a dash where the points do not identify one."""

    @classmethod
    def of(cls, report: ReportData, law: Law = AUTO, delta: Delta = AUTO) -> Panel:
        """List the numbers of a law."""
        found = report.assessment(law, delta)
        said = found.as_dict()
        entries = said["parameters"] | said["derived"]
        objectives = "The last columns have the same fit under each objective."
        if not any(each.identified for each in found.estimates):
            objectives = "These rows identify no number of it."
        return cls(
            title=f"{said['law']}: numbers and verdicts",
            data=data_of(entries),
            shown=shown_of(entries),
            notes=(f"{said['formula']}, fitted to {several(said['n_points'], 'row')}. {objectives}",),
            warnings=found.warnings,
            method=about_fit(found),
            result=said,
        )


class ResidualsPanel(Panel, name="residuals", source="points"):
    """Residuals over each of `axes`. `data`: the columns that are there, loss, fitted, residual.

    A residual is the log of loss over fitted in percent; `sigma` is their robust scale, in percent too.
    """

    axes: tuple[Axis, ...]
    sigma: float

    @classmethod
    def of(
        cls,
        report: ReportData,
        law: Law = AUTO,
        delta: Delta = AUTO,
        against: _Sizes = ROLES_OF_SIZE,
    ) -> Panel:
        """Show how far each point is from the law."""
        found = report.assessment(law, delta)
        columns, fit = found.points.columns, found.fit
        shown = [name for name in against if name in columns and np.ptp(np.log(columns[name])) > 1e-9]
        if not shown:
            raise BadInput(f"nothing of {', '.join(against)} varies in the table")
        residuals = fit.residuals()
        data = DataFrame({name: columns[name] for name in (*ROLES_OF_SIZE, "loss") if name in columns})
        data = data.assign(fitted=columns["loss"] / np.exp(residuals), residual=100 * residuals)
        scale = f"log(loss / law) in percent; the shade is twice their robust scale, {fit.sigma:.2%}."
        return cls(
            title=f"{fit.law.name}: residuals",
            data=data,
            notes=(f"{scale} A right law leaves no pattern.",),
            method=about_fit(found),
            axes=tuple(Axis(name, ROLES[name], True) for name in shown),
            sigma=100 * fit.sigma,
        )

    def _draw(self, figure: Figure) -> None:
        data = self.data
        figure.set_subplots(1, len(self.axes), shared_yaxes=True, horizontal_spacing=0.03)
        reach = 1.1 * max(float(data["residual"].abs().max()), 2 * self.sigma)
        # One color a size, where sizes are few, so that a pattern of one size in another's plot is seen.
        sizes = set(data["params"]) if "params" in data else set()
        groups = [(f"params {short(size)}", data[data["params"] == size]) for size in sorted(sizes)]
        if not 1 < len(groups) <= _MOST_COLORS:
            groups = [("", data)]
        size = {"size": 7 if len(data) < 200 else 5}
        names = [name for name, _ in groups]
        for at, axis in enumerate(self.axes, start=1):
            place = {"row": 1, "col": at}
            hover = f"{axis.column} %{{x:.4s}}<br>loss %{{loss:.4f}}, law %{{fitted:.4f}}: %{{y:.2f}}%"
            for look, (_, rows) in zip(looks(names), groups, strict=True):
                group = {"legendgroup": look.name, "showlegend": at == 1 and len(groups) > 1, **place}
                look.points(figure, rows, axis.column, "residual", hover, marker=size, **group)
            settings = axis.around(data[axis.column])
            step = max(1, round(len(settings["tickvals"]) / _FEW_TICKS))
            settings |= {each: settings[each][::step] for each in ("tickvals", "ticktext")}
            figure.update_xaxes(**settings, **place)
            ends = {"y0": -2 * self.sigma, "y1": 2 * self.sigma}
            figure.add_hrect(**ends, fillcolor=SHADE, line_width=0, layer="below", **place)
            figure.add_hline(y=0, line={"color": GREY, "width": 1}, **place)
        ticks = ticks_of(-reach, reach, False)
        marks = {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
        figure.update_yaxes(range=[-reach, reach], zeroline=False, **marks)
        figure.update_yaxes(title={"text": "residual (%)"}, row=1, col=1)


def data_of(entries: Entries) -> DataFrame:
    """Return one row per number, with all that is known of it; null where there is none.

    An entry is what an estimate's or an approach's `as_dict` says: value, low, high, verdict, why and meaning, and
    what stands beside them: the bootstrap's interval, the value under each objective.
    """
    rows = []
    for name, entry in entries.items():
        low, high = entry.get("bootstrap") or (None, None)
        by_delta = entry.get("by_delta", {})
        row = {"quantity": name} | {each: entry[each] for each in ("value", "low", "high", "verdict", "why")}
        row |= {"bootstrap low": low, "bootstrap high": high}
        row |= {f"delta {delta}": by_delta.get(delta) for delta in DELTAS}
        rows.append(row | {"meaning": entry["meaning"]})
    return DataFrame(rows)


def shown_of(entries: Entries) -> DataFrame:
    """Return one row per number as a person reads it: a dash for a number that is not identified.

    What is in a cell's second line is said more quietly.
    """
    rows = []
    for name, entry in entries.items():
        row = {
            "quantity": f"{name}\n{entry['meaning']}",
            "value": "–" if entry["value"] is None else rounded(entry["value"]),
            f"{LEVEL:.0%} interval": span(entry["low"], entry["high"]),
            "verdict": entry["verdict"] + ("" if entry["verdict"] == IDENTIFIED else f"\n{entry['why']}"),
        }
        if "bootstrap" in entry:
            row["bootstrap"] = span(*entry["bootstrap"])
        others = {key: each for key, each in entry.get("by_delta", {}).items() if each != entry["value"]}
        rows.append(row | {f"delta {delta}": rounded(each) for delta, each in others.items()})
    return DataFrame(rows).fillna("")


def about_fit(found: Assessment) -> dict[str, str]:
    """Return how a law was fitted: formula, source, objective, conventions, rows left out."""
    fit, law, points = found.fit, found.fit.law, found.points
    delta = "least squares" if math.isinf(fit.rows.delta) else f"delta {written(fit.rows.delta)} in log units"
    asked = " (auto)" if found.delta == "auto" else ""
    reached = f"{fit.n_reached} of {fit.n_starts} starts reached this optimum"
    shared = "Rows are taken as independent."
    if found.shared is not None:
        groups = f"{found.grouped_by}; {found.shared.n_groups} groups"
        shared = f"Rows of one group ({groups}) may share an error: {found.shared.share:.0%} of the variance."
    matrix, names = np.tril(correlations(fit), -1), law.parameters
    row, column = np.unravel_index(np.abs(matrix).argmax(), matrix.shape)
    pair = f"{names[column]} and {names[row]}"
    said = {
        "Law": f"{law.name}: {law.formula}",
        "Source": f"{law.source}. Departures: {law.departures}.",
        "Objective": "The sum of Huber losses of the log residuals is least at these numbers (log-sum-exp form and "
        "analytic derivatives, Levenberg-Marquardt); Hoffmann et al. 2022 fit so, with delta 1e-3. Here "
        f"{delta}{asked}, sum {written(fit.objective)}; residuals of {fit.sigma:.2%}; {reached}.",
        "Intervals": "An interval holds the values at which the law, held to them, fits not much worse: a "
        f"{LEVEL:.0%} profile, with the F distribution in place of chi-squared, which is too narrow for few rows. "
        "Noise may differ from row to row: a variance function of the columns, or the residuals of rows that decide "
        f"the number, whichever is wider. The bootstrap stands beside it. {shared}",
        "Verdicts": "A number is identified if the design can determine it (decades of N and D, spread of D/N, points "
        "near the optimum) and its interval is narrow; none is more than weak where the form does not fit. A "
        "number that is not identified is not shown.",
        "Correlation": f"the closest pair of parameters is {pair}, at {matrix[row, column]:.2f}",
        "Conventions": "; ".join(f"{name}: {what}" for name, what in points.conventions.items()),
        "Rows": f"{fit.n_points:,} fitted; left out: {counts(points.dropped) or 'none'}",
    }
    return {name: words for name, words in said.items() if words}


class MisfitPanel(TablePanel, name="misfit", source="points"):
    """What a law's form may be wrong in, whether it was flagged, and whether it could have been seen."""

    @classmethod
    def of(cls, report: ReportData, law: Law = AUTO, delta: Delta = AUTO) -> Panel:
        """List the departures from the form."""
        said = report.assessment(law, delta).misfit.as_dict()
        table = DataFrame(said["kinds"])
        shown = {
            "departure": table["kind"],
            "form": table["status"],
            "power": table["power"].map("{:.0%}".format),
            "share of the residuals": table["share"].map("{:.0%}".format),
            "strongest direction": table["strongest"],
        }
        return cls(
            title=f"{said['law']}: is the form right?",
            data=table,
            shown=DataFrame(shown),
            notes=tuple(map(sentence, said["sentences"])),
            method=_TEST,
            result=said,
        )


class BacktestPanel(Panel, name="backtest", heading="Back-test", source="points"):
    """Errors of laws above cuts. `data`: law, cut (its compute), x's column, error (%), held.

    An error above zero is a prediction that was too high.
    """

    laws: tuple[str, ...]
    cuts: tuple[float, ...]

    @classmethod
    def of(cls, report: ReportData, law: Law = AUTO, delta: Delta = AUTO, laws: _Laws = ()) -> Panel:
        """Show how laws that saw the smaller runs predict the larger ones."""
        found = _comparison(report, law, delta, laws)
        if not found.cuts.cuts:
            raise BadInput(found.cuts.why)
        by = found.cuts.by
        column = report.points.columns[by]
        said = found.as_dict()
        rows = [
            {"law": each["law"], "cut": cut["at"], by: column[row], _ERROR: 100 * error, "held": held}
            for each in said["laws"]
            for cut in each["backtest"].get("by_cut", ())
            for row, error, held in zip(cut["rows"], cut["errors"], cut["held"], strict=True)
        ]
        if not rows:
            raise BadInput(said["laws"][0]["backtest"]["why_none"])
        return cls(
            title="Back-test: fitted to smaller runs, tested on larger ones",
            data=DataFrame(rows),
            shown=DataFrame(map(_predictions, said["laws"])),
            notes=(sentence(said["sentences"][0]),),
            method=_BACKTEST,
            result=said,
            x=Axis(by, ROLES[by], True),
            y=Axis(_ERROR, "prediction above the measured loss (%)"),
            laws=tuple(each["law"] for each in said["laws"]),
            cuts=tuple(each.at for each in found.cuts.cuts),
        )

    def _draw(self, figure: Figure) -> None:
        data, x = self.data, self.x.column
        symbols = dict(zip(self.cuts, cycle(SYMBOLS), strict=False))
        for look, rows in by_look(data, "law"):
            hover = f"{look.name}, fitted up to %{{cut:.3s}}<br>{x} %{{x:.4s}}: %{{y:+.2f}}%"
            marker = {"symbol": [symbols[cut] for cut in rows["cut"]]}
            look.points(figure, rows, x, self.y.column, hover, marker=marker)
        figure.add_hline(y=0, line={"color": GREY, "width": 1})
        for cut in self.cuts:
            figure.add_vline(x=cut, line={"color": GREY, "width": 1, "dash": "2px 3px"}, layer="below")
        axes = {"xaxis": self.x.around(data[x], *self.cuts), "yaxis": self.y.around(data[_ERROR], 0.0)}
        figure.update_layout(**axes, showlegend=True)


def _comparison(report: ReportData, name: str, delta: str, others: Sequence[str]) -> Comparison:
    law = report.law(name)
    laws = tuple(dict.fromkeys((law.name, *(others or (each.name for each in suited(report.points))))))
    report.assessment(name, delta)  # what has no law is refused as elsewhere on the page
    return report.once(("compare", laws), lambda: compare(report.points, [LAWS[each] for each in laws]))


def _predictions(said: Mapping[str, Any]) -> dict[str, str]:
    test, lead = said["backtest"], said["lead"]
    tested = not test["why_none"]
    chance = "" if lead is None or lead["chance"] is None else f"\nnoise: {lead['chance']:.1%}"
    return {
        "law": said["law"],
        "error on larger runs": f"{test['error']:.2%}" if tested else "–",
        "bias": f"{test['bias']:+.2%}" if tested else "–",
        f"inside of {LEVEL:.0%} intervals": f"{test['coverage']:.0%}" if tested else "–",
        "residuals of all": f"{said['in_sample']:.2%}",
        "form": said["misfit"]["status"],
        "lead": "" if lead is None else f"{lead['value']:+.2%}{chance}",
    }
