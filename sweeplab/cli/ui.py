"""`sweeplab ui`: studies in MLflow's own pages."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeplab.cli.options import AsJson, Lab
from sweeplab.errors import BadInput

if TYPE_CHECKING:
    from sweeplab.tracking.view import StudyPages

DEFAULT_PORT = 5000


def ui(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of the study.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port, or the next free.")] = DEFAULT_PORT,
    open_page: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open",
            help="Open the page in a browser, or only print its link.  [default: open on a desktop]",
            show_default=False,
        ),
    ] = None,
    dashboard: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What to show: a copy of dashboards/mlflow.yaml, edited.",
            show_default=False,
        ),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Browse studies in MLflow, until Ctrl-C.

    Runs sorted by loss, with what was searched, and charts beside them. Only this machine reaches the pages.

    \b
    $ sweeplab ui small
    """
    from sweeplab.study.browse import read_view
    from sweeplab.study.folder import StudyFolder, lab_folder
    from sweeplab.study.listing import find_study, study_names, tracking_uri_of
    from sweeplab.tracking.connection import SERVERS, database_file, tracking_uri
    from sweeplab.tracking.ui import ServerEnded, free_port, serve

    view = read_view(dashboard)
    place = lab_folder(lab)
    folders = [find_study(lab, name)] if name else [StudyFolder(place, each) for each in study_names(place)]
    uri = tracking_uri(place, tracking_uri_of(folders[0]) if name else None)
    database = database_file(uri)
    if database and not database.exists():
        raise BadInput(f"{place} has no runs to look at yet; sweeplab study run FILE trains some")
    here = [each for each in folders if tracking_uri(place, tracking_uri_of(each)) == uri]

    def show(server: str, pages: Mapping[str, StudyPages], pid: int | None = None) -> None:
        links = _links(server, pages)
        _print(links, server, pid, as_json)
        if open_page if open_page is not None else _has_desktop():
            import webbrowser

            webbrowser.open(next(iter(links.values()))["charts"] if len(links) == 1 else server)

    if uri.startswith(SERVERS):
        show(uri.rstrip("/"), _publish(here, uri, view, strict=bool(name)))
        return
    free = free_port(port)
    if free != port:
        typer.echo(f"port {port} is taken: using {free}", err=True)
    # Ended by SIGTERM, or with its terminal, it takes the server along as on Ctrl-C.
    before = {each: signal.signal(each, _interrupt) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with serve(place, uri, free) as server:
            pages = _publish(here, uri, view, strict=bool(name))  # while the server starts
            server.wait_until_ready()
            show(server.url, pages, server.process.pid)
            server.wait()
    except ServerEnded as ended:
        typer.echo(f"error: MLflow's server has ended: {ended}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("ended", err=True)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _publish(folders: list[Any], uri: str, view: Any, strict: bool) -> dict[str, StudyPages]:
    """Bring the view to every study that tracking has; one that was asked for by name must be there."""
    from sweeplab.study.browse import searched
    from sweeplab.tracking.tracker import TrackingUnavailable
    from sweeplab.tracking.view import publish

    pages = {}
    for folder in folders:
        try:
            pages[folder.name] = publish(folder.lab, uri, folder.name, view, searched(folder))
        except TrackingUnavailable as error:
            raise BadInput(str(error)) from error
        except BadInput:
            if strict:
                raise
    return pages


def _links(server: str, pages: Mapping[str, StudyPages]) -> dict[str, dict[str, str]]:
    return {
        name: {"charts": each.charts(server), "table": each.table(server), "study": each.study(server)}
        for name, each in pages.items()
    }


def _print(links: Mapping[str, Mapping[str, str]], server: str, pid: int | None, as_json: bool) -> None:
    from sweeplab.cli.tables import print_json

    if as_json:
        print_json({"server": server, "pid": pid, "studies": links})
    else:
        for name, each in links.items():
            typer.echo(name)
            for what, link in each.items():
                typer.echo(f"  {what:6}  {link}")
        if not links:
            typer.echo(server)
        if pid is not None:
            typer.echo("Ctrl-C ends it", err=True)
    sys.stdout.flush()


def _has_desktop() -> bool:
    """Say whether a browser would open a window: nothing but a terminal's own browser would do on a server."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
