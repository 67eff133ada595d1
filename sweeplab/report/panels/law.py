"""A law: its estimates with verdicts, test, residuals, lines and IsoFLOP curves; best values over the size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, concat

from sweeplab.analysis.studies import tuned_runs
from sweeplab.errors import BadInput
from sweeplab.formatting import counts, listed, rounded, sentence, several, short, span
from sweeplab.hyperparameters import AUTO
from sweeplab.laws.assessment import IDENTIFIED, Assessment
from sweeplab.laws.columns import PLAIN
from sweeplab.laws.core import LEVEL, Array, interval
from sweeplab.laws.doubts import tuning_of
from sweeplab.laws.forms import LAWS, Quantity, has_optimum, loss_at, optimum_of
from sweeplab.laws.hyperparameters.assessment import HyperparameterLaws, assess_hyperparameters
from sweeplab.laws.isoflop import isoflop as find_minima
from sweeplab.report.data import ROLES, ReportData, title_of
from sweeplab.report.panels.base import Panel, Params, TablePanel, one_of
from sweeplab.report.style import GOOD, GREY, MIDDLE, SHADE, Axis, Figure, Look, bars, looks

Law = Annotated[str, one_of(AUTO, *LAWS)]
SIZES = ("params", "tokens", "flops")
Size = Annotated[str, one_of(*SIZES)]
Entries = Mapping[str, Mapping[str, Any]]

_FEW_TICKS = 3  # of a figure a third as wide
# A line is extended beyond the points by at most this factor, while it is identified.
BEYOND = 10.0
MOST_LINES = 7
_SOME_LINES = 4  # if no column has few values
_OTHER = {"params": "tokens", "tokens": "params"}
_INSIDE, _OUTSIDE = 25, 12  # points of a line within the points and beyond


_ISOFLOP = {
    "IsoFLOP": "Hoffmann et al. 2022, Training compute-optimal large language models, approach 2: the loss at each "
    "compute budget falls and rises again in log N.",
    "Departures": "One regression over the rows of all budgets, which share skew and a curvature that may "
    "grow with the size; drawn are its "
    "parabolas, over the rows that it takes. A minimum counts only where it lies between the sizes of its budget.",
}
_STEPS = 30  # points of a line
_BEST_VALUES = {
    "Optimum": "From all cells at once: the log loss is a quadratic with a skew about each cell's optimum, and "
    "all cells share skew and a curvature that may grow with the size. Optima at an end of the values tried are drawn "
    "as triangles.",
    "Law": f"A power law in the sizes, other sizes at their means; the band is the {LEVEL:.0%} interval of a new cell.",
}


class VerdictsPanel(TablePanel, name="verdicts", source="points"):
    """Every estimate of a law: its value, or a dash if the points do not identify it; and whether the form fits."""

    @classmethod
    def _of(cls, report: ReportData, law: Law = AUTO) -> Panel:
        assessment = report.assessment(law)
        plain = assessment.as_dict()
        entries = plain["parameters"] | plain["derived"]
        rows = f"{plain['formula']}, fitted to {several(plain['n_points'], 'row')}."
        if not any(each.verdict.identified for each in assessment.estimates):
            rows += " These rows identify none of its numbers."
        fields = ("value", "low", "high", "verdict", "code", "why", "meaning")
        table = [
            {"quantity": name} | {each: entry[each] for each in fields}
            for name, entry in entries.items()
        ]
        return cls(
            title=f"{plain['law']}: estimates and verdicts",
            data=DataFrame(table),
            shown=shown_of(entries),
            notes=(
                rows,
                *map(sentence, (plain["misfit"]["says"], plain["holdout"]["says"])),
            ),
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
    def _of(cls, report: ReportData, law: Law = AUTO) -> Panel:
        assessment = report.assessment(law)
        # Of the losses that the law is fitted to.
        fit, points = assessment.fit, assessment.points
        data = DataFrame(
            {name: points.columns[name] for name in (*SIZES, "loss") if name in points.columns}
        )
        data = data.assign(
            fitted=data["loss"] / np.exp(fit.residuals), residual=100 * fit.residuals
        )
        scale = f"log(loss / law) in percent; shaded: within twice the noise of a row, {fit.sigma:.2%}."
        return cls(
            title=f"{fit.law.name}: residuals",
            data=data,
            notes=(f"{scale} A law of the right form leaves no pattern.",),
            method=about_fit(assessment),
            axes=tuple(
                Axis(name, ROLES[name], True) for name in SIZES if name in points.varied
            ),
            sigma=100 * fit.sigma,
        )

    def _draw(self, figure: Figure) -> None:
        data = self.data
        figure.set_subplots(1, len(self.axes), shared_yaxes=True, horizontal_spacing=0.03)
        reach = 1.1 * max(float(data["residual"].abs().max()), 2 * self.sigma)
        for at, axis in enumerate(self.axes, start=1):
            place = {"row": 1, "col": at}
            hover = f"{axis.column} %{{x:.4s}}<br>loss %{{loss:.4f}}, law %{{fitted:.4f}}: %{{y:.2f}}%"
            Look("", MIDDLE).points(
                figure, data, axis.column, "residual", hover, showlegend=False, **place
            )
            figure.update_xaxes(**axis.around(data[axis.column]), nticks=_FEW_TICKS, **place)
            ends = {"y0": -2 * self.sigma, "y1": 2 * self.sigma}
            figure.add_hrect(**ends, fillcolor=SHADE, line_width=0, layer="below", **place)
            figure.add_hline(y=0, line={"color": GREY, "width": 1}, **place)
        figure.update_yaxes(range=[-reach, reach], zeroline=False)
        figure.update_yaxes(title={"text": "residual (%)"}, row=1, col=1)


def shown_of(entries: Entries) -> DataFrame:
    """Return one row per number of the shown table: a dash for a number that is not identified.

    The second line of a table cell is set in small type.
    """
    rows = []
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
    if fit.groups is not None:
        share = float(np.median(fit.draws.shared))
        noise = f"Rows with the same params share {share:.0%} of the errors' variance."
    return {
        "Law": f"{law.name}: {law.formula}",
        "Source": f"{law.source}.",
        "Intervals": f"{LEVEL:.0%}: quantiles of {len(fit.draws.sigma):,} draws of all unknowns, worth "
        f"{fit.draws.effective:,.0f} independent ones: exponents, scales, the noise of a row ({fit.sigma:.2%}), how it "
        f"grows or falls with tokens, and what rows of one size share. {noise} What is doubted has other fits, and the "
        "interval holds theirs too.",
        "Verdicts": "A number is identified if the design can determine it (decades of N and D, spread of D/N, points "
        "near the optimum), nothing is doubted, and its interval is narrow. A number that is not identified is not "
        "shown.",
        "Test": "The F test of departures that are added to the law, a bend in each column and the product of their "
        "logs; a power is the chance to flag one that makes the forecast at ten times the compute 5% wrong.",
        "Conventions": "; ".join(
            f"{name}: {what}" for name, what in points.conventions.items()
        ),
        "Rows": f"{assessment.points.n:,} fitted; left out: {counts(points.dropped) or 'none'}",
    }


class LawPanel(Panel, name="law", heading="Scaling law", source="points"):
    """A law over a size. `data`: what (measured, law, beyond), line, x, loss, low, high.

    The `loss` of a point is the one that the law is fitted to: less its expected tuning excess, where that is known.

    Each line holds the other column, or the tokens per parameter, fixed; over FLOPs it follows the compute-optimal
    sizes. `low` and `high` are the pointwise band; `lines` are the groups of the points, in order; `edge` is the
    largest x of the points.
    """

    lines: tuple[str, ...]
    edge: float

    @classmethod
    def _of(cls, report: ReportData, law: Law = AUTO, x: Size = "params") -> Panel:
        report.check_differs("params" if x == "params" else "tokens")
        assessment = report.assessment(law)
        columns, record = assessment.points.columns, assessment.tuning.record
        if x not in columns:
            raise BadInput(f"the table has no {x}")
        groups, edge = lines_by(assessment, x), float(columns[x].max())
        named = [groups.names[at] for at in groups.belongs]
        points = DataFrame(
            {"what": "measured", "line": named, x: columns[x], "loss": columns["loss"]}
        )
        parts, ended = [points.sort_values([x, "loss"])], {}
        for name, low, high, at in groups.lines:
            rows, why = _band(assessment, at, low, high, BEYOND * edge)
            parts.append(DataFrame(rows).rename(columns={"x": x}).assign(line=name))
            if why:
                ended[name] = why
        notes = [
            f"Lines: {assessment.law.formula}. Band: the pointwise {LEVEL:.0%} interval of the loss."
        ]
        if record is not None:
            low, mean, high = (math.expm1(each) for each in assessment.tuning.ends)
            excess = f"{mean:.2%} ({low:.2%} to {high:.2%})"
            notes.append(
                f"The law is fitted to losses less their expected tuning excess, {excess}."
            )
        if ended:
            which = (
                "No line"
                if len(ended) == len(groups.lines)
                else f"No line at {listed([*ended])}"
            )
            why = next(iter(ended.values()))
            notes.append(
                f"{which} goes further beyond the points: the loss is not identified there ({why})."
            )
        return cls(
            title=f"{assessment.law.name}: loss against {ROLES[x]}",
            data=concat(parts, ignore_index=True),
            notes=tuple(notes),
            method=about_fit(assessment),
            x=Axis(x, ROLES[x], True),
            y=Axis("loss", report.law_loss_title, True),
            lines=tuple(groups.names),
            edge=edge,
        )

    def _draw(self, figure: Figure) -> None:
        data, x = self.data, self.x.column
        alone = [name for name in dict.fromkeys(data["line"]) if name not in self.lines]
        for look in [*looks(self.lines), *(Look(name, GREY) for name in alone)]:
            rows, group = data[data["line"] == look.name], {"legendgroup": look.name}
            line, points = rows[rows["what"] != "measured"], rows[rows["what"] == "measured"]
            hover = f"{look.name}<br>{x} %{{x:.4s}}: %{{y:.4f}}"
            if len(line):
                look.band(figure, line, x)
            for what, dash in (("law", "solid"), ("beyond", "4px 4px")):
                part = line[line["what"] == what]
                if what == "beyond" and len(part):  # starts at the last point
                    part = line.loc[[part.index[0] - 1, *part.index]]
                if len(part) > 1:
                    ends = f"{hover} (%{{low:.4f}} to %{{high:.4f}})"
                    is_named = what == "law" and look.name in alone
                    look.line(
                        figure,
                        part,
                        x,
                        "loss",
                        ends,
                        **group,
                        showlegend=is_named,
                        line={"dash": dash},
                    )
            if len(points):
                size = {"size": 8 if len(data) < 600 else 5}
                look.points(figure, points, x, "loss", hover, marker=size, **group)
        settings = self.x.around(data[x])
        if (data["what"] == "beyond").any():
            high = settings["range"][1]
            figure.add_vrect(
                x0=self.edge, x1=10**high, fillcolor=SHADE, line_width=0, layer="below"
            )
            at = {"x": high, "xanchor": "right", "y": 1, "yref": "paper", "yanchor": "top"}
            figure.add_annotation(
                text="beyond the points", font={"size": 12}, showarrow=False, **at
            )
        figure.update_layout(
            xaxis=settings, yaxis=self.y.around(data[["loss", "low", "high"]]), height=470
        )
        figure.update_layout(showlegend=len(self.lines) + len(alone) > 1)


class LawLines(NamedTuple):
    """The points' groups by name, the group of each point, and the lines: name, lowest and highest x, the loss."""

    names: Sequence[str]
    belongs: NDArray[np.intp]
    lines: Sequence[tuple[str, float, float, Callable[[float], Quantity]]]


def lines_by(assessment: Assessment, x: str) -> LawLines:
    """Group the points and the lines of a law over one column."""
    columns, law = assessment.points.columns, assessment.law
    ends = (float(columns[x].min()), float(columns[x].max()))
    if x == "flops" and has_optimum(law):
        per_param_token = assessment.points.flops_per_param_token
        names, belongs, _ = _groups("params", columns["params"])
        optimal = (
            "compute-optimal",
            *ends,
            lambda at: optimum_of(law, at, per_param_token)[-1],
        )
        return LawLines(names, belongs, [optimal])
    if x not in law.columns:
        raise BadInput(f"{law.name} does not use {x}")
    if law.columns == (x,):
        line = (law.name, *ends, lambda at: loss_at(law, {x: at}))
        named = "less the tuning excess" if assessment.tuning.record is not None else "measured"
        return LawLines([named], np.zeros(assessment.points.n, np.intp), [line])
    # A line holds the other column, or the tokens per parameter if these have fewer values.
    label, values, power = _OTHER[x], columns[_OTHER[x]], 0
    ratio = columns["tokens"] / columns["params"]
    if len(_distinct(ratio)) < len(_distinct(values)):
        label, values, power = "tokens per parameter", ratio, 1 if x == "params" else -1
    names, belongs, levels = _groups(label, values)
    lines = []
    for group, (name, level) in enumerate(zip(names, levels, strict=True)):
        within = columns[x][belongs == group]

        def at(value: float, level: float = level) -> Quantity:
            other = value * level**power if power else level
            return loss_at(law, {x: value, _OTHER[x]: other})

        lines.append((name, float(within.min()), float(within.max()), at))
    return LawLines(names, belongs, lines)


def _groups(label: str, values: Array) -> tuple[list[str], NDArray[np.intp], list[float]]:
    """Group near values: the groups' names, the group of each value, and the value of each group."""
    levels = _distinct(values)
    about = ""
    if len(levels) > MOST_LINES:
        inner = (np.arange(_SOME_LINES) + 0.5) / _SOME_LINES
        levels, about = np.exp(np.quantile(np.log(values), inner)), "about "
    belongs = np.abs(np.log(values)[:, None] - np.log(levels)).argmin(1)
    names = [f"{label} {about}{short(level)}" for level in levels]
    return names, belongs, [float(level) for level in levels]


def _distinct(values: Array) -> Array:
    return np.asarray(np.unique([float(f"{value:.3g}") for value in values]))


def _band(
    assessment: Assessment,
    at: Callable[[float], Quantity],
    low: float,
    high: float,
    limit: float,
) -> tuple[list[dict[str, Any]], str]:
    """The line of a loss from `low` to `high`, the points' range, up to `limit`, and why it stops before that.

    It does not leave the points' range where the loss is not identified.
    """
    inside = np.geomspace(low, high, _INSIDE) if high > low * (1 + 1e-9) else np.array([high])
    outside = np.geomspace(high, limit, _OUTSIDE + 1)[1:]
    rows = list[dict[str, Any]]()
    for x in map(float, np.concatenate([inside, outside])):
        there, what = assessment.estimate(at(x)), "law"
        if x > high * (1 + 1e-9):
            what = "beyond"
            if not there.verdict.identified:
                return rows, there.verdict.words
        rows.append(
            {"what": what, "x": x}
            | dict(zip(("loss", "low", "high"), there.shown, strict=True))
        )
    return rows, ""


class IsoFlopPanel(Panel, name="isoflop", heading="IsoFLOP", source="points"):
    """Losses at equal FLOPs. `data`: what (row, curve, minimum), flops, params, loss, low, high.

    `low` and `high` are the interval of a minimum's params. `budgets` are the labels of `flops`, in order.
    """

    budgets: Mapping[float, str]

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        report.check_differs("tokens")
        tuning = tuning_of(report.points)
        isoflop = find_minima(tuning.points, doubt=next(iter(tuning.doubts), None))
        parts, notes, names = [], ["A star is a minimum, with its 90% interval."], {}
        for budget in isoflop.budgets:
            flops, name = budget["flops"], f"{rounded(budget['flops'])} FLOPs"
            names[flops] = name
            shown = [DataFrame(budget[what]).assign(what=what) for what in ("rows", "curve")]
            if budget["edge"]:
                notes.append(f"{name}: no minimum: it lies {budget['edge']}.")
            else:
                n, low, high = (budget[end] for end in ("n_opt", "n_opt_low", "n_opt_high"))
                row = {
                    "what": "minimum",
                    "params": n,
                    "low": low,
                    "high": high,
                    "loss": budget["loss"],
                }
                shown.append(DataFrame([row]))
            parts.append(concat(shown).assign(flops=flops))
        return cls(
            title="IsoFLOP: the best size at each budget",
            data=concat(parts, ignore_index=True).replace({"what": {"rows": "row"}}),
            shown=shown_of(isoflop.numbers),
            notes=tuple(notes),
            method=_ISOFLOP,
            result=asdict(isoflop),
            x=Axis("params", ROLES["params"], True),
            y=Axis("loss", report.law_loss_title),
            budgets=names,
        )

    def _draw(self, figure: Figure) -> None:
        at = ("params", "loss")
        for flops, look in zip(self.budgets, looks([*self.budgets.values()]), strict=True):
            by_what = dict([*self.data[self.data["flops"] == flops].groupby("what")])
            hover = f"{look.name}<br>params %{{x:.4s}}: %{{y:.4f}}"
            look.points(figure, by_what["row"], *at, hover, legendgroup=look.name)
            look.line(figure, by_what["curve"], *at, legendgroup=look.name, showlegend=False)
            if "minimum" in by_what:
                best = by_what["minimum"]
                star = {"symbol": "star", "size": 15, "line": {"width": 1, "color": "white"}}
                ends = bars(best, "params", thickness=2, width=6, color=look.color)
                settings = {
                    "marker": star,
                    "error_x": ends,
                    "legendgroup": look.name,
                    "showlegend": False,
                }
                look.points(figure, best, *at, f"best size: {hover}", **settings)
        axes = {
            "xaxis": self.x.around(self.data["params"]),
            "yaxis": self.y.around(self.data["loss"]),
        }
        figure.update_layout(**axes, showlegend=True)


class BestValuesPanel(
    Panel, name="best_values", heading="Best value against size", source="runs"
):
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
            method=_BEST_VALUES,
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
            look.line(
                figure, law, "x", "best", "%{x:.3s}: %{y:.3g}", legendgroup="law", **shown
            )
            error = bars(inside, "best")
            Look("best of a cell", MIDDLE).points(
                figure, inside, "x", "best", hover, error_y=error, **shown
            )
            Look("at an end", GREY, "triangle-up").points(
                figure, data[is_edge], "x", "best", hover, **shown
            )
            x_axis = Axis("x", ROLES.get(self.size, title_of(self.size)), True)
            figure.update_xaxes(**x_axis.around(data["x"]), **place)
            figure.update_yaxes(
                **Axis("best", title_of(name), True).around(data["best"]), **place
            )


def _laws(report: ReportData) -> HyperparameterLaws:
    report.check_runs()
    studied = report.studied

    def work() -> HyperparameterLaws:
        counting = studied.settled() if studied else PLAIN
        return assess_hyperparameters(
            tuned_runs(report.runs, report.study, counting, report.design)
        )

    return report.once("hyperparameters", work)


def _table(laws: HyperparameterLaws, name: str, size: str) -> DataFrame:
    runs, surface, searched = laws.surface.runs, laws.surface, laws.searched[name]
    logs = runs.log_of(size)
    rows = []
    for c in range(runs.n_cells):
        best = searched.cell(c)
        place = {
            "hyperparameter": name,
            "what": "cell",
            "cell": runs.cell_name(c),
            "x": math.exp(logs[c]),
        }
        rows.append(
            place
            | {"best": best["value"]}
            | {end: best[end] for end in ("low", "high", "edge")}
        )
    # The other sizes follow this one as they do in the cells: on a path, all grow together.
    others = {column: np.polyfit(logs, runs.log_of(column), 1) for column in surface.sizes}
    for x in np.linspace(logs.min(), logs.max(), _STEPS):
        at = {column: float(np.polyval(line, x)) for column, line in others.items()}
        middle, low, high = np.exp(interval(surface.optimum(at)[:, searched.j]))
        ends = {"best": middle, "low": low, "high": high, "edge": ""}
        rows.append(
            {"hyperparameter": name, "what": "law", "cell": "", "x": math.exp(x)} | ends
        )
    return DataFrame(rows)


def _in_words(entry: Any) -> str:
    ends = f"{rounded(entry['low'])} to {rounded(entry['high'])}, {entry['verdict']}"
    if entry["value"] is None:
        return ends
    return f"{rounded(entry['value'])} ({ends})"
