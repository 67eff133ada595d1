"""A study in MLflow's own pages: its view there, and a server if none runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.formatting import without_password
from sweeplab.lab.listing import find_study, read_spec, tracking_uri_of
from sweeplab.records.folders import lab_folder
from sweeplab.tracking import pages
from sweeplab.tracking.connection import SERVERS, database_file, tracking_uri


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
def browse(lab: Path | None, name: str, port: int | None = None) -> Iterator[Shown]:
    """Show a study in MLflow's pages while the context is open.

    A tracking server has its own pages. A database is served on this machine only, at `port` or a free one.

    Raises:
        BadInput: there is no such study, it has no runs yet, the port is taken, or the tracking server does not answer.
        TrackingUnavailable: sweeplab's own server does not start.
    """
    place, folder = lab_folder(lab), find_study(lab, name)
    is_empty, uri = not any(folder.runs()), tracking_uri(place, tracking_uri_of(folder))
    searched = tuple(read_spec(folder).search)
    database = database_file(uri)
    if database and not database.exists():
        raise BadInput(f"{place} has no runs to look at yet; sweeplab run FILE trains some")
    if uri.startswith(SERVERS):
        address = without_password(uri).rstrip("/")
        try:
            links = pages.publish(folder.lab, uri, folder.name, searched, f"{address}/")
        except TrackingUnavailable as error:
            cure = "start it, or name another with MLFLOW_TRACKING_URI or track: {uri: …}"
            raise BadInput(f"{error}; {cure}") from error
        yield Shown(folder.name, address, links, is_empty, None)
        return
    with pages.serve(place, uri, port) as server:
        # While the server starts.
        links = pages.publish(folder.lab, uri, folder.name, searched, server.url)
        server.wait_until_ready()
        yield Shown(folder.name, server.url, links, is_empty, server)
