"""Studies in MLflow's own pages: what a dashboard file has them show, and a server of them where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, nearest
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import find_study, read_spec, study_names, tracking_uri_of
from sweeplab.records.folders import StudyFolder, lab_folder
from sweeplab.study.file.document import parse
from sweeplab.study.file.markdown import read_text
from sweeplab.study.places import Complaints, Location, Places
from sweeplab.tracking.connection import SERVERS, database_file, tracking_uri, without_password
from sweeplab.tracking.experiment import count_studies
from sweeplab.tracking.measures import CURVES, LOSSES_BY_TOKENS
from sweeplab.tracking.tracker import TrackingUnavailable
from sweeplab.tracking.ui import Server, free_port, serve
from sweeplab.tracking.view import NUMBERS, SEARCHED, TAGS, X_AXES, Chart, View, publish

DEFAULT = Path(__file__).with_name("mlflow.yaml")
MAX_BYTES = 2**18

_AXES = (*NUMBERS, *TABLE)
_COLUMNS = (*TAGS, SEARCHED, *_AXES)
_COMMON: dict[str, Sequence[str] | None] = {"title": None, "width": ("full", "half")}
# What each option of each chart may be; None is any text.
CHARTS: dict[str, dict[str, Sequence[str] | None]] = {
    "line": {"metric": CURVES, "x": tuple(X_AXES), "log": ("x", "y")},
    "scatter": {"x": _AXES, "y": _AXES},
    "compare": {},
}
_NEEDED = {"line": ("metric", "x"), "scatter": ("x", "y"), "compare": ()}
_PARTS = ("columns", "sort", "charts")


@dataclass(frozen=True)
class Shown:
    """Pages that can be opened: their links by study and kind, and the server that we started, if we did.

    `empty` has the studies without runs: their pages fill as runs come.
    """

    address: str
    links: Mapping[str, Mapping[str, str]]
    empty: tuple[str, ...]
    server: Server | None


@contextmanager
def browse(
    lab: Path | None, name: str | None, port: int | None = None, dashboard: Path | None = None
) -> Iterator[Shown]:
    """Show one study, or all that the lab's tracking has, in MLflow's pages as long as the context lasts.

    A tracking server has its own pages; of a database they are served to this machine alone, at `port` or at
    the first one that is free.

    Raises:
        BadInput: there is no such study, nothing of it was run yet, the port is taken, the dashboard asks for
            what there is not, or the tracking server does not answer.
        TrackingUnavailable: our own server does not start.
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
            links = _publish(folders, uri, view, address, strict=bool(name))
        except TrackingUnavailable as error:
            cure = "start it, or let MLFLOW_TRACKING_URI or track: {uri: …} name another"
            raise BadInput(f"{error}; {cure}") from error
        yield Shown(address, links, empty, None)
        return
    with serve(place, uri, _port(port)) as server:
        links = _publish(folders, uri, view, server.url, strict=bool(name))  # while the server starts
        server.wait_until_ready()
        yield Shown(server.url, links, empty, server)


def _port(wanted: int | None) -> int:
    free = free_port(*([] if wanted is None else [wanted]))
    if wanted not in (None, free):
        raise BadInput(f"port {wanted} is in use; --port {free} is free, and without --port one is found")
    return free


def _publish(
    folders: Sequence[StudyFolder], uri: str, view: View, address: str, strict: bool
) -> dict[str, dict[str, str]]:
    """Bring the view to every study that the tracking at `uri` has; if strict, it must have them all."""
    links = {}
    for folder in folders:
        try:
            spec = read_spec(folder)
            if tracking_uri(folder.lab, spec.track.uri) == uri:
                pages = publish(folder.lab, uri, folder.name, view, tuple(spec.search))
                links[folder.name] = pages.links(address)
        except BadInput:
            if strict:
                raise
    return links


def read_view(path: Path | None = None) -> View:
    """Read what MLflow is to show from a dashboard file, or from the default one.

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
    sort = document["sort"]
    charts = tuple(_chart(each) for each in document.get("charts", ()))
    return View(file.stem, tuple(document["columns"]), sort["by"], bool(sort.get("descending")), charts)


def _check(document: Any, complain: Complaints) -> None:
    if not isinstance(document, dict):
        complain((), "this shows nothing", "columns:, sort: and charts:")
        return
    for key in document:
        if key not in _PARTS:
            complain.unknown((key,), _PARTS, "part")
    columns, sort, charts = (document.get(part) for part in _PARTS)
    if isinstance(columns, list) and columns:
        for index, name in enumerate(columns):
            _one_of(name, _COLUMNS, ("columns", index), complain)
    else:
        complain(("columns",), "there is no list of columns", "[state, cell, searched, best_val_loss]")
    if isinstance(sort, dict) and "by" in sort:
        _one_of(sort["by"], _AXES, ("sort", "by"), complain)
        for key in sort.keys() - {"by", "descending"}:
            complain.unknown(("sort", key), ("by", "descending"), "option")
        if not isinstance(sort.get("descending", False), bool):
            complain(("sort", "descending"), "descending is true or false")
    else:
        complain(("sort",), "there is nothing to sort by", "{by: best_val_loss}")
    if charts is not None and not isinstance(charts, list):
        complain(("charts",), "charts is no list", "- chart: " + " | ".join(CHARTS))
        return
    for index, chart in enumerate(charts or ()):
        _check_chart(chart, ("charts", index), complain)


def _check_chart(chart: Any, place: Location, complain: Complaints) -> None:
    kind = chart.get("chart") if isinstance(chart, dict) else None
    if kind not in CHARTS:
        what = f"unknown chart {kind!r}" if kind else "this is no chart"
        complain(place, what, "chart: " + " | ".join(CHARTS), nearest(str(kind or ""), CHARTS))
        return
    options = {"chart": None, **_COMMON, **CHARTS[kind]}
    for name in [name for name in _NEEDED[kind] if name not in chart]:
        complain(place, f"{kind} needs {name}: …", ", ".join(options[name] or ())[:60])
    for name, written in chart.items():
        if name not in options:
            complain.unknown((*place, name), list(options), "option")
        elif (allowed := options[name]) is not None:
            for value in written if name == "log" and isinstance(written, list) else [written]:
                _one_of(value, allowed, (*place, name), complain)
    if chart.get("x") == "train_tokens" and chart.get("metric") in set(CURVES) - set(LOSSES_BY_TOKENS):
        complain((*place, "x"), f"MLflow has no {chart['metric']} over tokens", "iteration, time")


def _one_of(value: Any, allowed: Sequence[str], place: Location, complain: Complaints) -> None:
    if value not in allowed:
        few = ", ".join(allowed) if len(allowed) < 8 else ""
        name = [part for part in place if isinstance(part, str)][-1]
        complain(place, f"{name} cannot be {value!r}", few, nearest(str(value), allowed))


def _chart(written: Mapping[str, Any]) -> Chart:
    log = written.get("log", ())
    return Chart(
        kind=written["chart"],
        title=str(written.get("title", "")),
        x=written.get("x", ""),
        y=written.get("metric", written.get("y", "")),
        log=tuple(log) if isinstance(log, list | tuple) else (log,),
        width=written.get("width", "full"),
    )
