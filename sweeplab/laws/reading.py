"""Tables of runs from files: CSV and TSV, JSON, JSON lines and Parquet, all but Parquet also compressed.

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
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    """The table of a text file; lines that begin with # are comments, but for a header right above the numbers."""
    import pandas as pd

    lines = _text_of(path).replace("\r\n", "\n").split("\n")
    comment = ""
    for at, line in enumerate(lines):
        if line.lstrip().startswith("#"):
            comment, lines[at] = line.lstrip().removeprefix("#").strip(), ""
        elif line.strip():
            break
    else:
        raise ValueError("it has no row")
    header = at
    if comment and _is_number(lines[at].split(_separator_of(lines[at]))[0]):
        # As numpy.savetxt writes it. Its line is in the place of the comment.
        header = at - 1
        lines[header] = comment
    names_line = lines[header].strip()
    n_repeated = 0
    for at, line in enumerate(lines[header + 1 :], header + 1):
        if line.strip() == names_line:
            n_repeated += 1
            lines[at] = ""
        elif line.lstrip().startswith("#"):
            lines[at] = ""
    separator = _separator_of(names_line)
    names = names_line.split()
    if separator:
        names = [name.strip() for name in next(csv.reader([names_line], delimiter=separator))]
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"it has {several(len(names), 'column')}, and at most {MOST_COLUMNS:,} are read")
    text = io.StringIO("\n".join(lines))
    frame = pd.read_csv(text, sep=separator or r"\s+", skipinitialspace=True, low_memory=False)
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError("its rows have more cells than its first line has names")
    if len(names) == frame.shape[1]:
        frame.columns = pd.Index(names)  # pandas would rename a name that occurs twice
    filled = [number for number, line in enumerate(lines, 1) if line.strip()]
    if len(filled) == len(frame) + 1:  # else a cell has line breaks
        frame.index = pd.Index(filled[1:], name="line")
    if n_repeated:
        frame.attrs[LEFT_OUT] = {"repeated header": n_repeated}
    return frame


def _separator_of(line: str) -> str | None:
    """The separator that occurs most often in a line; None stands for blanks."""
    separator = max(_SEPARATORS, key=line.count)
    if separator not in line and len(line.split()) > 1:
        return None
    return separator


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_json(path: Path) -> pd.DataFrame:
    """The table of a JSON file: a list of runs, runs by name, or lists of equal length by column."""
    import pandas as pd

    read = json.loads(_text_of(path))
    if isinstance(read, dict) and read and all(isinstance(value, dict) for value in read.values()):
        read = list(read.values())
    elif isinstance(read, dict) and read and all(isinstance(value, list) for value in read.values()):
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


def nominal(frame: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return the values of each column without numbers that has several, each in two rows on average or more."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    named = [name for name in frame if is_bool_dtype(frame[name]) or not is_numeric_dtype(frame[name])]
    values = {str(name): tuple(sorted(frame[name].dropna().astype(str).unique())) for name in named}
    return {name: texts for name, texts in values.items() if 2 <= len(texts) <= len(frame) / 2}


def numbered(keys: Sequence[Any]) -> NDArray[np.intp]:
    """Return the number of each row's distinct tuple of keys, [n]."""
    import pandas as pd

    numbers = np.zeros(len(keys[0]), np.intp)
    for key in keys:
        codes = pd.factorize(key, use_na_sentinel=False)[0]
        numbers = np.unique(numbers * (int(codes.max()) + 1) + codes, return_inverse=True)[1].astype(np.intp)
    return numbers
