"""A law: its estimates with verdicts, its residuals, the test of its form, its back-test, its line over a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pandas import DataFrame, concat

from sweeplab.errors import BadInput
from sweeplab.formatting import counts, measured, rounded, sentence, several, short, span
from sweeplab.hyperparameters import AUTO
from sweeplab.laws.assessment import IDENTIFIED, Assessment
from sweeplab.laws.check import SHARE_ABOVE, SHARE_BELOW
from sweeplab.laws.core import LEVEL
from sweeplab.laws.forms import LAWS
from sweeplab.report.data import ROLES, ReportData
from sweeplab.report.options import MANY, one_of
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.panels.lines import at_lines, ended, less_excess, lines_by, lines_of
from sweeplab.report.style import GREY, SHADE, Axis, Figure, Look, by_look, looks

Law = Annotated[str, one_of(AUTO, *LAWS)]
ROLES_OF_SIZE = ("params", "tokens", "flops")
Size = Annotated[str, one_of(*ROLES_OF_SIZE)]
_Sizes = Annotated[Sequence[Size], MANY]
Entries = Mapping[str, Mapping[str, Any]]

_FEW_TICKS = 3  # of a figure a third as wide
_MOST_COLORS = 12
_ERROR = "error (%)"
_TEST = {
    "Test": "The F test of departures that are added to the law, a bend in each column and the product of their logs, "
    "after the law's gradient and unequal and shared noise are taken out of the residuals.",
    "Power": "The chance to flag a departure that makes the law's forecast at ten times the compute 5% "
    "wrong. If the power "
    "is low, the absence of a flag says nothing.",
}
_HOLD_OUT = {
    "Hold-out": f"A law is fitted to the rows below a compute cut (at least {SHARE_BELOW:.0%} of all rows) "
    f"and forecasts the "
    f"rows above it (at least {SHARE_ABOVE:.0%}).",
}


class VerdictsPanel(TablePanel, name="verdicts", source="points"):
    """Every estimate of a law: its value, or a dash if the points do not identify it."""

    @classmethod
    def _of(cls, report: ReportData, law: Law = AUTO) -> Panel:
        assessment = report.assessment(law)
        plain = assessment.as_dict()
        entries = plain["parameters"] | plain["derived"]
        none = ""
        if not any(each.verdict.identified for each in assessment.estimates):
            none = " These rows identify none of its numbers."
        return cls(
            title=f"{plain['law']}: estimates and verdicts",
            data=data_of(entries),
            shown=shown_of(entries),
            notes=(f"{plain['formula']}, fitted to {several(plain['n_points'], 'row')}.{none}",),
            warnings=assessment.warnings,
            method=about_fit(assessment),
            result=plain,
        )


class ResidualsPanel(Panel, name="residuals", source="points"):
    """Residuals over each of `axes`. `data`: the columns that the table has, loss, fitted, residual.

    A residual is 100 log(loss / fitted), in percent; `sigma` is the noise of a row, in percent too.
    """

    axes: tuple[Axis, ...]
    sigma: float

    @classmethod
    def _of(cls, report: ReportData, law: Law = AUTO, against: _Sizes = ROLES_OF_SIZE) -> Panel:
        assessment = report.assessment(law)
        columns, fit = (
            assessment.points.columns,
            assessment.fit,
        )  # the losses that the law is fitted to
        shown = [name for name in against if name in columns and np.ptp(np.log(columns[name])) > 1e-9]
        if not shown:
            raise BadInput(f"none of {', '.join(against)} varies in the table")
        residuals = fit.residuals
        data = DataFrame({name: columns[name] for name in (*ROLES_OF_SIZE, "loss") if name in columns})
        data = data.assign(fitted=columns["loss"] / np.exp(residuals), residual=100 * residuals)
        scale = f"log(loss / law) in percent; shaded: within twice the noise of a row, {fit.sigma:.2%}."
        return cls(
            title=f"{fit.law.name}: residuals",
            data=data,
            notes=(f"{scale} A law of the right form leaves no pattern.",),
            method=about_fit(assessment),
            axes=tuple(Axis(name, ROLES[name], True) for name in shown),
            sigma=100 * fit.sigma,
        )

    def _draw(self, figure: Figure) -> None:
        data = self.data
        figure.set_subplots(1, len(self.axes), shared_yaxes=True, horizontal_spacing=0.03)
        reach = 1.1 * max(float(data["residual"].abs().max()), 2 * self.sigma)
        # One color per size if there are few, so that a pattern of one size shows in every plot.
        sizes = set(data.get("params", ()))
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
            figure.update_xaxes(**axis.around(data[axis.column]), nticks=_FEW_TICKS, **place)
            ends = {"y0": -2 * self.sigma, "y1": 2 * self.sigma}
            figure.add_hrect(**ends, fillcolor=SHADE, line_width=0, layer="below", **place)
            figure.add_hline(y=0, line={"color": GREY, "width": 1}, **place)
        figure.update_yaxes(range=[-reach, reach], zeroline=False)
        figure.update_yaxes(title={"text": "residual (%)"}, row=1, col=1)


def data_of(entries: Entries) -> DataFrame:
    """Return one row per number with its fields, as `as_dict` of an estimate gives them; null for a missing value."""
    fields = ("value", "low", "high", "verdict", "code", "why", "meaning")
    return DataFrame(
        [{"quantity": name} | {each: entry[each] for each in fields} for name, entry in entries.items()]
    )


def shown_of(entries: Entries) -> DataFrame:
    """Return one row per number of the shown table: a dash for a number that is not identified.

    The second line of a table cell is set in small type.
    """
    rows: list[dict[str, str]] = []
    first: dict[str, str] = {}  # the number whose row gives a reason
    for name, entry in entries.items():
        value, verdict = "–", entry["verdict"]
        if entry["value"] is not None:
            value = rounded(entry["value"])
        if verdict != IDENTIFIED:
            named = first.setdefault(entry["why"], name)
            verdict += f"\n{entry['why'] if named == name else f'as {named}'}"
        row = {
            "quantity": f"{name}\n{entry['meaning']}",
            "value": value,
            f"{LEVEL:.0%} interval": span(entry["low"], entry["high"]),
            "verdict": verdict,
        }
        rows.append(row)
    return DataFrame(rows).fillna("")


def about_fit(assessment: Assessment) -> dict[str, str]:
    """Return how a law was fitted: formula, source, intervals, verdicts, conventions, rows left out."""
    fit, law, points = assessment.fit, assessment.law, assessment.raw
    noise = "Rows are treated as independent."
    if fit.grouped_by:
        share = float(np.median(fit.draws.shared))
        noise = f"Rows of one {fit.grouped_by} share {share:.0%} of the errors' variance."
    paragraphs = {
        "Law": f"{law.name}: {law.formula}",
        "Source": f"{law.source}. Departures: {law.departures}.",
        "Intervals": f"{LEVEL:.0%}: quantiles of {len(fit.draws.sigma):,} draws of all unknowns, worth "
        f"{fit.draws.effective:,.0f} independent ones: exponents, scales, the noise of a row "
        f"({fit.sigma:.2%}), how it grows "
        f"or falls with tokens, and what rows of one size share. {noise} What is doubted has other fits, "
        f"and the interval "
        "holds theirs too.",
        "Verdicts": "A number is identified if the design can determine it (decades of N and D, spread of "
        "D/N, points near "
        "the optimum), nothing is doubted, and its interval is narrow. A number that is not identified is not shown.",
        "Conventions": "; ".join(f"{name}: {what}" for name, what in points.conventions.items()),
        "Rows": f"{fit.n_points:,} fitted; left out: {counts(points.dropped) or 'none'}",
    }
    return {name: words for name, words in paragraphs.items() if words}


class MisfitPanel(TablePanel, name="misfit", source="points"):
    """Possible departures from a law's form, with the power to see each; the notes say whether it is flagged."""

    @classmethod
    def _of(cls, report: ReportData, law: Law = AUTO) -> Panel:
        misfit = report.assessment(law).misfit.as_dict()
        powers = misfit["powers"]
        if not powers:
            raise BadInput(misfit["sentences"][0])
        table = DataFrame({"departure": [*powers], "power": [*powers.values()]})
        return cls(
            title=f"{misfit['law']}: is the form right?",
            data=table,
            shown=table.assign(power=table["power"].map("{:.0%}".format)),
            notes=tuple(map(sentence, misfit["sentences"])),
            method=_TEST,
            result=misfit,
        )


class BacktestPanel(Panel, name="backtest", heading="Hold-out", source="points"):
    """Errors of laws on the rows above a cut. `data`: law, x's column, error (%), held.

    An error above zero is a prediction that was too high.
    """

    cut: float

    @classmethod
    def _of(cls, report: ReportData, law: Law = AUTO) -> Panel:
        assessment = report.assessment(law)
        tests = [each.as_dict() for each in assessment.tests]
        by, cut = tests[0]["by"], tests[0]["cut"]
        if cut is None:
            raise BadInput(tests[0]["says"])
        column = assessment.points.columns[by]
        rows = [
            {"law": test["law"], by: column[row], _ERROR: 100 * error, "held": held}
            for test in tests
            for row, error, held in zip(test["rows"], test["errors"], test["held"], strict=True)
        ]
        shown = [
            {
                "law": test["law"],
                "error on larger runs": measured(test["error"], ".2%"),
                f"inside {LEVEL:.0%} intervals": measured(test["coverage"], ".0%"),
            }
            for test in tests
        ]
        return cls(
            title="Hold-out: fitted to smaller runs, tested on larger ones",
            data=DataFrame(rows),
            shown=DataFrame(shown),
            notes=(sentence(tests[0]["says"]),),
            method=_HOLD_OUT,
            result={"holdout": tests},
            x=Axis(by, ROLES[by], True),
            y=Axis(_ERROR, "prediction above the measured loss (%)"),
            cut=cut,
        )

    def _draw(self, figure: Figure) -> None:
        data, x = self.data, self.x.column
        for look, rows in by_look(data, "law"):
            hover = f"{look.name}<br>{x} %{{x:.4s}}: %{{y:+.2f}}%"
            look.points(figure, rows, x, self.y.column, hover)
        figure.add_hline(y=0, line={"color": GREY, "width": 1})
        figure.add_vline(x=self.cut, line={"color": GREY, "width": 1, "dash": "2px 3px"}, layer="below")
        axes = {"xaxis": self.x.around(data[x], self.cut), "yaxis": self.y.around(data[_ERROR], 0.0)}
        figure.update_layout(**axes, showlegend=True)


class LinesPanel(Panel):
    """A law over a column. `data`: what (measured, law, beyond), line, x, loss, low, high, measured loss.

    The `loss` of a point is the one that the law is fitted to: less its expected tuning excess, where that is known.

    Each line holds the other column, or the tokens per parameter, fixed; over FLOPs it follows the compute-optimal
    sizes. If no column has few values, a point's `loss` is moved by the law to the value that its line holds fixed, and
    keeps its residual. `low` and `high` are the pointwise band; `lines` are the groups of the points, in order; `edge`
    is the largest x of the points.
    """

    lines: tuple[str, ...]
    edge: float
    is_corrected: bool = False

    @classmethod
    def _over(cls, report: ReportData, assessment: Assessment, x: str, **more: Any) -> Panel:
        columns = assessment.points.columns
        if x not in columns:
            raise BadInput(f"the table has no {x}")
        groups = lines_by(assessment, x)
        edge = float(columns[x].max())
        bands = lines_of(report, assessment, x)
        lines = [
            rows.rename(columns={"x": x, "value": "loss"}).assign(line=name)
            for name, (rows, _) in bands.items()
        ]
        measured = DataFrame(
            {
                "what": "measured",
                "line": [groups.names[at] for at in groups.belongs],
                x: columns[x],
                "loss": at_lines(assessment, groups, x),
                "measured loss": columns["loss"],
            }
        ).sort_values([x, "loss"])
        notes = [f"Lines: {assessment.law.formula}. Band: the pointwise {LEVEL:.0%} interval of the loss."]
        if groups.moved:
            notes.append("The law moves each point to the value that its line holds, with its residual.")
        notes += less_excess(assessment)
        settings: dict[str, Any] = {
            "title": f"{assessment.law.name}: loss against {ROLES[x]}",
            "method": about_fit(assessment),
            "y": Axis("loss", report.law_loss_title, True),
        }
        return cls(
            data=concat([measured, *lines], ignore_index=True),
            notes=(*notes, *ended(bands, x)),
            x=Axis(x, ROLES[x], True),
            lines=tuple(groups.names),
            edge=edge,
            is_corrected=not groups.moved and bool(less_excess(assessment)),
            **settings | more,
        )

    def _draw(self, figure: Figure) -> None:
        data, x = self.data, self.x.column
        lines_alone = [name for name in dict.fromkeys(data["line"]) if name not in self.lines]
        for look in [*looks(self.lines), *(Look(name, GREY) for name in lines_alone)]:
            rows, group = data[data["line"] == look.name], {"legendgroup": look.name}
            line, points = rows[rows["what"] != "measured"], rows[rows["what"] == "measured"]
            if len(line):
                look.band(figure, line, x)
            hover = f"{look.name}<br>{x} %{{x:.4s}}: %{{y:.4f}}"
            for what, dash in (("law", "solid"), ("beyond", "4px 4px")):
                part = line[line["what"] == what]
                if what == "beyond" and len(part):  # starts at the last point
                    part = line.loc[[part.index[0] - 1, *part.index]]
                if len(part) > 1:
                    ends = f"{hover} (%{{low:.4f}} to %{{high:.4f}})"
                    is_named = what == "law" and look.name in lines_alone
                    named = {**group, "showlegend": is_named, "line": {"dash": dash}}
                    look.line(figure, part, x, "loss", ends, **named)
            if len(points):
                size = {"size": 8 if len(data) < 600 else 5}
                look.points(figure, points, x, "loss", hover, marker=size, **group)
        if self.is_corrected:
            hollow = {"size": 6, "symbol": "circle-open", "opacity": 0.6}
            measured = data[data["what"] == "measured"]
            Look("as measured", GREY).points(
                figure, measured, x, "measured loss", "measured %{y:.4f}", marker=hollow
            )
        settings = self.x.around(data[x])
        if (data["what"] == "beyond").any():
            high = settings["range"][1]
            figure.add_vrect(x0=self.edge, x1=10**high, fillcolor=SHADE, line_width=0, layer="below")
            at = {"x": high, "xanchor": "right", "y": 1, "yref": "paper", "yanchor": "top"}
            figure.add_annotation(text="beyond the points", font={"size": 12}, showarrow=False, **at)
        losses = ["loss", "low", "high", *["measured loss"] * self.is_corrected]
        figure.update_layout(xaxis=settings, yaxis=self.y.around(data[losses]), height=470)
        figure.update_layout(showlegend=len(self.lines) + len(lines_alone) > 1 or self.is_corrected)


class LawPanel(LinesPanel, name="law", heading="Scaling law", source="points"):
    """A law over a size."""

    @classmethod
    def _of(cls, report: ReportData, law: Law = AUTO, x: Size = "params") -> Panel:
        report.check_differs({"tokens": "tokens", "flops": "tokens"}.get(x, "params"))
        return cls._over(report, report.assessment(law), x)
