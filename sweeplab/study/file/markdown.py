"""Read tables of hyperparameters from a Markdown document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import ALIASES, AUTO, TABLE
from sweeplab.study.file.document import file_text
from sweeplab.study.file.values import LONGEST, NOT_SAID, NOTE, RANGES, parse_value, plain, read_range

MAX_BYTES = 2**20

# Headings in lower case, without markup. Among several columns of values the first matching pattern decides.
_NAME_HEADING = re.compile(r"(hyper[- ]?)?param(eter)?s?( name)?|names?|keys?|settings?|options?|arguments?")
_VALUE_HEADINGS = (
    re.compile(r"(sample|example|chosen|our|used|my)( (values?|settings?))?"),
    re.compile(r"(?!.*\b(range|allowed|possible|valid|min\w*|max\w*)\b).*\bvalues?\b.*"),
    re.compile(r"defaults?|settings?"),
)
_RANGE_HEADING = re.compile(
    r"((search|tuning|sweep|suggested|typical)[- ])?(ranges?|space)|(values )?to try|candidates"
)

# A code block: up to a line with only its opening fence or a longer one; without such a line, up to the end.
_FENCED = re.compile(r"^ {0,3}(([`~])\2{2,}+).*?(?:^ {0,3}\1\2*\s*?$|\Z)", re.MULTILINE | re.DOTALL)
_COLUMN_EDGE = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r":?-+:?")


@dataclass(frozen=True)
class MarkdownTables:
    """The merged content of a document's tables of hyperparameters.

    `ranges` holds the column of ranges as entries of `search`. `lines` has the line of each of the `values`;
    `problems` are the values that the hyperparameter table refuses; `notices` report skipped rows: unknown names,
    and values that a later row replaces.
    """

    values: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def for_any_machine(self) -> MarkdownTables:
        """Return the tables with machine-dependent hyperparameters set to auto, and a notice for each."""
        own = {
            name: value
            for name, value in self.values.items()
            if TABLE[name].category == "precision" and value != AUTO
        }
        best = f"the study file has {AUTO} instead, the best for the machine that trains"
        said = [f"line {self.lines[name]}: {name} is {value}; {best}" for name, value in own.items()]
        return replace(self, values=self.values | dict.fromkeys(own, AUTO), notices=[*self.notices, *said])


def read_tables(path: Path) -> MarkdownTables:
    """Read the tables of hyperparameters in a Markdown file.

    Raises:
        BadInput: the file cannot be read, or has no table of hyperparameters.
    """
    tables = parse_tables(file_text(path, MAX_BYTES), path)
    if tables == MarkdownTables():
        allowed = "a table with a Parameter and a Value column"
        raise BadInput(Problem("no table of hyperparameters", allowed, file=path))
    return tables


def parse_tables(text: str, file: Path | None = None) -> MarkdownTables:
    """Merge the tables of hyperparameters in `text`; other tables, prose and code are skipped.

    A table counts if its header row has a column of names and one of values, at any position.
    `file` is named in the problems.
    """
    tables = MarkdownTables()
    values, lines = tables.values, tables.lines
    for line, name, written, searched in _rows(text):
        # Normalize the spelling: `Learning rate (peak)` and `LR` are learning_rate.
        key = re.sub(r"[\s-]+", "_", NOTE.sub("", plain(name)).lower())
        row = TABLE.get(key := ALIASES.get(key, key))
        if row is None:
            what = f"unknown hyperparameter {plain(name)!r} ({plain(written) or 'no value'})"
            hint = f"; did you mean {near!r}?" if (near := nearest(key, TABLE)) else ""
            tables.notices.append(f"line {line}: {what}{hint}")
            continue
        try:
            value = parse_value(row, written)
        except ValueError as error:
            tables.problems.append(Problem(str(error), row.allowed, file=file, line=line))
            continue
        if key in values and values[key] != value:
            both = f"{values[key]!r} on line {lines[key]} and {value!r} on line {line}"
            tables.notices.append(f"{key} is {both}; the later value is used")
        values[key], lines[key] = value, line
        if (cell := plain(searched)).lower() not in NOT_SAID:
            if (entry := read_range(row, cell)) is not None:
                tables.ranges[key] = entry
            else:
                passed = f"line {line}: the range of {key} is not understood and is skipped: {cell!r}"
                tables.notices.append(f"{passed}; allowed: {RANGES}")
    return tables


def _rows(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield (line, name, value and range as written) of each row of each table of hyperparameters."""
    above: list[str] = []
    columns: tuple[int, int, int | None] | None = None
    text = _FENCED.sub(lambda code: "\n" * code[0].count("\n"), text)
    for number, line in enumerate(text.split("\n"), start=1):
        cells = _cells(line) if "|" in line else []
        if cells and all(_RULE.fullmatch(cell) for cell in cells):
            columns = columns or (_columns(above) if len(above) == len(cells) else None)
        elif not cells:
            columns = None
        elif columns is not None and len(cells) > max(columns[:2]):
            name, value = (cells[index] for index in columns[:2])
            at = columns[2]
            # A row with only a name is a heading between rows: | **Model** | | |
            if plain(name) and sum(cell != "" for cell in cells) > 1:
                yield number, name, value, cells[at] if at is not None and at < len(cells) else ""
        above = cells


def _cells(line: str) -> list[str]:
    cells = [cell.strip()[: LONGEST + 1] for cell in _COLUMN_EDGE.split(line.strip())]
    return cells[not cells[0] : len(cells) - (not cells[-1])]


def _columns(header: Sequence[str]) -> tuple[int, int, int | None] | None:
    """Return the indices of the columns of names, values and ranges; None where they are missing."""
    headings = [NOTE.sub("", plain(cell)).lower() for cell in header]
    names, *values = (
        [index for index, heading in enumerate(headings) if pattern.fullmatch(heading)]
        for pattern in (_NAME_HEADING, *_VALUE_HEADINGS, _RANGE_HEADING)
    )
    *values, ranges = values
    others = [index for found in values for index in found if index not in names[:1]]
    return (names[0], others[0], next(iter(ranges), None)) if names and others else None
