"""Render panels as one HTML page: figures, tables and data, readable without a network."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from pandas import DataFrame, Series
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from sweeplab.formatting import listed, written
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import Figure
from sweeplab.report.summary import Summary
from sweeplab.report.trials import PageTrials
from sweeplab.version import VERSION

# The mark before a verdict and its color; neither carries more information than the word.
MARKS = {
    word: mark
    for mark, words in {
        ("✓", "good"): ("identified", "not seen", "clear", "held", "above chance", "spread evenly"),
        ("✕", "poor"): ("not identified", "flagged", "missed"),
        ("!", "fair"): ("found", "crowds here", "different"),
        ("≈", "fair"): ("weak",),
        ("?", "fair"): ("cannot be seen",),
        ("?", ""): ("cannot be told", "within chance"),
        ("=", ""): ("no difference seen",),
    }.items()
    for word in words
}
# More rows make a page slow; the CSV behind the table has them all.
MOST_ROWS = {"figure": 20, "table": 500}
NO_TRIALS = PageTrials()
_LONG = 28  # a column with longer texts than this is prose, which may wrap


class _Cell(NamedTuple):
    """A table cell: its text, small text below it, the mark and color of a verdict, and the `value` to sort by."""

    text: str = ""
    value: str = ""
    quiet: str = ""
    mark: str = ""
    tone: str = ""


class _Section(NamedTuple):
    """A panel on the page: a figure with its data folded below it, an open table, or both.

    Data and methods shared by several panels stand with the first of them; `csv_of` is its section.
    """

    id: str
    panel: Panel
    method: Mapping[str, str] = {}
    figure: str = ""
    open: Mapping[str, Any] | None = None
    folded: Mapping[str, Any] | None = None
    csv: str = ""
    csv_of: Any = None


def render(
    title: str,
    summary: Summary,
    panels: Sequence[Panel],
    beside: Mapping[str, str],
    plotly: str,
    trials: PageTrials = NO_TRIALS,
) -> str:
    """Return the page: it loads only plotly.js, and has styles for light, dark and paper.

    `beside` are the files in its folder with their contents; `plotly` is the path of plotly.js relative to it.
    """
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    sections = _sections([panel for panel in panels if not panel.missing], trials)
    return environment.get_template("page.html").render(
        title=title,
        summary=summary,
        sections=sections,
        missing=_missing(panels),
        trials=_script(trials.entries) if trials.entries else "",
        about_trials=_script(trials.about),
        beside=beside,
        plotly=quote(plotly) if any(section.figure for section in sections) else "",
        version=VERSION,
    )


def with_plotly(page: str) -> str:
    """Return a rendered page with plotly.js inside, so that it loads nothing."""
    from plotly.offline import get_plotlyjs

    return re.sub(
        r'<script src="[^"]*"></script>', lambda _: f"<script>{get_plotlyjs()}</script>", page, count=1
    )


def _missing(panels: Sequence[Panel]) -> dict[str, str]:
    """Return the reasons for empty panels, each once, with the titles of its panels."""
    titles: dict[str, list[str]] = {}
    for panel in panels:
        if panel.missing:
            titles.setdefault(panel.missing, []).append(panel.title)
    return {why: listed(list(dict.fromkeys(each))) for why, each in titles.items()}


def _sections(panels: Sequence[Panel], trials: PageTrials) -> list[_Section]:
    found: list[_Section] = []
    for index, panel in enumerate(panels, start=1):
        section = _Section(f"panel-{index}", panel)
        figure = panel.figure()
        is_table = figure is None and panel.shown is None and not panel.text
        shown = panel.data if is_table else panel.shown
        # Eight digits, because a page of thousands of trials is large.
        data = panel.data.to_csv(index=False, float_format="%.8g").encode()
        csv = f"data:text/csv;base64,{base64.b64encode(data).decode()}"
        same = next((each for each in found if each.csv == csv), None)
        section = section._replace(
            method={} if any(each.method == panel.method for each in found) else panel.method,
            figure="" if figure is None else _json(figure, trials),
            open=None if shown is None else _table(shown, "table"),
            folded=None if figure is None else _table(panel.data, "figure"),
            csv="" if same else csv,
            csv_of=same,
        )
        found.append(section)
    return found


def _table(data: DataFrame, of: str) -> dict[str, Any]:
    """Return a table's rows on the page; columns are (name, kind), and each cell has the kind of its column."""
    columns = [(str(name), _kind(data[name])) for name in data.columns]
    rows = data.head(MOST_ROWS[of]).itertuples(index=False, name=None)
    cells = [
        [(_cell(name, value), kind) for (name, kind), value in zip(columns, row, strict=True)] for row in rows
    ]
    return {"columns": columns, "rows": cells, "n_rows": len(data)}


def _json(figure: Figure, trials: PageTrials) -> str:
    """Return the figure as JSON; each mark of a trial has the trial's index among those of the page."""
    settings = json.loads(figure.to_json())
    settings["layout"].pop("template", None)
    for trace in settings["data"]:
        if "trials" in (meta := trace.get("meta") or {}):
            meta["trials"] = [trials.place(*each) for each in meta["trials"]]
            if max(meta["trials"], default=-1) < 0:
                del meta["trials"]
    return _script(settings)


def _script(value: Any) -> str:
    """Return a value as JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _kind(column: Series) -> str:
    if is_numeric_dtype(column) and not is_bool_dtype(column):
        return "number"
    return "prose" if column.astype(str).str.len().max() > _LONG else "text"


def _cell(column: str, value: Any) -> _Cell:
    if value is None or value != value:
        return _Cell()
    if isinstance(value, str):
        text, _, quiet = value.partition("\n")
        return _Cell(text, value, quiet, *MARKS.get(text, ("", "")))
    return _Cell(f"{value:.4f}" if "loss" in column else written(value), str(value))
