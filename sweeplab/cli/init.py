"""`sweeplab study init`: a study file to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.files import Force, file_of, write_file
from sweeplab.cli.options import Preset
from sweeplab.errors import BadInput, Problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the study, and of its file.")],
    minimal: Annotated[
        bool, typer.Option("--minimal", help="Write only the eight hyperparameters that matter most.")
    ] = False,
    search: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="What to tune, separated by commas."),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE.md", help="Take the values from a Markdown file's tables."),
    ] = None,
    preset: Preset = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write it, if not studies/NAME.yaml."),
    ] = None,
    force: Force = False,
) -> None:
    """Write a commented study file.

    \b
    $ sweeplab study init mine --minimal --search learning_rate,dropout
    $ sweeplab study init mine --preset nanogpt-char
    """
    from sweeplab.study.file.markdown import MarkdownTables, read_tables
    from sweeplab.study.file.reading import preset as preset_of
    from sweeplab.study.file.template import study_text

    if not _NAME.fullmatch(name):
        raise BadInput(Problem(f"the name {name!r} cannot be a file's", "letters, digits and . _ - inside"))
    tables = read_tables(table) if table else MarkdownTables()
    if tables.problems:
        raise BadInput(*tables.problems)
    names = None if search is None else [each.strip() for each in search.split(",") if each.strip()]
    values = {**(preset_of(preset).values if preset else {}), **tables.values}
    text = study_text(name, minimal, names, values)
    file = file_of(name, output)
    write_file(file, text, force)
    for notice in (*tables.unknown, *tables.contradictions):
        typer.echo(f"{table}: {notice}", err=True)
    typer.echo(f"wrote {file}")
    typer.echo(f"next: sweeplab study plan {file}")
