"""What `laws` commands read: the points of a table's file or of studies, and the ledger of forecasts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sweeplab.cli.completion import tables_and_studies
from sweeplab.cli.options import argument, option
from sweeplab.errors import BadInput, Problem

if TYPE_CHECKING:
    from sweeplab.analysis.ledger.targets import Counting
    from sweeplab.analysis.points import Points
    from sweeplab.analysis.studies import Studies

Source = Annotated[
    str,
    argument("FILE|STUDY", "A .csv or .parquet file, or studies: a,b.", autocompletion=tables_and_studies),
]
Columns = Annotated[
    str | None, option("ROLE=COLUMN,…", "Columns of params, tokens, loss, flops, group; COLUMN*1e9 scales.")
]
Count = Annotated[
    str | None,
    option(
        "WHAT=HOW,…",
        "How to count: params=total, active, non-embedding or with-head; flops=counted or 6nd; "
        "loss=nats or bits-per-byte; at=best or final.",
    ),
]
Delta = Annotated[str, option("DELTA", "Huber's delta in log units, auto (1.345 sigma), or least-squares.")]
Budget = Annotated[float | None, option("C", "Budget to give N_opt for.  [default: the table's largest]")]
Law = Annotated[str, option("LAW", "A law, as in `laws fit`.")]
Ledger = Annotated[Path | None, option("FILE", "Sealed forecasts.  [default: LAB/ledger.jsonl]")]


def counting_of(columns: str | None, count: str | None) -> Counting:
    """Return what --columns and --count ask for.

    Raises:
        BadInput: an unknown role or convention.
    """
    from sweeplab.analysis.columns import parse_columns
    from sweeplab.analysis.conventions import Conventions, parse_conventions
    from sweeplab.analysis.ledger.targets import Counting

    conventions = parse_conventions(count) if count else Conventions()
    return Counting(conventions, parse_columns(columns) if columns else {})


def points_from(source: str, columns: str | None, lab: Path | None, count: str | None = None) -> Points:
    """Return the points of a file, or of the studies that the source names, with commas between them.

    Raises:
        BadInput: there is no such file or study, or the table is refused.
    """
    from sweeplab.analysis.points import read_points

    counting = counting_of(columns, count)
    if is_file(source):
        return read_points(Path(source), counting.columns, counting.conventions)
    return studies_from(source, lab).points(counting.columns, counting.conventions)


def studies_from(source: str, lab: Path | None) -> Studies:
    """Return the studies of the names between commas.

    Raises:
        BadInput: a file is among them; there is no such study; their losses cannot be compared.
    """
    from sweeplab.analysis.studies import read_studies

    names = names_in(source)
    if files := [name for name in names if is_file(name)]:
        raise BadInput(Problem(f"{files[0]!r} is a file", "studies, with commas between them"))
    return read_studies(lab, names)


def names_in(text: str) -> list[str]:
    """Return the names between commas."""
    return [name.strip() for name in text.split(",")]


def is_file(source: str) -> bool:
    """Return whether a source is a table's file: an existing one, or a name that could only be one."""
    from sweeplab.analysis.points import SUFFIXES

    path = Path(source)
    return path.is_file() or ("," not in source and path.suffix in SUFFIXES)


def ledger_file(given: Path | None, lab: Path | None) -> Path:
    """Return the ledger's path: the given one, else the lab's."""
    from sweeplab.analysis.ledger.chain import FILE_NAME
    from sweeplab.records.folders import lab_folder

    return (given or lab_folder(lab) / FILE_NAME).expanduser().absolute()
