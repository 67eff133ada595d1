"""Where a study's data are, and how they are read."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.data.readers.documents import Reading
from sweeplab.data.readers.files import SAVED_SPLITS
from sweeplab.errors import BadInput

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
