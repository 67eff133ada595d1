"""`sweeplab model params`: how many parameters each part of a model has, and by which formula."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeplab.cli.options import AsJson, Overrides, Preset
from sweeplab.errors import BadInput, Problem

if TYPE_CHECKING:
    from sweeplab.runs.models import Sized


def params(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A study file.", show_default=False)
    ] = None,
    preset: Preset = None,
    override: Overrides = None,
    cell: Annotated[
        str | None, typer.Option(metavar="CELL", help="Only this cell of the file.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count a model's parameters, part by part.

    Each part stands beside its closed formula, a layer and in all. Without file and preset: the
    model of the table's defaults.

    \b
    $ sweeplab model params --preset gpt2
    $ sweeplab model params --preset transformer-base -o vocab_size=30000
    $ sweeplab model params studies/small.yaml --json
    """
    from sweeplab.cli.tables import print_json
    from sweeplab.runs.models import model_of, models_of

    if file and preset:
        raise BadInput(Problem("a file and a preset", "one of them; a file may have `preset: NAME`"))
    if cell and not file:
        raise BadInput(Problem("a cell is a study file's", "FILE --cell CELL"))
    found = models_of(file, override or (), cell) if file else [model_of(preset, override or ())]
    if as_json:
        print_json(found[0].as_dict() if len(found) == 1 else {"cells": [each.as_dict() for each in found]})
    elif len(found) == 1:
        _show(found[0].as_dict())
    else:
        _show_cells(found)


def _show(found: dict[str, Any]) -> None:
    from sweeplab.cli.tables import console, print_rows

    out = console()

    def say(text: str = "") -> None:
        out.print(text, markup=False, soft_wrap=True)

    say(f"{found['model']}: {found['total']:,} parameters")
    if found["active"] < found["total"]:
        say(f"{found['active']:,} of them active: a token meets only the experts that it is given to")
    say()
    print_rows(
        [
            {
                "part": each["component"],
                "of": each["place"],
                "formula": each["formula"],
                "each": f"{each['each']:,}",
                "layers": each["layers"],
                "parameters": f"{each['parameters']:,}",
            }
            for each in found["parts"]
        ],
        text=("part", "of", "formula"),
    )
    say()
    print_rows(
        [
            {"component": name, "parameters": f"{count:,}", "share": f"{count / found['total']:.1%}"}
            for name, count in {**found["components"], "total": found["total"]}.items()
        ],
        text=("component",),
    )
    say()
    say(", ".join(f"{letter} {name} {size:,}" for letter, (name, size) in found["letters"].items()))
    for note in found["notes"]:
        say(note)


def _show_cells(found: Sequence[Sized]) -> None:
    from sweeplab.cli.tables import print_rows

    counted = [each.as_dict() for each in found]
    names = list(dict.fromkeys(name for each in counted for name in each["components"]))
    rows = [
        {
            "cell": each["model"],
            **{name: f"{each['components'].get(name, 0):,}" for name in names},
            "total": f"{each['total']:,}",
        }
        for each in counted
    ]
    print_rows(rows, text=("cell",))
