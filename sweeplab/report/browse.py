"""Studies in MLflow's own pages: the views that a dashboard asks for, and a server if none runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.formatting import without_password
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import find_study, read_spec, study_names, tracking_uri_of
from sweeplab.records.folders import StudyFolder, lab_folder
from sweeplab.report import options
from sweeplab.report.options import LOG, PanelOption, check_value, listed
from sweeplab.study.problems import Problems
from sweeplab.tracking import pages
from sweeplab.tracking.connection import SERVERS, database_file, tracking_uri, writable
from sweeplab.tracking.experiment import count_studies
from sweeplab.tracking.tracker import CURVES, LOSSES_BY_TOKENS

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
    """Pages that can be opened: their links by study and kind, and the server that sweeplab started, if any.

    `empty` has the studies without runs: their pages fill as runs start.
    """

    address: str
    links: Mapping[str, Mapping[str, str]]
    empty: tuple[str, ...]
    server: pages.PagesServer | None


@contextmanager
def browse(
    lab: Path | None, name: str | None, port: int | None = None, dashboard: Path | None = None
) -> Iterator[Shown]:
    """Show one study, or all that the lab's tracking has, in MLflow's pages while the context is open.

    A tracking server has its own pages. A database is served on this machine only, at `port` or the first free port;
    a read-only database is copied and the copy is served.

    Raises:
        BadInput: there is no such study, it has no runs yet, the port is taken, the dashboard has unknown columns,
            options or values, or the tracking server does not answer.
        TrackingUnavailable: sweeplab's own server does not start.
    """
    view, place = read_view(dashboard), lab_folder(lab)
    folders = [find_study(lab, name)] if name else [StudyFolder(place, each) for each in study_names(place)]
    empty = tuple(folder.name for folder in folders if not any(folder.runs()))
    uri = tracking_uri(place, tracking_uri_of(folders[0]) if name else None)
    database = database_file(uri)
    if database and not database.exists():
        raise BadInput(f"{place} has no runs to look at yet; sweeplab study run FILE trains some")
    if uri.startswith(SERVERS):
        address = without_password(uri).rstrip("/")
        try:
            count_studies(place, uri)
            links = _publish(folders, uri, view, f"{address}/", bool(name), uri)
        except TrackingUnavailable as error:
            cure = "start it, or name another with MLFLOW_TRACKING_URI or track: {uri: …}"
            raise BadInput(f"{error}; {cure}") from error
        yield Shown(address, links, empty, None)
        return
    free = pages.free_port(*([] if port is None else [port]))
    if port not in (None, free):
        raise BadInput(f"port {port} is in use; --port {free} is free, and without --port one is found")
    with writable(place, uri) as served, pages.serve(place, served, free) as server:
        links = _publish(folders, uri, view, server.url, bool(name), served)  # while the server starts
        server.wait_until_ready()
        yield Shown(server.url, links, empty, server)


def _publish(
    folders: Sequence[StudyFolder], uri: str, view: pages.ChartView, page: str, strict: bool, served: str
) -> dict[str, dict[str, str]]:
    """Write the view to every study tracked at `uri`, served from `served`; `strict` raises for any that fails."""
    links = {}
    for folder in folders:
        try:
            spec = read_spec(folder)
            if tracking_uri(folder.lab, spec.track.uri) == uri:
                varied = tuple(spec.grid), tuple(spec.search)
                links[folder.name] = pages.publish(folder.lab, served, folder.name, view, *varied, page)
        except BadInput:
            if strict:
                raise
    return links


def read_view(path: Path | None = None) -> pages.ChartView:
    """Read the view for MLflow from a dashboard file, or from the default one.

    Raises:
        BadInput: the file cannot be read, or has unknown columns, options or values; every problem has its line.
    """
    file = path or options.default_dashboard("mlflow")
    document = options.read_checked(file, ("columns", "sort", "charts"), _check)
    sort = document["sort"]
    charts = tuple(_chart(each) for each in document.get("charts") or ())
    return pages.ChartView(
        file.stem, tuple(document["columns"]), sort["by"], bool(sort.get("descending")), charts
    )


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
            if metric in CURVES and metric not in LOSSES_BY_TOKENS:
                problems.add(("charts", index, "x"), f"MLflow has no {metric} over tokens", "iteration, time")


def _chart(written: Mapping[str, Any]) -> pages.Chart:
    return pages.Chart(
        kind=written["chart"],
        title=str(written.get("title", "")),
        x=written.get("x", ""),
        y=written.get("metric", written.get("y", "")),
        log=tuple(listed(written.get("log", []))),
        width=written.get("width", "full"),
    )
