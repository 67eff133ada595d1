"""Dashboards: YAML files that say which panels a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, nearest
from sweeplab.report.panels import KINDS
from sweeplab.report.panels.base import PanelSpec
from sweeplab.study.file.document import parse
from sweeplab.study.file.markdown import read_text
from sweeplab.study.places import Complaints, Location, Places

MAX_BYTES = 2**18
# What the panels of each page may be computed from.
PAGES = {
    "scaling": ("runs", "points", "sweeps"),
    "sweep": ("runs", "points", "sweeps"),
    "compare": ("sweeps", "studies"),
}

_COMMON: dict[str, Sequence[str] | None] = {"title": None, "width": ("full", "half")}
_LISTS = {"log", "lines", "laws", "against", "params"}
_PARTS = ("title", "panels")


@dataclass(frozen=True)
class Dashboard:
    """A page's title and its panels, from top to bottom."""

    title: str
    panels: tuple[PanelSpec, ...]


def default_dashboard(page: str) -> Path:
    """Return the dashboard that a page has when nobody gives one."""
    return Path(__file__).with_name(f"{page}.yaml")


def panels_of(page: str) -> list[str]:
    """Return the kinds of panels that a page may have."""
    return [name for name, kind in KINDS.items() if kind.of in PAGES[page]]


def read_dashboard(path: Path | None = None, page: str = "scaling") -> Dashboard:
    """Read a dashboard of a page, or its default one.

    Raises:
        BadInput: the file cannot be read, or asks for what there is not; every problem has its line.
    """
    file = path or default_dashboard(page)
    complain = Complaints(Places(file))
    document = parse(read_text(file, MAX_BYTES), complain)
    if not complain.problems:
        _check(document, panels_of(page), complain)
    if complain.problems:
        raise BadInput(*complain.problems)
    return Dashboard(str(document.get("title", page.capitalize())), tuple(map(_spec, document["panels"])))


def _check(document: Any, kinds: Sequence[str], complain: Complaints) -> None:
    if not isinstance(document, dict):
        complain((), "this is no dashboard", "title: and panels:")
        return
    for key in [key for key in document if key not in _PARTS]:
        near = nearest(key, _PARTS)
        complain((key,), f"unknown part {key!r} of a dashboard", ", ".join(_PARTS), near, at_key=True)
    panels = document.get("panels")
    if not isinstance(panels, list) or not panels:
        complain(("panels",), "there is no list of panels", "- panel: " + " | ".join(kinds))
        return
    for index, panel in enumerate(panels):
        _check_panel(panel, ("panels", index), kinds, complain)


def _check_panel(panel: Any, place: Location, kinds: Sequence[str], complain: Complaints) -> None:
    kind = panel.get("panel") if isinstance(panel, dict) else None
    if kind is None:
        complain(place, "this is no panel", "panel: " + " | ".join(kinds))
        return
    if kind not in kinds:
        complain((*place, "panel"), f"unknown panel {kind!r}", ", ".join(kinds), nearest(str(kind), kinds))
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
