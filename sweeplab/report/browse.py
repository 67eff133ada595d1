"""A study in MLflow's own pages: the view that a dashboard asks for, and a server if none runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.formatting import without_password
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import find_study, read_spec, tracking_uri_of
from sweeplab.records.folders import StudyFolder, lab_folder
from sweeplab.report import options
from sweeplab.report.options import LOG, PanelOption, check_value
from sweeplab.study.problems import Problems
from sweeplab.tracking import pages
from sweeplab.tracking.connection import SERVERS, database_file, tracking_uri, writable
from sweeplab.tracking.experiment import count_studies
from sweeplab.tracking.tracker import CURVES

_AXES = (*pages.NUMBERS, *TABLE)
_COLUMN = PanelOption((*pages.TAGS, pages.SEARCHED, *_AXES))
_SIZE = PanelOption(_AXES, needed="any hyperparameter, any number that a run ends with")
# The options of each chart.
CHARTS: dict[str, dict[str, PanelOption]] = {
    "line": {
        "metric": PanelOption(tuple(CURVES), needed=", ".join(CURVES)),
        "x": PanelOption(tuple(pages.X_AXES), needed=", ".join(pages.X_AXES)),
        "log": LOG,
    },
    "scatter": {"x": _SIZE, "y": _SIZE},
    "compare": {},
}


@dataclass(frozen=True)
class Shown:
    """A study's pages that can be opened: their links by kind, and the server that sweeplab started, if any.

    A study that `is_empty` has no runs yet: its pages fill as they start.
    """

    study: str
    address: str
    links: Mapping[str, str]
    is_empty: bool
    server: pages.PagesServer | None


@contextmanager
def browse(
    lab: Path | None, name: str, port: int | None = None, dashboard: Path | None = None
) -> Iterator[Shown]:
    """Show a study in MLflow's pages while the context is open.

    A tracking server has its own pages. A database is served on this machine only, at `port` or a free one; a
    read-only database is copied and the copy is served.

    Raises:
        BadInput: there is no such study, it has no runs yet, the port is taken, the dashboard has unknown columns,
            options or values, or the tracking server does not answer.
        TrackingUnavailable: sweeplab's own server does not start.
    """
    file = dashboard or options.default_dashboard("mlflow")
    view, place, folder = read_view(file), lab_folder(lab), find_study(lab, name)
    is_empty, uri = not any(folder.runs()), tracking_uri(place, tracking_uri_of(folder))
    database = database_file(uri)
    if database and not database.exists():
        raise BadInput(f"{place} has no runs to look at yet; sweeplab run FILE trains some")
    if uri.startswith(SERVERS):
        address = without_password(uri).rstrip("/")
        try:
            count_studies(place, uri)
            links = _publish(folder, file.stem, view, f"{address}/", uri)
        except TrackingUnavailable as error:
            cure = "start it, or name another with MLFLOW_TRACKING_URI or track: {uri: …}"
            raise BadInput(f"{error}; {cure}") from error
        yield Shown(folder.name, address, links, is_empty, None)
        return
    with writable(place, uri) as served, pages.serve(place, served, port) as server:
        links = _publish(folder, file.stem, view, server.url, served)  # while the server starts
        server.wait_until_ready()
        yield Shown(folder.name, server.url, links, is_empty, server)


def _publish(folder: StudyFolder, name: str, view: pages.View, page: str, served: str) -> dict[str, str]:
    """Write the view to a study tracked at `served`; return the links to it in the page."""
    spec = read_spec(folder)
    grid, searched = tuple(spec.grid), tuple(spec.search)
    return pages.publish(folder.lab, served, folder.name, name, view, grid, searched, page)


def read_view(file: Path) -> pages.View:
    """Read a view for MLflow from a dashboard's file.

    Raises:
        BadInput: the file cannot be read, or has unknown columns, options or values; every problem has its line.
    """
    return options.read_checked(file, ("columns", "sort", "charts"), _check)


def _check(document: Mapping[str, Any], problems: Problems) -> None:
    columns, sort, charts = (document.get(part) for part in ("columns", "sort", "charts"))
    if isinstance(columns, list) and columns:
        for index, name in enumerate(columns):
            check_value(name, _COLUMN, ("columns", index), problems)
    else:
        problems.add(("columns",), "there is no list of columns", "[state, cell, searched, best_val_loss]")
    if isinstance(sort, dict) and "by" in sort:
        options.check_options(
            sort, {"by": PanelOption(_AXES), "descending": PanelOption()}, ("sort",), problems
        )
        if not isinstance(sort.get("descending", False), bool):
            problems.add(("sort", "descending"), "descending is true or false")
    else:
        problems.add(("sort",), "there is nothing to sort by", "{by: best_val_loss}")
    if charts is not None and not isinstance(charts, list):
        problems.add(("charts",), "charts is not a list", "- chart: " + " | ".join(CHARTS))
        return
    options.check_items(charts or [], "chart", CHARTS, problems)
    for index, chart in enumerate(charts or []):
        if isinstance(chart, dict) and chart.get("x") == "train_tokens":
            metric = chart.get("metric")
            if metric in CURVES and metric != "val_loss":
                problems.add(("charts", index, "x"), f"MLflow has no {metric} over tokens", "iteration, time")
