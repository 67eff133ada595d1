"""Render panels as one HTML page: figures, tables, data and the trials behind them, readable without a network."""

from __future__ import annotations

import base64
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from pandas import DataFrame, Series
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from sweeplab.analysis.trials import TRIAL, grid_of, searched_of, trials_table
from sweeplab.formatting import listed, sentence, written
from sweeplab.lab.showing import commands_about
from sweeplab.records.kept import read_notes
from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import Figure
from sweeplab.report.summary import Summary
from sweeplab.version import VERSION

MOST_TRIALS = 2000
# All curves together have at most this many points, to keep a page small; longer curves are thinned.
MOST_POINTS = 20_000
# How a mark names its trial: the study (if the page has several), the cell and the number.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class PageTrials:
    """The trials of a page as JSON values, and the index of each; `about` has what they share."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[Key, int] = field(default_factory=dict)

    def place(self, study: object, cell: object, trial: Any) -> int:
        """Return the index of a trial among the entries; -1 if the page does not have it."""
        if trial is None or trial != trial:
            return -1
        # On a page of one study, marks do not name the study.
        name = study or next((entry["study"] for entry in self.entries), "")
        return self.places.get((str(name), str(cell), int(float(trial))), -1)


def page_trials(report: ReportData) -> PageTrials:
    """Return the trials of a page with values, curves, checkpoints and commands; at most MOST_TRIALS, the best."""
    runs = report.runs
    if runs.empty:
        return PageTrials()
    studies = list(map(str, dict.fromkeys(runs["study"])))
    step = max(1, math.ceil(len(report.curves("val_loss")) / MOST_POINTS))
    entries: list[dict[str, Any]] = []
    places: dict[Key, int] = {}
    for study in studies:
        rows = runs[runs["study"] == study]
        grid = [name for name in grid_of(rows, report.design) if name in rows]
        searched = [name for name in searched_of(rows, report.design) if name not in grid]
        table = trials_table(rows, report.value_column)
        curves = report.curves("val_loss", study)
        drawn = dict(list(curves.groupby([*TRIAL, "seed"], sort=False)[["iteration", "value"]]))
        by_trial = dict(list(rows.groupby(TRIAL, sort=False)))
        folder = report.folder(study)
        notes = read_notes(folder) if folder else {}
        for row in table.sort_values("loss").head(MOST_TRIALS).to_dict("records"):
            place = str(row["cell"]), int(row["trial"])
            places[study, *place] = len(entries)
            loss = round(float(row["loss"]), 5)
            entries.append(
                {
                    "note": notes.get(f"{place[0]}/{place[1]}", ""),
                    "study": study,
                    "cell": place[0],
                    "trial": place[1],
                    "state": str(row["state"]),
                    "loss": None if math.isnan(loss) else loss,
                    "cell_values": _values(row, grid),
                    "values": _values(row, searched),
                    "runs": [
                        _run(report, study, run, drawn, step)
                        for run in by_trial[row["cell"], row["trial"]].to_dict("records")
                    ],
                }
            )
    about = {
        "loss": report.loss_title.partition(" (")[0],
        "several": len(studies) > 1,
        "commands": {study: _commands(report, study) for study in studies},
    }
    return PageTrials(entries, about, places)


def _values(row: Mapping[Any, Any], names: list[str]) -> dict[str, str]:
    return {
        name: written(row[name])
        for name in names
        if row[name] is not None and row[name] == row[name]
    }


def _run(
    report: ReportData,
    study: str,
    run: Mapping[Any, Any],
    drawn: Mapping[Any, DataFrame],
    step: int,
) -> dict[str, Any]:
    place = run["cell"], int(run["trial"]), int(run["seed"])
    points = drawn.get(place, DataFrame({"iteration": [], "value": []})).iloc[::step]
    points = points[np.isfinite(points["value"].astype(float))]
    folder, pages, run_id = report.folder(study), report.mlflow.get(study), run.get("run_id")
    checkpoint = folder and folder.run(*place).checkpoint()
    return {
        "seed": place[2],
        "curve": [
            points["iteration"].astype(int).tolist(),
            points["value"].astype(float).round(5).tolist(),
        ],
        "checkpoint": checkpoint and str(checkpoint),
        "mlflow": f"{pages}{run_id}" if pages and run_id else "",
    }


def _commands(report: ReportData, study: str) -> dict[str, list[str]]:
    """Write the commands about a trial as lists of words, with placeholders for its cell, number and seed."""
    folder = report.folder(study)
    if not folder:
        return {}
    objective = str(report.runs.loc[report.runs["study"] == study].iloc[0].get("objective", ""))
    commands = commands_about(folder, objective, "{cell}", "{trial}", "{seed}")
    commands |= {"show": folder.command("show", "--cell", "{cell}", "--trial", "{trial}")}
    return {what: shlex.split(command) for what, command in commands.items() if what != "open"}


# The mark before a verdict and its color; neither carries more information than the word.
MARKS = {
    word: mark
    for mark, words in {
        ("✓", "good"): (
            "identified",
            "not seen",
            "clear",
            "held",
            "above chance",
            "spread evenly",
        ),
        ("✕", "poor"): ("not identified", "flagged", "missed"),
        ("!", "fair"): ("found", "crowds here", "different"),
        ("≈", "fair"): ("weak", "interval only"),
        ("?", "fair"): ("cannot be seen",),
        ("?", ""): ("undecided", "within chance"),
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

    Methods shared by several panels stand with the first of them.
    """

    id: str
    panel: Panel
    method: Mapping[str, str] = {}
    figure: str = ""
    open: Mapping[str, Any] | None = None
    folded: Mapping[str, Any] | None = None
    csv: str = ""


def render(
    title: str,
    summary: Summary,
    panels: Sequence[Panel],
    beside: Mapping[str, str],
    plotly: str,
    trials: PageTrials = NO_TRIALS,
    first: int | None = None,
) -> str:
    """Return the page: it loads only plotly.js, and has styles for light, dark and paper.

    `beside` are the files in its folder with their contents; `plotly` is the path of plotly.js relative to it. Panels
    after the `first` are folded.
    """
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sentence"] = sentence
    drawn = [panel for panel in panels[:first] if not panel.missing]
    folded = [panel for panel in panels[len(panels[:first]) :] if not panel.missing]
    sections = _sections([*_widened(drawn), *_widened(folded)], trials)
    has_figures = any(section.figure for section in sections)
    return environment.get_template("page.html").render(
        title=title,
        summary=summary,
        sections=sections,
        n_open=len(drawn),
        missing=_missing(panels),
        trials=trials.entries and _script(trials.entries),
        about_trials=_script(trials.about),
        beside=beside,
        plotly=quote(plotly) * has_figures,
        version=VERSION,
    )


def with_plotly(page: str) -> str:
    """Return a rendered page with plotly.js inside, so that it loads nothing."""
    from plotly.offline import get_plotlyjs

    return re.sub(
        r'<script src="[^"]*"></script>',
        lambda _: f"<script>{get_plotlyjs()}</script>",
        page,
        count=1,
    )


def _missing(panels: Sequence[Panel]) -> dict[str, str]:
    """List the reasons for empty panels, each once, with the titles of its panels."""
    titles: dict[str, list[str]] = {}
    for panel in panels:
        if panel.missing:
            titles.setdefault(panel.missing, []).append(panel.title)
    return {why: listed(list(dict.fromkeys(each))) for why, each in titles.items()}


def _widened(panels: Sequence[Panel]) -> list[Panel]:
    """Give a panel of half the width without a neighbor the whole width."""
    widened: list[Panel] = []
    is_beside = False
    for panel, after in zip_longest(panels, panels[1:]):
        is_half = panel.width == "half"
        if is_half and not is_beside and (after is None or after.width != "half"):
            panel, is_half = replace(panel, width="full"), False
        is_beside = is_half and not is_beside
        widened.append(panel)
    return widened


def _sections(panels: Sequence[Panel], trials: PageTrials) -> list[_Section]:
    sections: list[_Section] = []
    for index, panel in enumerate(panels, start=1):
        section = _Section(f"panel-{index}", panel)
        figure, shown = panel.figure(), panel.shown
        if figure is not None:
            section = section._replace(
                figure=_json(figure, trials), folded=_table(panel.data, "figure")
            )
        elif shown is None:
            shown = panel.data
        if shown is not None:
            section = section._replace(open=_table(shown, "table"))
        if not any(other.method == panel.method for other in sections):
            section = section._replace(method=panel.method)
        # Eight digits, because a page of thousands of trials is large.
        data = panel.data.to_csv(index=False, float_format="%.8g").encode()
        csv = f"data:text/csv;base64,{base64.b64encode(data).decode()}"
        sections.append(section._replace(csv=csv))
    return sections


def _table(data: DataFrame, of: str) -> dict[str, Any]:
    """Make a table's rows on the page; columns are (name, kind), and each cell has the kind of its column."""
    columns = [(str(name), _kind(data[name])) for name in data.columns]
    rows = data.head(MOST_ROWS[of]).itertuples(index=False, name=None)
    cells = [
        [(_cell(name, value), kind) for (name, kind), value in zip(columns, row, strict=True)]
        for row in rows
    ]
    return {"columns": columns, "rows": cells, "n_rows": len(data)}


def _json(figure: Figure, trials: PageTrials) -> str:
    """Write the figure as JSON; each mark of a trial has the trial's index among those of the page."""
    settings = json.loads(figure.to_json())
    settings["layout"].pop("template", None)
    for trace in settings["data"]:
        meta = trace.get("meta") or {}
        if "trials" in meta:
            meta["trials"] = [trials.place(*each) for each in meta["trials"]]
            if max(meta["trials"], default=-1) < 0:
                del meta["trials"]
    return _script(settings)


def _script(value: Any) -> str:
    """Write a value as JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _kind(column: Series) -> str:
    if is_numeric_dtype(column) and not is_bool_dtype(column):
        return "number"
    if column.astype(str).str.len().max() > _LONG:
        return "prose"
    return "text"


def _cell(column: str, value: Any) -> _Cell:
    if value is None or value != value:
        return _Cell()
    if isinstance(value, str):
        text, _, quiet = value.partition("\n")
        return _Cell(text, value, quiet, *MARKS.get(text, ("", "")))
    if "loss" in column or column == "lowest value":
        return _Cell(f"{value:.4f}", str(value))
    return _Cell(written(value), str(value))
