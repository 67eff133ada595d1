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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from sweeplab.data.batches import NO_TAG, NO_TARGET, DataKind, Pairs, Split, kind_of, limited
from sweeplab.data.corpora import CORPORA, Texts
from sweeplab.data.objectives import check_fits, evaluated_on, make_objective
from sweeplab.data.task import DataSizes
from sweeplab.data.tokenizers import TOKENIZERS, LearnedTokenizer, Tokenizer, load_tokenizer, word_encoder
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import cache_folder, write_whole
from sweeplab.hyperparameters import Hyperparameters

FORMAT = 3  # part of every digest: raise it when the same text would give other tokens or facts
TOKEN = np.dtype("<u2")
END = np.dtype("<i8")
# A file written this shortly before its text was recorded may have been changed since without a change of
# its time or size (git's "racy" files): its text is read again.
SETTLED_NANOSECONDS = 2 * 10**9

T = TypeVar("T")
N = TypeVar("N", bound=np.generic)
Scored = Literal["val", "test"]  # the splits on which losses are measured


@dataclass(frozen=True, eq=False)
class Dataset:
    """The tokens of a corpus in three splits, which have the same text for any tokenizer.

    Training, pruning, selection and search use only `train` and `val`; `test` is used only on explicit request.
    The splits are read-only views [n] of one memory-mapped file, or pairs over such views.
    Digests are sha256 in hexadecimal: of the texts; and of all token ids as 16-bit little-endian numbers with the ends
    of splits and pairs. `val_bytes` is the size in UTF-8 of the text to predict in `val`: its text, or its targets.
    The overlaps are the shares of a split's windows that occur in the training text; `n_duplicates` documents
    were left out.
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
    labels: tuple[str, ...] = ()
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
        if isinstance(self.val, Pairs) and self.kind == "scores":
            return self.val.n_pairs
        if isinstance(self.val, Pairs):
            n_tokens = int(self.val.lengths[:, 1].sum())
            untagged = int(np.count_nonzero(self.val.tokens == NO_TAG)) if self.kind == "tags" else 0
            return n_tokens - untagged if self.labels else n_tokens + self.val.n_pairs
        return len(self.val)

    def training(self, values: Hyperparameters) -> Split:
        """Return a run's training data: the training split, or the part given by its data_limit."""
        return self.train if values.data_limit is None else limited(self.train, values.data_limit)

    def scored(self, split: Scored) -> Split:
        """Return the split of this name."""
        return self.val if split == "val" else self.test

    def bits_per_byte(self, loss: float, values: Hyperparameters, split: Scored = "val") -> float | None:
        """Convert a loss (nats per evaluated target) to bits per byte of these targets; None if they are not text.

        The result is comparable across tokenizers. For masked tokens it is their cost given the text on both sides,
        which is less than the cost of the text.
        """
        if self.kind not in ("text", "pairs"):
            return None
        asked = split, *evaluated_on(values)
        if asked not in self._bytes_per_target:
            lengths = self.tokenizer.byte_lengths()
            n_bytes = n_targets = 0
            for batch in make_objective(self.scored(split), values).evaluation(values.evaluated_tokens):
                found = batch.targets[batch.targets != NO_TARGET]
                n_bytes += int(lengths[found[found < len(lengths)]].sum())  # special tokens are no text
                n_targets += len(found)
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
    path: str | None = None,
    cache: Path | None = None,
    vocab_size: int | None = None,
    given: Tokenizer | None = None,
) -> Dataset:
    """Return the corpus' tokens, from the cache if it has them; concurrent processes build them only once.

    `vocab_size` is the size of the vocabulary that a tokenizer learns; `given` is an existing tokenizer to use.
    A cached file that is damaged, by its digest, is built again.

    Raises:
        BadInput: there is no such corpus or tokenizer, the corpus cannot be read or tokenized, or the cache
            cannot be written.
    """
    source = _named(CORPORA, "corpus", corpus)
    tokenizer_key = _tokenizer_key(tokenizer, vocab_size) if given is None else _digest(given.to_json())
    files = source.files(path)
    folder = cache or cache_folder()
    stamps = _stamps(files)
    known = folder / f"{_digest(corpus, stamps)}.text"

    name = _remembered(known, newest=max(mtime for _, _, mtime in stamps))
    if name and (dataset := open_cached(folder / _digest(tokenizer_key, name))):
        return dataset

    texts = source.texts(files)
    name = f"{texts.digest} {texts.n_duplicates}"
    base = folder / _digest(tokenizer_key, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            dataset = open_cached(base) or _built(
                base, texts, lambda: given or _trained(tokenizer, vocab_size, texts)
            )
            write_whole(known, name.encode())
    except OSError as error:
        reason = error.strerror or error
        what = f"cannot write tokens to {folder} ({reason}); SWEEPLAB_CACHE names another folder"
        raise BadInput(what) from error
    return dataset


def cached_at(tokenizer: str, vocab_size: int | None, text_digest: str, n_duplicates: int) -> Path:
    """Return the path of a text's tokens in this machine's cache, without suffix; the files need not exist."""
    return cache_folder() / _digest(_tokenizer_key(tokenizer, vocab_size), f"{text_digest} {n_duplicates}")


def _tokenizer_key(tokenizer: str, vocab_size: int | None) -> str:
    """Return the key of a tokenizer: its name, its vocabulary size if given, and its version."""
    kind = _named(TOKENIZERS, "tokenizer", tokenizer)
    if vocab_size is not None and not issubclass(kind, LearnedTokenizer):
        raise WrongVocabulary(f"tokenizer {tokenizer} takes no vocab_size: the text determines its tokens")
    name = tokenizer if vocab_size is None else f"{tokenizer}-{vocab_size}"
    return f"{name}@{kind.version}" if kind.version else name


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
    try:
        settled = known.stat().st_mtime_ns - newest > SETTLED_NANOSECONDS
        return known.read_text("ascii", "replace") if settled else None
    except OSError:
        return None


def open_cached(base: Path) -> Dataset | None:
    """Map the tokens at a path of `cached_at`; return None if they are missing or damaged."""
    try:
        digest, line = base.with_suffix(".json").read_text("utf-8").split("\n")
        if hashlib.sha256(line.encode()).hexdigest() != digest:
            return None
        facts = json.loads(line)
        sizes, n_ends = facts.pop("sizes"), facts.pop("n_ends", None)
        tokens = np.memmap(base.with_suffix(".tokens"), TOKEN, "r")
        ends = None if n_ends is None else np.memmap(base.with_suffix(".ends"), END, "r")
    except (OSError, ValueError):
        return None
    if _token_digest(sizes, tokens.data, b"" if ends is None else ends.data) != facts["token_digest"]:
        return None
    splits: Sequence[Split] = _parts(tokens, sizes)
    if ends is not None:
        parts = zip(_parts(tokens, sizes), _parts(ends, n_ends), strict=True)
        per_source = facts.pop("per_source", 1)
        of = facts.pop("of", None)
        splits = [Pairs(*each, len(facts.get("labels", ())), per_source, of) for each in parts]
    facts["labels"] = tuple(facts.get("labels", ()))
    train, val, test = splits
    return Dataset(load_tokenizer(facts.pop("tokenizer")), train, val, test, **facts)


def _parts(whole: NDArray[N], sizes: Sequence[int]) -> list[NDArray[N]]:
    """Return consecutive parts of an array, without copying."""
    ends = np.cumsum(sizes).tolist()
    return [whole[end - size : end] for size, end in zip(sizes, ends, strict=True)]


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
    content = {".tokens": np.concatenate([text for split in tokens for text in split]).tobytes()}
    sizes = [sum(map(len, split)) for split in tokens]
    facts = {
        "tokenizer": trained.to_json(),
        "sizes": sizes,
        "text_digest": texts.digest,
        "n_characters": texts.n_characters,
        "val_bytes": texts.val_bytes,
        **dict(zip(("val_overlap", "test_overlap"), texts.overlaps, strict=True)),
        "n_duplicates": texts.n_duplicates,
    }
    if texts.labels:
        facts["labels"] = texts.labels
    if texts.kind == "preferences":
        facts["per_source"] = 2
    elif texts.kind in ("tags", "scores"):
        facts["of"] = texts.kind
    if texts.of_pairs:
        ends = [np.cumsum([len(text) for text in split]).astype(END) for split in tokens]
        content[".ends"] = np.concatenate(ends).tobytes()
        facts["n_ends"] = list(map(len, ends))
    line = json.dumps(facts | {"token_digest": _token_digest(sizes, *content.values())})
    for suffix, written in content.items():
        write_whole(base.with_suffix(suffix), written)
    # Written last: without it, or with an older one that does not match the tokens, there is no dataset.
    write_whole(base.with_suffix(".json"), f"{hashlib.sha256(line.encode()).hexdigest()}\n{line}".encode())
    dataset = open_cached(base)
    if dataset is None:
        raise OSError("what was written reads back differently")
    return dataset


def _encoded(tokenizer: Tokenizer, texts: Texts, split: Sequence[str]) -> Iterator[NDArray[Any]]:
    """Yield the tokens of each text; for labels and tags their numbers; for scores the second text, then the score."""
    numbers = {name: number for number, name in enumerate(texts.labels)}
    if texts.kind == "tags":
        encode = word_encoder(tokenizer)
        for words, tags in zip(split[::2], split[1::2], strict=True):
            tokens, places = encode(words.split())
            numbered = np.full(len(tokens), NO_TAG)
            numbered[places] = [numbers[tag] for tag in tags.split()]
            yield from (tokens.astype(TOKEN), numbered.astype(TOKEN))
        return
    for at, text in enumerate(split):
        if texts.kind == "scores" and at % 2:
            score, _, second = text.partition("\t")
            written = np.array([float(score)], "<f8").view(TOKEN)
            yield np.append(np.asarray(tokenizer.encode(second)).astype(TOKEN), written)
            continue
        found = np.array([numbers[text]]) if numbers and at % 2 else tokenizer.encode(text)
        yield np.asarray(found).astype(TOKEN)


def _trained(tokenizer: str, vocab_size: int | None, texts: Texts) -> Tokenizer:
    """Return the tokenizer of a corpus; learned ones see only the training split, and none sees labels."""
    kind = TOKENIZERS[tokenizer]
    splits: tuple[Sequence[str], ...] = (texts.train, texts.val, texts.test)
    if texts.labels:
        splits = tuple(split[::2] for split in splits)
    if texts.kind == "scores":
        plain = (
            [text.rpartition("\t")[2] if at % 2 else text for at, text in enumerate(split)]
            for split in splits
        )
        splits = tuple(plain)
    if issubclass(kind, LearnedTokenizer):
        try:
            # One text per line, so that no token spans two texts.
            return kind.train("\n".join(splits[0]), vocab_size)
        except ValueError as error:
            raise (BadInput if vocab_size is None else WrongVocabulary)(str(error)) from error
    return kind.train("".join(chain.from_iterable(splits)))
