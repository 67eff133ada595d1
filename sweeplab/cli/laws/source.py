"""Where the points of every `laws` command come from: a table's file, or studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli.completion import tables_and_studies
from sweeplab.errors import BadInput, Problem

if TYPE_CHECKING:
    from sweeplab.analysis.points import Points
    from sweeplab.analysis.studies import Studies

Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE|STUDY",
        help="A .csv or .parquet file, or studies: small,other.",
        show_default=False,
        autocompletion=tables_and_studies,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE=COLUMN,…",
        help="Where params, tokens, loss, flops and group stand; COLUMN*1e9 scales.",
        show_default=False,
    ),
]
Count = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT=HOW,…",
        help="How to count: params=total, active, non-embedding or with-head; flops=counted or 6nd; "
        "loss=nats or bits-per-byte; at=best or final.",
        show_default=False,
    ),
]


def points_from(source: str, columns: str | None, lab: Path | None, count: str | None = None) -> Points:
    """Return the points of a file, or of the studies that the source names, with commas between them.

    Raises:
        BadInput: there is no such file or study, or the table is refused.
    """
    from sweeplab.analysis.columns import parse_columns
    from sweeplab.analysis.conventions import parse_conventions
    from sweeplab.analysis.points import read_points

    asked = parse_columns(columns) if columns else {}
    conventions = parse_conventions(count) if count else None
    if is_file(source):
        return read_points(Path(source), asked, conventions)
    return studies_from(source, lab).points(asked, conventions)


def studies_from(source: str, lab: Path | None) -> Studies:
    """Return the studies of the names between commas.

    Raises:
        BadInput: a file is among them; there is no such study; their losses cannot be compared.
    """
    from sweeplab.analysis.studies import read_studies

    names = [name.strip() for name in source.split(",")]
    if files := [name for name in names if is_file(name)]:
        raise BadInput(Problem(f"{files[0]!r} is a file", "studies, with commas between them"))
    return read_studies(lab, names)


def is_file(source: str) -> bool:
    """Say whether a source is a table's file: one that is there, or a name that could only be one."""
    from sweeplab.analysis.points import SUFFIXES

    path = Path(source)
    return path.is_file() or ("," not in source and path.suffix in SUFFIXES)
