"""`sweeplab report`, `ui` and `dashboard`: pages about studies, as files, in MLflow, and live."""

from __future__ import annotations

import os
import signal
import sys
import webbrowser
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from sweeplab.cli import options
from sweeplab.cli.options import flag, option
from sweeplab.cli.printing import Answer, print_json
from sweeplab.records.folders import lab_folder

Port = Annotated[
    int | None, typer.Option(min=1, max=65535, help="The port to use.  [default: a free one]")
]
OpenPage = Annotated[
    bool | None,
    flag(
        "Open the page in a browser, or only print its link.  [default: open on a desktop]",
        "--open/--no-open",
    ),
]


def report(
    name: options.MaybeStudyName = None,
    page: Annotated[
        Literal["scaling", "sweep"], flag("The scaling law, or what the sweep found.", "--page")
    ] = "scaling",
    dashboard: Annotated[
        Path | None, option("FILE", "An edited copy of the page's file in dashboards/.")
    ] = None,
    single_file: Annotated[
        bool,
        flag(
            "Embed plotly.js (5 MB), so that the page can be sent as one file.", "--single-file"
        ),
    ] = False,
    lab: options.Lab = None,
) -> Answer:
    """Write a report of a study.

    The page `scaling` shows loss against n_layer, n_embd and parameters, the curves, and the scaling law with a
    verdict on each of its numbers; `sweep` shows which hyperparameters matter, where trials fail and what pruning
    saves. Their data are written beside them.

    \b
    $ sweeplab report small
    $ sweeplab report small --page sweep
    """
    from sweeplab.api import write_report

    folder = options.named_study(name, lab)
    written = str(write_report(page, folder.lab, [folder.name], None, dashboard, single_file))
    return {"report": written}, written


def ui(
    name: options.MaybeStudyName = None,
    port: Port = None,
    open_page: OpenPage = None,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Browse studies in MLflow, until Ctrl-C.

    MLflow lists runs by loss, with the searched hyperparameters, and charts beside them. The pages
    are served to this machine only, to whoever has their address.

    \b
    $ sweeplab ui small
    """
    from sweeplab.report.browse import browse
    from sweeplab.tracking.pages import leading_to

    try:
        with ExitStack() as stack:
            # The command ends its server however it ends, so SIGTERM and a closing terminal (SIGHUP) count as Ctrl-C.
            # Under nohup it is meant to outlive the terminal.
            hangs_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
            _interrupted_by(stack, signal.SIGINT, signal.SIGTERM, *[signal.SIGHUP] * hangs_up)
            shown = stack.enter_context(browse(lab, options.named_study(name, lab).name, port))
            server, page = shown.server, shown.links["charts"]
            if as_json:
                pid = server and server.process.pid
                print_json(
                    {"server": shown.address, "pid": pid, "studies": {shown.study: shown.links}}
                )
            else:
                typer.echo(
                    "\n".join(
                        [
                            shown.study,
                            *(f"  {what:6}  {link}" for what, link in shown.links.items()),
                        ]
                    )
                )
                if shown.is_empty:
                    typer.echo(
                        f"{shown.study} has no runs yet: its page fills as they start", err=True
                    )
                if server:
                    typer.echo("Ctrl-C ends it", err=True)
            sys.stdout.flush()
            if _opens(open_page):
                if server:
                    page = stack.enter_context(leading_to(page, lab_folder(lab)))
                webbrowser.open(page)
            if server:
                server.wait()
    except KeyboardInterrupt:
        typer.echo("ended", err=True)


def dashboard(
    name: options.MaybeStudyName = None,
    port: Port = None,
    open_page: OpenPage = None,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a study live and steer it, until Ctrl-C.

    The page shows curves as they grow, the best trial, stacks, trials by state and the time left. Its buttons do what
    the commands of the same names do. It is served to this machine only, to whoever has its address.

    \b
    $ sweeplab dashboard small
    """
    from sweeplab.report.live import live_page
    from sweeplab.tracking.pages import leading_to

    with ExitStack() as stack:
        _interrupted_by(stack, signal.SIGTERM, signal.SIGHUP)

        live = stack.enter_context(
            live_page(lab_folder(lab), options.named_study(name, lab).name, port)
        )
        if as_json:
            print_json({"page": live.url})
        else:
            typer.echo(live.url)
            typer.echo("Ctrl-C ends it; the study goes on", err=True)
        sys.stdout.flush()
        if _opens(open_page):
            webbrowser.open(stack.enter_context(leading_to(live.url, lab_folder(lab))))
        with suppress(KeyboardInterrupt):
            live.serve()
    typer.echo("ended", err=True)


def _interrupted_by(stack: ExitStack, *signals: signal.Signals) -> None:
    """Let signals end the command as Ctrl-C does, until the stack closes."""
    for number in signals:
        stack.callback(signal.signal, number, signal.signal(number, signal.default_int_handler))


def _opens(asked: bool | None) -> bool:
    """Tell whether a page is opened, by default on a desktop: without one, a browser would open in the terminal."""
    if asked is not None:
        return asked
    has_window = any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return (has_window or sys.platform in ("darwin", "win32")) and sys.stdout.isatty()
