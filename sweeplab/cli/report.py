"""`sweeplab report`: pages about finished and running studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.options import AsJson, Lab

app = typer.Typer(help="Write reports of studies.", no_args_is_help=True)


@app.callback()
def _report() -> None:
    """Write reports of studies."""


@app.command()
def scaling(
    name: Annotated[str, typer.Argument(help="Name of the study.")],
    dashboard: Annotated[
        Path | None, typer.Option(help="Which panels to show: a copy of dashboards/scaling.yaml, edited.")
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write the scaling report: loss against n_layer, n_embd and parameters, as a page and as data."""
    import json

    from sweeplab.api import scaling_report
    from sweeplab.study.listing import find_study

    page = scaling_report(find_study(lab, name), dashboard)
    typer.echo(json.dumps({"report": str(page)}) if as_json else page)
