"""Forecasts sealed before their runs, their outcomes and calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.ledger import FILE_NAME, read_chain
from sweeplab.analysis.scoring import REFUSED, SCORED, VOID, Outcome, calibrate, of_study, outcomes
from sweeplab.errors import BadInput
from sweeplab.formatting import counts, rounded, several
from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import BAD, FAINT, GOOD, GREY, Axis, Figure, Look, bars

HELD, MISSED = "held", "missed"
_LOOKS = {HELD: Look("outcome, held", GOOD, "diamond"), MISSED: Look("outcome, missed", BAD, "x")}
_METHOD = {
    "Ledger": "A forecast is sealed before its run starts, in a file in which every entry holds the sha256 of the "
    "entry before it: changed or removed entries are detected. A forecast made after its run started is refused. A "
    "seal proves nothing to others unless its digest was published before the run.",
    "Interval": "90%: the uncertainty of the law at that point (profile), the noise of a run, and the error of the "
    "law's form estimated from the back-test, added in quadrature in log loss.",
    "Score": "CRPS in log loss (Gneiting and Raftery 2007), compared with two naive forecasts: the loss of the next "
    "smaller run, and a straight line of log loss over log FLOPs.",
}


class LedgerPanel(Panel, name="ledger", heading="Forecasts"):
    """Forecasts with their intervals. `data`: number, what, loss, low, high, outcome, state, error (%), why, sealed."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        forecasts = _outcomes(report)
        states = counts(Counter(_state(each) for each in forecasts))
        out = [each for each in forecasts if each.state in (REFUSED, VOID)]
        bars_are = "Bars: 90% intervals; diamonds: the measured losses."
        return cls(
            title="Forecasts, sealed before their runs",
            data=DataFrame([_row(each) for each in forecasts]),
            notes=(f"{several(len(forecasts), 'forecast')}: {states}. {bars_are}",),
            warnings=tuple(f"forecast {each.entry.number} does not count: {each.why}" for each in out),
            method=_METHOD,
            x=Axis("loss", "loss", True),
        )

    def _draw(self, figure: Figure) -> None:
        data = self.data.assign(line=[f"{row.number}: {row.what}" for row in self.data.itertuples()])
        # A forecast without a value shows its interval alone.
        tick = {"symbol": "line-ns-open", "size": data["loss"].notna() * 12, "line": {"width": 2}}
        drawn = data.assign(loss=data["loss"].fillna((data["low"] * data["high"]) ** 0.5))
        interval = bars(drawn, "loss", thickness=5, width=0, color=FAINT)
        hover = "%{y}<br>%{x:.4f}"
        Look("forecast", GREY).points(figure, drawn, "loss", "line", hover, marker=tick, error_x=interval)
        for state, look in _LOOKS.items():
            rows = data[data["state"] == state]
            if len(rows):
                look.points(figure, rows, "outcome", "line", hover, marker={"size": 10})
        y = {"autorange": "reversed", "type": "category", "automargin": True}
        x = self.x.around(data[["low", "high", "outcome"]])
        figure.update_layout(xaxis=x, yaxis=y, height=120 + 26 * len(data), showlegend=True)


class CalibrationPanel(Panel, name="calibration"):
    """The coverage of the forecast intervals. `data`: level, covered, n, share, low, high."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        calibration = calibrate(_outcomes(report))
        if not calibration.n:
            raise BadInput("no forecast of the study has been scored")
        plain = asdict(calibration)
        scored, of = several(calibration.n_forecasts, "scored forecast"), several(calibration.n, "run")
        ratios = {name: each.ratio for name, each in calibration.crps.items() if each.ratio is not None}
        skill = [f"CRPS {ratio:.2f} times that of the {name}." for name, ratio in ratios.items()]
        many = f"{scored} of {of} (of each the first) from {several(calibration.n_fits, 'fit')}"
        return cls(
            title="Calibration of the forecasts",
            data=DataFrame(plain["coverage"])[["level", "covered", "n", "share", "low", "high"]],
            notes=(f"{many}; bars: 90% intervals of the share.", *skill),
            method=_METHOD,
            result=plain,
            x=Axis("level", "nominal level of the interval"),
            y=Axis("share", "share of outcomes inside the interval"),
        )

    def _draw(self, figure: Figure) -> None:
        ends, dashed = DataFrame({"level": [0, 1], "share": [0, 1]}), {"width": 1, "dash": "4px 4px"}
        Look("calibrated", GREY).line(figure, ends, "level", "share", line=dashed)
        hover, interval = "%{x:.0%}: %{covered} of %{n} inside", bars(self.data, "share", width=5)
        look, dot = Look("forecasts", GOOD), {"size": 9}
        look.points(figure, self.data, "level", "share", hover, marker=dot, error_y=interval)
        figure.update_layout(xaxis=self.x.over(0.4, 1.0), yaxis=self.y.over(0.0, 1.04))


def _outcomes(report: ReportData) -> Sequence[Outcome]:
    def read() -> Sequence[Outcome]:
        study = report.study
        if report.lab is None:
            raise BadInput("there is no lab, so there is no ledger")
        path = report.lab / FILE_NAME
        if not path.exists():
            raise BadInput("no forecast was sealed; sweeplab laws forecast seals one")
        chain = read_chain(path)
        return outcomes(of_study(chain.forecasts, study), report.lab, recorded=chain.scores)

    return report.once("outcomes", read)


def _row(outcome: Outcome) -> dict[str, Any]:
    plain = outcome.as_dict()
    forecast, score = plain["forecast"], plain["score"] or {"error_log": None}
    error = score["error_log"]
    return {
        "number": plain["number"],
        "what": ", ".join(f"{role} {rounded(at)}" for role, at in forecast["at"].items() if role != "flops"),
        **{name: forecast["predicted"][name] for name in ("loss", "low", "high")},
        "outcome": score.get("outcome"),
        "state": _state(outcome),
        "error (%)": None if error is None else 100 * error,
        "why": plain["why"],
        "sealed": plain["sealed"],
    }


def _state(outcome: Outcome) -> str:
    if outcome.state != SCORED or outcome.score is None:
        return outcome.state
    if outcome.score.covered:
        return HELD
    return MISSED
