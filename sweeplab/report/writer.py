"""Write a page of panels and the data behind it; each file is written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

from pandas import DataFrame, concat

from sweeplab.errors import BadInput, Problem
from sweeplab.files import make_folder, read_bytes, write_whole
from sweeplab.formatting import json_ready
from sweeplab.lab.listing import study_state
from sweeplab.lab.storage import count_trials
from sweeplab.laws.assessment import Assessment
from sweeplab.records.folders import StudyFolder
from sweeplab.report.data import ReportData
from sweeplab.report.page import page_trials, render, with_plotly
from sweeplab.report.panels.base import PANELS, Panel, make_panel, options_of, read_dashboard
from sweeplab.report.summary import SUMMARIES, Summary, summarize_table
from sweeplab.version import VERSION


def write_page(
    page: str,
    report: ReportData,
    runs: DataFrame,
    folder: Path,
    dashboard: Path | None = None,
    shared: Path | None = None,
    inputs: str = "",
) -> Path:
    """Write PAGE.html, PAGE.csv (`runs`), PAGE.json and, where a panel shows them, PAGE-curves.csv; return the page.

    plotly.js is written to the folder `shared`, once for all pages, or into the page if `shared` is None. PAGE.json
    keeps `inputs`, for `is_current`.

    Raises:
        BadInput: the dashboard has unknown panels, options or values, or the folder cannot be written to.
    """
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    asked = read_dashboard(dashboard, page)
    panels = [make_panel(spec, report) for spec in asked.panels]
    summary = SUMMARIES[page](report, panels)
    contents = {f"{page}.csv": runs.to_csv(index=False)}
    beside = {f"{page}.csv": "one row per run"}
    curves = report.curves_read
    if curves:
        contents[f"{page}-curves.csv"] = concat(curves).to_csv(index=False)
        beside[f"{page}-curves.csv"] = "one row per measurement"
    contents[f"{page}.json"] = _json(asked.title, summary, panels, inputs)
    beside[f"{page}.json"] = "the data of every panel"
    library = (shared or folder) / f"plotly-{get_plotlyjs_version()}.min.js"
    plotly = Path(os.path.relpath(library, folder)).as_posix()
    html = render(
        asked.title, summary, panels, beside, plotly, page_trials(report), asked.first
    )
    if not shared:
        html = with_plotly(html)
    elif not library.exists():
        _write_files(shared, {library.name: get_plotlyjs()})
    _write_files(folder, contents | {f"{page}.html": html})
    return folder / f"{page}.html"


def inputs_of(
    studies: Sequence[StudyFolder], page: str, dashboard: Path | None, *more: object
) -> str:
    """Return a digest of all that a page of studies shows: their records, their trials' states and its dashboard.

    Raises:
        BadInput: a study's storage or the dashboard cannot be read.
    """
    digest = sha256(repr((VERSION, more, read_dashboard(dashboard, page))).encode())
    for study in studies:
        digest.update(
            repr((study.path.absolute(), study_state(study), count_trials(study))).encode()
        )
        files = [*study.path.rglob("*.json*"), study.path / "study.yaml"]
        for file in sorted(files):
            if not file.is_file() or study.report in file.parents:
                continue
            try:
                content = read_bytes(file)
            except OSError as error:
                raise study.damaged(file, error) from error
            digest.update(repr((file.name, sha256(content).digest())).encode())
    return digest.hexdigest()


def is_current(file: Path, inputs: str) -> bool:
    """Return whether a page was written of these inputs."""
    try:
        kept = json.loads(file.with_suffix(".json").read_text("utf-8"))
        return file.exists() and kept["inputs"] == inputs
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_law_report(assessment: Assessment, source: str, page: Path) -> Path:
    """Write the page of a law that was fitted to any table, and return its path.

    It has those panels of the scaling page that need no study, all for this law. `source` is the name of the table.

    Raises:
        BadInput: the page cannot be written.
    """
    asked, report = read_dashboard(), ReportData.of_table(assessment)
    law, panels = {"law": assessment.law.name}, []
    for spec in asked.panels:
        kind = PANELS[spec.panel]
        if kind.source == "points":
            chosen = {
                name: value
                for name, value in law.items()
                if name in options_of(spec.panel).model_fields
            }
            panels.append(make_panel(replace(spec, options={**spec.options, **chosen}), report))
    write_single_page(page, asked.title, summarize_table(assessment, source), panels)
    return page


def write_single_page(
    file: Path, title: str, summary: Summary, panels: Iterable[Panel]
) -> None:
    """Write a page with plotly.js and all data inside, and no other files.

    Raises:
        BadInput: it cannot be written.
    """
    _write_files(
        file.parent,
        {file.name: with_plotly(render(title, summary, list(panels), {}, "plotly.min.js"))},
    )


def _write_files(folder: Path, contents: Mapping[str, str]) -> None:
    """Write texts into a folder, each atomically."""
    for name in contents:
        if (folder / name).is_dir():
            raise BadInput(Problem("is a folder", "the name of a file", file=folder / name))
    try:
        make_folder(folder)
        for name, text in contents.items():
            write_whole(folder / name, text.encode())
    except OSError as error:
        raise BadInput(
            Problem(f"cannot be written: {error.strerror or error}", file=folder)
        ) from error


def _json(title: str, summary: Summary, panels: Sequence[Panel], inputs: str) -> str:
    """Write the panels' data as JSON; NaN and infinity become null."""
    described = []
    for panel in panels:
        named = {
            name: getattr(panel, name)
            for name in ("title", "notes", "warnings", "missing", "result")
        }
        described.append(
            named | {"kind": type(panel).__name__, "data": panel.data.to_dict(orient="records")}
        )
    about = asdict(summary) | {"title": title, "inputs": inputs, "panels": described}
    return json.dumps(json_ready(about), indent=1, allow_nan=False, default=str)
