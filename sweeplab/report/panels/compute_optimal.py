"""The best use of compute: IsoFLOP parabolas, the three approaches side by side, and depth against width."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

from pandas import DataFrame, concat

from sweeplab.analysis.points import curves_of_study
from sweeplab.analysis.trials import marks_of
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, rounded, sentence, several
from sweeplab.hyperparameters import AUTO
from sweeplab.laws.assessment import Assessment
from sweeplab.laws.compute_optimal.approaches import ENVELOPE, ISOFLOP, PARAMETRIC, Approaches, approaches
from sweeplab.laws.compute_optimal.envelope import Curves
from sweeplab.laws.compute_optimal.lines import N_AT
from sweeplab.laws.compute_optimal.shape import Shape, shape_of
from sweeplab.laws.estimation.forms import D_OPT, N_OPT, Array, Quantity, optimum_of
from sweeplab.laws.estimation.verdicts import NEAR, NOT_IDENTIFIED
from sweeplab.report.data import ROLES, ReportData, title_of
from sweeplab.report.options import PanelOption
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.fit import Delta, Law, data_of, shown_of
from sweeplab.report.panels.law import band
from sweeplab.report.panels.runs import LossMap
from sweeplab.report.style import GREY, Axis, Figure, Look, bars, colors, looks

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
_EQUAL = "loss_at_equal_params"
_SIZE_ALONE = "size alone"
_TITLES = {
    "params": "Loss by depth and width, over parameters",
    "n_layer": "Depth at equal parameters",
    "n_embd": "Width at equal parameters",
    "aspect_ratio": "Aspect ratio at equal parameters",
}
_SHAPES = {
    "Comparison": "The log losses are regressed on a curve in log N and on log(n_embd / n_layer); the second term is "
    "the effect of shape at equal parameters. A shape that was trained for several lengths counts as one row.",
    "Frontier": "A shape is on the frontier if no other shape with as many tokens and at most as many parameters has a "
    "loss as low.",
}


class IsoFlopPanel(Panel, name="isoflop", heading="IsoFLOP", source="points"):
    """Losses at equal FLOPs. `data`: what (row, far row, parabola, minimum), flops, params, loss, low, high.

    `low` and `high` are the interval of a minimum's params. `budgets` are the labels of `flops`, in order.
    """

    budgets: Mapping[float, str]

    @classmethod
    def of(cls, report: ReportData, law: Law = AUTO, delta: Delta = AUTO) -> Panel:
        """Draw the losses of each budget's sizes, and the minimum if there is one."""
        found = _approaches(report, law, delta).isoflop.as_dict()
        budgets = found["budgets"]
        if not budgets:
            report.check_differs("tokens")
            raise BadInput(found["how"])
        names = {each["flops"]: f"{rounded(each['flops'])} FLOPs" for each in budgets if each["flops"]}
        without: dict[str, list[str]] = {}
        for each in budgets:
            if each["why_none"]:
                without.setdefault(each["why_none"], []).append(names[each["flops"]])
        return cls(
            title="IsoFLOP: the best size at each budget",
            data=concat([_isoflop_rows(each) for each in budgets], ignore_index=True),
            shown=shown_of(found["numbers"]),
            notes=(
                f"{sentence(found['how'])} A star is a minimum, with its 90% interval.",
                *(f"{listed(which)}: {why}." for why, which in without.items()),
            ),
            warnings=tuple(found["warnings"]),
            method=_ISOFLOP,
            result=found,
            x=Axis("params", ROLES["params"], True),
            y=Axis("loss", ROLES["loss"]),
            budgets=names,
        )

    def _draw(self, figure: Figure) -> None:
        for flops, look in zip(self.budgets, looks([*self.budgets.values()]), strict=True):
            by_what = dict([*self.data[self.data["flops"] == flops].groupby("what")])
            at, hover = ("params", "loss"), f"{look.name}<br>params %{{x:.4s}}: %{{y:.4f}}"
            own: dict[str, Any] = {"legendgroup": look.name}
            other = own | {"showlegend": False}
            if (rows := by_what.get("row")) is not None:
                look.points(figure, rows, *at, hover, **own)
            if (rows := by_what.get("far row")) is not None:
                hollow = {"symbol": f"{look.symbol}-open", "opacity": 0.7}
                look.points(figure, rows, *at, hover, marker=hollow, **other)
            look.line(figure, by_what["parabola"], *at, **other)
            if (best := by_what.get("minimum")) is not None:
                hover = f"{look.name}<br>best size %{{x:.4s}}: %{{y:.4f}}"
                star = {"symbol": "star", "size": 15, "line": {"width": 1, "color": "white"}}
                ends = bars(best, "params", thickness=2, width=6, color=look.color)
                look.points(figure, best, *at, hover, marker=star, error_x=ends, **other)
        axes = {"xaxis": self.x.around(self.data["params"]), "yaxis": self.y.around(self.data["loss"])}
        figure.update_layout(**axes, showlegend=True)


class ComputeOptimalPanel(Panel, name="compute_optimal", heading="Compute-optimal size", source="points"):
    """The best size over compute, by approach. `data`: road, what (minimum, change, line), flops, params, low, high."""

    @classmethod
    def of(cls, report: ReportData, law: Law = AUTO, delta: Delta = AUTO) -> Panel:
        """Draw the best size over compute by each approach, and say whether the approaches disagree."""
        found = _approaches(report, law, delta)
        said = found.as_dict()
        rows = list(_best_sizes(found, said))
        entries = _entries(said["roads"])
        if all(each["verdict"] == NOT_IDENTIFIED for each in entries.values()):
            report.check_differs("tokens")
        if not rows:
            why = "; ".join(f"{name}: {each['why']}" for name, each in entries.items())
            raise BadInput(found.why_none or why)
        return cls(
            title="Compute-optimal size, by three approaches",
            data=DataFrame(rows, columns=["road", "what", "flops", "params", "low", "high"]),
            shown=shown_of(entries),
            notes=tuple(sentence(each["says"]) for each in said["disagreements"] if each["differences"]),
            warnings=tuple(each for each in said["warnings"] if not each.startswith(PARAMETRIC)),
            method=_APPROACHES,
            result={**said, "table": data_of(entries).to_dict(orient="records")},
            x=Axis("flops", ROLES["flops"], True),
            y=Axis("params", "best size, in parameters", True),
        )

    def _draw(self, figure: Figure) -> None:
        for (approach, symbol), color in zip(_SYMBOLS.items(), colors(len(_SYMBOLS)), strict=True):
            own, look = self.data[self.data["road"] == approach], Look(approach, color, symbol)
            line, marks = own[own["what"] == "line"], own[own["what"] != "line"]
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
    """Return the approaches' numbers by name, side by side; one entry for an approach without any."""
    empty = {
        approach: {**next(iter(numbers.values())), "meaning": f"{', '.join(numbers)}: none"}
        for approach, numbers in approaches.items()
        if len({each["why"] for each in numbers.values()}) == 1
        and all(each["verdict"] == NOT_IDENTIFIED for each in numbers.values())
    }
    found = {
        f"{name}, {approach}": numbers[name]
        for name in (N_OPT, D_OPT, N_AT)
        for approach, numbers in approaches.items()
        if name in numbers and approach not in empty
    }
    return found | empty


def _approaches(report: ReportData, law: str, delta: str) -> Approaches:
    chosen = report.law(law)
    law = chosen.name if {"params", "tokens"} <= set(chosen.columns) else _USUAL

    def work() -> Approaches:
        points, studied = report.points, report.studied  # raises where there are no points at all
        found: Assessment | None = None
        curves: Curves | None = None  # the groups of a table may be curves
        with suppress(BadInput):
            found = report.assessment(law, delta)
        if report.table is None:
            runs, settled = (studied.runs, studied.settled()) if studied else (report.runs, None)
            curves = curves_of_study(runs, report.curves("val_loss"), settled)
        return approaches(points, curves, law, found=found)

    return report.once(("approaches", law, delta), work)


def _isoflop_rows(budget: Mapping[str, Any]) -> DataFrame:
    rows, curve = budget["rows"], budget["parabola"]
    what = [*("row" if used else "far row" for used in rows["used"]), *["parabola"] * len(curve["params"])]
    found = DataFrame({"what": what} | {name: [*rows[name], *curve[name]] for name in ("params", "loss")})
    if budget["n_opt"] is not None:
        best = {"what": "minimum", **_minimum(budget), "loss": budget["loss"]}
        found = concat([found, DataFrame([best])], ignore_index=True)
    columns = ["low", "high", "what", "flops", "params", "loss"]
    return found.reindex(columns=columns).assign(flops=budget["flops"])


def _minimum(budget: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"low": budget["n_opt_low"], "high": budget["n_opt_high"]}
    return {"flops": budget["flops"], "params": budget["n_opt"], **ends}


def _best_sizes(found: Approaches, said: Mapping[str, Any]) -> Iterator[Mapping[Any, Any]]:
    """Yield the best sizes by each approach: road, what (minimum, change, line), flops, params, low, high."""
    isoflop = said[ISOFLOP]
    for each in isoflop["budgets"]:
        if each["n_opt"] is not None:
            yield {"road": ISOFLOP, "what": "minimum", **_minimum(each)}
    if isoflop["line"] and isoflop["numbers"][N_AT]["value"] is not None:
        yield from DataFrame(isoflop["line"]).assign(road=ISOFLOP, what="line").to_dict("records")
    for each in said[ENVELOPE]["changes"]:
        yield {"road": ENVELOPE, "what": "change", **each, "low": None, "high": None}
    law = found.parametric
    if law and found.numbers[PARAMETRIC][N_AT].identified:
        flops, sizes = found.points.columns["flops"], found.points.columns["params"]
        low, high, k = float(flops.min()), float(flops.max()), found.points.flops_per_param_token
        line, _ = band(law, lambda budget: _best_size(law, budget, k), low, high, high)
        line = line[line["value"].between(sizes.min() / NEAR, sizes.max() * NEAR)]
        line = line.rename(columns={"x": "flops", "value": "params"})
        yield from line.assign(road=PARAMETRIC, what="line").to_dict("records")


def _best_size(found: Assessment, budget: float, per_param_token: float) -> Quantity:
    """Return N_opt at a budget, from the best tokens per parameter."""
    fit = found.fit
    quantities = optimum_of(fit.law, fit.center, budget, per_param_token)
    ratio = next(each for each in quantities if each.kind == "ratio")

    def measure(theta: Array) -> tuple[Array, Array]:
        value, slope = ratio.measure(theta)
        return (math.log(budget / per_param_token) - value) / 2, -slope / 2

    return Quantity(N_AT, "ratio", "the parameters of lowest loss", measure, ratio.needs, is_log=True)


class ShapePanel(Panel, name="shape", heading="Loss by depth and width", source="points"):
    """Losses of shapes. `data`: what (shape, size alone), name, n_layer, n_embd, aspect_ratio, params, tokens, loss, …

    `y` is the loss itself over params, and otherwise the loss adjusted to equal parameters; `line` is the column
    that names the lines.
    """

    line: str

    @classmethod
    def of(cls, report: ReportData, x: Annotated[str, PanelOption(tuple(_TITLES))] = "params") -> Panel:
        """Show the effect of depth and width: over parameters, or over either one at equal parameters."""
        found, cells = _shapes(report, at_equal_params=x != "params")
        if x != "params":
            return cls(
                title=_TITLES[x],
                data=cells,
                notes=(
                    f"Each loss is adjusted to {rounded(found.middle_params)} parameters by the curve in N.",
                ),
                method=_SHAPES,
                x=Axis(x, title_of(x), True, marks_of(cells[x])),
                y=Axis(_EQUAL, "loss at equal parameters"),
                line="n_embd" if x == "n_layer" else "n_layer",
            )
        said = found.as_dict()
        law = DataFrame(said["size_law"]).assign(what=_SIZE_ALONE) if said["size_law"] else DataFrame()
        shapes = f"{several(found.n_shapes, 'shape')}. Large marks: on the frontier."
        return cls(
            title=_TITLES[x],
            data=concat([cells, law], ignore_index=True),
            shown=shown_of(said["numbers"]),
            notes=(shapes, sentence(found.says)),
            method=_SHAPES,
            result=said,
            x=Axis(x, ROLES[x], True),
            y=Axis("loss", ROLES["loss"]),
            line="n_layer",
        )

    def _draw(self, figure: Figure) -> None:
        x, y, over_size = self.x.column, self.y.column, self.x.column == "params"
        shapes, law = (self.data[self.data["what"] == what] for what in ("shape", _SIZE_ALONE))
        if len(law):
            dashed = {"width": 1.5, "dash": "4px 4px"}
            Look(_SIZE_ALONE, GREY).line(figure, law, "params", "loss", line=dashed)
        hover = f"%{{name}}<br>n_layer %{{n_layer:g}}, n_embd %{{n_embd:g}}<br>{x} %{{x:.4s}}: %{{y:.4f}}"
        groups = list(shapes.groupby(self.line))
        names = [f"{self.line} {value:g}" for value, _ in groups]
        for look, (_, shown) in zip(looks(names), groups, strict=True):
            rows = shown.sort_values([x, y])
            if over_size or rows["tokens"].nunique() > 1 or not rows[x].is_unique:
                sizes = [11 if on else 6 for on in rows["on_frontier"]] if over_size else 8
                look.points(figure, rows, x, y, hover, marker={"size": sizes, "opacity": 1})
            else:
                look.line(figure, rows, x, y, hover, line={"width": 1.5}, size=8)
        axes = {"xaxis": self.x.around(shapes[x]), "yaxis": self.y.around(shapes[y])}
        figure.update_layout(**axes, showlegend=True)


class ShapeMapPanel(
    LossMap, name="shape_map", heading="Loss by depth and width at equal parameters", source="points"
):
    """The loss at equal parameters over n_layer and n_embd. `data`: n_layer, n_embd, loss, name."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Give the lowest loss at equal parameters of each depth and width."""
        found, cells = _shapes(report, at_equal_params=True)
        lowest = sorted(cells.groupby(["n_layer", "n_embd"])[_EQUAL].idxmin())
        best = cells.loc[lowest, ["n_layer", "n_embd", _EQUAL, "name"]].rename(columns={_EQUAL: "loss"})
        level = rounded(found.middle_params)
        note = f"The effect of size is removed: each loss is adjusted to {level} parameters."
        return cls._over("n_embd", "n_layer", best.reset_index(drop=True), note, method=_SHAPES)


def _shapes(report: ReportData, at_equal_params: bool) -> tuple[Shape, DataFrame]:
    found = report.once("shape", lambda: shape_of(report.points))
    if at_equal_params and not found.numbers["depth at equal parameters"].identified:
        raise BadInput(found.says)
    return found, found.cells.assign(what="shape")
