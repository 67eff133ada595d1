"""Where the points of every `laws` command come from: a table's file, or a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sweeplab.analysis.points import Points

Source = Annotated[
    str,
    typer.Argument(metavar="FILE|STUDY", help="A .csv or .parquet file, or a study.", show_default=False),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE=COLUMN,…",
        help="Where params, tokens, loss, flops and group stand; COLUMN*1e9 scales.",
        show_default=False,
    ),
]


def points_from(source: str, columns: str | None, lab: Path | None) -> Points:
    """Return the points of a file, or of a study where the source has no file's suffix.

    Raises:
        BadInput: there is no such file or study, or the table is refused.
    """
    from sweeplab.analysis.points import SUFFIXES, parse_columns, read_points, study_points

    asked = parse_columns(columns) if columns else {}
    path = Path(source)
    if path.suffix in SUFFIXES or path.is_file():
        return read_points(path, asked)
    from sweeplab.analysis.table import runs_table
    from sweeplab.study.listing import find_study, tracking_uri_of

    folder = find_study(lab, source)
    return study_points(runs_table(folder.lab, folder.name, tracking_uri_of(folder)), asked)
