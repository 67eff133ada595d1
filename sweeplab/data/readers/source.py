"""Where a study's data are, how they are read, and what they are where the study does not say."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sweeplab.data.readers.documents import PAIR_FIELDS, TEXT_FIELDS, Reading
from sweeplab.data.readers.files import SAVED_SPLITS, user_files
from sweeplab.data.readers.formats import format_of, rows
from sweeplab.data.readers.tokens import token_files, vocabulary_of
from sweeplab.data.tokenizers.base import LARGEST_VOCABULARY
from sweeplab.errors import BadInput

SPLITS = {"train": ("train",), "val": ("validation", "val", "valid", "dev"), "test": ("test",)}
WHOLE = "whole"  # the name of the place of texts that are cut into splits
# Texts of fewer bytes are read by characters; how many times its size a packed file counts.
CHAR_BELOW, UNPACKED = 10**6, 5
PACKED_SUFFIXES = (".gz", ".zst", ".parquet")


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
