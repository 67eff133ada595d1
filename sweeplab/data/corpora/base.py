"""The corpus interface: the files of a corpus, and their texts by split."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sweeplab.data.batches import DataKind
from sweeplab.data.corpora.splits import overlaps
from sweeplab.data.readers.content import document as document
from sweeplab.data.readers.documents import Reading
from sweeplab.data.readers.source import user_files as user_files
from sweeplab.errors import BadInput
from sweeplab.formatting import several

# The files of a corpus: those that are cut into splits, or those of each split that the user has.
Files = Sequence[Path] | Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class Targets:
    """How the targets of a corpus of pairs become numbers, where they are not texts of their own.

    `encode` takes a tokenizer, a source, its target and the numbers of the labels, and returns the source's tokens and
    the target's numbers. `labels` returns the names of the labels in a target, `text` that part of it which tokenizers
    learn from. A source comes `per_source` times in a row.
    """

    encode: Callable[[Any, str, str, Mapping[str, int]], tuple[Any, Any]] | None = None
    labels: Callable[[str], Iterable[str]] | None = None
    text: Callable[[str], str] = str
    per_source: int = 1


TEXTS = Targets()


@dataclass(frozen=True)
class Texts:
    """A corpus' texts by split: one text of running text; for pairs, source and target of each pair in turn.

    Of `n_documents`, or pairs, `n_duplicates` near-duplicate ones were left out. If there are `labels`, targets consist
    of them. `notes` say how the files were read.
    """

    train: Sequence[str]
    val: Sequence[str]
    test: Sequence[str]
    kind: DataKind = "text"
    n_documents: int = 0
    n_duplicates: int = 0
    labels: tuple[str, ...] = ()
    targets: Targets = TEXTS
    notes: tuple[str, ...] = ()

    @property
    def of_pairs(self) -> bool:
        """Return whether the texts are pairs of a source and a target."""
        return self.kind != "text"

    @cached_property
    def digest(self) -> str:
        """Return the sha256 of the splits as JSON."""
        return hashlib.sha256(json.dumps([self.train, self.val, self.test]).encode()).hexdigest()

    @property
    def n_characters(self) -> int:
        """Return the number of characters of all splits."""
        return sum(map(len, (*self.train, *self.val, *self.test)))

    @property
    def val_bytes(self) -> int:
        """Return the bytes in UTF-8 of the text to predict in the validation split; for pairs, of the targets."""
        texts = self.val[1::2] if self.of_pairs else self.val
        return sum(len(text.encode()) for text in texts)

    @property
    def overlaps(self) -> list[float]:
        """Return the shares of the windows of validation and test that occur in training; for pairs, of the sources."""
        step = 2 if self.of_pairs else 1
        return overlaps(*(split[::step] for split in (self.train, self.val, self.test)))


@dataclass(frozen=True)
class AnyCorpus(ABC):
    """A corpus: finds its files, which show whether its texts may have changed, and reads them.

    `needs_whole`: a target cannot be predicted from a part of its source.
    """

    name: str
    meaning: str
    find: Callable[[str | None], list[Path]]
    kind: DataKind = field(default="text", kw_only=True)
    takes_path: bool = field(default=True, kw_only=True)
    needs_whole: bool = field(default=False, kw_only=True)

    def files(self, path: str | None = None) -> list[Path]:
        """Return the absolute paths of the corpus' files, in the order in which they are read.

        Raises:
            BadInput: there are no files, or they cannot be fetched, or the corpus takes no path but one is given.
        """
        if path is not None and not self.takes_path:
            reader = "text" if self.kind == "text" else "pairs"
            raise BadInput(f"corpus {self.name} takes no path; corpus {reader} reads {path}")
        return self.find(path)

    @abstractmethod
    def texts(self, files: Files, reading: Reading | None = None) -> Texts:
        """Return the texts of the files, by split; of those that the user has no files for, a share of the others.

        Raises:
            BadInput: a file is invalid, or there is nothing to learn from.
        """

    def _called(self, files: Sequence[Path]) -> str:
        if len(files) == 1:
            return str(files[0])
        return f"corpus {self.name} ({several(len(files), 'file')})"


def missing_splits(there: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the split of the user that is cut because others are missing, with the tenths of its parts."""
    missing = [split for split in ("val", "test") if split not in there]
    if missing == ["test"]:
        return {"val": {"val": 5, "test": 5}}
    if missing:
        return {"train": {"train": 10 - len(missing), **dict.fromkeys(missing, 1)}}
    return {}
