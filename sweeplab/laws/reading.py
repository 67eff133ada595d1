"""Tables of runs from files: CSV and TSV, JSON, JSON lines and Parquet.

Rows of a text file are indexed by line, so that every refusal names it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.errors import BadInput, Problem
from sweeplab.files import read_bytes

if TYPE_CHECKING:
    import pandas as pd

MOST_COLUMNS = 2_000  # pandas takes seconds for more, and no table of runs has them


def read_frame(path: Path) -> pd.DataFrame:
    """Read the raw table of a file; SUFFIXES lists the formats.

    Raises:
        BadInput: another suffix, no file, a file that holds no table, or two columns of one name.
    """

    if not is_table(path):
        raise BadInput(
            Problem(f"{path}: no table has the suffix {path.suffix!r}", ", ".join(_READERS))
        )
    try:
        frame = _READERS[path.suffix.lower()](read_bytes(path, is_large=True))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    # Of pandas, Arrow, decoders and JSON.
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"{path}: is not a table: {str(error).strip().splitlines()[0]}"
        ) from error
    for repeated in frame.columns[frame.columns.duplicated()]:
        places = " and ".join(map(str, np.flatnonzero(frame.columns == repeated) + 1))
        raise BadInput(
            f"{path}: columns {places} are both named {repeated!r}; rename one of them"
        )
    return frame


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its name."""
    return path.suffix.lower() in SUFFIXES


def _text_of(content: bytes) -> str:
    if b"\0" in content:
        raise ValueError("it holds NUL bytes: it is no text")
    return content.decode("utf-8-sig")


def _read_csv(content: bytes) -> pd.DataFrame:
    """The table of a text; lines that begin with # are comments."""
    import pandas as pd

    lines = [
        "" if line.lstrip().startswith("#") else line
        for line in _text_of(content).replace("\r\n", "\n").split("\n")
    ]
    header = next((line.strip() for line in lines if line.strip()), "")
    separator = max(",;\t", key=header.count)
    if header.count(separator) > MOST_COLUMNS:
        raise ValueError(f"it has more than {MOST_COLUMNS:,} columns")
    names = pd.read_csv(
        io.StringIO(header), sep=separator, header=None, dtype=str, keep_default_na=False
    )
    frame = pd.read_csv(
        io.StringIO("\n".join(lines)), sep=separator, skipinitialspace=True, low_memory=False
    )
    if not frame.index.equals(pd.RangeIndex(len(frame))):
        raise ValueError("its rows have more cells than its first line has names")
    frame.columns = names.iloc[0].str.strip()  # pandas would rename a name that occurs twice
    filled = [number for number, line in enumerate(lines, 1) if line.strip()]
    if len(filled) == len(frame) + 1:  # else a cell has line breaks
        frame.index = pd.Index(filled[1:], name="line")
    return frame


def _read_parquet(content: bytes) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(io.BytesIO(content))


def _read_json_lines(content: bytes) -> pd.DataFrame:
    import pandas as pd

    records = {}
    for number, line in enumerate(_text_of(content).splitlines(), 1):
        if not line.strip():
            continue
        try:
            records[number] = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    frame = _of_records([*records.values()])
    frame.index = pd.Index([*records], name="line")
    return frame


def _of_records(records: Any) -> pd.DataFrame:
    """The table of a list of objects; names of inner objects are joined by a slash, as in summary/val_loss."""
    import pandas as pd

    if (
        not records
        or not isinstance(records, list)
        or not all(isinstance(record, dict) for record in records)
    ):
        raise ValueError("it is no list of objects, one a run")
    return pd.json_normalize(records, sep="/")


# What reads the content of a file.
_READERS: dict[str, Callable[[bytes], pd.DataFrame]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": lambda content: _of_records(json.loads(_text_of(content))),
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}
SUFFIXES = tuple(_READERS)
