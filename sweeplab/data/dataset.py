"""Tokens of a corpus, built once and memory-mapped by every process after.

In the cache folder stand, each under a digest of what made it:
  <corpus, files>.text        the digest of the text that these files held, so that it is not read again
  <tokenizer, text>.tokens    16-bit little-endian token ids, the training split first
  <tokenizer, text>.json      the digest of the line below it, and there all else that a Dataset holds
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from sweeplab.data.cache import cache_folder
from sweeplab.data.corpora import CORPORA
from sweeplab.data.tokenizers import TOKENIZERS, Tokenizer, load_tokenizer
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import write_whole

FORMAT = 2  # part of every digest: raise it when the same text would give other tokens or facts
TOKEN = np.dtype("<u2")
# A file written this shortly before its text was remembered may have been written again since then
# without its time or size showing it (git's "racy" files): its text is read once more.
SETTLED_NANOSECONDS = 2 * 10**9

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A corpus as tokens: `train` the first 90% of its characters, for any tokenizer, and `val` the rest.

    Both are read-only views [n] of one memory-mapped file. Digests are sha256, in hexadecimal: of the text
    in UTF-8, and of all token ids as 16-bit little-endian numbers. `val_bytes` counts `val`'s text in UTF-8.
    """

    tokenizer: Tokenizer
    train: NDArray[np.uint16]
    val: NDArray[np.uint16]
    text_digest: str
    token_digest: str
    n_characters: int
    val_bytes: int


def prepare(corpus: str, tokenizer: str, path: str | None = None, cache: Path | None = None) -> Dataset:
    """Return the corpus' tokens, from the cache if it has them; processes that ask together build them once.

    A cached file that is not whole, by its digest, is built again.

    Raises:
        BadInput: there is no such corpus or tokenizer, the corpus cannot be read or tokenized, or the cache
            cannot be written.
    """
    source = _named(CORPORA, "corpus", corpus)
    version = _named(TOKENIZERS, "tokenizer", tokenizer).version
    cut_by = f"{tokenizer}@{version}" if version else tokenizer
    files = source.files(path)
    folder = cache or cache_folder()
    stamps = _stamps(files)
    known = folder / f"{_digest(corpus, stamps)}.text"

    text_digest = _remembered(known, newest=max(mtime for _, _, mtime in stamps))
    if text_digest and (dataset := _opened(folder / _digest(cut_by, text_digest))):
        return dataset

    text = source.text(files)
    text_digest = hashlib.sha256(text.encode()).hexdigest()
    base = folder / _digest(cut_by, text_digest)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            dataset = _opened(base) or _built(base, tokenizer, text, text_digest)
            write_whole(known, text_digest.encode())
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(
            f"cannot keep tokens in {folder} ({reason}); SWEEPLAB_CACHE names another folder"
        ) from error
    return dataset


def check_length(dataset: Dataset, block_size: int) -> None:
    """Refuse a context longer than the data: each split needs a window of block_size + 1 tokens.

    Raises:
        BadInput: says how long the context may be.
    """
    name, shortest = min(
        (("training", dataset.train), ("validation", dataset.val)), key=lambda each: len(each[1])
    )
    if block_size < len(shortest):
        return
    what = f"block_size {block_size} is longer than the data: the {name} split has {len(shortest)} tokens"
    allowed = f"at most {len(shortest) - 1}" if len(shortest) > 1 else "none, the corpus is too short"
    raise BadInput(Problem(what, allowed=allowed))


def _named(table: dict[str, T], what: str, name: str) -> T:
    if name not in table:
        raise BadInput(Problem(f"unknown {what} {name!r}", " | ".join(table), nearest(name, table)))
    return table[name]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps([FORMAT, *parts]).encode()).hexdigest()[:32]


def _stamps(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return path, size and time of each file: while these stay, its text is taken to stay."""
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


def _opened(base: Path) -> Dataset | None:
    """Map the tokens; None when they are not there, or not what was written."""
    try:
        digest, line = base.with_suffix(".json").read_text("utf-8").split("\n")
        if hashlib.sha256(line.encode()).hexdigest() != digest:
            return None
        tokens = np.memmap(base.with_suffix(".tokens"), TOKEN, "r")
    except (OSError, ValueError):
        return None
    facts = json.loads(line)
    if hashlib.sha256(tokens.data).hexdigest() != facts["token_digest"]:
        return None
    n_train = facts.pop("n_train")
    return Dataset(load_tokenizer(facts.pop("tokenizer")), tokens[:n_train], tokens[n_train:], **facts)


def _built(base: Path, tokenizer: str, text: str, text_digest: str) -> Dataset:
    try:
        trained = TOKENIZERS[tokenizer].train(text)
    except ValueError as error:
        raise BadInput(str(error)) from error
    cut = len(text) * 9 // 10
    train, val = (trained.encode(part).astype(TOKEN).tobytes() for part in (text[:cut], text[cut:]))
    line = json.dumps(
        {
            "tokenizer": trained.to_json(),
            "n_train": len(train) // TOKEN.itemsize,
            "text_digest": text_digest,
            "token_digest": hashlib.sha256(train + val).hexdigest(),
            "n_characters": len(text),
            "val_bytes": len(text[cut:].encode()),
        }
    )
    write_whole(base.with_suffix(".tokens"), train + val)
    # Last: while it is missing, or an older one does not fit the tokens, there is no dataset.
    write_whole(base.with_suffix(".json"), f"{hashlib.sha256(line.encode()).hexdigest()}\n{line}".encode())
    dataset = _opened(base)
    if dataset is None:
        raise OSError("what was written reads back differently")
    return dataset
