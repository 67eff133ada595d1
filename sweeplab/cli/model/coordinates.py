"""`sweeplab model coordinates`: whether a learning rate found in a small model fits a large one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.options import AsJson, Lab, Overrides, whole_numbers
from sweeplab.errors import BadInput, Problem


def coordinates(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A study file.", show_default=False)],
    override: Overrides = None,
    cell: Annotated[
        str | None,
        typer.Option(metavar="CELL", help="The cell, where others than widths differ.", show_default=False),
    ] = None,
    widths: Annotated[
        str | None,
        typer.Option(
            metavar="N,…",
            help="Values of n_embd.  [default: 1, 2, 4 and 8 times mup_base_width]",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Steps to train in each width.", min=1, max=1000)
    ] = 4,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page.  [default: reports/coordinates.html in the lab]",
            show_default=False,
        ),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Check how activations grow with width.

    muP's coordinate check: the study's model trains for a few steps in each width, under
    standard and mup. Where activations stay flat, a learning rate of a small model fits a large one.

    \b
    $ sweeplab model coordinates studies/small.yaml --cell n_layer=2
    $ sweeplab model coordinates FILE --widths 64,256 -o learning_rate=0.003
    """
    from rich.console import Console

    from sweeplab.cli.tables import print_json
    from sweeplab.records.folders import lab_folder
    from sweeplab.report.models import steepest_in_words, write_coordinates
    from sweeplab.runs.coordinates import check_coordinates

    with Console(stderr=True).status("") as status:
        found = check_coordinates(file, override or (), cell, _widths(widths), steps, status.update)
    page = output or lab_folder(lab) / "reports" / "coordinates.html"
    write_coordinates(found, page)
    if as_json:
        powers = [
            {"parametrization": name, "step": step, "layer": layer, "power": power}
            for (name, step, layer), power in found.powers.items()
        ]
        sizes = [row._asdict() for row in found.rows]
        print_json(
            {
                "output": str(page),
                "study": found.study,
                "values": found.values,
                "sizes": sizes,
                "powers": powers,
            }
        )
        return
    for name, words in steepest_in_words(found):
        typer.echo(f"{name}: {words}")
    typer.echo(f"{page} written")


def _widths(text: str | None) -> list[int]:
    if text is None:
        return []
    if not (found := whole_numbers(text)):
        raise BadInput(Problem(f"--widths {text}", "whole numbers above 0, such as 64,128,256"))
    return found
