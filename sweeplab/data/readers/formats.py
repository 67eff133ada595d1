"""The table of formats, and by them the documents and rows of the files that a user brings.

A file's suffix, or its first bytes, tell the reader of its rows; other files are texts.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sweeplab.data.readers.content import (
    ALWAYS_BYTES,
    LONGEST_LINE,
    MOST_RATIO,
    NoText,
    contents,
    lines,
    suffix_of,
    text_parts,
)
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import bytes_in_words, listed, several, several_named

csv.field_size_limit(LONGEST_LINE)
# Rows of a Parquet file that are read at once: one may hold a book.
ROWS_AT_ONCE = 256
MOST_JSON = 2**28


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
    """Yield the objects or strings of a list; of an object, those of the list in it."""
    text = ""
    for part in text_parts(file, encoding):
        text += part
        if len(text) > MOST_JSON:
            raise BadInput(Problem(f"{file} has more than {MOST_JSON:,} characters", "JSON Lines"))
    try:
        value = _json_value(text)
    except ValueError as error:
        allowed = "data.format: jsonl for a row a line" if "Extra data" in str(error) else ""
        raise BadInput(Problem(f"{file} {error}", allowed)) from None
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


# ------------------------------------------------------------------ documents and rows of files


# The usual names of fields, the likeliest first. A file's own may have capitals.
TEXT_FIELDS = (
    *("text", "content", "contents", "body", "document", "article", "story", "passage", "sentence"),
    *("review", "comment", "message", "lyrics", "abstract", "code"),
)
LABEL_FIELDS = ("label", "labels", "class", "category", "sentiment", "intent")
PAIR_FIELDS = (
    ("source", "target"), ("prompt", "completion"), ("question", "answer"), ("instruction", "output"),
    ("instruction", "response"), ("prompt", "response"), ("input", "output"), ("query", "response"), ("src", "tgt"),
)  # fmt: skip
# Of each corpus of the user's files.
FIELDS: dict[str, Sequence[tuple[str, ...]]] = {
    "text": [(name,) for name in TEXT_FIELDS],
    "pairs": PAIR_FIELDS,
    "labels": [*itertools.product(TEXT_FIELDS, LABEL_FIELDS)],
}
# An instruction may come with a text of its own.
CONTEXT: dict[tuple[str, ...], str] = {
    ("instruction", "output"): "input",
    ("instruction", "response"): "input",
}
MOST_NAMED = 10  # bad lines that are named; a file of another format has thousands


class Document(NamedTuple):
    """A document, or the next part of a long one that `continues`, and where it is."""

    text: str
    file: Path
    line: int = 1
    continues: bool = False


@dataclass
class Reading:
    """How the user's files are read: the `fields` of rows, the format and the encoding, if the user names them.

    While they are read it counts which fields were taken, which files were skipped and how many rows had no text.
    """

    fields: tuple[str, ...] = ()
    format: str = ""
    encoding: str = ""
    taken: Counter[tuple[str, ...]] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    n_empty: int = 0
    more: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Return what a plan says of the reading."""
        notes = [f"rows: {listed(names)} ({several(n, 'file')})" for names, n in self.taken.items()]
        if self.skipped:
            counted = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.skipped.items()))
            notes.append(f"{several(self.skipped.total(), 'file')} skipped: {counted}")
        if self.n_empty:
            notes.append(f"{several(self.n_empty, 'row')} without text left out")
        return notes + self.more


def documents(files: Sequence[Path], reading: Reading) -> Iterator[Document]:
    """Yield the documents of the files: each text, and each row's; a file among several that is no text is skipped.

    Raises:
        BadInput: a file cannot be read, or no file is a text.
    """
    for file in files:
        is_begun = False
        try:
            form = format_of(file, reading.format)
            for part in _of_rows(file, form, reading) if form else _of_text(file, reading):
                yield part
                is_begun = True
        except NoText as error:
            if len(files) == 1 or is_begun:
                raise
            reading.skipped[error.kind] += 1
    if len(files) > 1 and reading.skipped.total() == len(files):
        allowed = f"data.tokens: {files[0].parent}" if any(file.suffix == ".bin" for file in files) else ""
        raise BadInput(Problem(f"there is no text in {files[0].parent}: {reading.notes[-1]}", allowed))


def _of_text(file: Path, reading: Reading) -> Iterator[Document]:
    is_begun = False
    for part in text_parts(file, reading.encoding):
        if is_begun or part.strip():
            yield Document(part, file, continues=is_begun)
            is_begun = True
    if not is_begun:
        raise NoText("empty", f"{file} is empty")


def _of_rows(file: Path, form: Format, reading: Reading) -> Iterator[Document]:
    wrong: list[Problem] = []
    for row in named_rows(file, form, FIELDS["text"], reading):
        (value,) = row.values or ("",)  # a wrong row has none
        if row.wrong or not isinstance(value, str | None):
            wrong.append(bad_line(file, row, f"has a text that is {type(value).__name__}, no string"))
        elif value and value.strip():
            yield Document(value, file, row.line)
        else:
            reading.n_empty += 1
    check_lines(wrong)


def bad_line(file: Path, row: Row, otherwise: str = "") -> Problem:
    """Return the problem of a row, with its file and line."""
    return Problem(f"line {row.line} {row.wrong or otherwise}", file=file, line=row.line)


def check_lines(problems: Sequence[Problem]) -> None:
    """Raise BadInput with the first of these problems, and the number of the others; nothing if there is none."""
    named = [*problems[:MOST_NAMED]]
    if len(problems) > MOST_NAMED:
        named.append(Problem(f"and {len(problems) - MOST_NAMED:,} more bad lines"))
    if named:
        raise BadInput(*named)


def named_rows(
    file: Path, form: Format, wanted: Sequence[tuple[str, ...]], reading: Reading
) -> Iterator[Row]:
    """Yield the rows of a file with the values of the wanted fields, in their order.

    `wanted` are alternatives: the first whole row decides which; the fields that the reading names come before them.

    Raises:
        BadInput: the file has none of them; says which it has.
    """
    known = [reading.fields] if reading.fields else wanted
    head, names, context, is_begun = list[str](), tuple[str, ...](), "", False
    for row in rows(file, form, reading.encoding):
        if row.wrong:
            yield row
            continue
        if not is_begun:
            is_begun = True
            head = [name.strip() for name in row.values] if form.is_table else [*row.values]
            names = _chosen(file, head, row, known, form, len(wanted[0]) > 1)
            if names:
                reading.taken[names] += 1
            if form.is_table and names:
                continue  # the row has the names of the columns
            if not names:  # the columns alone, in their order
                head, names = [*known[0]], known[0]
            context = CONTEXT.get(tuple(name.lower() for name in names), "")
        if form.is_table and len(row.values) != len(head):
            fields = several(len(row.values), "field")
            yield Row(row.line, (), f"has {fields}; allowed: {len(head)}, {several_named(head)}")
            continue
        values = row.values
        if not isinstance(values, Mapping):  # of two columns of one name the first counts
            values = dict(zip(reversed(head), reversed(values), strict=True))
        if not all(name in values for name in names):
            allowed = ", ".join(f'"{name}": "…"' for name in names)
            yield Row(row.line, (), f"has no {listed(names)}; allowed: {{{allowed}}}")
            continue
        picked = [values[name] for name in names]
        more = values.get(context)
        if isinstance(more, str) and more.strip():
            picked[0] = f"{picked[0]}\n\n{more}"
        yield Row(row.line, picked)
    if not is_begun:
        check_lines([bad_line(file, row) for row in rows(file, form, reading.encoding)])
        raise NoText("empty", f"{file} is empty")


def _chosen(
    file: Path, head: list[str], first: Row, known: Sequence[tuple[str, ...]], form: Format, are_pairs: bool
) -> tuple[str, ...]:
    """Return the fields to take, as the file spells them; none where its columns have no names."""
    spelled = {name.lower(): name for name in reversed(head)} | {name: name for name in head}
    for names in known:
        if all(name in spelled or name.lower() in spelled for name in names):
            return tuple(spelled.get(name) or spelled[name.lower()] for name in names)
    if form.name == "tsv" and are_pairs:
        return ()
    if not form.is_table and are_pairs:
        return known[0]
    if are_pairs:
        absent = next(name for name in known[0] if name.lower() not in spelled)
        what = f"there is no column {absent}, but {several_named(head)}"
        allowed = f"a first line with {listed(known[0])}, or data.field: [NAME, NAME]"
        raise BadInput(Problem(what, allowed, file=file, line=first.line))
    missing = known[0][0] if len(known) == 1 else listed(known[0])
    texts = head
    if isinstance(first.values, Mapping):
        texts = [name for name, value in first.values.items() if isinstance(value, str)]
    what = f"{file} has no field {missing}, but {several_named(head)}" if head else f"{file} has no fields"
    allowed = f"data.field: {texts[0] if texts else 'NAME'}, or another"
    raise NoText("without a field of text", what, allowed, nearest(missing, head))
