"""The files that a user brings: found, unpacked within bounds, decoded, and read as documents or rows.

A file's suffix tells the reader of its rows; other files are texts. Nothing of a file is
executed, and no archive is opened.
"""

from __future__ import annotations

import codecs
import csv
import glob
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import opened
from sweeplab.formatting import bytes_in_words, listed, several, several_named

# ------------------------------------------------------------------ the files at a path of the user


# A glob from the root of a disk would list the files of the whole system.
MOST_FILES = 100_000
# What Hugging Face `datasets` saves beside the arrow files of a dataset, and of one with splits.
SAVED, SAVED_SPLITS = "dataset_info.json", "dataset_dict.json"


def user_files(path: str | None) -> list[Path]:
    """Return the files at a path, in a folder, or of a glob; none that is hidden, and `**` follows no links.

    Raises:
        BadInput: no path is given, or there are no files.
    """
    if path is None:
        raise BadInput(
            "the corpus needs a path: a file, a folder, or a glob such as notes/**/*.txt"
        )
    place = Path(path)
    try:
        if place.is_file():
            return [place.resolve()]
        if place.is_dir():
            top, pattern = place, "data-*.arrow" if (place / SAVED).is_file() else "**/*"
        else:
            parts = place.parts
            n_named = next(
                (at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1
            )
            top, pattern = Path(*parts[:n_named]), str(Path(*parts[n_named:]))
            if parts[-1] == "**":
                pattern += "/*"
        visible = (
            file for file in top.glob(pattern) if "/." not in f"/{file.relative_to(top)}"
        )
        files = sorted({*islice(filter(Path.is_file, visible), MOST_FILES + 1)})
    except (OSError, ValueError) as error:  # such as a name that is too long
        raise BadInput(
            f"{path[:60]}… cannot be read: {getattr(error, 'strerror', error)}"
        ) from error
    if len(files) > MOST_FILES:
        what = f"more than {MOST_FILES:,} files match {path}"
        raise BadInput(Problem(what, "the files of one folder, such as notes/**/*.txt"))
    if not files:
        beside = [each.name for each in place.parent.glob("*") if each.is_file()]
        what = f"there are no files in {path}" if place.is_dir() else f"there is no file {path}"
        raise BadInput(Problem(what, nearest=nearest(place.name, beside)))
    return [file.absolute() for file in files]


# ------------------------------------------------------------------ the content of a file


PART_BYTES = 2**24
# A file may unpack to so many times its size, and a small one to so many bytes: text rarely has a tenth of the ratio.
MOST_RATIO, ALWAYS_BYTES = 200, 2**26
LONGEST_LINE = 2**28
COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
# UTF-32's mark of little-endian begins with UTF-16's.
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
ENCODINGS = (
    "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252",
)  # fmt: skip


class NoText(BadInput):
    """A file is no text, of the `kind` that is said of skipped files."""

    def __init__(self, kind: str, what: str, allowed: str = "", nearest: str = "") -> None:
        self.kind = kind
        super().__init__(Problem(what, allowed, nearest))


def contents(file: Path) -> Iterator[bytes]:
    """Yield a file's bytes in parts, unpacked if it is compressed by gzip or zstd.

    Raises:
        BadInput: it cannot be read, is damaged, or unpacks to far more than texts do.
    """
    try:
        with opened(file, "rb") as stream:
            # Only its current size: that of system files is 0, and reading some of them blocks.
            size, head = os.fstat(stream.fileno()).st_size, stream.read(4)
            stream.seek(0)
            codec = next(
                (codec for magic, codec in COMPRESSED.items() if head.startswith(magic)), None
            )
            if codec:
                yield from _unpacked(file, stream, size, codec)
                return
            while part := stream.read(min(size, PART_BYTES)):
                size -= len(part)
                yield part
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror or error}") from error


def _unpacked(file: Path, stream: IO[bytes], size: int, codec: str) -> Iterator[bytes]:
    import pyarrow

    most, n_bytes = max(ALWAYS_BYTES, MOST_RATIO * size), 0
    try:
        # pyarrow's `read` never frees the bytes that it makes room for if it then fails.
        part = memoryview(bytearray(PART_BYTES))
        with pyarrow.CompressedInputStream(stream, codec) as unpacked:
            while n_read := unpacked.readinto(part):
                n_bytes += n_read
                if n_bytes > most:
                    what = f"{file} unpacks to more than {bytes_in_words(most)}, as an attack would"
                    raise BadInput(Problem(what, "the unpacked file, if you trust it"))
                yield part[:n_read].tobytes()
    except (pyarrow.ArrowException, OSError, MemoryError) as error:
        raise BadInput(f"{file} is damaged: {error}") from error


def text_parts(file: Path, encoding: str) -> Iterator[str]:
    """Yield a file's text in parts, with its line ends; a byte order mark, by which UTF-16 is known, is dropped.

    Raises:
        NoText: it is no text in UTF-8, or in its encoding; with the first byte that shows it.
        BadInput: as `contents` does.
    """
    decoder, n_before = None, 0
    for part, after in pairwise(chain(contents(file), [b""])):
        if decoder is None:
            marked = next(
                (name for mark, name in MARKS.items() if part.startswith(mark)), "utf-8"
            )
            encoding = encoding or marked
            decoder = codecs.getincrementaldecoder(encoding)()
        # At once: a file with holes takes no room on the disk.
        if b"\0" in part and not encoding.startswith(("utf-16", "utf-32")):
            what = f"{file} is not a text: byte {n_before + part.index(0)} is 0"
            raise NoText(
                "binary", what, "UTF-8; data.encoding names another, such as utf-16-le"
            )
        waiting = len(decoder.getstate()[0])
        try:
            yield decoder.decode(part, not after)
        except UnicodeError as error:
            name, place = encoding.removesuffix("-sig").upper(), str(error)
            # Not of UTF-16 without a mark of its byte order.
            if isinstance(error, UnicodeDecodeError):
                place = f"byte {n_before - waiting + error.start} is 0x{error.object[error.start]:02x}"
            allowed = "UTF-8; data.encoding names another, such as latin-1"
            raise NoText(f"not {name}", f"{file} is not {name}: {place}", allowed) from error
        n_before += len(part)


def document(file: Path, encoding: str = "") -> str:
    """Read one file as `text_parts` does, as one text."""
    return "".join(text_parts(file, encoding))


def lines(file: Path, encoding: str) -> Iterator[str]:
    """Yield the lines of a file's text, without their ends; splitlines would split at characters of texts too.

    Raises:
        BadInput: as `text_parts` does; or a line is too long for the memory.
    """
    rest: list[str] = []
    for part in text_parts(file, encoding):
        *whole, last = part.split("\n")
        if whole:
            yield "".join([*rest, whole[0]])
            yield from whole[1:]
            rest.clear()
        rest.append(last)
        if sum(map(len, rest)) > LONGEST_LINE:
            raise BadInput(f"{file} has a line of more than {LONGEST_LINE:,} characters")
    yield "".join(rest)


# ------------------------------------------------------------------ formats of rows


csv.field_size_limit(LONGEST_LINE)
# Rows of a Parquet file that are read at once: one may hold a book.
ROWS_AT_ONCE = 256

# Alternatives for the fields of a row that are wanted.
Wanted = Sequence[tuple[str, ...]]


class Row(NamedTuple):
    """A row with its line: its values by name, or what is wrong with it."""

    line: int
    values: dict[str, Any]
    wrong: str = ""


class Format(NamedTuple):
    """A format of rows."""

    name: str
    suffixes: tuple[str, ...]
    rows: Callable[[Path, str], Iterator[Row]]


def _of_lines(file: Path, encoding: str) -> Iterator[Row]:
    for number, line in enumerate(lines(file, encoding), start=1):
        if line.strip(" \r"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield Row(number, {}, f"is not JSON: {error}")
                continue
            yield _row(number, value)


def _row(number: int, value: Any) -> Row:
    return Row(number, value if isinstance(value, dict) else {})


def _of_json(file: Path, encoding: str) -> Iterator[Row]:
    try:
        value = json.loads(document(file, encoding))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is not JSON: {error}") from None
    if not isinstance(value, list):
        allowed = 'a list, such as [{"text": "…"}]'
        raise NoText("without a field of text", f"{file} is JSON without rows", allowed)
    yield from map(_row, itertools.count(1), value)


def _of_csv(file: Path, encoding: str) -> Iterator[Row]:
    yield from _of_table(file, csv.reader(f"{line}\n" for line in lines(file, encoding)))


def _of_tsv(file: Path, encoding: str) -> Iterator[Row]:
    reader = csv.reader(lines(file, encoding), delimiter="\t", quoting=csv.QUOTE_NONE)
    yield from _of_table(file, reader)


def _of_table(file: Path, reader: Any) -> Iterator[Row]:
    names: list[str] = []
    try:
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip(" ")):
                continue
            if not names:
                names = [name.strip() for name in cells]
                continue
            wrong = ""
            if len(cells) != len(names):
                wrong = f"has {several(len(cells), 'field')}; allowed: {len(names)}, {several_named(names)}"
            yield Row(reader.line_num, dict(zip(names, cells, strict=False)), wrong)
    except csv.Error as error:
        raise BadInput(
            Problem(f"this is no table: {error}", file=file, line=reader.line_num)
        ) from error


def _of_parquet(file: Path, encoding: str) -> Iterator[Row]:
    from pyarrow import parquet

    with parquet.ParquetFile(_mapped(file)) as opened:
        names = _plain_names(opened.schema_arrow)
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
    number, most, n_bytes = (
        itertools.count(1),
        max(ALWAYS_BYTES, MOST_RATIO * file.stat().st_size),
        0,
    )
    for batch in batches:
        batch.validate(full=True)  # a damaged offset would lead out of the memory
        n_bytes += batch.nbytes
        if n_bytes > most:
            raise BadInput(
                f"{file} unpacks to more than {bytes_in_words(most)}, as an attack would"
            )
        kept = batch.select(_plain_names(batch.schema))
        for start in range(0, kept.num_rows, ROWS_AT_ONCE):
            for values in kept.slice(start, ROWS_AT_ONCE).to_pylist():
                yield Row(next(number), values)


def _plain_names(schema: Any) -> list[str]:
    from pyarrow import types

    odd = (types.is_nested, types.is_binary, types.is_large_binary)
    return [field.name for field in schema if not any(is_odd(field.type) for is_odd in odd)]


FORMATS = (
    Format("jsonl", (".jsonl", ".ndjson"), _of_lines),
    Format("json", (".json",), _of_json),
    Format("csv", (".csv",), _of_csv),
    Format("tsv", (".tsv",), _of_tsv),
    Format("parquet", (".parquet",), _of_parquet),
    Format("arrow", (".arrow", ".feather"), _of_arrow),
)


def format_of(file: Path) -> Format | None:
    """Return the format of a file's rows, by its suffix; None for a text."""
    name = file.name.lower().removesuffix(".gz").removesuffix(".zst")
    return next((form for form in FORMATS if name.endswith(form.suffixes)), None)


# ------------------------------------------------------------------ documents and rows of files
# The usual names of fields, the likeliest first. A file's own may have capitals.
TEXT_FIELDS = (
    "text", "content", "contents", "body", "document", "article", "story", "passage", "sentence", "review", "comment",
    "message", "lyrics", "abstract", "code",
)  # fmt: skip
LABEL_FIELDS = ("label", "labels", "class", "category", "sentiment", "intent")
PAIR_FIELDS = (
    ("source", "target"), ("prompt", "completion"), ("question", "answer"), ("instruction", "output"),
    ("instruction", "response"), ("prompt", "response"), ("input", "output"), ("query", "response"), ("src", "tgt"),
)  # fmt: skip
# Of each corpus of the user's files.
FIELDS: dict[str, Wanted] = {
    "text": [(name,) for name in TEXT_FIELDS],
    "pairs": PAIR_FIELDS,
    "labels": [*itertools.product(TEXT_FIELDS, LABEL_FIELDS)],
}
# An instruction may come with a text of its own, in this field.
INSTRUCTION, CONTEXT = "instruction", "input"


class Document(NamedTuple):
    """A document, or the next part of a long one that `continues`."""

    text: str
    continues: bool = False


@dataclass
class Reading:
    """How the user's files are read: the `fields` of rows and the encoding, if the user names them.

    While they are read it counts which fields were taken, which files were skipped and how many rows had no text, and
    keeps the problems of rows.
    """

    fields: tuple[str, ...] = ()
    encoding: str = ""
    taken: Counter[tuple[str, ...]] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    n_empty: int = 0
    more: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Return what a plan says of the reading."""
        notes = [
            f"rows: {listed(names)} ({several(n, 'file')})" for names, n in self.taken.items()
        ]
        if self.skipped:
            counted = ", ".join(
                f"{count:,} {kind}" for kind, count in sorted(self.skipped.items())
            )
            notes.append(f"{several(self.skipped.total(), 'file')} skipped: {counted}")
        if self.n_empty:
            notes.append(f"{several(self.n_empty, 'row')} without text left out")
        return notes + self.more

    def refuse(self, file: Path, line: int, wrong: object) -> None:
        """Keep the problem of a line."""
        self.problems.append(Problem(f"line {line} {wrong}", file=file, line=line))

    def check(self) -> None:
        """Raise BadInput if a line has a problem."""
        if self.problems:
            raise BadInput(*self.problems)


def documents(files: Sequence[Path], reading: Reading) -> Iterator[Document]:
    """Yield the documents of the files: each text, and each row's; a file among several that is no text is skipped.

    Raises:
        BadInput: a file cannot be read, or no file is a text.
    """
    for file in files:
        is_begun = False
        try:
            form = format_of(file)
            parts = _of_rows(file, form, reading) if form else _of_text(file, reading)
            for part in parts:
                yield part
                is_begun = True
        except NoText as error:
            if len(files) == 1 or is_begun:
                raise
            reading.skipped[error.kind] += 1
    if len(files) > 1 and reading.skipped.total() == len(files):
        raise BadInput(f"there is no text in {files[0].parent}: {reading.notes[-1]}")


def _of_text(file: Path, reading: Reading) -> Iterator[Document]:
    is_begun = False
    for part in text_parts(file, reading.encoding):
        if is_begun or part.strip():
            yield Document(part, continues=is_begun)
            is_begun = True
    if not is_begun:
        raise NoText("empty", f"{file} is empty")


def _of_rows(file: Path, form: Format, reading: Reading) -> Iterator[Document]:
    for line, (value,) in named_rows(file, form, FIELDS["text"], reading):
        if value is None or (isinstance(value, str) and not value.strip()):
            reading.n_empty += 1
        elif isinstance(value, str):
            yield Document(value)
        else:
            reading.refuse(file, line, f"has a text that is {type(value).__name__}, no string")
    reading.check()


def named_rows(
    file: Path, form: Format, wanted: Wanted, reading: Reading
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield the line of each row of a file, and the values of the wanted fields in their order.

    The first whole row decides between alternatives; the fields that the reading names come before them. Of other rows
    the reading keeps the problems.

    Raises:
        NoText: there is no row, or none of the fields of a text; says which fields there are.
        BadInput: the file is damaged, or has none of the wanted fields of pairs.
    """
    import pyarrow

    if reading.fields:
        wanted = [reading.fields]
    damage = (
        pyarrow.ArrowException,
        OSError,
        ValueError,
        KeyError,
        MemoryError,
        OverflowError,
        TypeError,
    )
    names = tuple[str, ...]()
    try:
        for line, values, wrong in form.rows(file, reading.encoding):
            if wrong:
                reading.refuse(file, line, wrong)
                continue
            if not names:
                names = _spelled(values, wanted) or _refuse_fields(file, line, values, wanted)
                reading.taken[names] += 1
            if not values.keys() >= {*names}:
                allowed = ", ".join(f'"{name}": "…"' for name in names)
                reading.refuse(file, line, f"has no {listed(names)}; allowed: {{{allowed}}}")
                continue
            picked = [values[name] for name in names]
            if len(names) > 1 and names[0].lower() == INSTRUCTION and values.get(CONTEXT):
                picked[0] = f"{picked[0]}\n\n{values[CONTEXT]}"
            yield line, picked
    except damage as error:
        raise BadInput(
            f"{file} is no whole {form.name} file: {str(error).partition(chr(10))[0]}"
        ) from error
    if not names and not reading.problems:
        raise NoText("empty", f"{file} is empty")


def _spelled(head: Iterable[str], wanted: Wanted) -> tuple[str, ...]:
    """Return the first of the wanted fields that are there, as the file spells them; none if it has none."""
    names = [*head]
    spelled = {name.strip().lower(): name for name in reversed(names)} | {
        name: name for name in names
    }
    for fields in wanted:
        there = tuple(spelled.get(name) or spelled.get(name.lower(), "") for name in fields)
        if all(there):
            return there
    return ()


def _refuse_fields(
    file: Path, line: int, values: dict[str, Any], wanted: Wanted
) -> tuple[str, ...]:
    known = {name.lower() for name in values}
    absent = [name for name in wanted[0] if name.lower() not in known]
    what = f"{file}:{line}: there is no {listed(absent)}, but {several_named([*values]) or 'nothing else'}"
    allowed = "data.field: NAME of a text, or [NAME, NAME] of pairs"
    raise NoText("without a field of text", what, allowed, nearest(absent[0], [*values]))
