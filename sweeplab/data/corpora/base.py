"""The corpus interface: the files of a corpus, and their texts by split."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import dropwhile, islice
from pathlib import Path

from sweeplab.data.batches import DataKind
from sweeplab.data.corpora.splits import overlaps
from sweeplab.errors import BadInput, Problem, nearest

# A glob from the root of a disk would list the files of the whole system.
MOST_FILES = 100_000


@dataclass(frozen=True)
class Texts:
    """A corpus' texts by split: one text of running text; for pairs, source and target of each pair in turn.

    `n_duplicates` near-duplicate documents were left out. If there are `labels`, each target is one of them. For
    preferences the pair with the chosen target is followed by the one with the rejected target.
    """

    train: Sequence[str]
    val: Sequence[str]
    test: Sequence[str]
    kind: DataKind = "text"
    n_duplicates: int = 0
    labels: tuple[str, ...] = ()

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
        found = self.val[1::2] if self.of_pairs else self.val
        return sum(len(text.encode()) for text in found)

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
    def texts(self, files: Sequence[Path]) -> Texts:
        """Return the texts of the files, by split.

        Raises:
            BadInput: a file is invalid, or there is nothing to learn from.
        """

    def _called(self, files: Sequence[Path]) -> str:
        return str(files[0]) if len(files) == 1 else f"corpus {self.name} ({len(files)} files)"


def document(file: Path) -> str:
    """Read one file unchanged, without translating line ends; only a byte order mark is dropped."""
    try:
        # Read only its current size: system files such as pipes have size 0, and reading some of them blocks.
        with file.open("rb") as opened:
            content = opened.read(os.fstat(opened.fileno()).st_size)
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from error
    if (place := content.find(b"\0")) >= 0:
        raise BadInput(f"{file} is not a text: byte {place} is 0")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"{file} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        raise BadInput(what) from error


def user_files(path: str | None, corpus: str = "text", suffix: str = ".txt") -> list[Path]:
    """Return the files at a path or glob.

    Raises:
        BadInput: no path is given, or there are no files.
    """
    if path is None:
        raise BadInput(f"corpus {corpus} needs a path: a file, or a glob such as notes/**/*{suffix}")
    given = Path(path)
    try:
        is_folder = given.is_dir()
    except OSError as error:  # such as a name that is too long
        raise BadInput(f"{path[:60]}… cannot be a file: {error.strerror}") from error
    if is_folder:
        raise BadInput(f"{path} is a folder; name its files, such as {given / '**' / f'*{suffix}'}")
    if given.is_file():
        return [given.resolve()]
    found = sorted({*islice(filter(os.path.isfile, _matches(path)), MOST_FILES + 1)})
    if len(found) > MOST_FILES:
        what = f"more than {MOST_FILES:,} files match {path}"
        raise BadInput(Problem(what, "the files of one folder, such as notes/**/*.txt"))
    if not found:
        beside = [each.name for each in given.parent.glob("*") if each.is_file()]
        raise BadInput(Problem(f"there is no file {path}", nearest=nearest(given.name, beside)))
    return [Path(match).absolute() for match in found]


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
