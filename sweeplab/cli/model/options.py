"""Options that several commands of `sweeplab model` share."""

from __future__ import annotations

from typing import Annotated

import typer

from sweeplab.cli.completion import presets

Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A published model: gpt2, bert-base, transformer-base, …",
        show_default=False,
        autocompletion=presets,
    ),
]
