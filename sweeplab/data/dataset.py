"""Tokens of a corpus, built once and then memory-mapped by every process.

The cache folder has these files, each named by a digest of its inputs:
  <tokenizer, files>.tokens   16-bit little-endian token ids of training, validation and test
  <tokenizer, files>.ends     for pairs: where each source and each target ends, as 64-bit little-endian numbers
  <tokenizer, files>.json     the digest of its second line, and in that line all other fields of a Dataset
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from sweeplab.data import DataSizes
from sweeplab.data.batches import NO_TARGET, DataKind, Pairs, Split, kind_of, limited
from sweeplab.data.corpora import CORPORA
from sweeplab.data.corpora.base import Encoded, LargeText, Texts, is_large
from sweeplab.data.objectives import check_fits, evaluated_on, make_objective
from sweeplab.data.source import (
    Source,
    checked,
    pieces,
    token_files,
    token_splits,
    vocabulary_of,
)
from sweeplab.data.tokenizers import (
    DEFAULT_SIZE,
    TOKENIZERS,
    IdsTokenizer,
    LibraryTokenizer,
    Tokenizer,
    load_tokenizer,
)
from sweeplab.data.tokenizers.library import is_file_of_tokenizer, tokenizer_in
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import cache_folder, make_folder, read_bytes, write_whole
from sweeplab.formatting import several
from sweeplab.hyperparameters import Hyperparameters

FORMAT = 7  # part of every digest: raise it when the same text would give other tokens or facts
TOKEN = np.dtype("<u2")
END = np.dtype("<i8")
# A file written this shortly before its tokens may have been changed since without a change of its time or size (git's
# "racy" files): it is read again.
SETTLED_NANOSECONDS = 2 * 10**9

T = TypeVar("T")
Scored = Literal["val", "test"]  # the splits on which losses are measured


@dataclass(frozen=True, eq=False)
class Dataset:
    """The tokens of a corpus in three splits, which have the same text for any tokenizer.

    Training, pruning, selection and search use only `train` and `val`; `test` is used only on explicit request.
    The splits are read-only views [n] of one memory-mapped file, or pairs over such views.
    Digests are sha256 in hexadecimal: of the texts; and of all token ids as 16-bit little-endian numbers with the ends
    of splits and pairs.
    The overlaps are the shares of a split's windows that occur in the training text; `n_duplicates` documents,
    of `n_documents`, were left out. `notes` say how the files were read.
    """

    tokenizer: Tokenizer
    train: Split
    val: Split
    test: Split
    text_digest: str
    token_digest: str
    n_characters: int = 0
    val_overlap: float = 0.0
    test_overlap: float = 0.0
    n_duplicates: int = 0
    n_documents: int = 0
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Of the evaluations asked for.
    _bytes_per_target: dict[Any, float] = field(default_factory=dict)

    @property
    def kind(self) -> DataKind:
        """Return the kind of the corpus' data."""
        return kind_of(self.train)

    @property
    def sizes(self) -> DataSizes:
        """Return the sizes of the data, from which automatic values of a study are computed."""
        n_pairs = self.train.n_pairs if isinstance(self.train, Pairs) else None
        return DataSizes(
            self.tokenizer.vocab_size, len(self.train), n_pairs, len(self.labels) or None
        )

    def training(self, values: Hyperparameters) -> Split:
        """Return a run's training data: the training split, or the part given by its data_limit."""
        if values.data_limit is None:
            return self.train
        return limited(self.train, values.data_limit)

    def bits_per_byte(
        self, loss: float, values: Hyperparameters, split: Scored = "val"
    ) -> float | None:
        """Convert a loss (nats per evaluated target) to bits per byte of these targets; None if they are not text.

        The result is comparable across tokenizers. For masked tokens it is their cost given the text on both sides,
        which is less than the cost of the text.
        """
        if self.kind not in ("text", "pairs") or isinstance(self.tokenizer, IdsTokenizer):
            return None
        asked = split, *evaluated_on(values)
        if asked not in self._bytes_per_target:
            lengths = self.tokenizer.byte_lengths()
            n_bytes = n_targets = 0
            for batch in make_objective(getattr(self, split), values).evaluation(
                values.evaluated_tokens
            ):
                targets = batch.targets[batch.targets != NO_TARGET]
                # Special tokens are no text.
                n_bytes += int(lengths[targets[targets < len(lengths)]].sum())
                n_targets += len(targets)
            self._bytes_per_target[asked] = n_bytes / n_targets
        return loss / math.log(2) / self._bytes_per_target[asked]

    def check_fits(self, values: Hyperparameters) -> None:
        """Check that the splits fit a run's block_size.

        Raises:
            BadInput: they do not; the message says which block_size is allowed.
        """
        check_fits(
            {"training": self.training(values), "validation": self.val, "test": self.test},
            values,
        )


class WrongVocabulary(BadInput):
    """The vocab_size is one that the tokenizer cannot learn, or the tokenizer learns no vocabulary."""


def prepare(
    corpus: str,
    tokenizer: str,
    path: str | Source | None = None,
    cache: Path | None = None,
    vocab_size: int | None = None,
    trained: Tokenizer | None = None,
) -> Dataset:
    """Return the corpus' tokens, from the cache if it has them; concurrent processes build them only once.

    `vocab_size` is the size of the vocabulary that a tokenizer learns; `trained` is an existing tokenizer to use, as is
    a `tokenizer` that names a file. A cached file that is damaged, by its digest, is built again.

    Raises:
        BadInput: there is no such corpus or tokenizer, the corpus cannot be read or tokenized, or the cache
            cannot be written.
    """
    source = path if isinstance(path, Source) else Source(path)
    folder = cache or cache_folder()
    if source.tokens is not None:
        if vocab_size is not None:
            raise WrongVocabulary("tokens take no vocab_size: their vocabulary determines it")
        return _of_tokens(source.tokens, tokenizer, folder)
    reader = _named(CORPORA, "corpus", corpus)
    if trained is None and is_file_of_tokenizer(tokenizer):
        trained = tokenizer_in(Path(tokenizer))
    if trained is None:
        kind = _named(TOKENIZERS, "tokenizer", tokenizer)
        if vocab_size is not None and not issubclass(kind, LibraryTokenizer):
            what = f"tokenizer {tokenizer} takes no vocab_size: the text determines its tokens"
            raise WrongVocabulary(what)
        tokenizer_key = _digest(tokenizer, vocab_size, kind.version)
    else:
        tokenizer_key = _digest(trained.to_json())

    of_split = {split: reader.files(place) for split, place in source.places.items()}
    stamps = [(split, *stamp) for split, paths in of_split.items() for stamp in _stamps(paths)]
    base = folder / _digest(tokenizer_key, corpus, stamps, source.fields, source.encoding)
    if dataset := _settled(base, stamps):
        return dataset
    with _writing(folder):
        if dataset := _settled(base, stamps):  # another process was faster
            return dataset
        texts: Texts | LargeText
        if is_large(reader, of_split):
            texts = LargeText(of_split["train"], source.reading)
        else:
            texts = reader.texts(of_split, source.reading)
        try:
            if trained is None and issubclass(kind, LibraryTokenizer):
                trained = kind.train(texts.sample(), vocab_size or DEFAULT_SIZE)
            elif trained is None:
                trained = kind.train(texts.characters)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                return _written(base, trained, texts.encoded(trained, Path(scratch)))
        except ValueError as error:
            if trained is None and vocab_size is not None:
                raise WrongVocabulary(str(error)) from error
            raise BadInput(str(error)) from error


def _settled(base: Path, stamps: Iterable[tuple[Any, ...]]) -> Dataset | None:
    """Return the dataset at a path of the cache, unless a file may have changed since without another time or size."""
    changed = max(stamp[-1] for stamp in stamps)
    with suppress(OSError):
        if base.with_suffix(".json").stat().st_mtime_ns - changed > SETTLED_NANOSECONDS:
            return open_cached(base)
    return None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        make_folder(folder, 0o700)
        with FileLock(folder / ".lock"):
            yield
    except OSError as error:
        reason = error.strerror or error
        what = (
            f"cannot write tokens to {folder} ({reason}); SWEEPLAB_CACHE names another folder"
        )
        raise BadInput(what) from error


def _of_tokens(place: str, tokenizer: str, folder: Path) -> Dataset:
    files = token_files(place, tokenizer if is_file_of_tokenizer(tokenizer) else "")
    stamps = _stamps([file for file in (*files.arrays.values(), files.vocabulary) if file])
    base = folder / _digest("tokens", stamps)
    if dataset := _settled(base, stamps):
        return dataset
    splits, vocabulary = token_splits(files), vocabulary_of(files)
    n_tokens = checked(splits, vocabulary.vocab_size if vocabulary else None)
    of = "none: tokens are shown as numbers, and bits per byte unknown"
    if files.vocabulary:
        of = files.vocabulary.name
    notes = (f"tokens of {several(len(files.arrays), 'file')}; vocabulary: {of}",)
    encoded = Encoded([pieces(split) for split in splits], {"notes": notes})
    with _writing(folder):
        return _written(base, vocabulary or IdsTokenizer(n_tokens), encoded)


def _named(table: dict[str, T], what: str, name: str) -> T:
    if name not in table:
        raise BadInput(
            Problem(f"unknown {what} {name!r}", " | ".join(table), nearest(name, table))
        )
    return table[name]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps([FORMAT, *parts]).encode()).hexdigest()[:32]


def _stamps(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return path, size and time of each file: while these do not change, its text is assumed not to change."""
    try:
        states = [file.stat() for file in files]
    except OSError as error:
        raise BadInput(f"cannot read {error.filename}: {error.strerror}") from error
    return [
        (str(file), state.st_size, state.st_mtime_ns)
        for file, state in zip(files, states, strict=True)
    ]


def _written(base: Path, tokenizer: Tokenizer, encoded: Encoded) -> Dataset:
    """Write the tokens of each split, and what is known of them; return the dataset."""
    lengths: list[list[int]] = [[] for _ in encoded.splits]

    def written() -> Iterator[memoryview]:
        for split, of_split in zip(encoded.splits, lengths, strict=True):
            for piece in split:
                of_split.append(len(piece))
                yield piece.astype(TOKEN, copy=False).data

    write_whole(base.with_suffix(".tokens"), written())
    facts = {"kind": "text", "per_source": 1, **encoded.facts, "tokenizer": tokenizer.to_json()}
    facts["sizes"] = [sum(of_split) for of_split in lengths]
    if facts["kind"] != "text":
        facts["n_ends"] = [len(of_split) for of_split in lengths]
        ends = np.concatenate([np.cumsum(of_split) for of_split in lengths])
        write_whole(base.with_suffix(".ends"), ends.astype(END).tobytes())
    facts["token_digest"] = _token_digest(facts["sizes"], *_mapped(base, facts["kind"]))
    line = json.dumps({"text_digest": facts["token_digest"], **facts})
    # Written last: without it, or with an older one that does not match the tokens, there is no dataset.
    write_whole(
        base.with_suffix(".json"),
        f"{hashlib.sha256(line.encode()).hexdigest()}\n{line}".encode(),
    )
    dataset = open_cached(base)
    if dataset is None:
        raise OSError("what was written reads back differently")
    return dataset


def open_cached(base: Path) -> Dataset | None:
    """Map the tokens at a path of the cache, without suffix; return None if they are missing or damaged."""
    try:
        digest, line = read_bytes(base.with_suffix(".json")).decode().split("\n")
        if hashlib.sha256(line.encode()).hexdigest() != digest:
            return None
        facts = json.loads(line)
        kind, per_source, sizes = (facts.pop(name) for name in ("kind", "per_source", "sizes"))
        tokens, ends = _mapped(base, kind)
    except (OSError, ValueError):
        return None
    if _token_digest(sizes, tokens, ends) != facts["token_digest"]:
        return None
    splits: list[Any] = np.split(tokens, np.cumsum(sizes)[:-1])
    facts |= {name: tuple(facts.get(name, ())) for name in ("labels", "notes")}
    if kind != "text":
        n_labels, of_split = (
            len(facts["labels"]),
            np.split(ends, np.cumsum(facts.pop("n_ends"))[:-1]),
        )
        parts = zip(splits, of_split, strict=True)
        splits = [Pairs(part, ends, n_labels, per_source, kind) for part, ends in parts]
    return Dataset(load_tokenizer(facts.pop("tokenizer")), *splits, **facts)


def _mapped(base: Path, kind: DataKind) -> tuple[NDArray[Any], NDArray[Any]]:
    tokens = np.memmap(base.with_suffix(".tokens"), TOKEN, "r")
    if kind == "text":
        return tokens, np.zeros(0, END)
    return tokens, np.memmap(base.with_suffix(".ends"), END, "r")


def _token_digest(sizes: Sequence[int], tokens: NDArray[Any], ends: NDArray[Any]) -> str:
    digest = hashlib.sha256(json.dumps(sizes).encode())
    digest.update(tokens.data)
    digest.update(ends.data)
    return digest.hexdigest()
