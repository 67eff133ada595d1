"""Forecasts sealed before their runs, and their outcomes."""

from __future__ import annotations

from typing import Any

from pandas import DataFrame

from sweeplab.analysis.ledger import FILE_NAME, read_ledger
from sweeplab.analysis.sealing import UNCOUNTED, Outcome, calibrate, of_study, outcomes
from sweeplab.errors import BadInput
from sweeplab.formatting import rounded, several
from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import BAD, FAINT, GOOD, GREY, Axis, Figure, Look, bars

HELD, MISSED = "held", "missed"
_LOOKS = {HELD: Look("outcome, held", GOOD, "diamond"), MISSED: Look("outcome, missed", BAD, "x")}
_METHOD = {
    "Ledger": "Each line holds the sha256 of the line before, so changed or removed lines show. The first forecast of "
    "a run counts, if it was sealed before the run started. A seal proves nothing to others unless its sha256 was "
    "published before the run.",
    "Interval": "90%: draws of the law, whose form may bend, and of the noise of a run.",
}


class LedgerPanel(Panel, name="ledger", heading="Forecasts"):
    """Forecasts with their intervals. `data`: number, what, loss, low, high, outcome, state, error (%), why, sealed."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        study = report.study
        if report.lab is None:
            raise BadInput("there is no lab, so there is no ledger")
        path = report.lab / FILE_NAME
        if not path.exists():
            raise BadInput("no forecast was sealed; sweeplab laws predict --seal seals one")
        forecasts = of_study(outcomes(read_ledger(path), report.lab), study)
        known = calibrate(forecasts)
        counted = f"{known.held} of {several(known.n, 'scored forecast')} held"
        if known.n:
            counted += f" (90% interval of that share: {known.low:.0%} to {known.high:.0%})"
        out = [each for each in forecasts if each.state in UNCOUNTED]
        return cls(
            title="Forecasts, sealed before their runs",
            data=DataFrame([_row(each) for each in forecasts]),
            notes=(f"{counted}. Bars: 90% intervals; diamonds: the measured losses.",),
            warnings=tuple(f"forecast {each.entry.number} does not count: {each.why}" for each in out),
            method=_METHOD,
            x=Axis("loss", "loss", True),
        )

    def _draw(self, figure: Figure) -> None:
        data = self.data.assign(line=[f"{row.number}: {row.what}" for row in self.data.itertuples()])
        tick = {"symbol": "line-ns-open", "size": 12, "line": {"width": 2}}
        interval = bars(data, "loss", thickness=5, width=0, color=FAINT)
        hover = "%{y}<br>%{x:.4f}"
        Look("forecast", GREY).points(figure, data, "loss", "line", hover, marker=tick, error_x=interval)
        for state, look in _LOOKS.items():
            rows = data[data["state"] == state]
            if len(rows):
                look.points(figure, rows, "outcome", "line", hover, marker={"size": 10})
        y = {"autorange": "reversed", "type": "category", "automargin": True}
        x = self.x.around(data[["low", "high", "outcome"]])
        figure.update_layout(xaxis=x, yaxis=y, height=120 + 26 * len(data), showlegend=True)


def _row(outcome: Outcome) -> dict[str, Any]:
    plain = outcome.as_dict()
    forecast, state, error = plain["forecast"], plain["state"], plain["error"]
    if plain["held"] is not None:
        state = HELD if plain["held"] else MISSED
    return {
        "number": plain["number"],
        "what": ", ".join(f"{role} {rounded(at)}" for role, at in forecast["at"].items() if role != "flops"),
        **{name: forecast["predicted"][name] for name in ("loss", "low", "high")},
        "outcome": plain["loss"],
        "state": state,
        "error (%)": None if error is None else 100 * error,
        "why": plain["why"],
        "sealed": plain["sealed"],
    }
