"""Tokens of a corpus, built once and then memory-mapped by every process.

The cache folder has these files, each named by a digest of its inputs:
  <corpus, files>.text        the key of the texts in these files, so that the files are not read again
  <tokenizer, texts>.tokens   16-bit little-endian token ids of training, validation and test
  <tokenizer, texts>.ends     for pairs: where each source and each target ends, as 64-bit little-endian numbers
  <tokenizer, texts>.json     the digest of its second line, and in that line all other fields of a Dataset
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from sweeplab.data.batches import NO_TARGET, DataKind, Pairs, Split, kind_of, limited
from sweeplab.data.corpora import CORPORA, Texts
from sweeplab.data.corpora.base import Files
from sweeplab.data.corpora.large import LargeText, is_large
from sweeplab.data.objectives import OBJECTIVES, check_fits, evaluated_on, make_objective
from sweeplab.data.readers.source import (
    WHOLE,
    Source,
    checked,
    in_bytes,
    pieces,
    token_files,
    token_splits,
    vocabulary_of,
)
from sweeplab.data.task import DataSizes
from sweeplab.data.tokenizers import TOKENIZERS, IdsTokenizer, LearnedTokenizer, Tokenizer, load_tokenizer
from sweeplab.data.tokenizers.base import LARGEST_VOCABULARY
from sweeplab.data.tokenizers.library import is_file_of_tokenizer, tokenizer_in
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import cache_folder, make_folder, read_bytes, write_whole
from sweeplab.formatting import several
from sweeplab.hyperparameters import Hyperparameters

OWN_KINDS = ("text", "pairs", "labels")  # of data; others are of plug-ins
FORMAT = 4  # part of every digest: raise it when the same text would give other tokens or facts
TOKEN = np.dtype("<u2")
END = np.dtype("<i8")
# A file written this shortly before its text was recorded may have been changed since without a change of
# its time or size (git's "racy" files): its text is read again.
SETTLED_NANOSECONDS = 2 * 10**9

T = TypeVar("T")
Scored = Literal["val", "test"]  # the splits on which losses are measured


@dataclass(frozen=True, eq=False)
class Dataset:
    """The tokens of a corpus in three splits, which have the same text for any tokenizer.

    Training, pruning, selection and search use only `train` and `val`; `test` is used only on explicit request.
    The splits are read-only views [n] of one memory-mapped file, or pairs over such views.
    Digests are sha256 in hexadecimal: of the texts; and of all token ids as 16-bit little-endian numbers with the ends
    of splits and pairs. `val_bytes` is the size in UTF-8 of the text to predict in `val`: its text, or its targets.
    The overlaps are the shares of a split's windows that occur in the training text; `n_duplicates` documents,
    of `n_documents`, were left out. `notes` say how the files were read.
    """

    tokenizer: Tokenizer
    train: Split
    val: Split
    test: Split
    text_digest: str
    token_digest: str
    n_characters: int
    val_bytes: int
    val_overlap: float
    test_overlap: float
    n_duplicates: int
    n_documents: int = 0
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    _bytes_per_target: dict[Any, float] = field(default_factory=dict)  # of the evaluations asked for

    @property
    def kind(self) -> DataKind:
        """Return the kind of the corpus' data."""
        return kind_of(self.train)

    @property
    def sizes(self) -> DataSizes:
        """Return the sizes of the data, from which automatic values of a study are computed."""
        n_pairs = self.train.n_pairs if isinstance(self.train, Pairs) else None
        return DataSizes(self.tokenizer.vocab_size, len(self.train), n_pairs, len(self.labels) or None)

    @property
    def val_targets(self) -> int:
        """Return the number of targets in the validation split: for a pair, the tokens of its target and its end."""
        return next(each for each in OBJECTIVES.values() if each.learns == self.kind).n_targets(self.val)

    def training(self, values: Hyperparameters) -> Split:
        """Return a run's training data: the training split, or the part given by its data_limit."""
        if values.data_limit is None:
            return self.train
        return limited(self.train, values.data_limit)

    def scored(self, split: Scored) -> Split:
        """Return the split of this name."""
        if split == "val":
            return self.val
        return self.test

    def bits_per_byte(self, loss: float, values: Hyperparameters, split: Scored = "val") -> float | None:
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
            for batch in make_objective(self.scored(split), values).evaluation(values.evaluated_tokens):
                targets = batch.targets[batch.targets != NO_TARGET]
                n_bytes += int(lengths[targets[targets < len(lengths)]].sum())  # special tokens are no text
                n_targets += len(targets)
            self._bytes_per_target[asked] = n_bytes / n_targets
        return loss / math.log(2) / self._bytes_per_target[asked]

    def check_fits(self, values: Hyperparameters) -> None:
        """Check that the splits fit a run's block_size.

        Raises:
            BadInput: they do not; the message says which block_size is allowed.
        """
        check_fits({"training": self.training(values), "validation": self.val, "test": self.test}, values)


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
        return _of_tokens(source.tokens, tokenizer, vocab_size, folder)
    reader = _named(CORPORA, "corpus", corpus)
    if trained is None and is_file_of_tokenizer(tokenizer):
        trained = tokenizer_in(Path(tokenizer))
    tokenizer_key = _tokenizer_key(tokenizer, vocab_size) if trained is None else _digest(trained.to_json())
    of_split = {split: reader.files(place) for split, place in source.places.items()}
    files: Files = of_split.get(WHOLE, of_split)
    stamps = _stamps([file for paths in of_split.values() for file in paths])
    how = [*source.reading_key, *(len(paths) for paths in of_split.values() if WHOLE not in of_split)]
    key: list[Any] = [corpus, stamps]
    if how:
        key.append(how)
    known = folder / f"{_digest(*key)}.text"

    name = _remembered(known, newest=max(mtime for _, _, mtime in stamps))
    if name and (dataset := open_cached(folder / _digest(tokenizer_key, name))):
        return dataset

    if is_large(reader, files):
        with _writing(folder):
            large = LargeText(files, source.reading)
            name = large.digest
            base = folder / _digest(tokenizer_key, name)
            dataset = open_cached(base) or _built_large(base, large, tokenizer, vocab_size, trained)
            write_whole(known, name.encode())
        return dataset
    texts = reader.texts(files, source.reading)
    name = f"{texts.digest} {texts.n_duplicates}"
    if texts.kind not in OWN_KINDS:
        name += f" {texts.kind}"
    if texts.notes:
        name += f" {_digest(texts.notes)}"
    base = folder / _digest(tokenizer_key, name)
    with _writing(folder):
        dataset = open_cached(base) or _built(
            base, texts, lambda: trained or _trained(tokenizer, vocab_size, texts)
        )
        write_whole(known, name.encode())
    return dataset


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        make_folder(folder, 0o700)
        with FileLock(folder / ".lock"):
            yield
    except OSError as error:
        reason = error.strerror or error
        what = f"cannot write tokens to {folder} ({reason}); SWEEPLAB_CACHE names another folder"
        raise BadInput(what) from error


def _of_tokens(place: str, tokenizer: str, vocab_size: int | None, folder: Path) -> Dataset:
    files = token_files(place, tokenizer if is_file_of_tokenizer(tokenizer) else "")
    stamps = _stamps(files.files)
    base = folder / _digest("tokens", vocab_size, stamps)
    is_settled = time.time_ns() - max(mtime for _, _, mtime in stamps) > SETTLED_NANOSECONDS
    if is_settled and (dataset := open_cached(base)):
        return dataset
    splits = token_splits(files)
    vocabulary = vocabulary_of(files, vocab_size or LARGEST_VOCABULARY)
    if vocab_size is not None and not isinstance(vocabulary, IdsTokenizer):
        raise WrongVocabulary(
            f"vocab_size cannot be set: {files.vocabulary} has {vocabulary.vocab_size} tokens"
        )
    is_known = files.vocabulary is not None or vocab_size is not None
    n_tokens = checked(splits, vocabulary.vocab_size if is_known else None)
    if not is_known:
        vocabulary = IdsTokenizer(n_tokens)
    if files.vocabulary:
        of = f"{files.vocabulary.name}"
    else:
        of = "none: tokens are shown as numbers, and bits per byte unknown"
    facts = {
        "tokenizer": vocabulary.to_json(),
        "n_characters": 0,
        "val_bytes": in_bytes(vocabulary, splits[1]),
        **dict.fromkeys(("val_overlap", "test_overlap", "n_duplicates"), 0),
        "notes": (f"tokens of {several(len(files.arrays), 'file')}; vocabulary: {of}",),
    }
    with _writing(folder):
        return _written(base, [pieces(split) for split in splits], facts)


def _tokenizer_key(tokenizer: str, vocab_size: int | None) -> str:
    kind = _named(TOKENIZERS, "tokenizer", tokenizer)
    name = tokenizer
    if vocab_size is not None:
        if not issubclass(kind, LearnedTokenizer):
            raise WrongVocabulary(
                f"tokenizer {tokenizer} takes no vocab_size: the text determines its tokens"
            )
        name = f"{tokenizer}-{vocab_size}"
    return name + (f"@{kind.version}" if kind.version else "")


def _named(table: dict[str, T], what: str, name: str) -> T:
    if name not in table:
        raise BadInput(Problem(f"unknown {what} {name!r}", " | ".join(table), nearest(name, table)))
    return table[name]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps([FORMAT, *parts]).encode()).hexdigest()[:32]


def _stamps(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return path, size and time of each file: while these do not change, its text is assumed not to change."""
    try:
        states = [file.stat() for file in files]
    except OSError as error:
        raise BadInput(f"cannot read {error.filename}: {error.strerror}") from error
    return [(str(file), state.st_size, state.st_mtime_ns) for file, state in zip(files, states, strict=True)]


def _remembered(known: Path, newest: int) -> str | None:
    with suppress(OSError):
        if known.stat().st_mtime_ns - newest > SETTLED_NANOSECONDS:
            return read_bytes(known).decode("ascii", "replace")
    return None


def open_cached(base: Path) -> Dataset | None:
    """Map the tokens at a path of the cache, without suffix; return None if they are missing or damaged."""
    try:
        digest, line = read_bytes(base.with_suffix(".json")).decode().split("\n")
        if hashlib.sha256(line.encode()).hexdigest() != digest:
            return None
        facts = json.loads(line)
        sizes, n_ends = facts.pop("sizes"), facts.pop("n_ends", None)
        tokens = np.memmap(base.with_suffix(".tokens"), TOKEN, "r")
        ends: NDArray[np.int64] = np.zeros(0, END)
        if n_ends is not None:
            ends = np.memmap(base.with_suffix(".ends"), END, "r")
    except (OSError, ValueError):
        return None
    if _token_digest(sizes, tokens.data, ends.data) != facts["token_digest"]:
        return None
    of_tokens = np.split(tokens, np.cumsum(sizes)[:-1])
    splits: Sequence[Split] = of_tokens
    if n_ends is not None:
        parts = zip(of_tokens, np.split(ends, np.cumsum(n_ends)[:-1]), strict=True)
        per_source = facts.pop("per_source", 1)
        n_labels = len(facts.get("labels", ()))
        kind = facts.pop("kind", "labels" if n_labels else "pairs")
        splits = [Pairs(*each, n_labels, per_source, kind) for each in parts]
    facts |= {name: tuple(facts.get(name, ())) for name in ("labels", "notes")}
    train, val, test = splits
    return Dataset(load_tokenizer(facts.pop("tokenizer")), train, val, test, **facts)


def _token_digest(sizes: Sequence[int], *contents: Any) -> str:
    digest = hashlib.sha256(json.dumps(sizes).encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _built(base: Path, texts: Texts, made: Callable[[], Tokenizer]) -> Dataset:
    splits = texts.train, texts.val, texts.test
    try:
        trained = made()
        tokens = [[*_encoded(trained, texts, split)] for split in splits]
    except ValueError as error:
        raise BadInput(str(error)) from error
    facts = {
        "tokenizer": trained.to_json(),
        "text_digest": texts.digest,
        "n_characters": texts.n_characters,
        "val_bytes": texts.val_bytes,
        **dict(zip(("val_overlap", "test_overlap"), texts.overlaps, strict=True)),
        "n_documents": texts.n_documents,
        "n_duplicates": texts.n_duplicates,
    }
    if texts.labels:
        facts["labels"] = texts.labels
    if texts.notes:
        facts["notes"] = texts.notes
    if texts.kind not in OWN_KINDS:
        facts |= {"kind": texts.kind, "per_source": texts.targets.per_source}
    if texts.of_pairs:
        ends = [np.cumsum([len(text) for text in split]).astype(END) for split in tokens]
    else:
        ends = None
    return _written(base, tokens, facts, ends)


def _built_large(
    base: Path, large: LargeText, tokenizer: str, vocab_size: int | None, trained: Tokenizer | None
) -> Dataset:
    try:
        if trained is None:
            kind = TOKENIZERS[tokenizer]
            if issubclass(kind, LearnedTokenizer):
                trained = kind.train(large.sample(), vocab_size, large.characters)
            else:
                trained = kind.train(large.characters)
        with tempfile.TemporaryDirectory(dir=base.parent) as folder:
            tokens, facts = large.encoded(trained, Path(folder))
            return _written(base, tokens, {"tokenizer": trained.to_json(), **facts})
    except ValueError as error:
        raise BadInput(str(error)) from error


def _written(
    base: Path,
    splits: Sequence[Iterable[NDArray[Any]]],
    facts: dict[str, Any],
    ends: Sequence[NDArray[Any]] | None = None,
) -> Dataset:
    """Write the tokens of each split, which come in pieces, and what is known of them; return the dataset."""
    sizes = [0] * len(splits)

    def written() -> Iterator[memoryview]:
        for number, split in enumerate(splits):
            for piece in split:
                sizes[number] += len(piece)
                yield piece.data

    write_whole(base.with_suffix(".tokens"), written())
    contents: list[Any] = [np.memmap(base.with_suffix(".tokens"), TOKEN, "r").data]
    if ends is not None:
        contents.append(np.concatenate(ends).tobytes())
        write_whole(base.with_suffix(".ends"), contents[1])
        facts["n_ends"] = list(map(len, ends))
    digest = _token_digest(sizes, *contents)
    line = json.dumps({"text_digest": digest, **facts, "sizes": sizes, "token_digest": digest})
    # Written last: without it, or with an older one that does not match the tokens, there is no dataset.
    write_whole(base.with_suffix(".json"), f"{hashlib.sha256(line.encode()).hexdigest()}\n{line}".encode())
    dataset = open_cached(base)
    if dataset is None:
        raise OSError("what was written reads back differently")
    return dataset


def _encoded(tokenizer: Tokenizer, texts: Texts, split: Sequence[str]) -> Iterator[NDArray[Any]]:
    """Yield the tokens of each text; for pairs, of source and target in turn."""
    numbers = {name: number for number, name in enumerate(texts.labels)}
    encode = texts.targets.encode
    if encode:
        for source, target in zip(split[::2], split[1::2], strict=True):
            yield from (np.asarray(part).astype(TOKEN) for part in encode(tokenizer, source, target, numbers))
        return
    for text in split:
        yield np.asarray(tokenizer.encode(text)).astype(TOKEN)


def _trained(tokenizer: str, vocab_size: int | None, texts: Texts) -> Tokenizer:
    """Return the tokenizer of a corpus; learned ones see only the training split, and none sees labels."""
    kind = TOKENIZERS[tokenizer]
    splits: tuple[Sequence[str], ...] = (texts.train, texts.val, texts.test)
    if texts.of_pairs:
        label = texts.targets.text
        plain = ((label(text) if at % 2 else text for at, text in enumerate(split)) for split in splits)
        splits = tuple([text for text in each if text] for each in plain)
    if issubclass(kind, LearnedTokenizer):
        try:
            # One text per line, so that no token spans two texts.
            return kind.train("\n".join(splits[0]), vocab_size, "".join(chain.from_iterable(splits[1:])))
        except ValueError as error:
            if vocab_size is None:
                raise BadInput(str(error)) from error
            raise WrongVocabulary(str(error)) from error
    return kind.train("".join(chain.from_iterable(splits)))
