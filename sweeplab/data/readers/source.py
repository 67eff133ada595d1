"""Where a study's data are, and how they are read; what they are, where a study does not say."""

from __future__ import annotations

import glob
import os
import os.path
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

from sweeplab.data.readers.documents import PAIR_FIELDS, TEXT_FIELDS, Reading
from sweeplab.data.readers.formats import format_of, rows
from sweeplab.data.readers.tokens import token_files, vocabulary_of
from sweeplab.data.tokenizers.base import LARGEST_VOCABULARY
from sweeplab.errors import BadInput, Problem, nearest

SPLITS = {"train": ("train",), "val": ("validation", "val", "valid", "dev"), "test": ("test",)}
WHOLE = "whole"  # the name of the place of texts that are cut into splits


@dataclass(frozen=True)
class Source:
    """The user's data: a file, folder or glob at `path`, or one for each split, or files of `tokens`.

    `fields` are those of rows that are read; `format` and `encoding` those of files whose content does not show them.
    """

    path: str | None = None
    train: str | None = None
    val: str | None = None
    test: str | None = None
    tokens: str | None = None
    fields: tuple[str, ...] = ()
    format: str = ""
    encoding: str = ""

    @property
    def places(self) -> dict[str, str | None]:
        """Return the place of each split, or of the whole; a folder of Hugging Face `datasets` may have splits.

        Raises:
            BadInput: there is no place of a training split.
        """
        places = {name: place for name in SPLITS if (place := getattr(self, name))}
        if self.path is not None and _is_file(Path(self.path) / SAVED_SPLITS):
            places = dict(_saved(Path(self.path)))
        if places and "train" not in places:
            raise BadInput(f"there is no training split: {', '.join(places)} alone")
        if len(places) > 1:
            return {**places}
        return {WHOLE: places.get("train", self.path)}

    @property
    def reading_key(self) -> list[Any]:
        """Return what tells readings of the same files apart; empty where all is as the files show."""
        asked = [self.fields, self.format, self.encoding]
        if any(asked):
            return asked
        return []

    @property
    def reading(self) -> Reading:
        """Return how the files are read."""
        return Reading(self.fields, self.format, self.encoding)


def _saved(folder: Path) -> Iterator[tuple[str, str]]:
    for split, names in SPLITS.items():
        if place := next((folder / name for name in names if (folder / name).is_dir()), None):
            yield split, str(place)


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - that of paths raises where a name is too long


# A glob from the root of a disk would list the files of the whole system.
MOST_FILES = 100_000
# What Hugging Face `datasets` saves beside the arrow files of a dataset, and of one with splits.
SAVED, SAVED_SPLITS = "dataset_info.json", "dataset_dict.json"


def user_files(path: str | None, corpus: str = "text", suffix: str = ".txt") -> list[Path]:
    """Return the files at a path, in a folder (but hidden ones), or of a glob.

    Raises:
        BadInput: no path is given, or there are no files.
    """
    if path is None:
        raise BadInput(
            f"corpus {corpus} needs a path: a file, a folder, or a glob such as notes/**/*{suffix}"
        )
    pattern = Path(path)
    try:
        is_folder = pattern.is_dir()
    except OSError as error:  # such as a name that is too long
        raise BadInput(f"{path[:60]}… cannot be a file: {error.strerror}") from error
    if pattern.is_file():
        return [pattern.resolve()]
    if is_folder:
        inside = "data-*.arrow" if (pattern / SAVED).is_file() else "**"
        path = str(Path(glob.escape(path)) / inside)
    files = sorted({*islice(filter(os.path.isfile, _matches(path)), MOST_FILES + 1)})
    if len(files) > MOST_FILES:
        what = f"more than {MOST_FILES:,} files match {path}"
        raise BadInput(Problem(what, "the files of one folder, such as notes/**/*.txt"))
    if is_folder and not files:
        raise BadInput(f"there are no files in {pattern}")
    if not files and glob.has_magic(path):
        raise BadInput(f"no file matches {path}")
    if not files:
        beside = [each.name for each in pattern.parent.glob("*") if each.is_file()]
        raise BadInput(Problem(f"there is no file {path}", nearest=nearest(pattern.name, beside)))
    return [Path(match).absolute() for match in files]


def _matches(path: str) -> Iterator[str]:
    """Yield the matches of a glob as `glob` does, but `**` does not follow links, which may form cycles."""
    # Path.glob would descend into hidden folders, such as .git.
    parts = Path(path).parts
    if "**" not in parts:
        yield from glob.iglob(path)  # noqa: PTH207
        return
    at = parts.index("**")
    rest = tuple(dropwhile("**".__eq__, parts[at:]))
    for top in glob.iglob(str(Path(*parts[:at]))):  # noqa: PTH207
        for folder, below, files in os.walk(top):
            below[:] = [each for each in below if not each.startswith(".")]
            if rest:
                yield from _matches(str(Path(glob.escape(folder), *rest)))
            else:
                yield from (str(Path(folder, each)) for each in files if not each.startswith("."))


# Texts of fewer bytes are read by characters; how many times its size a packed file counts.
CHAR_BELOW, UNPACKED = 10**6, 5
PACKED_SUFFIXES = (".gz", ".zst", ".parquet")


def guessed(source: Source) -> tuple[str, str]:
    """Return a corpus and a tokenizer for files; for what cannot be read those of a text, since reading it says why."""
    try:
        if source.tokens:
            files = token_files(source.tokens)
            return "text", vocabulary_of(files, LARGEST_VOCABULARY).name
        places = [user_files(place) for place in source.places.values()]
        tokenizer = "char" if size_of([file for files in places for file in files]) < CHAR_BELOW else "bpe"
        return _corpus(places[0][0], source), tokenizer
    except (BadInput, OSError):
        return "text", "ids" if source.tokens else "char"


def size_of(files: list[Path]) -> int:
    """Return about how many bytes of text files have."""
    return sum(
        file.stat().st_size * (UNPACKED if file.name.endswith(PACKED_SUFFIXES) else 1) for file in files
    )


def _corpus(file: Path, source: Source) -> str:
    form = format_of(file, source.format)
    if form is None or source.fields:
        if len(source.fields) < 2:
            return "text"
        return "pairs"
    row = next(islice((row for row in rows(file, form, source.encoding) if row.values), 1), None)
    names = {str(name).strip().lower() for name in row.values} if row else set[str]()
    if TEXT_FIELDS[0] not in names and any(names.issuperset(pair) for pair in PAIR_FIELDS):
        return "pairs"
    return "text"
