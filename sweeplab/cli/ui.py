"""`sweeplab ui`: studies in MLflow's own pages."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli.completion import studies
from sweeplab.cli.options import AsJson, Lab

if TYPE_CHECKING:
    from sweeplab.report.browse import Shown


def ui(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Name of the study.", show_default=False, autocompletion=studies
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="The port to use.  [default: the first free one from 5000]",
            show_default=False,
        ),
    ] = None,
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
    from sweeplab.report.browse import browse

    # However it is ended, also with its terminal, it takes the server along; a script's background ignores Ctrl-C.
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, _interrupt) for each in ends}
    try:
        with browse(lab, name, port, dashboard) as shown:
            _print(shown, as_json)
            if open_page if open_page is not None else _has_desktop():
                import webbrowser

                webbrowser.open(_landing(shown))
            if shown.server:
                shown.server.wait()
    except KeyboardInterrupt:
        typer.echo("ended", err=True)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _landing(shown: Shown) -> str:
    return next(iter(shown.links.values()))["charts"] if len(shown.links) == 1 else shown.address


def _print(shown: Shown, as_json: bool) -> None:
    from sweeplab.cli.tables import print_json

    if as_json:
        pid = shown.server.process.pid if shown.server else None
        print_json({"server": shown.address, "pid": pid, "studies": shown.links})
    else:
        for name, links in shown.links.items():
            typer.echo(name)
            for what, link in links.items():
                typer.echo(f"  {what:6}  {link}")
        if len(shown.links) != 1:
            typer.echo(shown.address)
        for name in shown.empty:
            typer.echo(f"{name} has no runs yet: its page fills as they come", err=True)
        if shown.server:
            typer.echo("Ctrl-C ends it", err=True)
    sys.stdout.flush()


def _has_desktop() -> bool:
    """Say whether a browser would open a window: nothing but a terminal's own browser would do on a server."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
