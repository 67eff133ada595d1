"""The best use of compute: IsoFLOP parabolas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from pandas import DataFrame, concat

from sweeplab.formatting import rounded
from sweeplab.laws.doubts import tuning_of
from sweeplab.laws.isoflop import isoflop as find_minima
from sweeplab.report.data import ROLES, ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.law import shown_of
from sweeplab.report.style import Axis, Figure, bars, looks

_METHOD = {
    "IsoFLOP": "Hoffmann et al. 2022, Training compute-optimal large language models, approach 2: the loss at each "
    "compute budget falls and rises again in log N.",
    "Departures": "One regression over the rows of all budgets, which share curvature and skew. A minimum counts only "
    "if its interval lies within the sizes of its budget.",
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
        isoflop = find_minima(tuning.points, doubt=next(iter(tuning.doubts), None))
        parts, notes, names = [], ["A star is a minimum, with its 90% interval."], {}
        for budget in isoflop.budgets:
            flops, name = budget["flops"], f"{rounded(budget['flops'])} FLOPs"
            names[flops] = name
            shown = [DataFrame(budget[what]).assign(what=what) for what in ("rows", "curve")]
            if budget["why_none"]:
                notes.append(f"{name}: {budget['why_none']}.")
            else:
                n, low, high = (budget[end] for end in ("n_opt", "n_opt_low", "n_opt_high"))
                row = {"what": "minimum", "params": n, "low": low, "high": high, "loss": budget["loss"]}
                shown.append(DataFrame([row]))
            parts.append(concat(shown).assign(flops=flops))
        return cls(
            title="IsoFLOP: the best size at each budget",
            data=concat(parts, ignore_index=True).replace({"what": {"rows": "row"}}),
            shown=shown_of(isoflop.numbers),
            notes=tuple(notes),
            method=_METHOD,
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
                settings = {"marker": star, "error_x": ends, "legendgroup": look.name, "showlegend": False}
                look.points(figure, best, *at, f"best size: {hover}", **settings)
        axes = {"xaxis": self.x.around(self.data["params"]), "yaxis": self.y.around(self.data["loss"])}
        figure.update_layout(**axes, showlegend=True)
