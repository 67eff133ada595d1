"""One HTML page out of panels: figures, their data, and all it takes to read them without a network."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pandas import DataFrame
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from sweeplab.formatting import listed, written
from sweeplab.report.panels.base import MissingPanel, Panel
from sweeplab.report.summary import Summary

if TYPE_CHECKING:
    import plotly.graph_objects as go

# What stands before a verdict, and the color it has: neither says more than the word does.
MARKS = {
    "identified": ("✓", "good"),
    "weak": ("≈", "fair"),
    "not identified": ("✕", "poor"),
    "flagged": ("✕", "poor"),
    "not seen": ("✓", "good"),
    "cannot be seen": ("?", "fair"),
    "found": ("!", "fair"),
    "clear": ("✓", "good"),
    "cannot be told": ("?", ""),
    "held": ("✓", "good"),
    "missed": ("✕", "poor"),
    "above chance": ("✓", "good"),
    "within chance": ("?", ""),
    "crowds here": ("!", "fair"),
    "spread evenly": ("✓", "good"),
    "different": ("!", "fair"),
    "no difference seen": ("=", ""),
}
# More rows than these make a page slow; the CSV behind the table has them all.
MOST_ROWS = {"figure": 100, "table": 500}
_LONG = 28  # a column with longer words than this is prose, which may be broken into lines


@dataclass(frozen=True)
class _Column:
    name: str
    kind: str


@dataclass(frozen=True)
class _Cell:
    text: str
    value: str
    quiet: str = ""
    mark: str = ""
    tone: str = ""


@dataclass(frozen=True)
class _Table:
    """The rows that a page shows of a table, and how many there are."""

    columns: Sequence[_Column]
    rows: Sequence[Sequence[tuple[_Cell, _Column]]]
    n_rows: int


@dataclass(frozen=True)
class _Section:
    """A panel as the page has it: a figure with its data folded below it, a table that is open, or both."""

    id: str
    title: str
    width: str
    missing: str
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    method: Sequence[tuple[str, str]] = ()
    figure: str = ""
    text: Sequence[tuple[bool, str]] = ()
    open: _Table | None = None
    folded: _Table | None = None
    csv: str = ""
    csv_of: _Section | None = None


def render(title: str, summary: Summary, panels: Sequence[Panel], beside: Mapping[str, str]) -> str:
    """Return the page: it loads nothing, and stands in light, in dark and on paper.

    `beside` are the files that lie in its folder, with what each has.
    """
    from jinja2 import Environment, FileSystemLoader
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    sections = [_section(index, panel) for index, panel in enumerate(_once(_merged(panels)), start=1)]
    sections = _shared(sections)
    drawn = any(section.figure for section in sections)
    return environment.get_template("page.html").render(
        title=title,
        summary=summary,
        sections=sections,
        beside=beside,
        plotly_js=get_plotlyjs() if drawn else "",
        version=_version(),
    )


def _merged(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels, those that are missing for one and the same reason as one, which says it once."""
    titles: dict[str, list[str]] = {}
    for panel in panels:
        if panel.missing:
            titles.setdefault(panel.missing, []).append(panel.title)
    merged, said = [], set()
    for panel in panels:
        if panel.missing not in said:
            same = titles.get(panel.missing, [])
            merged.append(
                MissingPanel(title=listed(list(dict.fromkeys(same))), missing=panel.missing)
                if len(same) > 1
                else panel
            )
        said |= {panel.missing} - {""}
    return merged


def _once(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels with a method that several have only at the first of them."""
    seen: set[tuple[tuple[str, str], ...]] = set()
    found = []
    for panel in panels:
        found.append(replace(panel, method=()) if panel.method in seen else panel)
        seen.add(panel.method)
    return found


def _shared(sections: Sequence[_Section]) -> list[_Section]:
    """Return the sections with data that several have only at the first of them; the others name it."""
    first: dict[str, _Section] = {}
    found = []
    for section in sections:
        same = first.setdefault(section.csv, section) if section.csv else section
        found.append(section if same is section else replace(section, csv="", csv_of=same))
    return found


def _section(index: int, panel: Panel) -> _Section:
    section = _Section(f"panel-{index}", panel.title, panel.width, panel.missing)
    if panel.missing:
        return section
    figure = panel.figure()
    is_table = figure is None and panel.shown is None and not panel.text
    shown = panel.data if is_table else panel.shown
    return replace(
        section,
        notes=panel.notes,
        warnings=panel.warnings,
        method=panel.method,
        figure="" if figure is None else _json(figure),
        text=panel.text,
        open=None if shown is None else _table(shown, "table"),
        folded=None if figure is None else _table(panel.data, "figure"),
        csv="data:text/csv;base64," + base64.b64encode(_csv(panel.data).encode()).decode(),
    )


def _csv(data: DataFrame) -> str:
    """Write a panel's data; to eight digits, for a page of thousands of trials is large enough."""
    return data.to_csv(index=False, float_format="%.8g")


def _table(data: DataFrame, of: str) -> _Table:
    columns = [_Column(str(name), _kind(data, str(name))) for name in data.columns]
    names = [column.name for column in columns]
    rows = data.head(MOST_ROWS[of]).itertuples(index=False, name=None)
    return _Table(
        columns, [list(zip(map(_cell, names, row), columns, strict=True)) for row in rows], len(data)
    )


def _json(figure: go.Figure) -> str:
    """Return the figure as JSON that may stand inside of a script element."""
    settings = json.loads(figure.to_json())
    settings["layout"].pop("template", None)
    text = json.dumps(settings, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _kind(data: DataFrame, column: str) -> str:
    if is_numeric_dtype(data[column]) and not is_bool_dtype(data[column]):
        return "number"
    return "prose" if data[column].astype(str).str.len().max() > _LONG else "text"


def _cell(column: str, value: Any) -> _Cell:
    if value is None or value != value:
        return _Cell("", "")
    if isinstance(value, str):
        text, _, quiet = value.partition("\n")
        return _Cell(text, value, quiet, *MARKS.get(text, ("", "")))
    return _Cell(f"{value:.4f}" if "loss" in column else written(value), str(value))


def _version() -> str:
    try:
        return version("sweeplab")
    except PackageNotFoundError:
        return "(not installed)"
