"""What a corpus is: files, and the texts in them."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

from sweeplab.data.corpora.files import joined
from sweeplab.errors import BadInput

# Of ten parts of a corpus so many are trained on.
TRAINING_TENTHS = 9


@dataclass(frozen=True)
class Texts:
    """A corpus' texts by split: one of running text; of pairs the source and the target of each in turn."""

    train: Sequence[str]
    val: Sequence[str]
    of_pairs: bool = False

    @cached_property
    def digest(self) -> str:
        """Return the sha256 of the whole text in UTF-8, or of all pairs."""
        whole = json.dumps([self.train, self.val]) if self.of_pairs else "".join((*self.train, *self.val))
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def n_characters(self) -> int:
        """Return the number of characters of both splits."""
        return sum(map(len, (*self.train, *self.val)))

    @property
    def val_bytes(self) -> int:
        """Return the length in UTF-8 of what is to be found in the validation split: of pairs the targets."""
        found = self.val[1::2] if self.of_pairs else self.val
        return sum(len(text.encode()) for text in found)


@dataclass(frozen=True)
class AnyCorpus(ABC):
    """A corpus: finds its files, which tell whether its texts may have changed, and reads them.

    `needs_whole`: what is to be found does not follow from a part of its source.
    """

    of_pairs: ClassVar[bool]

    name: str
    meaning: str
    find: Callable[[str | None], list[Path]]
    takes_path: bool = field(default=True, kw_only=True)
    needs_whole: bool = field(default=False, kw_only=True)

    def files(self, path: str | None = None) -> list[Path]:
        """Return the files that the texts are made of, absolute, in the order in which they are read.

        Raises:
            BadInput: there are none, or none can be fetched; or a path is given to a corpus that takes none.
        """
        if path is not None and not self.takes_path:
            reader = "pairs" if self.of_pairs else "text"
            raise BadInput(f"corpus {self.name} takes no path; corpus {reader} reads {path}")
        return self.find(path)

    @abstractmethod
    def texts(self, files: Sequence[Path]) -> Texts:
        """Return the texts of the files, by split.

        Raises:
            BadInput: a file is not what it should be, or there is nothing to learn from.
        """

    def _called(self, files: Sequence[Path]) -> str:
        return str(files[0]) if len(files) == 1 else f"corpus {self.name} ({len(files)} files)"


@dataclass(frozen=True)
class Corpus(AnyCorpus):
    """A corpus of running text, joined of its files; the first nine tenths of its characters are trained on."""

    of_pairs: ClassVar[bool] = False

    join: Callable[[Sequence[Path]], str] = joined

    def texts(self, files: Sequence[Path]) -> Texts:
        """Return the text, cut in two."""
        text = self.text(files)
        cut = len(text) * TRAINING_TENTHS // 10
        return Texts([text[:cut]], [text[cut:]])

    def text(self, files: Sequence[Path]) -> str:
        """Return the text of the files.

        Raises:
            BadInput: a file is not UTF-8 text, or the text has nothing to learn from.
        """
        text = self.join(files)
        if not text.strip():
            raise BadInput(f"{self._called(files)} is empty")
        if not text.strip(text[0]):
            what = (
                f"{self._called(files)} has one character only, {text[0]!r}: nothing can be learned from it"
            )
            raise BadInput(what)
        return text


class Pair(NamedTuple):
    """A source and the target that follows from it; pairs of one `group` stay in one split."""

    source: str
    target: str
    group: str


@dataclass(frozen=True)
class PairCorpus(AnyCorpus):
    """A corpus of pairs; a tenth of its groups, by a hash of their names, is kept for validation."""

    of_pairs: ClassVar[bool] = True

    pairs: Callable[[Sequence[Path]], Iterable[Pair]]

    def texts(self, files: Sequence[Path]) -> Texts:
        """Return the pairs; one whose source is trained on is left out of validation."""
        pairs = list(self.pairs(files))
        groups = sorted({pair.group for pair in pairs}, key=_rank)
        if not pairs:
            raise BadInput(f"{self._called(files)} is empty")
        if len(groups) == 1:
            what = f"has {len(pairs)} pairs of one source: none is left to validate with"
            raise BadInput(f"{self._called(files)} {what}")
        kept = set(groups[: max(1, len(groups) * (10 - TRAINING_TENTHS) // 10)])
        train = [pair for pair in pairs if pair.group not in kept]
        sources = {pair.source for pair in train}
        val = [pair for pair in pairs if pair.group in kept and pair.source not in sources]
        if not val:
            raise BadInput(f"{self._called(files)} repeats itself: no pair is left to validate with")
        train_texts, val_texts = ([text for pair in split for text in pair[:2]] for split in (train, val))
        return Texts(train_texts, val_texts, of_pairs=True)


def _rank(name: str) -> bytes:
    """Return what a group is sorted by: as good as chance, and the same everywhere."""
    return hashlib.sha256(name.encode()).digest()
