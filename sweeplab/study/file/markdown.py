"""Read tables of hyperparameters from a document: Markdown and HTML tables, and CSV files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, Problem, conflict, nearest
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameter, canonical, is_number
from sweeplab.study.file.entries import (
    LONGEST,
    NOT_SAID,
    NOTE,
    RANGES,
    parse_value,
    plain,
    read_range,
    wrong_entry,
)
from sweeplab.study.file.parse import file_text
from sweeplab.study.file.reading import read_text
from sweeplab.study.problems import LENGTHS, escaped, shown
from sweeplab.study.search import Derived, SearchSpec, is_searched

MAX_BYTES = 2**20
MOST_SAID = 300  # characters of a notice
# Hyperparameters that a study has only where its user asks for them, and what they need.
ASKED_FOR = {"wandb_project": "the package wandb and a network"}

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

    `ranges` holds the ranges as entries of `search`. `lines` has the line of each hyperparameter. `notices` say which
    rows are left out, wholly or in part, and why.
    """

    values: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def for_any_machine(self) -> MarkdownTables:
        """Return the tables with machine-dependent hyperparameters set to auto, and a notice for each.

        Hyperparameters that need an optional package or a network are left out.
        """
        replaced = {
            name: value
            for name, value in self.values.items()
            if TABLE[name].category == "precision" and value != AUTO
        }
        best = f"the study file has {AUTO} instead, the best for the machine that trains"
        notes = [f"line {self.lines[name]}: {name} is {value}; {best}" for name, value in replaced.items()]
        values = self.values | dict.fromkeys(replaced, AUTO)
        for name, needed in ASKED_FOR.items():
            value = values.pop(name, None)
            if value is not None:
                line = self.lines[name]
                notes.append(_printable(f"line {line}: {name}: {value} is left out: it needs {needed}"))
        return replace(self, values=values, notices=[*self.notices, *notes])

    def study(self, write: Callable[[MarkdownTables], str]) -> tuple[str, list[str]]:
        """Return the text of a study file that `write` makes of the tables, and what is left out of it.

        Rows that do not fit together, or that no study can have, are left out one by one until the study is valid.

        Raises:
            BadInput: the study is not valid without these tables either.
        """
        tables, text = self, ""
        while True:
            try:
                text = write(tables)
                spec = read_text(text, Path("study.yaml"))
                break
            except BadInput as error:
                if not tables.lines:
                    raise
                tables = tables._without(error.problems[0], text)
        notices = [*tables.notices]
        for name, line in tables.lines.items():
            if name in tables.ranges and name not in spec.search and name not in spec.grid:
                why = "--search names others"
                if not is_searched(TABLE[name]):
                    why = f"it depends on the machine, --grid {name} makes cells of it"
                notices.append(f"line {line}: the range of {name} is not searched: {why}")
            if name in tables.values and name in spec.search and name not in spec.first_trial:
                notices.append(f"line {line}: {_untried(name, tables.values[name], spec.search[name])}")
            if name in tables.values and name not in {*spec.fixed, *spec.search, *spec.grid, "seed"}:
                why = conflict(", ".join(LENGTHS[:-1]), LENGTHS[-1]).what
                notices.append(f"line {line}: {name} is left out: {why}")
        return text, notices

    def _without(self, problem: Problem, text: str) -> MarkdownTables:
        there = ["", *text.splitlines()][problem.line or 0].partition(":")[0]
        words = re.findall(r"\w+", f"{there} {problem.what}")
        name = next((word for word in words if word in self.lines), [*self.lines][-1])
        value = self.values.get(name, self.ranges.get(name))
        notice = _printable(f"line {self.lines[name]}: {name}: {value} does not fit: {problem.what}")
        tables = deepcopy(replace(self, notices=[*self.notices, notice]))
        for part in (tables.values, tables.ranges, tables.lines):
            part.pop(name, None)
        return tables


def _untried(name: str, value: Any, entry: SearchSpec) -> str:
    if isinstance(entry, Derived):
        return f"{name} is derived, not {shown(value)}, as it depends on what is searched"
    return f"{name} {shown(value)} is not in its range: the first trial draws one"


def read_tables(path: Path) -> MarkdownTables:
    """Read the tables of hyperparameters in a Markdown, HTML or CSV file.

    Raises:
        BadInput: the file cannot be read, or has no table of hyperparameters.
    """
    text = file_text(path, MAX_BYTES)
    if path.suffix.lower() in DELIMITED:
        try:
            tables = _merged([_delimited(text)])
        except csv.Error as error:
            raise BadInput(Problem(str(error), file=path)) from error
    else:
        tables = parse_tables(text)
    if tables == MarkdownTables():
        allowed = "a table with a Parameter and a Value column"
        raise BadInput(Problem("no table of hyperparameters", allowed, file=path))
    return tables


def parse_tables(text: str) -> MarkdownTables:
    """Merge the Markdown and HTML tables of hyperparameters in `text`; other tables, prose and code are skipped.

    A table counts if its header row has a column of names and one of values, at any position. A range that does not
    contain its hyperparameter's value is widened.
    """
    text = _FENCED.sub(lambda code: "\n" * code[0].count("\n"), text)
    html = _HTMLTables()
    if "<table" in text.lower():
        html.feed(text)
    in_order = sorted(
        (table for table in (*_markdown(text), *html.tables) if table), key=lambda table: table[0][0]
    )
    return _merged(in_order)


def _merged(in_order: Iterable[Table]) -> MarkdownTables:
    tables = MarkdownTables()
    for table in in_order:
        for line, name, written, searched in _rows(table):
            key = canonical(NOTE.sub("", plain(name)))
            if key in TABLE:
                notices = _add(tables, key, line, written, searched)
            else:
                what = f"unknown hyperparameter {plain(name)!r} ({plain(written) or 'no value'})"
                near = nearest(key, TABLE)
                notices = [what + (f"; did you mean {near!r}?" if near else "")]
            tables.notices.extend(_printable(f"line {line}: {notice}") for notice in notices)
    for name, entry in tables.ranges.items():
        wider = _widened(TABLE[name], entry, tables.values[name]) if name in tables.values else None
        if wider is not None:
            what = f"the range of {name} is widened to contain {shown(tables.values[name])}"
            tables.ranges[name] = wider
            tables.notices.append(f"line {tables.lines[name]}: {what}")
    return tables


def _widened(row: Hyperparameter, entry: Any, value: Any) -> Any:
    """Return a range or list of choices that contains a value too; None where it does already or cannot."""
    if isinstance(entry, list):
        if value in entry:
            return None
        return [*entry, value]
    if not isinstance(entry, dict) or "min" not in entry or not is_number(value):
        return None
    if entry["min"] <= value <= entry["max"]:
        return None
    wider = {**entry, "min": min(entry["min"], value), "max": max(entry["max"], value)}
    without_step = {key: each for key, each in wider.items() if key != "step"}
    for candidate in (wider, without_step):
        if not wrong_entry(row, candidate):
            return candidate
    return None


def _add(tables: MarkdownTables, name: str, line: int, written: str, searched: str) -> list[str]:
    row, notices = TABLE[name], list[str]()
    read: dict[str, tuple[dict[str, Any], Any]] = {}
    try:
        read["value"] = tables.values, parse_value(row, written)
    except ValueError as error:
        entry = read_range(row, written)
        if entry is not None:
            read["range"] = tables.ranges, entry
        elif plain(written).lower() not in NOT_SAID:
            notices.append(f"{error}; allowed: {row.allowed}")
    cell = plain(searched)
    if cell.lower() not in NOT_SAID:
        entry = read_range(row, cell)
        if entry is None:
            what = f"the range of {name} is not understood and is skipped: {cell!r}"
            notices.append(f"{what}; allowed: {RANGES}")
        else:
            read["range"] = tables.ranges, entry
    if not read and not notices:
        notices.append(f"{name} has no value")
    for kind, (held, value) in read.items():
        if held.setdefault(name, value) != value:
            earlier = f"its {kind} {held[name]!r} on line {tables.lines[name]} is replaced by {value!r}"
            notices.append(f"{name}: {earlier}")
        held[name], tables.lines[name] = value, line
    return notices


def _printable(text: str) -> str:
    printable = escaped(text)
    if len(printable) <= MOST_SAID:
        return printable
    return f"{printable[: MOST_SAID - 1]}…"


# The rows of a table, the first of which has its headings: the line of each, and its cells.
Table = list[tuple[int, list[str]]]
DELIMITED = (".csv", ".tsv")
DELIMITERS = ",;\t"


def _markdown(text: str) -> Iterator[Table]:
    above: list[str] = []
    table: Table = []
    for number, line in enumerate(text.split("\n"), start=1):
        cells = _cells(line) if "|" in line else []
        if cells and all(_RULE.fullmatch(cell) for cell in cells):
            if not table and len(above) == len(cells):
                table = [(number - 1, above)]
        elif cells and table:
            table.append((number, cells))
        else:
            yield table
            table = []
        above = cells
    yield table


class _HTMLTables(HTMLParser):
    """Collects the tables of an HTML document, or of HTML inside Markdown; a cell is its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self._is_in_cell = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append((self.getpos()[0], []))
        self._is_in_cell = tag in ("td", "th") or (self._is_in_cell and tag not in ("table", "tr"))
        if tag in ("td", "th") and self.tables and self.tables[-1]:
            self.tables[-1][-1][1].append("")
        if tag == "sup" and self._is_in_cell:
            self.handle_data("^")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "tr", "table"):
            self._is_in_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_in_cell and self.tables and self.tables[-1] and self.tables[-1][-1][1]:
            cells = self.tables[-1][-1][1]
            cells[-1] = (cells[-1] + data)[: LONGEST + 1]


def _delimited(text: str) -> Table:
    delimiter = max(DELIMITERS, key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return [(reader.line_num, [cell.strip()[: LONGEST + 1] for cell in cells]) for cells in reader if cells]


def _rows(table: Table) -> Iterator[tuple[int, str, str, str]]:
    """Yield (line, name, value and range as written) of each row of a table of hyperparameters."""
    columns = _columns(table[0][1]) if table else None
    if columns is None:
        return
    for number, cells in table[1:]:
        by_column = dict(enumerate(cells))
        name, value, searched = (" ".join(by_column.get(index, "").split()) for index in columns)
        # A row with only a name is a heading between rows: | **Model** | | |
        if len(cells) > max(columns[:2]) and plain(name) and sum(cell != "" for cell in cells) > 1:
            yield number, name, value, searched


def _cells(line: str) -> list[str]:
    cells = [cell.strip()[: LONGEST + 1] for cell in _COLUMN_EDGE.split(line.strip())]
    return cells[not cells[0] : len(cells) - (not cells[-1])]


def _columns(header: Sequence[str]) -> tuple[int, int, int] | None:
    """Return the columns of names, values and ranges; -1 where there are no ranges."""
    headings = [NOTE.sub("", " ".join(plain(cell).split())).lower() for cell in header]
    names, *values = (
        [index for index, heading in enumerate(headings) if pattern.fullmatch(heading)]
        for pattern in (_NAME_HEADING, *_VALUE_HEADINGS, _RANGE_HEADING)
    )
    *values, ranges = values
    others = [index for found in values for index in found if index not in names[:1]]
    return (names[0], others[0], [*ranges, -1][0]) if names and others else None
