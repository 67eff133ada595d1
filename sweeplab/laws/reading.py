"""Tables of runs from files: CSV and TSV of any dialect, JSON, JSON lines and Parquet, all but Parquet also compressed.

Rows of a text file are indexed by line, so that every refusal names it. What is not data is left out and counted in
`frame.attrs`, under LEFT_OUT.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several

if TYPE_CHECKING:
    import pandas as pd

LEFT_OUT = "left out"
MOST_COLUMNS = 2_000
_SEPARATORS = (",", ";", "\t", "|")  # or blanks, if none of these occurs
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_COMPRESSED: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MOST_BYTES = 2**32  # of a text: a compressed file must not fill the memory
_PART_BYTES = 2**24
_COMMENT = re.compile(r"^[ \t]*#", re.MULTILINE)


def read_frame(path: Path) -> pd.DataFrame:
    """Read the raw table of a file; SUFFIXES lists the formats."""
    name = path.name.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    read = next((reader for suffix, reader in _READERS.items() if name.endswith(suffix)), None)
    if read is None:
        raise BadInput(Problem(f"{path}: no table has the suffix {path.suffix!r}", ", ".join(_READERS)))
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise BadInput(Problem("is no file", file=path))
    try:
        frame: pd.DataFrame = read(path)
    except EOFError as error:
        raise BadInput(f"{path}: is not a table: it ends in the middle") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    # Of pandas, Arrow, decoders and JSON.
    except (ValueError, RecursionError, csv.Error, lzma.LZMAError) as error:
        raise BadInput(f"{path}: is not a table: {str(error).strip().splitlines()[0]}") from error
    repeated = [str(column) for column, count in Counter(map(str, frame)).items() if count > 1]
    if repeated:
        places = " and ".join(str(at) for at, column in enumerate(frame, 1) if str(column) == repeated[0])
        raise BadInput(f"{path}: columns {places} are both named {repeated[0]!r}; rename one of them")
    return frame


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its name."""
    return path.name.lower().endswith(SUFFIXES)


def _text_of(path: Path) -> str:
    """A file's text: Unicode by its byte order mark, else UTF-8, else Windows' Latin-1."""
    opened = _COMPRESSED.get(path.suffix.lower(), Path.open)
    content = bytearray()
    with opened(path, "rb") as file:
        while part := file.read(_PART_BYTES):
            content += part
            # At once: a file with holes takes no room on the disk.
            if b"\0" in part and not content.startswith((*_BYTE_ORDER_MARKS,)):
                raise ValueError("it holds NUL bytes: it is no text")
            if len(content) > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return str(content.decode(encoding))
    try:
        return str(content.decode("utf-8"))
    except UnicodeDecodeError:
        return str(content.decode("cp1252", "replace"))


def _read_csv(path: Path) -> pd.DataFrame:
    """The table of a text file; its separator is the one that splits the first line into most names.

    Lines that begin with # are comments, but one right above the numbers that has as many names as these is the header.
    """
    import pandas as pd

    text = _text_of(path)
    lines: list[int] | None = None
    if _COMMENT.search(text):
        text, lines = _without_comments(text)
    # Of the heading, and of the first row: pandas makes an index of the cells that have no name.
    starts = [line.strip("\r\n") for line in islice(filter(str.strip, io.StringIO(text)), 2)] or [""]
    separator = _separator_of(starts[0])
    if len(separator) > 1:
        n_columns = max(len(line.split()) for line in starts)
    else:
        n_columns = max(len(cells) for cells in csv.reader(starts, delimiter=separator))
    if n_columns > MOST_COLUMNS:
        raise ValueError(f"it has {several(n_columns, 'column')}, and at most {MOST_COLUMNS:,} are read")
    frame = pd.read_csv(io.StringIO(text), sep=separator, low_memory=False, skipinitialspace=True)
    if not (isinstance(frame.index, pd.RangeIndex) and frame.index.start == 0):
        raise ValueError("its rows have more cells than its first line has names")
    if len(separator) == 1:
        names = next(csv.reader(starts, delimiter=separator), [])
        if len(names) == frame.shape[1]:
            frame.columns = names  # pandas would rename a name that occurs twice
    frame.columns = frame.columns.str.strip()
    places = _lines(text, separator, len(frame))
    if lines:
        places = [lines[place - 1] for place in places]
    frame.index = pd.Index(places, name="line")
    header = (frame.astype(str).apply(lambda column: column.str.strip() == column.name)).all(axis=1)
    if header.any():
        frame = _with_numbers(frame[~header])
        frame.attrs[LEFT_OUT] = {"repeated header": int(header.sum())}
    return frame


def _with_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    def converted(column: pd.Series[Any]) -> pd.Series[Any]:
        try:
            return pd.to_numeric(column)
        except (ValueError, TypeError):
            return column

    return frame.apply(converted)


def _without_comments(text: str) -> tuple[str, list[int]]:
    kept: list[tuple[int, str]] = []
    comment = (0, "")
    for number, line in enumerate(io.StringIO(text), 1):
        if line.lstrip().startswith("#"):
            comment = number, line
        elif line.strip() or kept:
            if not kept and _are_names_above(comment[1], line):
                kept.append((comment[0], comment[1].lstrip()[1:].lstrip()))
            kept.append((number, line))
    return "".join(line for _, line in kept), [number for number, _ in kept]


def _are_names_above(comment: str, line: str) -> bool:
    separator = _separator_of(line)
    if len(separator) == 1:
        separator = re.escape(separator)
    names = re.split(separator, comment.lstrip()[1:].strip())
    try:
        numbers = [float(cell) for cell in re.split(separator, line.strip())]
    except ValueError:
        return False
    return len(numbers) == len(names)


def _separator_of(line: str) -> str:
    parts = {mark: len(next(csv.reader([line.strip("\r\n")], delimiter=mark), [])) for mark in _SEPARATORS}
    separator = max(_SEPARATORS, key=parts.__getitem__)
    if parts[separator] == 1 and len(line.split()) > 1:
        return r"\s+"
    return separator


def _lines(text: str, separator: str, n_rows: int) -> Sequence[int]:
    """The line in which each row begins: consecutive but for empty lines and cells with line breaks."""
    if text.count("\n") + (not text.endswith("\n")) == n_rows + 1:
        return range(2, n_rows + 2)
    begins, line = [], 1
    if len(separator) > 1:
        separator = " "
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    for row in rows:
        if len(row) > 1 or any(map(str.strip, row)):
            begins.append(line)
        line = rows.line_num + 1
    if len(begins) == n_rows + 1:
        return begins[1:]
    return range(2, n_rows + 2)


def _read_json(path: Path) -> pd.DataFrame:
    """The table of a JSON file: a list of runs, runs by name, or lists of equal length by column."""
    read = json.loads(_text_of(path))
    if isinstance(read, dict) and read and all(isinstance(value, dict) for value in read.values()):
        read = list(read.values())
    elif isinstance(read, dict) and read and all(isinstance(value, list) for value in read.values()):
        import pandas as pd

        return pd.DataFrame(read)
    return _of_records(read)


def _read_json_lines(path: Path) -> pd.DataFrame:
    import pandas as pd

    numbered = [(number, line) for number, line in enumerate(_text_of(path).splitlines(), 1) if line.strip()]
    records = []
    for number, line in numbered:
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    frame = _of_records(records)
    frame.index = pd.Index([number for number, _ in numbered], name="line")
    return frame


def _of_records(records: Any) -> pd.DataFrame:
    """The table of a list of objects; names of inner objects are joined by a slash, as in summary/val_loss."""
    import pandas as pd

    is_list = isinstance(records, list) and bool(records)
    if not is_list or not all(isinstance(record, dict) for record in records):
        raise ValueError("it is no list of objects, one a run")
    return pd.json_normalize(records, sep="/")


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(path)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
}
_TEXTS = [suffix for suffix in _READERS if suffix != ".parquet"]
SUFFIXES = (*_READERS, *(f"{suffix}{end}" for suffix in _TEXTS for end in _COMPRESSED))
