"""Read tables of hyperparameters from a Markdown document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import on_one_line
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameter, canonical
from sweeplab.study.file.entries import (
    LONGEST,
    NOT_SAID,
    NOTE,
    RANGES,
    parse_value,
    read_range,
)
from sweeplab.study.file.parse import file_text
from sweeplab.study.problems import LENGTHS

# Headings in lower case, without markup. Among several columns of values the first matching pattern decides.
_NAME_HEADING = re.compile(
    r"(hyper[- ]?)?param(eter)?s?( name)?|names?|keys?|settings?|options?|arguments?"
)
_VALUE_HEADINGS = (
    re.compile(r"(sample|example|chosen|our|used|my)( (values?|settings?))?"),
    re.compile(r"(?!.*\b(range|allowed|possible|valid|min\w*|max\w*)\b).*\bvalues?\b.*"),
    re.compile(r"defaults?|settings?"),
)
_RANGE_HEADING = re.compile(
    r"((search|tuning|sweep|suggested|typical)[- ])?(ranges?|space)|(values )?to try|candidates"
)


@dataclass
class MarkdownTables:
    """The merged content of a document's tables of hyperparameters.

    `ranges` holds the ranges as entries of `search`. `lines` has the line of each hyperparameter. `notices` say which
    rows are left out, wholly or in part, and why.
    """

    values: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def say(self, line: int, what: str, allowed: str = "", near: str = "") -> None:
        """Add a notice about a line."""
        self.notices.append(on_one_line(f"line {line}: {Problem(what, allowed, near)}"))


def read_tables(path: Path) -> MarkdownTables:
    """Read the tables of hyperparameters in a Markdown file.

    Raises:
        BadInput: the file cannot be read, or has no table of hyperparameters.
    """
    tables = parse_tables(file_text(path))
    if tables == MarkdownTables():
        allowed = "a table with a Parameter and a Value column"
        raise BadInput(Problem("no table of hyperparameters", allowed, file=path))
    return tables


def parse_tables(text: str) -> MarkdownTables:
    """Merge the tables of hyperparameters in `text`; other tables, prose and code are skipped.

    A table counts if its header row has a column of names and one of values, at any position.
    """
    tables = MarkdownTables()
    for table in _tables(text):
        for line, name, written, searched in _rows(table):
            key = canonical(NOTE.sub("", name))
            if key in TABLE:
                _add(tables, TABLE[key], line, written, searched)
                continue
            what = f"unknown hyperparameter {name!r} ({written or 'no value'})"
            tables.say(line, what, near=nearest(key, TABLE))
    lengths = [name for name in LENGTHS if tables.values.get(name) is not None]
    for name in lengths[1:]:
        what = f"{name} is left out: {lengths[0]} sets the length of training"
        tables.say(tables.lines[name], what)
    return tables


def _add(
    tables: MarkdownTables, row: Hyperparameter, line: int, written: str, searched: str
) -> None:
    entry, has_range = None, searched.lower() not in NOT_SAID
    try:
        value = parse_value(row, written)
        if row.name == "wandb_project" and value is not None:
            tables.say(
                line,
                f"{row.name}: {value} is left out: it needs the package wandb and a network",
            )
            return
        if row.category == "precision" and value != AUTO:
            best = f"the study file has {AUTO} instead, the best for the machine that trains"
            tables.say(line, f"{row.name} is {value}; {best}")
            value = AUTO
        _put(tables, tables.values, row.name, line, value)
    except ValueError as error:
        with suppress(BadInput):
            entry = read_range(row, written)
        if entry is None and (written.lower() not in NOT_SAID or not has_range):
            tables.say(line, str(error), row.allowed)
    if has_range:
        entry = None
        with suppress(BadInput):
            entry = read_range(row, searched)
        if entry is None:
            what = f"the range of {row.name} is not understood and is skipped: {searched!r}"
            tables.say(line, what, RANGES)
    if entry is not None:
        _put(tables, tables.ranges, row.name, line, entry)


def _put(
    tables: MarkdownTables, held: dict[str, Any], name: str, line: int, value: Any
) -> None:
    if held.setdefault(name, value) != value:
        kind = "value" if held is tables.values else "range"
        earlier = f"its {kind} {held[name]!r} on line {tables.lines[name]}"
        tables.say(line, f"{name}: {earlier} is replaced by {value!r}")
    held[name], tables.lines[name] = value, line


# The rows of a table, the first of which has its headings: the line of each, and its cells.
Table = list[tuple[int, list[str]]]


def _tables(text: str) -> Iterator[Table]:
    """Yield the tables as GitHub reads them; cells are without emphasis, back-ticks and escapes."""
    syntax = MarkdownIt("zero").enable(["table", "fence", "escape", "backticks", "emphasis"])
    table: Table = []
    for token in syntax.parse(text):
        if token.type == "table_close":
            yield table
            table = []
        elif token.type == "tr_open" and token.map:
            table.append((token.map[0] + 1, []))
        elif table and token.children is not None:
            cell = "".join(part.content for part in token.children)
            table[-1][1].append(" ".join(cell.split())[: LONGEST + 1])


def _rows(table: Table) -> Iterator[tuple[int, str, str, str]]:
    """Yield (line, name, value and range as written) of each row of a table of hyperparameters."""
    columns = _columns(table[0][1])
    if columns is None:
        return
    for number, cells in table[1:]:
        name, value, searched = (cells[index] if index >= 0 else "" for index in columns)
        # A row with only a name is a heading between rows: | **Model** | | |
        if name and sum(cell != "" for cell in cells) > 1:
            yield number, name, value, searched


def _columns(header: Sequence[str]) -> tuple[int, int, int] | None:
    """Return the columns of names, values and ranges; -1 where there are no ranges."""
    headings = [NOTE.sub("", cell).lower() for cell in header]
    name = _first(headings, _NAME_HEADING)
    headings[name] = ""
    value = _first(headings, *_VALUE_HEADINGS)
    if min(name, value) < 0:
        return None
    return name, value, _first(headings, _RANGE_HEADING)


def _first(headings: Sequence[str], *patterns: re.Pattern[str]) -> int:
    for pattern in patterns:
        for at, heading in enumerate(headings):
            if pattern.fullmatch(heading):
                return at
    return -1
