"""The best use of compute: IsoFLOP parabolas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pandas import DataFrame, concat

from sweeplab.formatting import listed, rounded
from sweeplab.laws.doubts import tuning_of
from sweeplab.laws.isoflop import isoflop as find_minima
from sweeplab.report.data import ROLES, ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.law import shown_of
from sweeplab.report.style import Axis, Figure, bars, looks

_HOFFMANN = "Hoffmann et al. 2022, Training compute-optimal large language models"
_ISOFLOP = {
    "IsoFLOP": f"{_HOFFMANN}, approach 2: the loss at each compute budget falls and rises again in log N.",
    "Departures": "One regression over the rows of all budgets, which share curvature and skew. A minimum "
    "counts only if "
    "its interval lies within the sizes of its budget.",
}


class IsoFlopPanel(Panel, name="isoflop", heading="IsoFLOP", source="points"):
    """Losses at equal FLOPs. `data`: what (row, curve, minimum), flops, params, loss, low, high.

    `low` and `high` are the interval of a minimum's params. `budgets` are the labels of `flops`, in order.
    """

    budgets: Mapping[float, str]

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        report.check_differs("tokens")
        tuning = tuning_of(report.points)
        isoflop = asdict(find_minima(tuning.points, doubt=next(iter(tuning.doubts), None)))
        budgets = isoflop["budgets"]
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
                "A star is a minimum, with its 90% interval.",
                *(f"{listed(which)}: {why}." for why, which in without.items()),
            ),
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
            look.line(figure, by_what["curve"], *at, **other)
            if "minimum" in by_what:
                best, hover = by_what["minimum"], f"{look.name}<br>best size %{{x:.4s}}: %{{y:.4f}}"
                star = {"symbol": "star", "size": 15, "line": {"width": 1, "color": "white"}}
                ends = bars(best, "params", thickness=2, width=6, color=look.color)
                look.points(figure, best, *at, hover, marker=star, error_x=ends, **other)
        axes = {"xaxis": self.x.around(self.data["params"]), "yaxis": self.y.around(self.data["loss"])}
        figure.update_layout(**axes, showlegend=True)


def _isoflop_rows(budget: Mapping[str, Any]) -> DataFrame:
    rows, curve = budget["rows"], budget["curve"]
    what = ["row"] * len(rows["params"]) + ["curve"] * len(curve["params"])
    table = DataFrame({"what": what} | {name: [*rows[name], *curve[name]] for name in ("params", "loss")})
    if budget["n_opt"] is not None:
        best = {"what": "minimum", **_minimum(budget), "loss": budget["loss"]}
        table = concat([table, DataFrame([best])], ignore_index=True)
    columns = ["low", "high", "what", "flops", "params", "loss"]
    return table.reindex(columns=columns).assign(flops=budget["flops"])


def _minimum(budget: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"low": budget["n_opt_low"], "high": budget["n_opt_high"]}
    return {"flops": budget["flops"], "params": budget["n_opt"], **ends}
