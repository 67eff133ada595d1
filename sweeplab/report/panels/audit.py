"""What in a study's counting and training moves its exponents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.audit import FOUND, Evidence, audit, gather
from sweeplab.formatting import counts, rounded, sentence, span
from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import Panel, TablePanel

_FEW = 4


class AuditPanel(TablePanel, name="audit", heading="Audit"):
    """What each check of the conventions says, and what it does to the exponents."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """List the checks, those that found something first."""
        found = report.once("audit", lambda: audit(_evidence(report)))
        rows = sorted(found["findings"], key=lambda each: bool(each["state"] != FOUND))
        states = counts(Counter(each["state"] for each in rows))
        law = f"Exponents of {found['law']}." if found["law"] else "The points allow no law and no exponents."
        return cls(
            title="Audit of the conventions",
            data=DataFrame([_row(each) | {"points": "; ".join(each["points"])} for each in rows]),
            shown=DataFrame([_row(each) | {"points": _named(each["points"])} for each in rows]),
            notes=(f"{states}. {law}",),
            method=tuple(found["conventions"].items()),
            result=found,
        )


def _evidence(report: ReportData) -> Evidence:
    report.check_runs()
    if report.studied is None:
        return gather(report.runs)
    studied, conventions = report.studied, report.studied.settled()
    return gather(studied.runs, studied.designs, conventions, studied.bytes_per_token(conventions))


def _row(finding: Mapping[str, Any]) -> dict[str, str]:
    return {
        "check": finding["name"],
        "finding": finding["state"],
        "what": f"{finding['question']} {sentence(finding['sentence'])}",
        "effect": "; ".join(_effect(each) for each in finding["effects"]),
    }


def _effect(effect: Mapping[str, Any]) -> str:
    """Say what a change does to each exponent; where it has no number, its verdict stands for it."""
    if effect["why"]:
        return f"{effect['change']}: no exponents: {effect['why']}"
    changes = (
        f"{name} {_number(both['before'])} → {_number(both['after'])}"
        + (", outside of its interval" if both["differs"] else "")
        for name, both in effect["exponents"].items()
    )
    return f"{effect['change']}: {', '.join(changes)}"


def _number(entry: Mapping[str, Any]) -> str:
    if entry["value"] is None:
        return str(entry["verdict"])
    return f"{rounded(entry['value'])} ({span(entry['low'], entry['high'])})"


def _named(points: Sequence[str]) -> str:
    more = len(points) - _FEW
    return ", ".join(points[:_FEW]) + (f" and {more} more" if more > 0 else "")
