"""The files at a path of the user, and their content: unpacked within bounds, and decoded.

Nothing of it is executed, and no archive is opened.
"""

from __future__ import annotations

import codecs
import glob
import os
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import opened
from sweeplab.formatting import bytes_in_words

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


# How files begin that may have neither a 0 nor invalid UTF-8, and where: PDF, RTF and tar.
SIGNATURES = ((0, b"%PDF-"), (0, b"{\\rtf"), (257, b"ustar"))


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
            codec = next((codec for magic, codec in COMPRESSED.items() if head.startswith(magic)), None)
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


def suffix_of(file: Path) -> str:
    """Return a file's suffix in lower case, without that of a compression: .csv of a.csv.gz."""
    name = file.name.lower().removesuffix(".gz").removesuffix(".zst")
    return Path(name).suffix


def text_parts(file: Path, encoding: str = "") -> Iterator[str]:
    """Yield a file's text in parts, with its line ends; a byte order mark, by which UTF-16 is known, is dropped.

    Raises:
        NoText: it is no text in UTF-8, or in its encoding; with the first byte that shows it.
        BadInput: as `contents` does.
    """
    decoder, n_before = None, 0
    for part, after in pairwise(chain(contents(file), [b""])):
        if decoder is None:
            marked = next((name for mark, name in MARKS.items() if part.startswith(mark)), "utf-8")
            encoding = encoding or marked
            decoder = codecs.getincrementaldecoder(encoding)()
            if any(part.startswith(signature, at) for at, signature in SIGNATURES):
                what = f"{file} is not a text: it begins as a PDF, RTF or tar file does"
                raise NoText("binary", what, "a file with its text alone")
        # At once: a file with holes takes no room on the disk.
        if b"\0" in part and not encoding.startswith(("utf-16", "utf-32")):
            what = f"{file} is not a text: byte {n_before + part.index(0)} is 0"
            raise NoText("binary", what, "UTF-8; data.encoding names another, such as utf-16-le")
        waiting = len(decoder.getstate()[0])
        try:
            yield decoder.decode(part, not after)
        except UnicodeError as error:
            name, place = encoding.removesuffix("-sig").upper(), str(error)
            if isinstance(error, UnicodeDecodeError):  # not of UTF-16 without a mark of its byte order
                place = f"byte {n_before - waiting + error.start} is 0x{error.object[error.start]:02x}"
            allowed = "UTF-8; data.encoding names another, such as latin-1"
            raise NoText(f"not {name}", f"{file} is not {name}: {place}", allowed) from error
        n_before += len(part)


def document(file: Path, encoding: str = "") -> str:
    """Read one file as `text_parts` does, as one text."""
    return "".join(text_parts(file, encoding))


def lines(file: Path, encoding: str = "") -> Iterator[str]:
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


# ------------------------------------------------------------------ the files at a path of the user


# A glob from the root of a disk would list the files of the whole system.
MOST_FILES = 100_000
# What Hugging Face `datasets` saves beside the arrow files of a dataset, and of one with splits.
SAVED, SAVED_SPLITS = "dataset_info.json", "dataset_dict.json"


def user_files(path: str | None, corpus: str = "text", suffix: str = ".txt") -> list[Path]:
    """Return the files at a path, in a folder, or of a glob; none that is hidden, and `**` follows no links.

    Raises:
        BadInput: no path is given, or there are no files.
    """
    if path is None:
        raise BadInput(
            f"corpus {corpus} needs a path: a file, a folder, or a glob such as notes/**/*{suffix}"
        )
    place = Path(path)
    try:
        if place.is_file():
            return [place.resolve()]
        if place.is_dir():
            top, pattern = place, "data-*.arrow" if (place / SAVED).is_file() else "**/*"
        else:
            parts = place.parts
            n_named = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
            top, pattern = Path(*parts[:n_named]), str(Path(*parts[n_named:]))
            if parts[-1] == "**":
                pattern += "/*"
        visible = (file for file in top.glob(pattern) if "/." not in f"/{file.relative_to(top)}")
        files = sorted({*islice(filter(Path.is_file, visible), MOST_FILES + 1)})
    except (OSError, ValueError) as error:  # such as a name that is too long
        raise BadInput(f"{path[:60]}… cannot be read: {getattr(error, 'strerror', error)}") from error
    if len(files) > MOST_FILES:
        what = f"more than {MOST_FILES:,} files match {path}"
        raise BadInput(Problem(what, "the files of one folder, such as notes/**/*.txt"))
    if not files:
        beside = [each.name for each in place.parent.glob("*") if each.is_file()]
        what = f"there are no files in {path}" if place.is_dir() else f"there is no file {path}"
        raise BadInput(Problem(what, nearest=nearest(place.name, beside)))
    return [file.absolute() for file in files]
