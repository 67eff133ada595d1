"""Forecasts that were sealed before their runs, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.ledger.chain import FILE_NAME, read_chain
from sweeplab.analysis.ledger.outcomes import (
    REFUSED,
    SCORED,
    VOID,
    Calibration,
    Outcome,
    calibrate,
    of_study,
    outcomes,
)
from sweeplab.errors import BadInput
from sweeplab.report.panels.base import Axis, Panel, PanelSpec
from sweeplab.report.panels.material import Material
from sweeplab.report.words import several, told

HELD, MISSED = "held", "missed"
_METHOD = (
    (
        "Ledger",
        "A forecast is sealed before its run begins, in a file in which every entry holds the sha256 of the one "
        "before: a change, or an entry that was removed, shows. One that was made after its run had begun is refused.",
    ),
    (
        "Interval",
        "How far the law may be off there (its profile) and a run's noise, added in quadrature in log loss; 90%.",
    ),
    (
        "Score",
        "CRPS in log loss (Gneiting and Raftery 2007), beside that of two naive forecasters: the loss of the next "
        "smaller run, and the line of log loss on log FLOPs.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LedgerPanel(Panel):
    """Forecasts with their intervals. `data`: number, what, loss, low, high, outcome, state, error (%), why, sealed."""

    x: Axis


@dataclass(frozen=True, kw_only=True)
class CalibrationPanel(Panel):
    """How often intervals held. `data`: level, covered, n, share, low, high."""

    x: Axis
    y: Axis


def ledger_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show each forecast about the study with what came of it.

    Raises:
        BadInput: there is no ledger, it is broken, or it has nothing about the study.
    """
    found = _outcomes(material)
    states = Counter(_state(each) for each in found)
    out = [each for each in found if each.state in (REFUSED, VOID)]
    return LedgerPanel(
        title=spec.title or "Forecasts, sealed before their runs",
        width=spec.width,
        data=DataFrame([_row(each) for each in found]),
        notes=(
            f"{several(len(found), 'forecast')}: {', '.join(f'{count} {state}' for state, count in states.items())}. "
            "Bars: 90% intervals; diamonds: what came.",
        ),
        warnings=tuple(f"forecast {each.entry.number} does not count: {each.why}" for each in out),
        method=_METHOD,
        x=Axis("loss", "loss", True),
    )


def calibration_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show how often the intervals of scored forecasts held, at each level, over the whole study.

    Raises:
        BadInput: no forecast of the study has been scored.
    """
    found = calibrate(_outcomes(material))
    if not found.n:
        raise BadInput("no forecast of the study has been scored yet")
    said = found.as_dict()
    return CalibrationPanel(
        title=spec.title or "Calibration of the forecasts",
        width=spec.width,
        data=DataFrame(said["coverage"])[["level", "covered", "n", "share", "low", "high"]],
        notes=(
            f"{several(found.n, 'scored forecast')} of {several(found.n_runs, 'run')} from "
            f"{several(found.n_fits, 'fit')}; bars: the 90% interval of a share of so many.",
            *_skill(found),
        ),
        method=_METHOD,
        result=said,
        x=Axis("level", "level of the interval"),
        y=Axis("share", "share of outcomes inside"),
    )


def _outcomes(material: Material) -> Sequence[Outcome]:
    def read() -> Sequence[Outcome]:
        if material.runs.empty:
            raise BadInput("the study has no runs yet")
        if material.lab is None:
            raise BadInput("no ledger is at hand")
        path = material.lab / FILE_NAME
        if not path.exists():
            raise BadInput("no forecast was sealed; sweeplab laws forecast seals one")
        study = str(material.runs["study"].iloc[0])
        return outcomes(of_study(read_chain(path).entries, study), material.lab)

    return material.once("outcomes", read)


def _row(outcome: Outcome) -> dict[str, Any]:
    said = outcome.as_dict()
    forecast, score = said["forecast"], said["score"] or {}
    return {
        "number": said["number"],
        "what": ", ".join(f"{role} {told(at)}" for role, at in forecast["at"].items() if role != "flops"),
        **{name: forecast["predicted"][name] for name in ("loss", "low", "high")},
        "outcome": score.get("outcome"),
        "state": _state(outcome),
        "error (%)": None if not score else 100 * score["error_log"],
        "why": said["why"],
        "sealed": said["sealed"],
    }


def _state(outcome: Outcome) -> str:
    if outcome.state != SCORED or outcome.score is None:
        return outcome.state
    return HELD if outcome.score.covered else MISSED


def _skill(found: Calibration) -> list[str]:
    return [
        f"CRPS {each.ratio:.2f} times that of the {name}."
        for name, each in found.skill.items()
        if each.ratio is not None
    ]
