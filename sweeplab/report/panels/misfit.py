"""Whether a law's form is right: what its residuals say of that, and how it predicts larger runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.fit.assessment import find_law
from sweeplab.analysis.fit.forms import LAWS
from sweeplab.analysis.fit.intervals import LEVEL
from sweeplab.analysis.misfit.comparison import SHARE_ABOVE, SHARE_BELOW, Comparison, compare
from sweeplab.errors import BadInput
from sweeplab.formatting import sentence
from sweeplab.report.data import ROLES, ReportData
from sweeplab.report.options import Option
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.panels.fit import LAW
from sweeplab.report.style import GREY, SYMBOLS, Axis, Figure, by_look

_CHALLENGERS = ("joint",)
_ERROR = "error (%)"
_TEST = (
    (
        "Test",
        "Rao's score test in many directions: what a departure from the law's form would leave in the residuals, once "
        "the law's own slopes are projected off. The largest is compared with what errors alone give, drawn many times "
        "(Davies 1987).",
    ),
    (
        "Power",
        "The share of such draws that would be flagged if the departure were there, in a size that makes the law's "
        "forecast at ten times the compute 5% wrong. Where it is small, that nothing was flagged says nothing.",
    ),
)
_BACKTEST = (
    (
        "Back-test",
        f"A law is fitted to the rows below a compute cut, {SHARE_BELOW:.0%} of them or more, and predicts those "
        f"above, {SHARE_ABOVE:.0%} or more; for several cuts. Laws are compared by these errors, not by how they fit.",
    ),
    (
        "Lead",
        "A challenger predicts better only if its errors are smaller by more than they are on tables drawn from the "
        "first law's own fit, with its noise; the share of such tables with a lead as large stands below the lead.",
    ),
)


class MisfitPanel(TablePanel, name="misfit", heading="Misfit", source="points", options=LAW):
    """What a law's form may be wrong in, whether it was flagged, and whether it could have been seen."""

    @classmethod
    def of(cls, report: ReportData, law: str = "chinchilla", delta: str = "auto") -> Panel:
        """List the departures from the form."""
        said = report.misfit(law, delta).as_dict()
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


@dataclass(frozen=True, kw_only=True)
class BacktestPanel(
    Panel,
    name="backtest",
    heading="Back-test",
    source="points",
    options={**LAW, "laws": Option(tuple(LAWS), many=True)},
):
    """Errors of laws above cuts. `data`: law, cut (its compute), x's column, error (%), held.

    An error above zero is a prediction that was too high.
    """

    laws: tuple[str, ...]
    cuts: tuple[float, ...]

    @classmethod
    def of(
        cls, report: ReportData, law: str = "chinchilla", delta: str = "auto", laws: Sequence[str] = ()
    ) -> Panel:
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
            shown=DataFrame(map(_shown, said["laws"])),
            notes=(sentence(said["sentences"][0]),),
            method=_BACKTEST,
            result=said,
            x=Axis(by, ROLES[by], True),
            y=Axis(_ERROR, "prediction above the measured loss (%)"),
            laws=tuple(each["law"] for each in said["laws"]),
            cuts=tuple(each.at for each in found.cuts.cuts),
        )

    def draw(self, figure: Figure) -> None:
        """Draw each law's errors over compute, with one symbol per cut."""
        data, x = self.data, self.x.column
        symbols = dict(zip(self.cuts, cycle(SYMBOLS), strict=False))
        for look, rows in by_look(data, "law"):
            hover = f"{look.name}, fitted up to %{{customdata[0]:.3s}}<br>{x} %{{x:.4s}}: %{{y:+.2f}}%"
            marker = {"symbol": [symbols[cut] for cut in rows["cut"]]}
            look.points(figure, rows, x, self.y.column, hover, ["cut"], marker=marker)
        figure.add_hline(y=0, line={"color": GREY, "width": 1})
        for cut in self.cuts:
            figure.add_vline(x=cut, line={"color": GREY, "width": 1, "dash": "2px 3px"}, layer="below")
        figure.update_xaxes(**self.x.around(data[x], *self.cuts))
        figure.update_yaxes(**self.y.around(data[_ERROR], 0.0))
        figure.update_layout(showlegend=True)


def _comparison(report: ReportData, name: str, delta: str, others: Sequence[str]) -> Comparison:
    law = find_law(name)
    others = others or [each for each in _CHALLENGERS if set(LAWS[each].columns) == set(law.columns)]
    laws = tuple(dict.fromkeys((name, *others)))
    report.assessment(name, delta)  # what has no law is refused as elsewhere on the page
    return report.once(("compare", laws), lambda: compare(report.points, [LAWS[each] for each in laws]))


def _shown(said: Mapping[str, Any]) -> dict[str, str]:
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
