"""The table of formats: by a file's suffix, or its first bytes, a reader of its rows; other files are texts."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sweeplab.data.readers.content import (
    ALWAYS_BYTES,
    LONGEST_LINE,
    MOST_RATIO,
    contents,
    lines,
    suffix_of,
    text_parts,
)
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import bytes_in_words

csv.field_size_limit(LONGEST_LINE)
# Rows of a Parquet file that are read at once: one may hold a book.
ROWS_AT_ONCE = 256
MOST_JSON = 2**28
# How many lines tell whether a text is a table, and what its suffixes are.
SNIFFED, FEWEST_SNIFFED, SNIFFED_CHARACTERS = 20, 4, 2**16
PLAIN_SUFFIXES = ("", ".txt", ".text")


class Row(NamedTuple):
    """A row with its line: values by name, or the cells of a table without names yet; or what is wrong with it."""

    line: int
    values: Mapping[str, Any] | Sequence[str]
    wrong: str = ""


class Format(NamedTuple):
    """A format of rows. The first row of a `table` may have the names of its columns."""

    name: str
    suffixes: tuple[str, ...]
    rows: Callable[[Path, str], Iterator[Row]]
    is_table: bool = False


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("has too deeply nested brackets") from None


def _as_row(number: int, value: Any) -> Row:
    if isinstance(value, str):
        value = {"text": value}
    return Row(number, value if isinstance(value, dict) else {})


def _of_lines(file: Path, encoding: str) -> Iterator[Row]:
    for number, line in enumerate(lines(file, encoding), start=1):
        if line.strip(" \r"):
            try:
                yield _as_row(number, _json_value(line))
            except ValueError as error:
                yield Row(number, {}, str(error))


def _of_json(file: Path, encoding: str) -> Iterator[Row]:
    """Yield the objects or strings of a list; of an object, those of the list in it; or the lines if each is JSON."""
    parts: list[str] = []
    for part in text_parts(file, encoding):
        parts.append(part)
        if sum(map(len, parts)) > MOST_JSON:
            raise BadInput(
                f"{file} has more than {MOST_JSON:,} characters; allowed: JSON Lines, a row per line"
            )
    text = "".join(parts)
    try:
        value = _json_value(text)
    except ValueError as error:
        first = text.lstrip().partition("\n")[0]
        if "Extra data" not in str(error) or not first.rstrip().endswith("}"):
            raise BadInput(f"{file} {error}") from None
        yield from _of_lines(file, encoding)
        return
    if isinstance(value, dict):
        value = next((held for held in value.values() if isinstance(held, list) and held), [value])
    if not isinstance(value, list):
        raise BadInput(Problem(f"{file} is JSON without rows", 'a list, such as [{"text": "…"}]'))
    yield from itertools.starmap(_as_row, enumerate(value, start=1))


def _of_csv(file: Path, encoding: str) -> Iterator[Row]:
    reader = csv.reader(f"{line}\n" for line in lines(file, encoding))
    try:
        yield from (Row(reader.line_num, row) for row in reader if row and row != [""])
    except csv.Error as error:
        raise BadInput(Problem(f"this is not CSV: {error}", file=file, line=reader.line_num)) from error


def _of_tsv(file: Path, encoding: str) -> Iterator[Row]:
    for number, line in enumerate(lines(file, encoding), start=1):
        if line.strip(" \r"):  # a line with only a tab is a pair
            yield Row(number, line.removesuffix("\r").split("\t"))


def _of_parquet(file: Path, encoding: str) -> Iterator[Row]:
    from pyarrow import parquet

    with parquet.ParquetFile(_mapped(file)) as opened:
        names = [field.name for field in opened.schema_arrow if _is_plain(field.type)]
        yield from _of_batches(file, opened.iter_batches(ROWS_AT_ONCE, columns=names))


def _of_arrow(file: Path, encoding: str) -> Iterator[Row]:
    """Yield the rows of a file or a stream of record batches, such as Hugging Face datasets save."""
    import pyarrow

    with _mapped(file) as source:
        try:
            opened = pyarrow.ipc.open_stream(source)
            batches = iter(opened)
        except pyarrow.ArrowInvalid:
            opened = pyarrow.ipc.open_file(source)
            batches = map(opened.get_batch, range(opened.num_record_batches))
        yield from _of_batches(file, batches)


def _mapped(file: Path) -> Any:
    import pyarrow

    if file.suffix in (".gz", ".zst"):
        return pyarrow.BufferReader(b"".join(contents(file)))
    next(contents(file), b"")  # which refuses what is no ordinary file
    return pyarrow.memory_map(str(file))


def _of_batches(file: Path, batches: Iterator[Any]) -> Iterator[Row]:
    number, most, n_bytes = itertools.count(1), max(ALWAYS_BYTES, MOST_RATIO * file.stat().st_size), 0
    for batch in batches:
        batch.validate(full=True)  # a damaged offset would lead out of the memory
        n_bytes += batch.nbytes
        if n_bytes > most:
            raise BadInput(f"{file} unpacks to more than {bytes_in_words(most)}, as an attack would")
        kept = batch.select([field.name for field in batch.schema if _is_plain(field.type)])
        for start in range(0, kept.num_rows, ROWS_AT_ONCE):
            for values in kept.slice(start, ROWS_AT_ONCE).to_pylist():
                yield Row(next(number), values)


def _is_plain(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = ("string", "large_string", "string_view", "integer", "boolean", "floating")
    return any(getattr(types, f"is_{test}")(kind) for test in tests)


FORMATS = {
    form.name: form
    for form in (
        Format("jsonl", (".jsonl", ".ndjson"), _of_lines),
        Format("json", (".json",), _of_json),
        Format("csv", (".csv",), _of_csv, is_table=True),
        Format("tsv", (".tsv",), _of_tsv, is_table=True),
        Format("parquet", (".parquet",), _of_parquet),
        Format("arrow", (".arrow", ".feather"), _of_arrow),
    )
}
SUFFIXES = {suffix: form for form in FORMATS.values() for suffix in form.suffixes}
BINARY = {b"PAR1": "parquet", b"ARROW1": "arrow"}
TEXT = "text"


def format_of(file: Path, name: str = "") -> Format | None:
    """Return the format of a file's rows, by the given name, its first bytes or its suffix; None for a text."""
    if name:
        return FORMATS.get(name)
    start = next(contents(file), b"")[:8]
    known = next((name for magic, name in BINARY.items() if start.startswith(magic)), "")
    if known:
        return FORMATS[known]
    return SUFFIXES.get(suffix_of(file))


def rows(file: Path, form: Format, encoding: str = "") -> Iterator[Row]:
    """Yield the rows of a file.

    Raises:
        BadInput: it is damaged, or no file of this format.
    """
    import pyarrow

    damage = (pyarrow.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError, TypeError)
    try:
        yield from form.rows(file, encoding)
    except damage as error:
        raise BadInput(f"{file} is no whole {form.name} file: {str(error).partition(chr(10))[0]}") from error


def check_no_markup(file: Path, text: str) -> None:
    """Ask about a file that is named as a text and looks like rows, or like HTML.

    Raises:
        BadInput: names the format that reads its rows, and the one that takes it as it is.
    """
    if suffix_of(file) not in PLAIN_SUFFIXES:
        return
    looks, name = _markup(text[:SNIFFED_CHARACTERS].lstrip("\ufeff \t\r\n"), len(text) > SNIFFED_CHARACTERS)
    if looks:
        read = f"data.format: {name} reads its rows, " if name else ""
        what = f"{file} is named as a text and looks like {looks}"
        raise BadInput(Problem(what, f"{read}data.format: text takes it as it is"))


def _markup(start: str, is_cut: bool) -> tuple[str, str]:
    if re.match(r"<(!doctype html|html|\?xml)", start, re.IGNORECASE):
        return "HTML or XML", ""
    first = start.partition("\n")[0].rstrip()
    if re.match(r'[{[]\s*("|\{|$)', first):
        for text, looks, name in ((first, "JSON Lines", "jsonl"), (start, "JSON", "json")):
            try:
                is_json = isinstance(_json_value(text), dict | list)
            except ValueError:
                is_json = is_cut and name == "json"
            if is_json and (name == "json" or "\n" in start):
                return looks, name
    sample = start.split("\n")[: SNIFFED + 1]
    sample = [line for line in sample[: -1 if len(sample) > FEWEST_SNIFFED else None] if line.strip()]
    for delimiter, looks, name in (("\t", "a table with tabs", "tsv"), (",", "CSV", "csv")):
        try:
            n_columns = {len(row) for row in csv.reader(sample, delimiter=delimiter, quotechar='"')}
        except csv.Error:  # such as a carriage return alone, as old texts end their lines
            continue
        names = first.split(delimiter)  # in prose a space stands behind a comma
        is_head = len({*names}) == len(names) and all(
            re.fullmatch(r'"?[A-Za-z_][\w.-]{0,30}"?', name) for name in names
        )
        if len(sample) >= FEWEST_SNIFFED and len(n_columns) == 1 and min(n_columns) > 1 and is_head:
            return looks, name
    return "", ""
