"""`sweeplab report`: pages about finished and running studies."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.app import command_group
from sweeplab.cli.completion import studies
from sweeplab.cli.options import AllowPlugins, AsJson, Lab, StudyName

app = command_group("Write reports of studies.")


class Form(StrEnum):
    """What a report is written as."""

    html = "html"
    png = "png"
    svg = "svg"
    pdf = "pdf"


Dashboard = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Which panels to show: a copy of the page's file in dashboards/, edited.",
        show_default=False,
    ),
]
Format = Annotated[
    Form, typer.Option("--format", help="A page, or a picture a figure; these need sweeplab[images].")
]


@app.callback()
def _report() -> None:
    """Write reports of studies."""


@app.command()
def scaling(
    name: StudyName,
    dashboard: Dashboard = None,
    form: Format = Form.html,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write the scaling report of a study.

    Loss against n_layer, n_embd and parameters, the curves, and the scaling law with
    what may be believed of it, as one page and as data beside it.

    \b
    $ sweeplab report scaling small
    """
    _write("scaling", [name], lab, None, dashboard, form, as_json)


@app.command()
def sweep(
    name: StudyName,
    audit_pruning: Annotated[
        int | None,
        typer.Option(
            "--audit-pruning",
            metavar="N",
            min=1,
            help="First train N pruned trials to their end, outside of the study and its budget.",
            show_default=False,
        ),
    ] = None,
    allow_plugins: AllowPlugins = False,
    dashboard: Dashboard = None,
    form: Format = Form.html,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a study's sweep.

    What mattered, where trials failed, what pruning saved and cost, where compute went:
    importances, slices, parallel coordinates and ranks as one page and as data beside it.

    \b
    $ sweeplab report sweep small
    $ sweeplab report sweep small --audit-pruning 5
    """
    if audit_pruning is not None:
        from sweeplab.lab.listing import find_study
        from sweeplab.sweep.work.pruned import audit_pruning as audit

        audit(find_study(lab, name), audit_pruning, lambda text: typer.echo(text, err=True), allow_plugins)
    _write("sweep", [name], lab, None, dashboard, form, as_json)


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…", help="Names of two studies or more.", show_default=False, autocompletion=studies
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where to write.  [default: reports/ in the lab]", show_default=False
        ),
    ] = None,
    dashboard: Dashboard = None,
    form: Format = Form.html,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write the comparison of several studies.

    Their sweeps side by side, and whether a difference of their best losses is one:
    by the cells that they share, and by the spread of their seeds.

    \b
    $ sweeplab report compare small small-relu
    """
    from sweeplab.errors import BadInput

    if len(names) < 2:
        raise BadInput("a comparison needs two studies or more")
    _write("compare", names, lab, output, dashboard, form, as_json)


def _write(
    page: str,
    names: Sequence[str],
    lab: Path | None,
    output: Path | None,
    dashboard: Path | None,
    form: Form,
    as_json: bool,
) -> None:
    from sweeplab.api import write_report
    from sweeplab.cli.tables import print_json
    from sweeplab.lab.listing import find_study

    folders = [find_study(lab, name) for name in names]
    files = write_report(page, folders[0].lab, names, output, dashboard, form.value)
    if as_json:
        print_json({"report": str(files[0]), "files": [str(each) for each in files]})
    else:
        typer.echo("\n".join(map(str, files)))
