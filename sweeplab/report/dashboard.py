"""Dashboards: YAML files that say which panels a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, nearest
from sweeplab.report.panels import KINDS
from sweeplab.report.panels.base import PanelSpec
from sweeplab.study.document import parse
from sweeplab.study.markdown import read_text
from sweeplab.study.places import Complaints, Location, Places

DEFAULT = Path(__file__).with_name("scaling.yaml")
MAX_BYTES = 2**18

_COMMON: dict[str, Sequence[str] | None] = {"title": None, "width": ("full", "half")}
_LISTS = {"log", "lines", "laws", "against"}
_PARTS = ("title", "panels")


@dataclass(frozen=True)
class Dashboard:
    """A page's title and its panels, from top to bottom."""

    title: str
    panels: tuple[PanelSpec, ...]


def read_dashboard(path: Path | None = None) -> Dashboard:
    """Read a dashboard, or the default one.

    Raises:
        BadInput: the file cannot be read, or asks for what there is not; every problem has its line.
    """
    file = path or DEFAULT
    complain = Complaints(Places(file))
    document = parse(read_text(file, MAX_BYTES), complain)
    if not complain.problems:
        _check(document, complain)
    if complain.problems:
        raise BadInput(*complain.problems)
    return Dashboard(str(document.get("title", "Scaling")), tuple(map(_spec, document["panels"])))


def _check(document: Any, complain: Complaints) -> None:
    if not isinstance(document, dict):
        complain((), "this is no dashboard", "title: and panels:")
        return
    for key in [key for key in document if key not in _PARTS]:
        near = nearest(key, _PARTS)
        complain((key,), f"unknown part {key!r} of a dashboard", ", ".join(_PARTS), near, at_key=True)
    panels = document.get("panels")
    if not isinstance(panels, list) or not panels:
        complain(("panels",), "there is no list of panels", "- panel: " + " | ".join(KINDS))
        return
    for index, panel in enumerate(panels):
        _check_panel(panel, ("panels", index), complain)


def _check_panel(panel: Any, place: Location, complain: Complaints) -> None:
    kind = panel.get("panel") if isinstance(panel, dict) else None
    if kind is None:
        complain(place, "this is no panel", "panel: " + " | ".join(KINDS))
        return
    if kind not in KINDS:
        complain((*place, "panel"), f"unknown panel {kind!r}", ", ".join(KINDS), nearest(str(kind), KINDS))
        return
    options = {"panel": None, **_COMMON, **KINDS[kind].options}
    for name, may_be in KINDS[kind].needs.items():
        if name not in panel:
            complain(place, f"{kind} needs an {name}", may_be)
    for name, written in panel.items():
        allowed = options.get(name)
        if name not in options:
            complain.unknown((*place, name), list(options), "option")
        elif allowed is not None:
            for value in _listed(written) if name in _LISTS else [written]:
                if value not in allowed:
                    few = ", ".join(allowed) if len(allowed) < 8 else ""
                    complain((*place, name), f"{name} cannot be {value!r}", few, nearest(str(value), allowed))


def _spec(written: dict[str, Any]) -> PanelSpec:
    options: dict[str, Any] = {
        name: tuple(_listed(value)) if name in _LISTS else str(value) for name, value in written.items()
    }
    return PanelSpec(**options)


def _listed(written: Any) -> list[Any]:
    return written if isinstance(written, list) else [written]
