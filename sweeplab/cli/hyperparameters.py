"""`sweeplab hyperparameters` and `schema`: what a study file may hold, for people and for editors."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from typing import Annotated, Any

import typer

from sweeplab.cli.options import flag, option
from sweeplab.cli.printing import console, print_json
from sweeplab.errors import BadInput, Problem, conflict, nearest
from sweeplab.formatting import yaml_text
from sweeplab.hyperparameters import CATEGORIES, MINIMAL, TABLE, Hyperparameter
from sweeplab.study.file.template import range_in_words


def hyperparameters(
    category: Annotated[str | None, option("NAME", "Only the rows of this category.")] = None,
    minimal: Annotated[bool, flag("Only the eight that matter most.", "--minimal")] = False,
    as_json: Annotated[bool, flag("Print JSON: one object per row.", "--json")] = False,
    markdown: Annotated[bool, flag("Print a Markdown table.", "--markdown")] = False,
) -> None:
    """Print the table of hyperparameters.

    Each row has a sample value, the suggested search range, and the meaning.

    \b
    $ sweeplab hyperparameters --category model
    """
    if as_json and markdown:
        raise BadInput(conflict("--json", "--markdown"))
    rows = [row for row in TABLE.values() if not minimal or row.name in MINIMAL]
    if category:
        names = {name.lower(): key for key, title in CATEGORIES.items() for name in (key, title)}
        if category.lower() not in names:
            what, known = f"unknown category {category!r}", ", ".join(CATEGORIES)
            raise BadInput(Problem(what, known, nearest(category, names)))
        rows = [row for row in rows if row.category == names[category.lower()]]
    if as_json:
        print_json([asdict(row) | {"default": row.default, "allowed": row.allowed} for row in rows])
    elif markdown:
        typer.echo(_markdown(rows))
    else:
        _print_table(rows)


def schema() -> None:
    """Print the JSON Schema of study files.

    Editors use it for completion; the shipped studies name it as their schema.

    \b
    $ sweeplab schema > studies/.schema.json
    """
    from sweeplab.study.file.schema import study_schema

    typer.echo(json.dumps(study_schema(), indent=2))


def _markdown(rows: list[Hyperparameter]) -> str:
    headings = ("Category", "Parameter", "Sample Value", "Allowed", "Suggested", "Meaning")
    lines = [tuple(f"**{heading}**" for heading in headings), ("---",) * len(headings)]
    for row in rows:
        value = "*(auto from tokenizer)*" if row.name == "vocab_size" else f"`{_python(row.sample)}`"
        cells = (f"`{row.name}`", value, row.allowed, range_in_words(row.suggested), row.meaning)
        lines.append((CATEGORIES[row.category], *(cell.replace("|", "\\|") for cell in cells)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _print_table(rows: list[Hyperparameter]) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    name = Column("Parameter", style="cyan", no_wrap=True)
    table = Table(name, "Sample value", "Suggested", "Meaning", box=None, header_style="bold", pad_edge=False)
    for category, members in groupby(rows, lambda row: row.category):
        if table.row_count:
            table.add_row()
        table.add_row(Text(CATEGORIES[category], "bold"))
        for row in members:
            default = f", default {yaml_text(row.default)}" * (row.default != row.sample)
            unit = f" ({row.unit})" * (row.unit not in row.meaning.lower())
            cells = (f"{_python(row.sample)}{default}", range_in_words(row.suggested), f"{row.meaning}{unit}")
            table.add_row(f"  {row.name}", *cells)
    console().print(table)


def _python(value: Any) -> str:
    """Write a value as Python does, but floats as people do, and with double quotes: 3e-4, "cosine"."""
    if isinstance(value, float):
        return yaml_text(value)
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)
