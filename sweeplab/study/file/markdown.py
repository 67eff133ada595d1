"""Tables of hyperparameters, out of a Markdown document that a person wrote."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameter
from sweeplab.study.file.document import file_text

MAX_BYTES = 2**20

# Headings, lower case and without marks. Of several columns of values the first pattern that fits decides.
_NAME_HEADING = re.compile(r"(hyper[- ]?)?param(eter)?s?( name)?|names?|keys?|settings?|options?|arguments?")
_VALUE_HEADINGS = (
    re.compile(r"(sample|example|chosen|our|used|my)( (values?|settings?))?"),
    re.compile(r"(?!.*\b(range|allowed|possible|valid|min\w*|max\w*)\b).*\bvalues?\b.*"),
    re.compile(r"defaults?|settings?"),
)

# A block of code: to a line with the fence that opened it, or a longer one, and nothing else; else to the end.
_FENCED = re.compile(r"^ {0,3}(([`~])\2{2,}+).*?(?:^ {0,3}\1\2*\s*?$|\Z)", re.MULTILINE | re.DOTALL)
_COLUMN_EDGE = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r":?-+:?")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_EMPHASIS = re.compile(r"(\*{1,3}|(?<!\w)_{1,3})(?=\S)(.{1,200}?)(?<=\S)\1(?!\w)")
_NOTE = re.compile(r"(?<=[\w.)\]\"'”’])\s*\(.*\)$")

_NOT_SAID = {"", "-", "–", "—", "n/a", "?"}
_SWITCHED_OFF = {"none", "null", "off", "disabled"}
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NUMBER = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:[,_ ]\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_POWER_OF_TEN = re.compile(r"(?:([+-]?\d+(?:\.\d+)?)\s*[x×·*]\s*)?10\^\{?([+-]?\d+)\}?")
_SUPERSCRIPT = re.compile(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_UNRAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")


@dataclass(frozen=True)
class MarkdownTables:
    """What a document's tables of hyperparameters say, all of them merged.

    `lines` has the line of each of the `values`; `problems` are the values that the table refuses; `notices` say which
    rows were passed over: names that are unknown, and values that a later row replaces.
    """

    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


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
    """Merge the tables of hyperparameters in `text`; other tables, prose and code are passed over.

    A table counts when its header row has a column of names and one of values, wherever they stand.
    `file` is named in the problems.
    """
    tables = MarkdownTables()
    values, lines = tables.values, tables.lines
    for line, name, written in _rows(text):
        # As the table spells it: `Learning rate (peak)` is learning_rate.
        key = re.sub(r"[\s-]+", "_", _NOTE.sub("", plain(name)).lower())
        row = TABLE.get(key)
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
            tables.notices.append(f"{key} is {both}; the later is taken")
        values[key], lines[key] = value, line
    return tables


def parse_value(row: Hyperparameter, written: str) -> Any:
    """Return the value of `row` that a person wrote: `**3e-4**`, `10,000`, `(0.9, 0.95)`, `*(auto)*`.

    A note in brackets after the value is passed over: `0.1 (or 0.2)` is 0.1.

    Raises:
        ValueError: it is no value, or none that the row takes; says what was written.
    """
    text = plain(written)
    for value in _readings(row, _NOTE.sub("", text)):
        try:
            return row.check(value)
        except ValueError:
            continue
    raise ValueError(f"{row.name} is written {text!r}" if text else f"{row.name} has no value")


def plain(cell: str) -> str:
    """Return a cell's text without emphasis, back-ticks and escapes."""
    # Escaped characters hide in the private use area, so that an escaped star is no emphasis.
    text = _ESCAPED.sub(lambda match: chr(0xE000 + ord(match[1])), cell).replace("`", "").strip()
    while text != (stripped := _EMPHASIS.sub(r"\2", text)):
        text = stripped
    return re.sub("[\ue021-\ue07e]", lambda match: chr(ord(match[0]) - 0xE000), text).strip()


def _readings(row: Hyperparameter, text: str) -> Iterator[Any]:
    """Yield what the text may mean for this kind of row, the likeliest first."""
    word = text.strip("()[] ").lower()
    if word in _NOT_SAID:
        return
    if row.automatic and word.startswith(AUTO):
        yield AUTO
    if row.optional and word in _SWITCHED_OFF:
        yield None
    if row.kind == "str":
        unquoted = text.strip("\"'“”‘’")
        yield from (unquoted, unquoted.lower())
    elif row.kind == "bool":
        yield _TRUTHS.get(word, text)
    elif row.kind == "floats":
        yield [_number(part) for part in re.split("[,;/]", text.strip("()[] "))]
    else:
        yield _number(text)
        if row.unit:
            yield _number(re.sub(rf"\s+{row.unit}$", "", text))


def _number(text: str) -> float:
    """Return the number that is written, or NaN, which no row takes."""
    text = re.sub("[\u00a0\u2009\u202f]", " ", text.strip().replace("−", "-"))
    text = _SUPERSCRIPT.sub(lambda match: "^" + match[0].translate(_UNRAISED), text)
    if _NUMBER.fullmatch(text):
        return float(re.sub("[,_ ]", "", text))
    if match := _POWER_OF_TEN.fullmatch(text):
        return float(f"{match[1] or 1}e{match[2]}")
    return math.nan


def _rows(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, name, value as written) of each row of each table of hyperparameters."""
    above: list[str] = []
    columns: tuple[int, int] | None = None
    text = _FENCED.sub(lambda code: "\n" * code[0].count("\n"), text)
    for number, line in enumerate(text.split("\n"), start=1):
        cells = _cells(line) if "|" in line else []
        if cells and all(_RULE.fullmatch(cell) for cell in cells):
            columns = columns or (_columns(above) if len(above) == len(cells) else None)
        elif not cells:
            columns = None
        elif columns is not None and len(cells) > max(columns):
            name, value = (cells[index] for index in columns)
            # A row with nothing but its name is a heading between rows: | **Model** | | |
            if plain(name) and sum(cell != "" for cell in cells) > 1:
                yield number, name, value
        above = cells


def _cells(line: str) -> list[str]:
    cells = [cell.strip() for cell in _COLUMN_EDGE.split(line.strip())]
    return cells[not cells[0] : len(cells) - (not cells[-1])]


def _columns(header: Sequence[str]) -> tuple[int, int] | None:
    """Return the index of the column of names and of that of values, or None where one is missing."""
    headings = [_NOTE.sub("", plain(cell)).lower() for cell in header]
    names, *values = (
        [index for index, heading in enumerate(headings) if pattern.fullmatch(heading)]
        for pattern in (_NAME_HEADING, *_VALUE_HEADINGS)
    )
    others = [index for found in values for index in found if index not in names[:1]]
    return (names[0], others[0]) if names and others else None
