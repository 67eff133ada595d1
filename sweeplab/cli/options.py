"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Lab = Annotated[
    Path | None,
    typer.Option("--lab", help="Folder of all studies, checkpoints and tracking.  [default: lab, or SWEEPLAB_LAB]"),
]
Name = Annotated[str | None, typer.Option("--name", help="Another name for the study than its file gives.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-o", "--override", metavar="NAME=VALUE", help="Set a hyperparameter or a part, such as budget.time=10m."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
