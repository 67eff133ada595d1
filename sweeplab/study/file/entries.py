"""The values, ranges and choices of hyperparameters as people write them, and tables of them in a Markdown document.

They stand in tables, in study files and on command lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import on_one_line
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameter, canonical
from sweeplab.study.file.parse import file_text
from sweeplab.study.problems import LENGTHS, Problems
from sweeplab.study.values import ENTRY, SUGGESTED, is_searched

# A share of a run's length, or of the learning rate: "5%", "10% of all training steps".
_SHARE = re.compile(
    r"(\d+(?:\.\d+)?)\s*%(?:\s+of)?(?:\s+(?:the|all|total|training|peak|max))*"
    r"(?:\s+(?:steps|iterations|iters|max_iters|training|learning_rate|learning rate|lr))?"
)


def takes_share(row: Hyperparameter) -> bool:
    """Return whether a hyperparameter may be a share: of the learning rate, or of a run's iterations."""
    return row.name == "min_lr" or (row.unit == "iterations" and row.name not in LENGTHS)


def share_of(row: Hyperparameter, written: Any) -> dict[str, str] | None:
    """Return the expression that a share stands for: 5% of max_iters, or of learning_rate for min_lr; else None."""
    share = _SHARE.fullmatch(written.strip()) if isinstance(written, str) else None
    if share is None or not takes_share(row) or float(share[1]) > 100:
        return None
    percent = float(share[1])
    if row.name == "min_lr":
        return {"expr": f"learning_rate * {percent:g} / 100"}
    expression = f"max_iters * {percent:g} // 100"
    # Rounded up: 25% of 469 steps would come a fifth time, just before the end.
    if row.name.endswith("_interval"):
        expression = f"ceil(max_iters * {percent:g} / 100)"
    return {"expr": f"max({row.low:g}, {expression})" if row.low else expression}


RANGES = "1e-4 to 1e-2, log; 0 to 0.4, step 0.1; {64, 128, 256}; [0.0, 0.3]"
# Some patterns look at every pair of places in a text, so no longer text is matched.
LONGEST = 500
NOTE = re.compile(r"(?<=[\w.)\]\"'”’])\s*\(.*\)$")

NOT_SAID = {"", "-", "–", "—", "n/a", "?"}
# Choices as tables write them.
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "rope": "rotary"}
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# What a number is times where such a suffix follows it; "10%" is 0.1.
_FACTORS = {"%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9}
_SUFFIXED = re.compile(rf"(.*\d\.?)\s*({'|'.join(_FACTORS)})", re.IGNORECASE)
_NUMBER = re.compile(
    r"[+-]?(?:[1-9]\d{0,2}(?:[,_\s]\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
)
_POWER_OF_TEN = re.compile(r"(?:([+-]?\d+(?:\.\d+)?)\s*[x×·*]\s*)?10\^\{?([+-]?\d+)\}?")
_SUPERSCRIPT = re.compile(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_UNRAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_LOG = re.compile(r"[,;(\s]*\blog(arithmic|[- ]?uniform|[- ]?scaled?|10)?\b\)?", re.IGNORECASE)
_STEP = re.compile(r"[,;(\s]*\b(?:in )?steps?(?: of)?\s+(\S+?)\)?$", re.IGNORECASE)
_BETWEEN = re.compile(r"\s*(?:\.\.+|…|\bto\b|[–—]|(?<=[\d.\s%kKmM])-(?=[\d.\s]))\s*")
_AMONG = re.compile(r"[,;|/]|\bor\b")
_BRACKETED = re.compile(r"[(\[{]([^()\[\]{}]*)[)\]}]")


def parse_value(row: Hyperparameter, written: str) -> Any:
    """Parse a hand-written value of `row`: `3e-4`, `10,000`, `(0.9, 0.95)`, `(auto)`.

    A note in brackets after the value is ignored: `0.1 (or 0.2)` is 0.1.

    Raises:
        ValueError: the row does not accept the value; the message quotes the text.
    """
    text = written.strip()
    if len(text) > LONGEST:
        raise ValueError(f"{row.name} has a value of more than {LONGEST} characters")
    for value in _readings(row, NOTE.sub("", text)):
        with suppress(ValueError):
            return row.check(value)
    raise ValueError(f"{row.name} is {text!r}" if text else f"{row.name} has no value")


def _readings(row: Hyperparameter, text: str) -> Iterator[Any]:
    word = text.strip("()[] ").lower()
    if word in NOT_SAID:
        return
    if row.automatic and word.startswith(AUTO):
        yield AUTO
    if row.optional and word in ("none", "null", "off", "disabled"):
        yield None
    if row.kind == "str":
        unquoted = text.strip("\"'“”‘’")
        yield from (unquoted, unquoted.lower(), _SHORT.get(word, text))
    elif row.kind == "bool":
        yield _TRUTHS.get(word, text)
    elif row.kind == "floats":
        yield [_number(part) for part in re.split("[,;/]", text.strip("()[] "))]
    else:
        yield _number(text)


def _number(text: str) -> float:
    """Parse a number; return NaN, which no row accepts, if it is not one."""
    text = text.strip().replace("−", "-")
    text = _SUPERSCRIPT.sub(lambda match: "^" + match[0].translate(_UNRAISED), text)
    power, suffixed = _POWER_OF_TEN.fullmatch(text), _SUFFIXED.fullmatch(text)
    if power:
        return float(f"{power[1] or 1}e{power[2]}")
    if suffixed:
        factor = _FACTORS[suffixed[2].lower()]
        return float(f"{_number(suffixed[1]) * factor:.12g}")  # 10% is 0.1, not 0.1000…01
    if _NUMBER.fullmatch(text):
        return float(re.sub(r"[,_\s]", "", text))
    return math.nan


def read_range(row: Hyperparameter, text: str) -> Any:
    """Parse a range or choices of a row into an entry of `search`; return None if the text is neither.

    Two ends without "log" give a logarithmic range if the table's suggested range is one.

    Raises:
        BadInput: no study can have this range, such as an inverted one.
    """
    if len(text) > LONGEST or not is_searched(row):
        return None
    entry, problems = None, Problems()
    with suppress(ValueError):
        entry = share_of(row, NOTE.sub("", text)) or _entry(row, text)
    if entry is not None:
        try:
            ENTRY.validate_python(entry, context=row)
        except ValidationError as error:
            problems.retell(error, ("search", row.name))
            raise BadInput(*problems.found) from None
    return entry


def _entry(row: Hyperparameter, text: str) -> Any:
    if text.lower() == SUGGESTED:
        return SUGGESTED
    bare, is_log = _LOG.subn("", text)
    step = _STEP.search(bare)
    if step:
        bare = bare[: step.start()]
    bare = bare.strip()
    inside = _unbracketed(bare)
    ends = _BETWEEN.split(inside)
    if len(ends) != 2 and inside != bare and bare[0] in "([":
        ends = [end.strip() for end in inside.split(",")]
    if len(ends) == 2 and row.kind in ("int", "float") and not row.choices:
        entry: dict[str, Any] = {
            "min": parse_value(row, ends[0]),
            "max": parse_value(row, ends[1]),
        }
        suggests_log = isinstance(row.suggested, dict) and "log" in row.suggested
        if is_log or (suggests_log and not step and entry["min"] != 0):
            entry["log"] = True
        if step:
            entry["step"] = parse_value(row, step[1])
        return entry
    values = values_of(row, bare)
    if len(values) < 2 or is_log or step:
        return None
    return values


def _unbracketed(text: str) -> str:
    whole = _BRACKETED.fullmatch(text)
    return whole[1].strip() if whole else text


def values_of(row: Hyperparameter, text: str) -> list[Any]:
    """Parse a list of values: `1,2,4`, `{gelu, relu}`, `(0.9, 0.95), (0.9, 0.99)`, `true/false`.

    Raises:
        ValueError: the row does not accept one of them; the message says which.
    """
    if row.kind == "floats":
        return [parse_value(row, each) for each in _BRACKETED.findall(text)]
    return [
        parse_value(row, part)
        for part in _AMONG.split(_unbracketed(text.strip()))
        if part.strip()
    ]


# ------------------------------------------------------------------ tables in a Markdown document


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

    def add(self, row: Hyperparameter, line: int, written: str, searched: str) -> None:
        """Add a row of a table: its value and its range as written."""
        entry, has_range = None, searched.lower() not in NOT_SAID
        try:
            value = parse_value(row, written)
            if row.name == "wandb_project" and value is not None:
                self.say(
                    line,
                    f"{row.name}: {value} is left out: it needs the package wandb and a network",
                )
                return
            if row.category == "precision" and value != AUTO:
                best = (
                    f"the study file has {AUTO} instead, the best for the machine that trains"
                )
                self.say(line, f"{row.name} is {value}; {best}")
                value = AUTO
            self._put(self.values, row.name, line, value)
        except ValueError as error:
            with suppress(BadInput):
                entry = read_range(row, written)
            if entry is None and (written.lower() not in NOT_SAID or not has_range):
                self.say(line, str(error), row.allowed)
        if has_range:
            entry = None
            with suppress(BadInput):
                entry = read_range(row, searched)
            if entry is None:
                what = f"the range of {row.name} is not understood and is skipped: {searched!r}"
                self.say(line, what, RANGES)
        if entry is not None:
            self._put(self.ranges, row.name, line, entry)

    def _put(self, held: dict[str, Any], name: str, line: int, value: Any) -> None:
        if held.setdefault(name, value) != value:
            kind = "value" if held is self.values else "range"
            earlier = f"its {kind} {held[name]!r} on line {self.lines[name]}"
            self.say(line, f"{name}: {earlier} is replaced by {value!r}")
        held[name], self.lines[name] = value, line


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
                tables.add(TABLE[key], line, written, searched)
                continue
            what = f"unknown hyperparameter {name!r} ({written or 'no value'})"
            tables.say(line, what, "", nearest(key, TABLE))
    lengths = [name for name in LENGTHS if tables.values.get(name) is not None]
    for name in lengths[1:]:
        what = f"{name} is left out: {lengths[0]} sets the length of training"
        tables.say(tables.lines[name], what)
    return tables


# The rows of a table, the first of which has its headings: the line of each, and its cells.
Table = list[tuple[int, list[str]]]


def _tables(text: str) -> Iterator[Table]:
    """Yield the tables as GitHub reads them; cells are without emphasis, back-ticks and escapes."""
    from markdown_it import MarkdownIt  # slow to import, and only tables need it

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
