"""A corpus of the user's texts that may be larger than the memory: read several times, a document at a time.

Near-duplicates, splits and overlaps are those of a small one, by a sample of windows; a document beyond 16 MiB counts
as several. A tokenizer learns from a sample of the training split.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.corpora.base import AnyCorpus, Corpus, Encoded, Files
from sweeplab.data.corpora.splits import BETWEEN_DOCUMENTS, TENTHS, dealt, kept_of, sampled, share_of
from sweeplab.data.formats import Document, Reading, documents
from sweeplab.data.source import size_of
from sweeplab.data.tokenizers import Tokenizer
from sweeplab.errors import BadInput
from sweeplab.files import opened

# Files of more bytes are read in a stream; from how many characters a tokenizer learns.
LARGE_BYTES, SAMPLE_CHARACTERS = 2**28, 2**25
PIECE = 2**23  # tokens that are read back at once


def is_large(corpus: AnyCorpus, files: Files) -> bool:
    """Return whether files are read in a stream: texts without splits of their own."""
    if not isinstance(corpus, Corpus) or corpus.read or isinstance(files, dict):
        return False
    return size_of([*files]) > LARGE_BYTES


class LargeText:
    """The documents of files, without near-duplicates of longer ones."""

    def __init__(self, files: Sequence[Path], reading: Reading) -> None:
        self._files, self._reading = files, reading
        self.n_bytes = sum(file.stat().st_size for file in files)  # by which windows are sampled
        lengths, names, windows = array("q"), array("Q"), []
        digest, characters = hashlib.sha256(), set[str]()
        for part in self._documents(reading):
            content = part.text.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
            names.append(int.from_bytes(hashlib.sha256(content).digest()[:8], "little"))
            lengths.append(len(part.text))
            windows.append(sampled(part.text, self.n_bytes))
            characters.update(part.text)
        if not lengths:
            raise BadInput(f"there is no text in {files[0].parent}")
        if len(lengths) > 1:
            characters.update(BETWEEN_DOCUMENTS)
        self.digest, self.characters = digest.hexdigest(), "".join(sorted(characters))
        sizes = np.frombuffer(lengths, np.int64)
        first = np.sort(np.unique(np.frombuffer(names, np.uint64), return_index=True)[1])
        order = first[np.argsort(-sizes[first], kind="stable")]
        self._is_kept = np.zeros(len(sizes), np.bool_)
        self._is_kept[order[kept_of([windows[index] for index in order])]] = True
        self.n_characters = int(sizes[self._is_kept].sum())

    @property
    def key(self) -> Sequence[Any]:
        """Return what tells prepared texts apart."""
        return [self.digest]

    def _documents(self, reading: Reading) -> Iterator[Document]:
        return (part for part in documents(self._files, reading) if part.text.strip())

    def _dealt(self) -> Iterator[tuple[str, str]]:
        def numbered() -> Iterator[tuple[int, str]]:
            number, how = -1, self._reading
            again = Reading(how.fields, how.format, how.encoding)
            for is_kept, part in zip(self._is_kept, self._documents(again), strict=True):
                if not part.continues:
                    number += 1
                if is_kept:
                    yield number, part.text

        return dealt(numbered(), self.n_characters)

    def sample(self) -> str:
        """Return sections of the training split, evenly spread, from which a tokenizer learns."""
        every = max(1, self.n_characters // SAMPLE_CHARACTERS)
        train = (section for split, section in self._dealt() if split == "train")
        return "\n".join(section for at, section in enumerate(train) if at % every == 0)

    def encoded(self, tokenizer: Tokenizer, folder: Path) -> Encoded:
        """Write the tokens of each split to a file of the folder; return them, and facts of the text."""
        windows, val_bytes = {split: [np.zeros(0, np.uint64)] for split in TENTHS}, 0
        with ExitStack() as stack:
            files = {split: stack.enter_context(opened(folder / split, "wb")) for split in TENTHS}
            for split, section in self._dealt():
                files[split].write(np.asarray(tokenizer.encode(section)).astype("<u2").data)
                windows[split].append(sampled(section, self.n_bytes))
                if split == "val":
                    val_bytes += len(section.encode())
        train, val, test = map(np.concatenate, windows.values())
        train.sort()
        how = "read in a stream, near-duplicates and overlap by a sample of windows"
        facts = {
            "text_digest": self.digest,
            "n_characters": self.n_characters,
            "val_bytes": val_bytes,
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
