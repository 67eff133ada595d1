"""What a corpus is: files, and the texts in them by split."""

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

from sweeplab.data.batches import Kind
from sweeplab.data.corpora.splits import overlaps
from sweeplab.errors import BadInput, Problem, nearest

# A glob from a disk's root goes through the files of the system, which have no end.
MOST_FILES = 100_000


@dataclass(frozen=True)
class Texts:
    """A corpus' texts by split: one of running text; of pairs the source and the target of each in turn.

    `n_duplicates` near-duplicate documents were left out. Where there are `labels` each target is one of them. Of
    preferences a pair with the chosen target and one with the rejected follow each other.
    """

    train: Sequence[str]
    val: Sequence[str]
    test: Sequence[str]
    kind: Kind = "text"
    n_duplicates: int = 0
    labels: tuple[str, ...] = ()

    @property
    def of_pairs(self) -> bool:
        """Say whether there is a source for each target."""
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
        """Return the length in UTF-8 of what is to be found in the validation split: of pairs the targets."""
        found = self.val[1::2] if self.of_pairs else self.val
        return sum(len(text.encode()) for text in found)

    @property
    def overlaps(self) -> list[float]:
        """Return which shares of the windows of validation and test stand in training; of pairs the sources'."""
        step = 2 if self.of_pairs else 1
        return overlaps(*(split[::step] for split in (self.train, self.val, self.test)))


@dataclass(frozen=True)
class AnyCorpus(ABC):
    """A corpus: finds its files, which tell whether its texts may have changed, and reads them.

    `needs_whole`: what is to be found does not follow from a part of its source.
    """

    name: str
    meaning: str
    find: Callable[[str | None], list[Path]]
    kind: Kind = field(default="text", kw_only=True)
    takes_path: bool = field(default=True, kw_only=True)
    needs_whole: bool = field(default=False, kw_only=True)

    def files(self, path: str | None = None) -> list[Path]:
        """Return the files that the texts are made of, absolute, in the order in which they are read.

        Raises:
            BadInput: there are none, or none can be fetched; or a path is given to a corpus that takes none.
        """
        if path is not None and not self.takes_path:
            reader = "text" if self.kind == "text" else "pairs"
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


def document(file: Path) -> str:
    """Read one file as it is: no translation of line ends; only a byte order mark is dropped."""
    try:
        # No more than it has now: a file of the system's has no size, and some of them wait for what comes next.
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
        BadInput: there are none.
    """
    if path is None:
        raise BadInput(f"corpus {corpus} needs a path: a file, or a glob such as notes/**/*{suffix}")
    given = Path(path)
    try:
        is_folder = given.is_dir()
    except OSError as error:  # such as a name that is too long
        raise BadInput(f"no file can be at {path[:60]}…: {error.strerror}") from error
    if is_folder:
        raise BadInput(f"{path} is a folder; name its files, such as {given / '**' / f'*{suffix}'}")
    if given.is_file():
        return [given.resolve()]
    found = sorted({*islice(filter(os.path.isfile, _matches(path)), MOST_FILES + 1)})
    if len(found) > MOST_FILES:
        what = f"more than {MOST_FILES:,} files are at {path}"
        raise BadInput(Problem(what, "a folder's, such as notes/**/*.txt"))
    if not found:
        beside = [each.name for each in given.parent.glob("*") if each.is_file()]
        raise BadInput(Problem(f"no file is at {path}", nearest=nearest(given.name, beside)))
    return [Path(match).absolute() for match in found]


def _matches(path: str) -> Iterator[str]:
    """Yield what matches a glob as `glob` does, but `**` follows no links, which may lead round in circles."""
    # Not Path.glob: that one descends into hidden folders, .git among them.
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
