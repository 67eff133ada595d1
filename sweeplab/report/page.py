"""One HTML page out of panels: figures, their data, and all it takes to read them without a network."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pandas import DataFrame
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from sweeplab.report.panels import Panel, TablePanel
from sweeplab.report.summary import Summary
from sweeplab.report.words import written

# More rows than these make a page slow; the CSV behind the table has them all.
MOST_ROWS = {"figure": 300, "table": 2000}


@dataclass(frozen=True)
class _Column:
    name: str
    kind: str


@dataclass(frozen=True)
class _Cell:
    text: str
    value: str


@dataclass(frozen=True)
class _Section:
    id: str
    title: str
    width: str
    notes: Sequence[str]
    missing: str
    is_table: bool
    figure: str
    columns: Sequence[_Column]
    rows: Sequence[Sequence[tuple[_Cell, _Column]]]
    n_rows: int
    csv: str


def render(title: str, summary: Summary, panels: Sequence[Panel]) -> str:
    """Return the page: it loads nothing, and stands in light, in dark and on paper."""
    from jinja2 import Environment, FileSystemLoader
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    sections = [_section(index, panel) for index, panel in enumerate(panels, start=1)]
    drawn = any(section.figure for section in sections)
    return environment.get_template("page.html").render(
        title=title,
        summary=summary,
        sections=sections,
        plotly_js=get_plotlyjs() if drawn else "",
        version=_version(),
    )


def _section(index: int, panel: Panel) -> _Section:
    is_table = isinstance(panel, TablePanel)
    most = MOST_ROWS["table" if is_table else "figure"]
    columns = [_Column(str(name), _kind(panel.data, str(name))) for name in panel.data.columns]
    names = [column.name for column in columns]
    rows = panel.data.head(most).itertuples(index=False, name=None)
    return _Section(
        id=f"panel-{index}",
        title=panel.title,
        width=panel.width,
        notes=panel.notes,
        missing=panel.missing,
        is_table=is_table,
        figure="" if is_table or panel.missing else _figure(panel),
        columns=columns,
        rows=[list(zip(map(_cell, names, row), columns, strict=True)) for row in rows],
        n_rows=len(panel.data),
        csv="data:text/csv;base64," + base64.b64encode(panel.data.to_csv(index=False).encode()).decode(),
    )


def _figure(panel: Panel) -> str:
    """Return the figure as JSON that may stand inside of a script element."""
    from sweeplab.report.drawing import draw

    figure = json.loads(draw(panel).to_json())
    figure["layout"].pop("template", None)
    text = json.dumps(figure, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _kind(data: DataFrame, column: str) -> str:
    return "number" if is_numeric_dtype(data[column]) and not is_bool_dtype(data[column]) else "text"


def _cell(column: str, value: Any) -> _Cell:
    if value is None or value != value:
        return _Cell("", "")
    return _Cell(f"{value:.4f}" if "loss" in column else written(value), str(value))


def _version() -> str:
    try:
        return version("sweeplab")
    except PackageNotFoundError:
        return "(not installed)"
