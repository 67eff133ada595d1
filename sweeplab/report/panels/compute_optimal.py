"""The best use of compute: IsoFLOP parabolas, the three approaches side by side, and depth against width."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from pandas import DataFrame, concat

from sweeplab.analysis.studies import curves_of_study
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, rounded, sentence
from sweeplab.hyperparameters import AUTO
from sweeplab.laws.assessment import NEAR, NOT_IDENTIFIED, Assessment
from sweeplab.laws.columns import SHAPE
from sweeplab.laws.compute_optimal.approaches import (
    ENVELOPE,
    ISOFLOP,
    PARAMETRIC,
    Approaches,
    Curves,
    approaches,
)
from sweeplab.laws.compute_optimal.lines import N_AT
from sweeplab.laws.forms import D_OPT, N_OPT, Array, Quantity, optimum_of
from sweeplab.laws.shapes import Shapes, shapes_of
from sweeplab.report.data import ASPECT, ROLES, ReportData
from sweeplab.report.options import PanelOption
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.law import Delta, Law, LinesPanel, about_fit, data_of, shown_of
from sweeplab.report.panels.lines import at_lines, band, lines_by
from sweeplab.report.panels.runs import LossMap
from sweeplab.report.style import Axis, Figure, Look, bars, colors, looks

_USUAL = "chinchilla"
_SYMBOLS = {PARAMETRIC: "circle", ISOFLOP: "star", ENVELOPE: "square"}
_HOFFMANN = "Hoffmann et al. 2022, Training compute-optimal large language models"
_ISOFLOP = {
    "IsoFLOP": f"{_HOFFMANN}, approach 2: a parabola in log N, fitted to the losses of each compute budget.",
    "Departures": "A minimum counts only if the parabola is convex and the loss rises by more than the noise on both "
    "sides of it, within the sizes of the budget. Its interval is Fieller's (1954). The line of best sizes is fitted "
    "to the rows of all budgets at once.",
}
_APPROACHES = {
    **_ISOFLOP,
    "Envelope": f"{_HOFFMANN}, approach 1: the size of the lowest training curve at each amount of compute. The "
    "line is fitted to the points where the best size changes; the best size never shrinks as compute grows.",
    "Parametric": f"{_HOFFMANN}, approach 3: the optimum of the fitted law.",
    "Difference": "The parabolas and the law use the same rows, so their errors are correlated; the interval of a "
    "difference allows for that.",
}
_TITLES = {
    "params": "Loss by depth and width, over parameters",
    "n_layer": "Loss by depth and width, over depth",
    "n_embd": "Loss by depth and width, over width",
    ASPECT: "Aspect ratio at equal parameters",
}
_SHAPES = {
    "Choice": "A law of n_layer and n_embd is chosen over one of N if it predicts the larger runs of a back-test "
    "better, and noise alone would rarely give such a lead, or such a fit to all rows, were the law of N right.",
    "Equal parameters": "N grows as n_layer^p n_embd^q, fitted to the table's shapes; tokens are those of its middle.",
    "Frontier": "A shape is on the frontier if no other shape with as many tokens and at most as many parameters has a "
    "loss as low.",
}


class IsoFlopPanel(Panel, name="isoflop", heading="IsoFLOP", source="points"):
    """Losses at equal FLOPs. `data`: what (row, far row, parabola, minimum), flops, params, loss, low, high.

    `low` and `high` are the interval of a minimum's params. `budgets` are the labels of `flops`, in order.
    """

    budgets: Mapping[float, str]

    @classmethod
    def _of(cls, report: ReportData, law: Law = AUTO, delta: Delta = AUTO) -> Panel:
        isoflop = _approaches(report, law, delta).isoflop.as_dict()
        budgets = isoflop["budgets"]
        if not budgets:
            report.check_differs("tokens")
            raise BadInput(isoflop["how"])
        names = {
            budget["flops"]: f"{rounded(budget['flops'])} FLOPs" for budget in budgets if budget["flops"]
        }
        without: dict[str, list[str]] = {}
        for budget in budgets:
            if budget["why_none"]:
                without.setdefault(budget["why_none"], []).append(names[budget["flops"]])
        return cls(
            title="IsoFLOP: the best size at each budget",
            data=concat([_isoflop_rows(budget) for budget in budgets], ignore_index=True),
            shown=shown_of(isoflop["numbers"]),
            notes=(
                f"{sentence(isoflop['how'])} A star is a minimum, with its 90% interval.",
                *(f"{listed(which)}: {why}." for why, which in without.items()),
            ),
            warnings=tuple(isoflop["warnings"]),
            method=_ISOFLOP,
            result=isoflop,
            x=Axis("params", ROLES["params"], True),
            y=Axis("loss", report.law_loss_title),
            budgets=names,
        )

    def _draw(self, figure: Figure) -> None:
        for flops, look in zip(self.budgets, looks([*self.budgets.values()]), strict=True):
            by_what = dict([*self.data[self.data["flops"] == flops].groupby("what")])
            at, hover = ("params", "loss"), f"{look.name}<br>params %{{x:.4s}}: %{{y:.4f}}"
            group: dict[str, Any] = {"legendgroup": look.name}
            other = group | {"showlegend": False}
            if "row" in by_what:
                look.points(figure, by_what["row"], *at, hover, **group)
            if "far row" in by_what:
                hollow = {"symbol": f"{look.symbol}-open", "opacity": 0.7}
                look.points(figure, by_what["far row"], *at, hover, marker=hollow, **other)
            look.line(figure, by_what["parabola"], *at, **other)
            if "minimum" in by_what:
                best, hover = by_what["minimum"], f"{look.name}<br>best size %{{x:.4s}}: %{{y:.4f}}"
                star = {"symbol": "star", "size": 15, "line": {"width": 1, "color": "white"}}
                ends = bars(best, "params", thickness=2, width=6, color=look.color)
                look.points(figure, best, *at, hover, marker=star, error_x=ends, **other)
        axes = {"xaxis": self.x.around(self.data["params"]), "yaxis": self.y.around(self.data["loss"])}
        figure.update_layout(**axes, showlegend=True)


class ComputeOptimalPanel(Panel, name="compute_optimal", heading="Compute-optimal size", source="points"):
    """The best size over compute, by approach. `data`: road, what (minimum, change, line), flops, params, low, high."""

    @classmethod
    def _of(cls, report: ReportData, law: Law = AUTO, delta: Delta = AUTO) -> Panel:
        result = _approaches(report, law, delta)
        plain = result.as_dict()
        rows = list(_best_sizes(result, plain))
        entries = _entries(plain["roads"])
        if all(each["verdict"] == NOT_IDENTIFIED for each in entries.values()):
            report.check_differs("tokens")
        if not rows:
            why = "; ".join(f"{name}: {each['why']}" for name, each in entries.items())
            raise BadInput(result.why_none or why)
        return cls(
            title="Compute-optimal size, by three approaches",
            data=DataFrame(rows, columns=["road", "what", "flops", "params", "low", "high"]),
            shown=shown_of(entries),
            notes=tuple(sentence(each["says"]) for each in plain["disagreements"] if each["differences"]),
            warnings=tuple(each for each in plain["warnings"] if not each.startswith(PARAMETRIC)),
            method=_APPROACHES,
            result={**plain, "table": data_of(entries).to_dict(orient="records")},
            x=Axis("flops", ROLES["flops"], True),
            y=Axis("params", "best size, in parameters", True),
        )

    def _draw(self, figure: Figure) -> None:
        for (approach, symbol), color in zip(_SYMBOLS.items(), colors(len(_SYMBOLS)), strict=True):
            rows, look = self.data[self.data["road"] == approach], Look(approach, color, symbol)
            line, marks = rows[rows["what"] == "line"], rows[rows["what"] != "line"]
            hover = f"{approach}<br>%{{x:.4s}} FLOPs: %{{y:.4s}} parameters"
            if len(line):
                look.band(figure, line, "flops")
                named = {"legendgroup": approach, "showlegend": marks.empty}
                look.line(figure, line, "flops", "params", hover, **named)
            if len(marks):
                ends = bars(marks, "params", visible=bool(marks["low"].notna().any()))
                marker, group = {"size": 10}, {"legendgroup": approach, "error_y": ends}
                look.points(figure, marks, "flops", "params", hover, marker=marker, **group)
        sizes = self.y.around(self.data[["params", "low", "high"]])
        figure.update_layout(xaxis=self.x.around(self.data["flops"]), yaxis=sizes, showlegend=True)


def _entries(approaches: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    """Set the approaches' numbers side by side by their names; one entry for an approach without any."""
    empty = {
        approach: {**next(iter(numbers.values())), "meaning": f"{', '.join(numbers)}: none"}
        for approach, numbers in approaches.items()
        if len({each["why"] for each in numbers.values()}) == 1
        and all(each["verdict"] == NOT_IDENTIFIED for each in numbers.values())
    }
    known = {
        f"{name}, {approach}": numbers[name]
        for name in (N_OPT, D_OPT, N_AT)
        for approach, numbers in approaches.items()
        if name in numbers and approach not in empty
    }
    return known | empty


def _approaches(report: ReportData, law: str, delta: str) -> Approaches:
    chosen = report.law(law)
    law = chosen.name if {"params", "tokens"} <= set(chosen.columns) else _USUAL

    def work() -> Approaches:
        points, studied = report.points, report.studied  # raises where there are no points at all
        assessment: Assessment | None = None
        curves: Curves | None = None  # the groups of a table may be curves
        with suppress(BadInput):
            assessment = report.assessment(law, delta)
        if report.table is None:
            runs, settled = (studied.runs, studied.settled()) if studied else (report.runs, None)
            curves = curves_of_study(runs, report.curves("val_loss"), settled)
        return approaches(points, curves, law, assessment=assessment)

    return report.once(("approaches", law, delta), work)


def _isoflop_rows(budget: Mapping[str, Any]) -> DataFrame:
    rows, curve = budget["rows"], budget["parabola"]
    kinds = {True: "row", False: "far row"}
    what = [*(kinds[bool(used)] for used in rows["used"]), *["parabola"] * len(curve["params"])]
    table = DataFrame({"what": what} | {name: [*rows[name], *curve[name]] for name in ("params", "loss")})
    if budget["n_opt"] is not None:
        best = {"what": "minimum", **_minimum(budget), "loss": budget["loss"]}
        table = concat([table, DataFrame([best])], ignore_index=True)
    columns = ["low", "high", "what", "flops", "params", "loss"]
    return table.reindex(columns=columns).assign(flops=budget["flops"])


def _minimum(budget: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"low": budget["n_opt_low"], "high": budget["n_opt_high"]}
    return {"flops": budget["flops"], "params": budget["n_opt"], **ends}


def _best_sizes(result: Approaches, plain: Mapping[str, Any]) -> Iterator[Mapping[Any, Any]]:
    """Yield the best sizes by each approach: road, what (minimum, change, line), flops, params, low, high."""
    isoflop = plain[ISOFLOP]
    for budget in isoflop["budgets"]:
        if budget["n_opt"] is not None:
            yield {"road": ISOFLOP, "what": "minimum", **_minimum(budget)}
    if isoflop["line"] and isoflop["numbers"][N_AT]["value"] is not None:
        yield from DataFrame(isoflop["line"]).assign(road=ISOFLOP, what="line").to_dict("records")
    for budget in plain[ENVELOPE]["changes"]:
        yield {"road": ENVELOPE, "what": "change", **budget, "low": None, "high": None}
    law = result.parametric
    if law and result.numbers[PARAMETRIC][N_AT].identified:
        flops, sizes = result.points.columns["flops"], result.points.columns["params"]
        low, high, k = float(flops.min()), float(flops.max()), result.points.flops_per_param_token
        line, _ = band(law, lambda budget: _best_size(law, budget, k), low, high, high)
        line = line[line["value"].between(sizes.min() / NEAR, sizes.max() * NEAR)]
        line = line.rename(columns={"x": "flops", "value": "params"})
        yield from line.assign(road=PARAMETRIC, what="line").to_dict("records")


def _best_size(assessment: Assessment, budget: float, per_param_token: float) -> Quantity:
    """Derive N_opt at a budget from the best tokens per parameter."""
    fit = assessment.fit
    quantities = optimum_of(fit.law, fit.center, budget, per_param_token)
    ratio = next(each for each in quantities if each.kind == "ratio")

    def measure(theta: Array) -> tuple[Array, Array]:
        value, slope = ratio.measure(theta)
        return (math.log(budget / per_param_token) - value) / 2, -slope / 2

    return Quantity(N_AT, "ratio", "the parameters of lowest loss", measure, ratio.needs, is_log=True)


class ShapePanel(LinesPanel, name="shape", heading="Loss by depth and width", source="points"):
    """The law of the shape over a size of the model, or over the aspect ratio at equal parameters.

    `data` is as of `law`; `result` has the shapes that no other beats.
    """

    @classmethod
    def _of(cls, report: ReportData, x: Annotated[str, PanelOption(tuple(_TITLES))] = "params") -> Panel:
        shapes, assessment = _shapes(report)
        more: dict[str, Any] = {"title": _TITLES[x], "method": about_fit(assessment) | _SHAPES}
        if x == ASPECT:
            more["y"] = Axis("loss", f"{report.law_loss_title}, at equal parameters")
        if x == "params":
            plain = shapes.as_dict()
            more |= {"shown": shown_of(plain["derived"]), "result": plain, "warnings": assessment.warnings}
        panel = cls._over(report, assessment, x, **more)
        if x == "params":
            reasons = (*assessment.choice.reasons(assessment.fit.law), *shapes.says)
            panel = replace(panel, notes=(*map(sentence, reasons), *panel.notes))
        return panel


class ShapeMapPanel(
    LossMap, name="shape_map", heading="Loss by depth and width at equal parameters", source="points"
):
    """The loss at equal parameters over n_layer and n_embd. `data`: n_layer, n_embd, loss, name."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        shapes, assessment = _shapes(report)
        lines = lines_by(assessment, ASPECT)
        cells = shapes.cells.assign(loss=at_lines(assessment, lines, ASPECT))
        lowest = sorted(cells.groupby([*SHAPE])["loss"].idxmin())
        best = cells.loc[lowest, [*SHAPE, "loss", "name"]]
        note = (
            f"The effect of size is removed: {assessment.fit.law.name} moves each loss to {lines.names[0]}."
        )
        return cls._over("n_embd", "n_layer", best.reset_index(drop=True), note, method=_SHAPES)


def _shapes(report: ReportData) -> tuple[Shapes, Assessment]:
    shapes = report.once("shape", lambda: shapes_of(report.points))
    if shapes.assessment is None:
        raise BadInput(shapes.says[0])
    return shapes, shapes.assessment
