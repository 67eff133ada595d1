"""The corpus interface: the files of a corpus, and their texts by split; and corpora of running text.

These are the user's files, texts that come with Python, and downloads.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sweeplab.data.batches import DataKind
from sweeplab.data.corpora.splits import (
    BETWEEN_DOCUMENTS,
    TENTHS,
    deal,
    n_near_duplicates,
    overlaps,
    without_near_duplicates,
)
from sweeplab.data.readers.content import document as document
from sweeplab.data.readers.content import user_files as user_files
from sweeplab.data.readers.formats import Reading, documents
from sweeplab.errors import BadInput, Problem
from sweeplab.files import cache_folder, make_folder, read_bytes, write_whole
from sweeplab.formatting import duration, several

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


# ------------------------------------------------------------------ corpora of running text


TINYSHAKESPEARE_VARIABLE = "SWEEPLAB_TINYSHAKESPEARE"
TINYSHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# Skipped in the standard library's folder: third-party packages, caches, and tests, some of them deliberately broken.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


def of_readable_files(files: Sequence[Path]) -> list[str]:
    """Return the text of each file that is readable as text."""
    texts = []
    for file in files:
        with suppress(BadInput):  # a distribution may ship a file in another encoding
            texts.append(document(file))
    return texts


@dataclass(frozen=True)
class Corpus(AnyCorpus):
    """A corpus of running text, whose documents are cut into three splits; without a `read` they are the user's."""

    read: Callable[[Sequence[Path]], Sequence[str]] | None = None

    def texts(self, files: Files, reading: Reading | None = None) -> Texts:
        """Return the documents' text by split, near-duplicates left out; a user's own splits stay as they are."""
        reading = reading or Reading()
        if isinstance(files, Mapping):
            return self._own_splits(files, reading)
        documents = self.documents(files, reading)
        kept = without_near_duplicates(documents)
        train, val, test = ([text] for text in deal(kept).values())
        count, notes = len(documents), tuple(reading.notes)
        return Texts(train, val, test, n_documents=count, n_duplicates=count - len(kept), notes=notes)

    def _own_splits(self, files: Mapping[str, Sequence[Path]], reading: Reading) -> Texts:
        of_split = {split: self.documents(paths, reading) for split, paths in files.items()}
        for split, held_out in of_split.items():
            if split != "train" and (count := n_near_duplicates(of_split["train"], held_out)):
                among = several(len(held_out), "document")
                reading.more.append(f"{split}: near-duplicates of training documents: {count:,} of {among}")
        splits = {split: BETWEEN_DOCUMENTS.join(held) for split, held in of_split.items()}
        for split, shares in missing_splits(files).items():
            splits |= deal(of_split[split], shares)
        train, val, test = ([splits[split]] for split in TENTHS)
        count = sum(map(len, of_split.values()))
        return Texts(train, val, test, n_documents=count, notes=tuple(reading.notes))

    def documents(self, files: Sequence[Path], reading: Reading | None = None) -> list[str]:
        """Return the documents of the files, without empty ones.

        Raises:
            BadInput: a file is not UTF-8 text, or the text is too short or consists of one repeated character.
        """
        texts: list[str] = []
        if self.read:
            texts += self.read(files)
        else:
            whole: list[list[str]] = []
            for part in documents(files, reading or Reading()):
                if not part.continues:
                    whole.append([])
                whole[-1].append(part.text)
            texts += map("".join, whole)
        kept = [text for text in texts if text.strip()]
        if not kept:
            raise BadInput(f"{self._called(files)} is empty")
        if not any(text.strip(kept[0][0]) for text in kept):
            what = f"consists of one repeated character, {kept[0][0]!r}: nothing can be learned from it"
            raise BadInput(f"{self._called(files)} {what}")
        length = sum(map(len, kept))
        if length < sum(TENTHS.values()):
            what = f"{self._called(files)} has {several(length, 'character')}: too few for three splits"
            raise BadInput(Problem(what, f"at least {sum(TENTHS.values())}"))
        return kept


def download(
    url: str, target: Path, sha256: str, largest_bytes: int = 2**24, timeout_seconds: float = 30
) -> Path:
    """Download a file to `target`, unless a file with this digest is already there, and return `target`.

    Concurrent processes make only one request. Nothing is written before the digest is checked.

    Raises:
        OSError: the file cannot be fetched or written, is larger or slower than allowed, or has another digest.
    """
    from filelock import FileLock

    make_folder(target.parent)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if not target.exists() or _sha256(read_bytes(target, is_large=True)) != sha256:
            content = _fetch(url, largest_bytes, timeout_seconds)
            if _sha256(content) != sha256:
                raise OSError(f"its sha256 is {_sha256(content)} but should be {sha256}")
            write_whole(target, content)
    return target


def _fetch(url: str, largest_bytes: int, timeout_seconds: float) -> bytes:
    import http.client
    import time
    import urllib.request

    deadline = time.monotonic() + timeout_seconds
    content = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as response:
            # read1 returns whatever has arrived, so that the deadline also holds for a slow server.
            while piece := response.read1(2**16):
                content += piece
                if len(content) > largest_bytes:
                    raise OSError(f"it is larger than {several(largest_bytes, 'byte')}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"it takes longer than {duration(timeout_seconds)}")
    except http.client.HTTPException as error:
        raise OSError(f"the answer is not HTTP: {error!r}") from error
    return bytes(content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _tinyshakespeare_files(path: str | None) -> list[Path]:
    if place := path or os.environ.get(TINYSHAKESPEARE_VARIABLE):
        return user_files(place)
    target = cache_folder() / "tinyshakespeare.txt"
    try:
        return [download(TINYSHAKESPEARE_URL, target, TINYSHAKESPEARE_SHA256)]
    except OSError as error:
        raise BadInput(
            f"tinyshakespeare is not on this machine and cannot be fetched ({error}); "
            f"download {TINYSHAKESPEARE_URL} and set {TINYSHAKESPEARE_VARIABLE}, or path in the study, to the file"
        ) from error


def _python_docs_files(path: str | None) -> list[Path]:
    from pydoc_data import topics

    return [Path(topics.__file__)]


def _python_docs(files: Sequence[Path]) -> list[str]:
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def python_source_files(path: str | None) -> list[Path]:
    """Return the sources of the standard library, without its tests."""
    files: list[Path] = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = set(folders) - SKIPPED_FOLDERS
        files += (Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(files)


_DOCS = "Python's language reference, from the texts of help(); always available"
_SOURCES = "The sources of Python's standard library, without its tests"
_SHAKESPEARE = f"40,000 lines of Shakespeare: path, or ${TINYSHAKESPEARE_VARIABLE}, or fetched once"
OF_TEXT = (
    Corpus("python-docs", _DOCS, _python_docs_files, _python_docs, takes_path=False),
    Corpus("python-source", _SOURCES, python_source_files, of_readable_files, takes_path=False),
    Corpus("tinyshakespeare", _SHAKESPEARE, _tinyshakespeare_files),
    Corpus(
        "text", "Your texts: a file, a folder or a glob, one document a file, or a row of a table", user_files
    ),
)
