"""`sweeplab report` and `ui`: pages about studies, as files and in MLflow."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sweeplab.cli.completion import studies
from sweeplab.cli.options import (
    AllowPlugins,
    AsJson,
    Lab,
    MaybeStudyName,
    StudyName,
    argument,
    flag,
    option,
    study_folder,
)
from sweeplab.cli.printing import print_json
from sweeplab.errors import BadInput

if TYPE_CHECKING:
    from sweeplab.report.browse import Shown

Dashboard = Annotated[Path | None, option("FILE", "An edited copy of the page's file in dashboards/.")]
Format = Annotated[
    Literal["html", "png", "svg", "pdf"],
    flag("A page, or one picture per figure; pictures need sweeplab[images].", "--format"),
]


def scaling(
    name: StudyName,
    dashboard: Dashboard = None,
    form: Format = "html",
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write the scaling report of a study.

    Loss against n_layer, n_embd and parameters, the curves, and the scaling law with
    a verdict on each of its numbers, as one page and as data beside it.

    \b
    $ sweeplab report scaling small
    """
    _write("scaling", [name], lab, None, dashboard, form, as_json)


def sweep(
    name: StudyName,
    audit_pruning: Annotated[
        int | None, option("N", "First train N pruned trials to their end, outside the budget.", min=1)
    ] = None,
    allow_plugins: AllowPlugins = False,
    dashboard: Dashboard = None,
    form: Format = "html",
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a study's sweep.

    Which hyperparameters matter, where trials fail, what pruning saves and costs, where compute goes:
    importances, slices, parallel coordinates and ranks as one page and as data beside it.

    \b
    $ sweeplab report sweep small
    $ sweeplab report sweep small --audit-pruning 5
    """
    if audit_pruning is not None:
        from sweeplab.sweep.work.pruned import audit_pruning as audit

        audit(study_folder(lab, name), audit_pruning, lambda text: typer.echo(text, err=True), allow_plugins)
    _write("sweep", [name], lab, None, dashboard, form, as_json)


def compare_studies(
    names: Annotated[list[str], argument("NAME…", "Names of two studies or more.", autocompletion=studies)],
    output: Annotated[Path | None, option("FOLDER", "Where to write.  [default: LAB/reports]")] = None,
    dashboard: Dashboard = None,
    form: Format = "html",
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write the comparison of several studies.

    Their sweeps side by side, and whether their best losses differ by more than noise:
    by the cells that they share, and by the spread of their seeds.

    \b
    $ sweeplab report compare small small-relu
    """
    if len(names) < 2:
        raise BadInput("a comparison needs two studies or more")
    _write("compare", names, lab, output, dashboard, form, as_json)


def _write(
    page: str,
    names: list[str],
    lab: Lab,
    output: Path | None,
    dashboard: Dashboard,
    form: Format,
    as_json: bool,
) -> None:
    from sweeplab.api import write_report

    folders = [study_folder(lab, name) for name in names]
    files = write_report(page, folders[0].lab, names, output, dashboard, form)
    if as_json:
        print_json({"report": str(files[0]), "files": [str(each) for each in files]})
    else:
        typer.echo("\n".join(map(str, files)))


def ui(
    name: MaybeStudyName = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The port to use.  [default: the first free one from 5000]"),
    ] = None,
    open_page: Annotated[
        bool | None,
        flag(
            "Open the page in a browser, or only print its link.  [default: open on a desktop]",
            "--open/--no-open",
        ),
    ] = None,
    dashboard: Annotated[Path | None, option("FILE", "An edited copy of dashboards/mlflow.yaml.")] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Browse studies in MLflow, until Ctrl-C.

    Runs sorted by loss, with the searched hyperparameters, and charts beside them. The pages are
    served to this machine only.

    \b
    $ sweeplab ui small
    """
    from sweeplab.report.browse import browse

    # However it ends, also with its terminal, it ends the server too; a script's background ignores Ctrl-C.
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, _interrupt) for each in ends}
    try:
        with browse(lab, name, port, dashboard) as shown:
            _print_links(shown, as_json)
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


def _print_links(shown: Shown, as_json: bool) -> None:
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
            typer.echo(f"{name} has no runs yet: its page fills as they start", err=True)
        if shown.server:
            typer.echo("Ctrl-C ends it", err=True)
    sys.stdout.flush()


def _has_desktop() -> bool:
    """Return whether a browser would open a window: a server has at most a browser inside the terminal."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
