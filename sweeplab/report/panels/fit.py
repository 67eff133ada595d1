"""A law's fit: its numbers with their verdicts, its residuals, and how it was made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.fit.assessment import DELTAS, IDENTIFIED, Assessment
from sweeplab.analysis.fit.forms import LAWS
from sweeplab.analysis.fit.intervals import LEVEL, correlations
from sweeplab.analysis.misfit.form import FLAGGED
from sweeplab.errors import BadInput
from sweeplab.formatting import counts, rounded, several, short, span, written
from sweeplab.report.data import ROLES, ReportData
from sweeplab.report.options import Option
from sweeplab.report.panels.base import Panel, Paragraphs, TablePanel
from sweeplab.report.style import GREY, SHADE, Axis, Figure, looks, ticks_of

LAW = {"law": Option(tuple(LAWS)), "delta": Option(tuple(DELTAS))}
ROLES_OF_SIZE = ("params", "tokens", "flops")
Entries = Mapping[str, Mapping[str, Any]]

_FEW_TICKS = 3  # of a figure a third as wide
_MOST_COLORS = 12
_FITTED = (
    "The sum of Huber losses of the log residuals is least at these numbers (log-sum-exp form and analytic "
    "derivatives, Levenberg-Marquardt); Hoffmann et al. 2022 fit so, with delta 1e-3."
)
_INTERVALS = (
    f"An interval holds the values at which the law, held to them, fits not much worse: a {LEVEL:.0%} profile, with "
    "the F distribution in place of chi-squared, which is too narrow for few rows. The bootstrap stands beside it."
)
_VERDICTS = (
    "A number is identified if the design can determine it (decades of N and D, spread of D/N, points near the "
    "optimum) and its interval is narrow. A number that is not identified is not shown."
)


class VerdictsPanel(TablePanel, name="verdicts", heading="Verdicts", source="points", options=LAW):
    """Every number of a law: its value, or a dash where the points do not identify one."""

    @classmethod
    def of(cls, report: ReportData, law: str = "chinchilla", delta: str = "auto") -> Panel:
        """List the numbers of a law."""
        found = report.assessment(law, delta)
        said = found.as_dict()
        entries = said["parameters"] | said["derived"]
        misfit = report.misfit(law, delta)
        flag = misfit.sentences[:1] if misfit.status == FLAGGED else ()
        objectives = "The last columns have the same fit under each objective."
        if not any(each.identified for each in found.estimates):
            objectives = "These rows identify no number of it."
        return cls(
            title=f"{said['law']}: numbers and verdicts",
            data=data_of(entries),
            shown=shown_of(entries),
            notes=(f"{said['formula']}, fitted to {several(said['n_points'], 'row')}. {objectives}",),
            warnings=(*flag, *found.warnings),
            method=about_fit(found),
            result=said,
        )


@dataclass(frozen=True, kw_only=True)
class ResidualsPanel(
    Panel,
    name="residuals",
    heading="Residuals",
    source="points",
    options={**LAW, "against": Option(ROLES_OF_SIZE, many=True)},
):
    """Residuals over each of `axes`. `data`: the columns that are there, loss, fitted, residual.

    A residual is the log of loss over fitted in percent; `sigma` is their robust scale, in percent too.
    """

    axes: tuple[Axis, ...]
    sigma: float

    @classmethod
    def of(
        cls,
        report: ReportData,
        law: str = "chinchilla",
        delta: str = "auto",
        against: Sequence[str] = ROLES_OF_SIZE,
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

    def draw(self, figure: Figure) -> None:
        """Draw the residuals over each column side by side, on one scale."""
        data = self.data
        figure.set_subplots(1, len(self.axes), shared_yaxes=True, horizontal_spacing=0.03)
        reach = 1.1 * max(float(data["residual"].abs().max()), 2 * self.sigma)
        # One color a size, where sizes are few, so that a pattern of one size in another's plot is seen.
        sizes = set(data["params"]) if "params" in data else set()
        groups = [(f"params {short(size)}", data[data["params"] == size]) for size in sorted(sizes)]
        if not 1 < len(groups) <= _MOST_COLORS:
            groups = [("", data)]
        columns, size = ["loss", "fitted"], {"size": 7 if len(data) < 200 else 5}
        names = [name for name, _ in groups]
        for at, axis in enumerate(self.axes, start=1):
            place = {"row": 1, "col": at}
            hover = f"{axis.column} %{{x:.4s}}<br>loss %{{customdata[0]:.4f}}, law %{{customdata[1]:.4f}}: %{{y:.2f}}%"
            for look, (_, rows) in zip(looks(names), groups, strict=True):
                group = {"legendgroup": look.name, "showlegend": at == 1 and len(groups) > 1, **place}
                look.points(figure, rows, axis.column, "residual", hover, columns, marker=size, **group)
            settings = axis.around(data[axis.column])
            ticks = slice(None, None, max(1, round(len(settings["tickvals"]) / _FEW_TICKS)))
            settings |= {each: settings[each][ticks] for each in ("tickvals", "ticktext")}
            figure.update_xaxes(**settings, **place)
            ends = {"y0": -2 * self.sigma, "y1": 2 * self.sigma}
            figure.add_hrect(**ends, fillcolor=SHADE, line_width=0, layer="below", **place)
            figure.add_hline(y=0, line={"color": GREY, "width": 1}, **place)
        ticks_y = ticks_of(-reach, reach, False)
        marks = {"tickvals": ticks_y, "ticktext": [f"{tick:g}" for tick in ticks_y]}
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
        rows.append(
            {
                "quantity": name,
                **{each: entry[each] for each in ("value", "low", "high", "verdict", "why")},
                "bootstrap low": low,
                "bootstrap high": high,
                **{f"delta {delta}": by_delta.get(delta) for delta in DELTAS},
                "meaning": entry["meaning"],
            }
        )
    return DataFrame(rows)


def shown_of(entries: Entries) -> DataFrame:
    """Return one row per number as a person reads it: a dash for a number that is not identified.

    What is in a cell's second line is said more quietly.
    """
    return DataFrame([_shown(name, entry) for name, entry in entries.items()]).fillna("")


def _shown(name: str, entry: Mapping[str, Any]) -> dict[str, str]:
    by_delta = entry.get("by_delta", {})
    return {
        "quantity": f"{name}\n{entry['meaning']}",
        "value": "–" if entry["value"] is None else rounded(entry["value"]),
        f"{LEVEL:.0%} interval": span(entry["low"], entry["high"]),
        "verdict": entry["verdict"] + ("" if entry["verdict"] == IDENTIFIED else f"\n{entry['why']}"),
        **({"bootstrap": span(*entry["bootstrap"])} if "bootstrap" in entry else {}),
        **{f"delta {delta}": rounded(value) for delta, value in by_delta.items() if value != entry["value"]},
    }


def about_fit(found: Assessment) -> Paragraphs:
    """Return how a law was fitted: formula, source, objective, conventions, rows left out."""
    return tuple((name, words) for name, words in _paragraphs(found) if words)


def _paragraphs(found: Assessment) -> Iterator[tuple[str, str]]:
    fit, law, points = found.fit, found.fit.law, found.points
    delta = "least squares" if math.isinf(fit.rows.delta) else f"delta {written(fit.rows.delta)} in log units"
    asked = " (auto)" if found.delta == "auto" else ""
    reached = f"{fit.n_reached} of {fit.n_starts} starts reached this optimum"
    yield "Law", f"{law.name}: {law.formula}"
    yield "Source", f"{law.source}. Departures: {law.departures}."
    yield (
        "Objective",
        f"{_FITTED} Here {delta}{asked}, sum {written(fit.objective)}; residuals of {fit.sigma:.2%}; {reached}.",
    )
    shared = "Rows are taken as independent."
    if found.shared is not None:
        groups = f"{found.grouped_by}; {found.shared.n_groups} groups"
        shared = f"Rows of one group ({groups}) may share an error: {found.shared.share:.0%} of the variance."
    yield "Intervals", f"{_INTERVALS} {shared}"
    yield "Verdicts", _VERDICTS
    matrix, names = np.tril(correlations(fit), -1), law.parameters
    row, column = np.unravel_index(np.abs(matrix).argmax(), matrix.shape)
    pair = f"{names[column]} and {names[row]}"
    yield "Correlation", f"the closest pair of parameters is {pair}, at {matrix[row, column]:.2f}"
    yield "Conventions", "; ".join(f"{name}: {what}" for name, what in points.conventions.items())
    yield "Rows", f"{fit.n_points:,} fitted; left out: {counts(points.dropped) or 'none'}"
