"""A study in MLflow's own pages: the view that a dashboard asks for, and a server if none runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.formatting import without_password
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import find_study, read_spec, tracking_uri_of
from sweeplab.records.folders import StudyFolder, lab_folder
from sweeplab.report.options import Item, Log, default_dashboard, one_of, read_file
from sweeplab.study.problems import Refusal
from sweeplab.study.values import Section
from sweeplab.tracking import pages
from sweeplab.tracking.connection import SERVERS, database_file, tracking_uri, writable
from sweeplab.tracking.experiment import count_studies
from sweeplab.tracking.tracker import CURVES

_AXES = (*pages.NUMBERS, *TABLE)
_Axis = Annotated[str, one_of(*_AXES)]


class _Line(Item):
    metric: Annotated[str, one_of(*CURVES)]
    x: Annotated[str, one_of(*pages.X_AXES)]
    log: Log = ()

    @model_validator(mode="after")
    def _has_curve(self) -> _Line:
        if self.x == "train_tokens" and self.metric != "val_loss":
            raise Refusal(f"MLflow has no {self.metric} over tokens", "iteration, time", is_secret=True)
        return self


class _Scatter(Item):
    x: _Axis
    y: _Axis


class _Sort(Section):
    by: _Axis
    descending: bool = False


class _View(Section):
    columns: Annotated[list[Annotated[str, one_of(*pages.TAGS, pages.SEARCHED, *_AXES)]], Field(min_length=1)]
    sort: _Sort
    charts: list[Any] = Field(default_factory=list)


CHARTS: Mapping[str, type[Item]] = {"line": _Line, "scatter": _Scatter, "compare": Item}


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
    file = dashboard or default_dashboard("mlflow")
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
    view, charts = read_file(file, _View, "chart", CHARTS)
    drawn = [item.model_dump() | {"chart": kind} for kind, item in charts]
    return view.model_dump(exclude={"charts"}) | {"charts": drawn}
