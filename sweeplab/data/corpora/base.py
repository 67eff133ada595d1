"""The corpus interface: the files of a corpus, and their texts by split; and corpora of running text.

These are the user's files, texts that come with Python, and downloads.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.batches import DataKind
from sweeplab.data.corpora.splits import (
    BETWEEN_DOCUMENTS,
    TENTHS,
    Hashes,
    deal,
    dealt,
    kept_of,
    overlaps,
    sampled,
    share_of,
    without_near_duplicates,
)
from sweeplab.data.formats import Document, Reading, document, documents, user_files
from sweeplab.data.source import missing_splits, size_of
from sweeplab.data.tokenizers import Tokenizer
from sweeplab.errors import BadInput, Problem
from sweeplab.files import cache_folder, make_folder, opened, read_bytes, write_whole
from sweeplab.formatting import several

# The files of each split that there is; the others are cut from these.
Files = Mapping[str, Sequence[Path]]


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


class Encoded(NamedTuple):
    """The tokens of the three splits, each in pieces, and facts of their text; of pairs each piece is a text."""

    splits: Sequence[Iterable[NDArray[Any]]]
    facts: dict[str, Any]


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
        return hashlib.sha256(
            json.dumps([self.train, self.val, self.test]).encode()
        ).hexdigest()

    @property
    def n_characters(self) -> int:
        """Return the number of characters of all splits."""
        return sum(map(len, chain(self.train, self.val, self.test)))

    @property
    def overlaps(self) -> list[float]:
        """Return the shares of the windows of validation and test that occur in training; for pairs, of the sources."""
        step = 2 if self.of_pairs else 1
        return overlaps(*(split[::step] for split in (self.train, self.val, self.test)))

    def sample(self) -> str:
        """Return what tokenizers learn from: the training split, without labels, a text a line."""
        return "\n".join(self._learned_from(self.train))

    @property
    def characters(self) -> str:
        """Return the characters that a tokenizer has to know: those of all splits, without labels."""
        return "".join(self._learned_from(chain(self.train, self.val, self.test)))

    def _learned_from(self, texts: Iterable[str]) -> Iterator[str]:
        for at, text in enumerate(texts):
            plain = self.targets.text(text) if self.of_pairs and at % 2 else text
            if plain:
                yield plain

    def encoded(self, tokenizer: Tokenizer, folder: Path) -> Encoded:
        """Return the tokens of each split, and facts of the text."""
        facts = {
            name: getattr(self, name)
            for name in ("n_documents", "n_duplicates", "labels", "notes", "kind")
        }
        facts |= {"text_digest": self.digest, "n_characters": self.n_characters}
        facts |= dict(zip(("val_overlap", "test_overlap"), self.overlaps, strict=True))
        facts["per_source"] = self.targets.per_source
        splits = (self.train, self.val, self.test)
        return Encoded([[*self._encoded(tokenizer, split)] for split in splits], facts)

    def _encoded(self, tokenizer: Tokenizer, split: Sequence[str]) -> Iterator[NDArray[Any]]:
        if self.targets.encode is None:
            yield from map(tokenizer.encode, split)
            return
        numbers = {name: number for number, name in enumerate(self.labels)}
        for source, target in zip(split[::2], split[1::2], strict=True):
            yield from map(np.asarray, self.targets.encode(tokenizer, source, target, numbers))


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


# ------------------------------------------------------------------ corpora of running text


TINYSHAKESPEARE_VARIABLE = "SWEEPLAB_TINYSHAKESPEARE"
TINYSHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

TIMEOUT_SECONDS, MOST_BYTES = 30, 2**24

# Skipped in the standard library's folder: third-party packages, caches, and tests, some of them deliberately broken.
SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "test",
    "tests",
    "idle_test",
}


@dataclass(frozen=True)
class Corpus(AnyCorpus):
    """A corpus of running text, whose documents are cut into three splits; without a `read` they are the user's."""

    read: Callable[[Sequence[Path]], Sequence[str]] | None = None

    def texts(self, files: Files, reading: Reading | None = None) -> Texts:
        """Return the documents' text by split, near-duplicates left out; a user's own splits stay as they are."""
        reading = reading or Reading()
        of_split = {split: self.documents(paths, reading) for split, paths in files.items()}
        count = n_kept = sum(map(len, of_split.values()))
        if len(files) == 1:
            of_split["train"] = without_near_duplicates(of_split["train"])
            n_kept = len(of_split["train"])
        splits = {split: BETWEEN_DOCUMENTS.join(held) for split, held in of_split.items()}
        for split, shares in missing_splits(files).items():
            splits |= deal(of_split[split], shares)
        train, val, test = ([splits[split]] for split in TENTHS)
        return Texts(
            train,
            val,
            test,
            n_documents=count,
            n_duplicates=count - n_kept,
            notes=tuple(reading.notes),
        )

    def documents(self, files: Sequence[Path], reading: Reading) -> list[str]:
        """Return the documents of the files, without empty ones.

        Raises:
            BadInput: a file is not UTF-8 text, or the text is too short.
        """
        texts: list[str] = []
        if self.read:
            texts += self.read(files)
        else:
            for part in documents(files, reading):
                if part.continues:
                    texts[-1] += part.text
                else:
                    texts.append(part.text)
        kept = [text for text in texts if text.strip()]
        name, least = self._called(files), sum(TENTHS.values())
        if not kept:
            raise BadInput(f"{name} is empty")
        length = sum(map(len, kept))
        if length < least:
            what = f"{name} has {several(length, 'character')}: too few for three splits"
            raise BadInput(Problem(what, f"at least {least}"))
        return kept


def download(url: str, target: Path, sha256: str) -> Path:
    """Download a file to `target`, unless a file with this digest is already there, and return `target`.

    Concurrent processes make only one request. Nothing is written before the digest is checked.

    Raises:
        OSError: the file cannot be fetched or written, or has another digest.
    """
    import http.client
    import urllib.request

    from filelock import FileLock

    make_folder(target.parent)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if (
            target.exists()
            and hashlib.sha256(read_bytes(target, is_large=True)).hexdigest() == sha256
        ):
            return target
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
                content = response.read(MOST_BYTES)
        except http.client.HTTPException as error:
            raise OSError(f"the answer is not HTTP: {error!r}") from error
        digest = hashlib.sha256(content).hexdigest()
        if digest != sha256:
            raise OSError(f"its sha256 is {digest} but should be {sha256}")
        write_whole(target, content)
    return target


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


def _readable_files(files: Sequence[Path]) -> list[str]:
    texts = []
    for file in files:
        with suppress(BadInput):  # a distribution may ship a file in another encoding
            texts.append(document(file))
    return texts


_DOCS = "Python's language reference, from the texts of help(); always available"
_SOURCES = "The sources of Python's standard library, without its tests"
_SHAKESPEARE = (
    f"40,000 lines of Shakespeare: path, or ${TINYSHAKESPEARE_VARIABLE}, or fetched once"
)
_TEXT = "Your texts: a file, a folder or a glob, one document a file, or a row of a table"
OF_TEXT = (
    Corpus("python-docs", _DOCS, _python_docs_files, _python_docs, takes_path=False),
    Corpus("python-source", _SOURCES, python_source_files, _readable_files, takes_path=False),
    Corpus("tinyshakespeare", _SHAKESPEARE, _tinyshakespeare_files),
    Corpus("text", _TEXT, user_files),
)


# ------------------------------------------------------------------ texts larger than the memory
# Files of more bytes are read in a stream; from how many characters a tokenizer learns.
LARGE_BYTES, SAMPLE_CHARACTERS = 2**28, 2**25
PIECE = 2**23  # tokens that are read back at once


def is_large(corpus: AnyCorpus, files: Files) -> bool:
    """Return whether files are read in a stream: texts without splits of their own."""
    if not isinstance(corpus, Corpus) or corpus.read or len(files) > 1:
        return False
    return size_of(files["train"]) > LARGE_BYTES


class LargeText:
    """A corpus of the user's texts that may be larger than the memory: read several times, a document at a time.

    Near-duplicates, splits and overlaps are those of a small one, by a sample of windows; a document beyond 16 MiB
    counts as several. A tokenizer learns from a sample of the training split.
    """

    def __init__(self, files: Sequence[Path], reading: Reading) -> None:
        self._files, self._reading = files, reading
        # By which windows are sampled.
        self.n_bytes = sum(file.stat().st_size for file in files)
        lengths, names, windows = list[int](), list[bytes](), list[Hashes]()
        digest, characters = hashlib.sha256(), set[str]()
        for part in self._documents(reading):
            content = part.text.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
            names.append(hashlib.sha256(content).digest())
            lengths.append(len(part.text))
            windows.append(sampled(part.text, self.n_bytes))
            characters.update(part.text)
        if not lengths:
            raise BadInput(f"there is no text in {files[0].parent}")
        if len(lengths) > 1:
            characters.update(BETWEEN_DOCUMENTS)
        self.digest, self.characters = digest.hexdigest(), "".join(sorted(characters))
        self._is_kept = np.zeros(len(lengths), np.bool_)
        self._is_kept[kept_of(names, lengths, windows)] = True
        self.n_characters = int(np.array(lengths)[self._is_kept].sum())

    def _documents(self, reading: Reading) -> Iterator[Document]:
        return (part for part in documents(self._files, reading) if part.text.strip())

    def _dealt(self) -> Iterator[tuple[str, str]]:
        def numbered() -> Iterator[tuple[int, str]]:
            number, how = -1, self._reading
            again = Reading(how.fields, how.encoding)
            for is_kept, part in zip(self._is_kept, self._documents(again), strict=True):
                if not part.continues:
                    number += 1
                if is_kept:
                    yield number, part.text

        return dealt(numbered(), self.n_characters, TENTHS)

    def sample(self) -> str:
        """Return sections of the training split, evenly spread, from which a tokenizer learns."""
        every = max(1, self.n_characters // SAMPLE_CHARACTERS)
        train = (section for split, section in self._dealt() if split == "train")
        return "\n".join(section for at, section in enumerate(train) if at % every == 0)

    def encoded(self, tokenizer: Tokenizer, folder: Path) -> Encoded:
        """Write the tokens of each split to a file of the folder; return them, and facts of the text."""
        windows = {split: [np.zeros(0, np.uint64)] for split in TENTHS}
        with ExitStack() as stack:
            files = {
                split: stack.enter_context(opened(folder / split, "wb")) for split in TENTHS
            }
            for split, section in self._dealt():
                files[split].write(np.asarray(tokenizer.encode(section)).astype("<u2").data)
                windows[split].append(sampled(section, self.n_bytes))
        train, val, test = map(np.concatenate, windows.values())
        train.sort()
        how = "read in a stream, near-duplicates and overlap by a sample of windows"
        facts = {
            "text_digest": self.digest,
            "n_characters": self.n_characters,
            "val_overlap": share_of(val, train),
            "test_overlap": share_of(test, train),
            "n_documents": len(self._is_kept),
            "n_duplicates": int((~self._is_kept).sum()),
            "notes": [*self._reading.notes, how],
        }
        return Encoded([_pieces(folder / split) for split in TENTHS], facts)


def _pieces(file: Path) -> Iterator[NDArray[np.uint16]]:
    with opened(file, "rb") as stream:
        while len(piece := np.fromfile(stream, "<u2", PIECE)):
            yield piece
