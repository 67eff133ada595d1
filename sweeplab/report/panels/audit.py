"""What in a study's counting and training moves its exponents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.audit.checks import audit
from sweeplab.analysis.audit.evidence import FOUND, Evidence, gather
from sweeplab.errors import BadInput
from sweeplab.report.panels.base import Panel, PanelSpec, TablePanel
from sweeplab.report.panels.material import Material
from sweeplab.report.words import span, told

_FEW = 4


def audit_panel(spec: PanelSpec, material: Material) -> Panel:
    """List what each check says, what was found first, with what it does to the exponents.

    Raises:
        BadInput: no run has ended.
    """
    found = material.once("audit", lambda: audit(_evidence(material))).as_dict()
    rows = sorted(found["findings"], key=lambda each: bool(each["state"] != FOUND))
    states = Counter(each["state"] for each in rows)
    law = (
        f"Exponents of {found['law']}."
        if found["law"]
        else "The points allow no law, so no exponents either."
    )
    return TablePanel(
        title=spec.title or "Audit of the conventions",
        width=spec.width,
        data=DataFrame([_row(each) | {"points": "; ".join(each["points"])} for each in rows]),
        shown=DataFrame([_row(each) | {"points": _named(each["points"])} for each in rows]),
        notes=(f"{', '.join(f'{count} {state}' for state, count in states.items())}. {law}",),
        method=tuple((name, what) for name, what in found["conventions"].items()),
        result=found,
    )


def _evidence(material: Material) -> Evidence:
    studied = material.studied
    if material.runs.empty:
        raise BadInput("the study has no runs yet")
    if studied is None:
        return gather(material.runs)
    conventions = studied.settled()
    return gather(studied.runs, studied.designs, conventions, studied.bytes_per_token(conventions))


def _row(finding: Mapping[str, Any]) -> dict[str, str]:
    return {
        "check": finding["name"],
        "finding": finding["state"],
        "what": f"{finding['question']} {finding['sentence'][0].upper()}{finding['sentence'][1:]}.",
        "effect": "; ".join(_effect(each) for each in finding["effects"]),
    }


def _effect(effect: Mapping[str, Any]) -> str:
    """Say what a change does to each exponent; where it has no number, its verdict stands for it."""
    if effect["why"]:
        return f"{effect['change']}: no exponents: {effect['why']}"
    changes = []
    for name, both in effect["exponents"].items():
        before, after = (
            each["verdict"] if each["value"] is None
            else f"{told(each['value'])} ({span(each['low'], each['high'])})"
            for each in (both["before"], both["after"])
        )  # fmt: skip
        outside = ", outside of its interval" if both["differs"] else ""
        changes.append(f"{name} {before} → {after}{outside}")
    return f"{effect['change']}: {', '.join(changes)}"


def _named(points: list[str]) -> str:
    more = len(points) - _FEW
    return ", ".join(points[:_FEW]) + (f" and {more} more" if more > 0 else "")
