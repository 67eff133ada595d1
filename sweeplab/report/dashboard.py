"""Dashboards of the report's pages: YAML files that say which panels a page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.report.options import PanelSpec, check_items, default_dashboard, listed, read_checked
from sweeplab.report.panels.base import PANELS, Source
from sweeplab.study.problems import Problems

# What the panels of each page may be made from.
PAGES: dict[str, tuple[Source, ...]] = {
    "scaling": ("runs", "points", "sweeps"),
    "sweep": ("runs", "points", "sweeps"),
    "compare": ("sweeps", "studies"),
}
# Panels that had another name in earlier dashboards.
RENAMED = {"roads": "compute_optimal"}


@dataclass(frozen=True)
class Dashboard:
    """A page's title and its panels, from top to bottom."""

    title: str
    panels: tuple[PanelSpec, ...]


def panels_of(page: str) -> list[str]:
    """Return the names of the panels that a page may have."""
    return [name for name, kind in sorted(PANELS.items()) if kind.source in PAGES[page]]


def read_dashboard(path: Path | None = None, page: str = "scaling") -> Dashboard:
    """Read a dashboard of a page, or its default one.

    Raises:
        BadInput: the file cannot be read, or asks for what does not exist; every problem has its line.
    """
    kinds = {name: PANELS[name].options for name in panels_of(page)}

    def check(document: Mapping[str, Any], problems: Problems) -> None:
        panels = document.get("panels")
        if isinstance(panels, list) and panels:
            for each in panels:
                if isinstance(each, dict) and str(each.get("panel")) in RENAMED:
                    each["panel"] = RENAMED[each["panel"]]
            check_items(panels, "panel", kinds, problems)
        else:
            problems.add(("panels",), "there is no list of panels", "- panel: " + " | ".join(kinds))

    document = read_checked(path or default_dashboard(page), ("title", "panels"), check)
    title = str(document.get("title", page.capitalize()))
    return Dashboard(title, tuple(_spec(each) for each in document["panels"]))


def _spec(written: Mapping[str, Any]) -> PanelSpec:
    known = PANELS[written["panel"]].options
    options = {
        name: listed(value) if known[name].many else value for name, value in written.items() if name in known
    }
    return PanelSpec(written["panel"], options, str(written.get("title", "")), written.get("width", "full"))
