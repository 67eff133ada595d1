"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.completion import presets, studies

Lab = Annotated[
    Path | None,
    typer.Option(
        "--lab",
        metavar="FOLDER",
        help="Where studies, checkpoints and tracking lie.  [default: SWEEPLAB_LAB, else lab]",
        show_default=False,
    ),
]
StudyName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the study.", show_default=False, autocompletion=studies),
]
InCell = Annotated[
    str | None,
    typer.Option(
        "--cell",
        metavar="CELL",
        help="The trial's cell, where several have one of its number.",
        show_default=False,
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A study's NAME (its best run), NAME/CELL, NAME/CELL/TRIAL-SEED, an MLflow run id, or a folder "
        "with a checkpoint.",
        show_default=False,
        autocompletion=studies,
    ),
]
Prompt = Annotated[
    str,
    typer.Option(
        "--prompt", metavar="TEXT", help="What the model reads; [MASK] is a hole in it.", show_default=False
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
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
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Take the values of a published model: gpt2, bert-base, t5-small, …",
        show_default=False,
        autocompletion=presets,
    ),
]
AllowPlugins = Annotated[
    bool, typer.Option("--allow-plugins", help="Import the Python files that the study names.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what goes wrong.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def whole_numbers(text: str) -> list[int]:
    """Return the numbers above 0 of a list such as 1,2,4, in order and each once; none where it is no such list."""
    parts = [part.strip() for part in text.split(",")]
    are_numbers = all(part.isdecimal() and int(part) > 0 for part in parts)
    return sorted({int(part) for part in parts}) if are_numbers else []
