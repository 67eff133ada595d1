"""`sweeplab report`: pages about finished and running studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.app import command_group
from sweeplab.cli.options import AsJson, Lab

app = command_group("Write reports of studies.")


@app.callback()
def _report() -> None:
    """Write reports of studies."""


@app.command()
def scaling(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the study.", show_default=False)],
    dashboard: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Which panels to show: a copy of dashboards/scaling.yaml, edited.",
            show_default=False,
        ),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write the scaling report of a study.

    Loss against n_layer, n_embd and parameters, the curves, and the scaling law with
    what may be believed of it, as one page and as data beside it.

    \b
    $ sweeplab report scaling small
    """
    from sweeplab.api import scaling_report
    from sweeplab.cli.tables import print_json
    from sweeplab.study.listing import find_study

    page = scaling_report(find_study(lab, name), dashboard)
    if as_json:
        print_json({"report": str(page)})
    else:
        typer.echo(page)
