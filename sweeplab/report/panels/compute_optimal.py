"""The compute-optimal size: parabolas at equal FLOPs, and the three approaches side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame, concat

from sweeplab.analysis.compute_optimal.approaches import ENVELOPE, ISOFLOP, PARAMETRIC, Approaches, approaches
from sweeplab.analysis.compute_optimal.envelope import Curves, curves_of_study
from sweeplab.analysis.compute_optimal.lines import N_AT
from sweeplab.analysis.fit.assessment import NEAR, NOT_IDENTIFIED, Assessment, find_law
from sweeplab.analysis.fit.forms import D_OPT, N_OPT, Array, Quantity, optimum_of
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, rounded, sentence
from sweeplab.report.data import ROLES, ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.fit import LAW, data_of, shown_of
from sweeplab.report.panels.law import band
from sweeplab.report.style import Axis, Figure, Look, bars, colors, looks

_USUAL = "chinchilla"
_SYMBOLS = {PARAMETRIC: "circle", ISOFLOP: "star", ENVELOPE: "square"}
_HOFFMANN = "Hoffmann et al. 2022, Training compute-optimal large language models"
_ISOFLOP = (
    ("IsoFLOP", f"{_HOFFMANN}, approach 2: a parabola of the loss in log N through the rows of one budget."),
    (
        "Departures",
        "A minimum counts only where the parabola bends upward and the loss rises again on both sides of it, inside of "
        "the sizes, by more than the noise; its interval is Fieller's (1954); the line through the minima weighs each "
        "by its variance.",
    ),
)
_APPROACHES = (
    *_ISOFLOP,
    (
        "Envelope",
        f"{_HOFFMANN}, approach 1: at each compute the size of the lowest training curve. The line goes through the "
        "places where the best size changes, and the best size never shrinks as compute grows.",
    ),
    ("Parametric", f"{_HOFFMANN}, approach 3: the optimum of the fitted law."),
    (
        "Difference",
        "The parabolas and the law read the same rows: what their errors have in common is taken out of the interval "
        "of a difference.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class IsoFlopPanel(Panel, name="isoflop", heading="IsoFLOP", source="points", options=LAW):
    """Losses at equal FLOPs. `data`: what (row, far row, parabola, minimum), flops, params, loss, low, high.

    `low` and `high` are the interval of a minimum's params. `budgets` are the labels of `flops`, in order.
    """

    budgets: Mapping[float, str]

    @classmethod
    def of(cls, report: ReportData, law: str = _USUAL, delta: str = "auto") -> Panel:
        """Draw what each budget's sizes reach, and the minimum where there is one."""
        found = _approaches(report, law, delta).isoflop.as_dict()
        budgets = found["budgets"]
        if not budgets:
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

    def draw(self, figure: Figure) -> None:
        """Draw the rows of each budget with their parabola, and a star with its interval at each minimum."""
        for flops, look in zip(self.budgets, looks([*self.budgets.values()]), strict=True):
            by_what = dict([*self.data[self.data["flops"] == flops].groupby("what")])
            group, hover = {"legendgroup": look.name}, f"{look.name}<br>params %{{x:.4s}}: %{{y:.4f}}"
            if (rows := by_what.get("row")) is not None:
                look.points(figure, rows, "params", "loss", hover, **group)
            if (rows := by_what.get("far row")) is not None:
                hollow = {"symbol": f"{look.symbol}-open", "opacity": 0.7}
                look.points(figure, rows, "params", "loss", hover, marker=hollow, showlegend=False, **group)
            look.line(figure, by_what["parabola"], "params", "loss", showlegend=False, **group)
            if (best := by_what.get("minimum")) is not None:
                hover = f"{look.name}<br>best size %{{x:.4s}}: %{{y:.4f}}"
                star = {"symbol": "star", "size": 15, "line": {"width": 1, "color": "white"}}
                ends = {"error_x": bars(best, "params", thickness=2, width=6, color=look.color)}
                look.points(
                    figure, best, "params", "loss", hover, marker=star, showlegend=False, **group, **ends
                )
        figure.update_xaxes(**self.x.around(self.data["params"]))
        figure.update_yaxes(**self.y.around(self.data["loss"]))
        figure.update_layout(showlegend=True)


class ComputeOptimalPanel(
    Panel, name="compute_optimal", heading="Compute-optimal size", source="points", options=LAW
):
    """The best size over compute, by approach. `data`: road, what (minimum, change, line), flops, params, low, high."""

    @classmethod
    def of(cls, report: ReportData, law: str = _USUAL, delta: str = "auto") -> Panel:
        """Draw the best size over compute by each approach, and say whether the approaches disagree."""
        found = _approaches(report, law, delta)
        said = found.as_dict()
        rows = [*_minima(said[ISOFLOP]), *_envelope(said[ENVELOPE]), *_parametric(found)]
        entries = _entries(said["roads"])
        if not rows:
            raise BadInput(
                found.why_none or "; ".join(f"{name}: {each['why']}" for name, each in entries.items())
            )
        return cls(
            title="Compute-optimal size, by three approaches",
            data=DataFrame(rows),
            shown=shown_of(entries),
            notes=tuple(sentence(each["says"]) for each in said["disagreements"] if each["differences"]),
            warnings=tuple(each for each in said["warnings"] if not each.startswith(PARAMETRIC)),
            method=_APPROACHES,
            result={**said, "table": data_of(entries).to_dict(orient="records")},
            x=Axis("flops", ROLES["flops"], True),
            y=Axis("params", "best size, in parameters", True),
        )

    def draw(self, figure: Figure) -> None:
        """Draw the best sizes of each approach, with the lines and bands of those that have them."""
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
        figure.update_xaxes(**self.x.around(self.data["flops"]))
        figure.update_yaxes(**self.y.around(self.data[["params", "low", "high"]]))
        figure.update_layout(showlegend=True)


def _entries(approaches: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    """Return the approaches' numbers by name, side by side; one that has none for one reason is one entry."""
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
    law = law if {"params", "tokens"} <= set(find_law(law).columns) else _USUAL

    def work() -> Approaches:
        points = report.points  # what has no points at all is refused here
        found: Assessment | None = None
        with suppress(BadInput):
            found = report.assessment(law, delta)
        return approaches(points, _curves(report), law, found=found)

    return report.once(("approaches", law, delta), work)


def _curves(report: ReportData) -> Curves | None:
    """Return a study's curves; None for a table, whose groups may be curves."""
    if report.table is not None:
        return None
    studied = report.studied
    runs = report.runs if studied is None else studied.runs
    return curves_of_study(runs, report.curves("val_loss"), studied.settled() if studied else None)


def _isoflop_rows(budget: Mapping[str, Any]) -> DataFrame:
    rows, curve = budget["rows"], budget["parabola"]
    found = [
        {"what": "row" if used else "far row", "params": params, "loss": loss}
        for params, loss, used in zip(rows["params"], rows["loss"], rows["used"], strict=True)
    ]
    found += [
        {"what": "parabola", "params": params, "loss": loss}
        for params, loss in zip(curve["params"], curve["loss"], strict=True)
    ]
    if budget["n_opt"] is not None:
        ends = {"low": budget["n_opt_low"], "high": budget["n_opt_high"]}
        found.append({"what": "minimum", "params": budget["n_opt"], "loss": budget["loss"], **ends})
    columns = ["low", "high", "what", "flops", "params", "loss"]
    return DataFrame(found, columns=columns).assign(flops=budget["flops"])


def _minima(said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for each in said["budgets"]:
        if each["n_opt"] is not None:
            ends = {"low": each["n_opt_low"], "high": each["n_opt_high"]}
            at = {"flops": each["flops"], "params": each["n_opt"]}
            yield {"road": ISOFLOP, "what": "minimum", **at, **ends}
    if said["line"] and said["numbers"][N_AT]["value"] is not None:
        names = ("flops", "params", "low", "high")
        for row in zip(*(said["line"][name] for name in names), strict=True):
            yield {"road": ISOFLOP, "what": "line", **dict(zip(names, row, strict=True))}


def _envelope(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    ends = {"low": None, "high": None}
    return [{"road": ENVELOPE, "what": "change", **each, **ends} for each in said["changes"]]


def _parametric(found: Approaches) -> list[dict[str, Any]]:
    """Return the law's best size with its band, where the law identifies one and some size is near it."""
    assessed = found.parametric
    if assessed is None or not found.numbers[PARAMETRIC][N_AT].identified:
        return []
    k = found.points.flops_per_param_token
    flops, sizes = found.points.columns["flops"], found.points.columns["params"]
    ends = float(flops.min()), float(flops.max())
    line = band(assessed, lambda budget: _best_size(assessed, budget, k), *ends, ends[1])
    return [
        {"road": PARAMETRIC, "what": "line", "flops": x, "params": n, "low": low, "high": high}
        for x, n, low, high in zip(line.x, line.value, line.low, line.high, strict=True)
        if sizes.min() / NEAR <= n <= sizes.max() * NEAR
    ]


def _best_size(found: Assessment, budget: float, per_param_token: float) -> Quantity:
    """Return N_opt at a budget: what the tokens per parameter leave of it."""
    fit = found.fit
    quantities = optimum_of(fit.law, fit.center, budget, per_param_token)
    ratio = next(each for each in quantities if each.kind == "ratio")

    def measure(theta: Array) -> tuple[Array, Array]:
        value, slope = ratio.measure(theta)
        return (math.log(budget / per_param_token) - value) / 2, -slope / 2

    return Quantity(N_AT, "ratio", "the parameters of lowest loss", measure, ratio.needs, is_log=True)
