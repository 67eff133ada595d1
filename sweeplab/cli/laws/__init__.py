"""What `laws` commands share: the points of a table's file or of studies, and how numbers are printed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sweeplab.cli.options import argument, option, studies
from sweeplab.cli.printing import cell_text, print_rows, say
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several

if TYPE_CHECKING:
    from sweeplab.analysis.studies import Counting, Studies
    from sweeplab.laws.points import Points


_MANY, _ENOUGH = 5_000, 1_250  # rows of a table


def _tables_and_studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the tables, folders and studies that complete `incomplete`; of several studies, the last one."""
    from sweeplab.laws.reading import SUFFIXES

    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    names = [f"{each}/" if each.is_dir() else str(each) for each in paths]
    files = [name for name in names if name.startswith(incomplete) and name.endswith((*SUFFIXES, "/"))]
    before, comma, last = incomplete.rpartition(",")
    return [*files, *(f"{before}{comma}{name}" for name in studies(ctx, last))]


Source = Annotated[
    str,
    argument(
        "FILE|STUDY",
        "A .csv, .json, .jsonl or .parquet file, or study names: a,b.",
        autocompletion=_tables_and_studies,
    ),
]
Columns = Annotated[
    str | None,
    option(
        "ROLE=COLUMN,…", "Columns for params, tokens, loss, flops, n_layer, n_embd, group; COLUMN*1e9 scales."
    ),
]
Where = Annotated[
    str | None, option("EXPR", "Use only rows where this holds: \"lr < 1e-3 and optimizer == 'adamw'\".")
]
Count = Annotated[
    str | None,
    option(
        "WHAT=HOW,…",
        "How to count: params=total, active, non-embedding or with-head; flops=counted or 6nd; "
        "loss=nats or bits-per-byte; at=best or final; for a file, rows=best, mean or all per N and D.",
    ),
]
Tuned = Annotated[
    str | None,
    option(
        "HOW",
        "How the points were tuned: each by itself, all by one shared setting, or unknown. "
        " [default: what the trials of a study, or several rows a point, say; else unknown]",
    ),
]
Budget = Annotated[float | None, option("C", "Budget to give N_opt for.  [default: the table's largest]")]
Law = Annotated[str, option("LAW", "A law, as in `laws fit`.")]


def counting_of(
    columns: str | None, count: str | None, where: str | None = None, tuned: str | None = None
) -> Counting:
    """Return what --columns, --count, --where and --tuned ask for."""
    from sweeplab.analysis.studies import Counting
    from sweeplab.laws.columns import Conventions, parse_columns, parse_conventions
    from sweeplab.laws.points import parse_tuned

    conventions = parse_conventions(count) if count else Conventions()
    named = parse_columns(columns) if columns else {}
    return Counting(conventions, named, where or "", parse_tuned(tuned or ""))


class Read(NamedTuple):
    """The points of a source, how they are counted, and their studies (None for a file)."""

    points: Points
    counting: Counting
    studies: Studies | None


def read_source(
    source: str,
    columns: str | None,
    count: str | None,
    lab: Path | None,
    where: str | None = None,
    tuned: str | None = None,
) -> Read:
    """Read a file, or the studies that the source names, with commas between them."""
    counting = counting_of(columns, count, where, tuned)
    if is_file(source):
        path = Path(source)
        points = counting.of_file(path).of_new_text()
        if points.n > _MANY:
            word = "row" if path.suffix == ".parquet" else "line"
            thinned = f"--where '{word} % {points.n // _ENOUGH} == 0' takes {_ENOUGH:,} of them"
            hint = f"{several(points.n, 'row')} are read; fitting them takes a while; {thinned}"
            print(hint, file=sys.stderr, flush=True)
        return Read(points, counting, None)
    every = studies_from(source, lab)
    studies = every.only(counting.where)
    counting = replace(counting, conventions=studies.settled(counting.conventions))
    points = studies.points(counting.columns, counting.conventions).tuned_as(counting.tuned)
    return Read(points.left_out(f"not where {where}", len(every.runs) - len(studies.runs)), counting, studies)


def studies_from(source: str, lab: Path | None) -> Studies:
    """Read the studies of a comma-separated list, in which a file is refused."""
    from sweeplab.analysis.studies import read_studies

    names = names_in(source)
    for name in filter(is_file, names):
        raise BadInput(Problem(f"{name!r} is a file", "studies, with commas between them"))
    return read_studies(lab, names)


def names_in(text: str) -> list[str]:
    """Split a comma-separated list of names."""
    return [name.strip() for name in text.split(",")]


def is_file(source: str) -> bool:
    """Return whether a source is a table's file: an existing file, or a name with a table's suffix."""
    from sweeplab.laws.reading import is_table

    path = Path(source)
    return path.is_file() or ("," not in source and is_table(path))


# The columns of text in a table of numbers.
NUMBER_TEXT = ("quantity", "verdict", "meaning")


def number_row(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a number with its interval and verdict as a row of a table."""
    ends = {end: cell_text(entry[end]) for end in ("low", "high")}
    row = {"quantity": name, "value": entry["value"], **ends}
    return row | {"verdict": entry["verdict"], "meaning": entry["meaning"]}


def say_reasons(entries: Mapping[str, Mapping[str, Any]], prefix: str = "") -> None:
    """Say why numbers are not identified, those with the same reason in one line."""
    reasons: dict[str, list[str]] = {}
    for name, entry in entries.items():
        if entry["verdict"] != "identified":
            reasons.setdefault(f"{entry['verdict']}: {entry['why']}", []).append(name)
    for reason, names in reasons.items():
        say(f"{prefix}{', '.join(names)}: {reason}")


def print_numbers(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Print numbers as a table, then why some of them are not identified."""
    print_rows([number_row(name, entry) for name, entry in entries.items()], text=NUMBER_TEXT)
    say()
    say_reasons(entries)
