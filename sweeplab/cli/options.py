"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Lab = Annotated[
    Path | None,
    typer.Option(
        "--lab",
        metavar="FOLDER",
        help="Where studies, checkpoints and tracking lie.  [default: SWEEPLAB_LAB, else lab]",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Another name than the file gives.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--override",
        metavar="NAME=VALUE",
        help="Set a hyperparameter, or a part such as budget.time=10m; as often as you like.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
