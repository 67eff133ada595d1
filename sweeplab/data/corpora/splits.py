"""Divide documents into three splits: drop near-duplicates, cut long documents into sections, and assign these.

The result depends only on the documents: it is the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.batches import RandomStream, generator_key

# Tenths of the corpus: a tenth of a small corpus is enough for an evaluation of 20,000 targets, and a test split of
# the same size is as precise.
TENTHS = {"train": 8, "val": 1, "test": 1}
BETWEEN_DOCUMENTS = "\n\n"
# Verbatim repetitions are detected by windows of this many characters.
WINDOW = 64
# A document is a near-duplicate if more than this share of its windows occurs in longer ones. For Python's sources a
# limit of one half would leave 4% of the test split in the training text; this limit leaves 2%.
MOST_SHARED = 0.3
# Above this share of validation text in the training text there is a warning: for the corpora of Python it is at most
# 4%; for its documentation it was 8% with near-duplicates left in and the end of the text for validation.
MOST_OVERLAP = 0.05
# For a longer corpus about this many windows are checked, chosen by their hashes and so independent of their place.
MOST_WINDOWS = 2**20
# A document longer than this fraction of its corpus is cut, so that validation has about ten sections.
N_SECTIONS = 100
SHORTEST_SECTION = 1024
# Preferred places for a cut: before a heading or definition, a paragraph, a line, a word.
BOUNDARIES = ("\n\n\n", "\n\n", "\n", " ")

_CHUNK = 2**20  # characters hashed at once
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)
Hashes = NDArray[np.uint64]


@cache
def _powers(base: int) -> Hashes:
    powers = np.full(_CHUNK + WINDOW, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _hashes(text: str) -> Iterator[Hashes]:
    """Yield hashes of a text's windows, chunk by chunk; a text shorter than a window has none.

    Rolling hashes (Karp and Rabin 1987) modulo 2**64, mixed so that all their bits depend on all characters.
    """
    for start in range(0, len(text) - WINDOW + 1, _CHUNK):
        chunk = text[start : start + _CHUNK + WINDOW - 1]
        points = (
            np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
            + 1
        )
        sums = np.append(
            np.uint64(0), np.cumsum(points * _powers(_BASE)[: len(points)], dtype=np.uint64)
        )
        hashes = (sums[WINDOW:] - sums[:-WINDOW]) * _powers(_INVERSE)[
            : len(points) - WINDOW + 1
        ]
        hashes ^= hashes >> np.uint64(32)
        hashes *= np.uint64(0xD6E8FEB86659FD93)
        yield hashes ^ hashes >> np.uint64(32)


def sampled(text: str, n_characters: int) -> Hashes:
    """Return the hashes of a text's windows, or of a sample of them where its corpus has many characters."""
    below = np.uint64(min(2**64 - 1, 2**64 * MOST_WINDOWS // max(n_characters, 1)))
    return np.concatenate(
        [np.zeros(0, np.uint64), *(each[each <= below] for each in _hashes(text))]
    )


def without_near_duplicates(documents: Sequence[str]) -> list[str]:
    """Return the documents in order, without near-duplicates of longer ones that are kept.

    Documents shorter than a window are dropped only if they are identical.
    """
    distinct = list(dict.fromkeys(documents))
    n_characters = sum(map(len, distinct))
    windows = [sampled(document, n_characters) for document in distinct]
    return [distinct[index] for index in kept_of(distinct, [*map(len, distinct)], windows)]


def kept_of(
    names: Sequence[object], lengths: Sequence[int], windows: Sequence[Hashes]
) -> list[int]:
    """Return which documents are kept, in order; equal ones have equal names, `windows` are the hashes of each."""
    first: dict[object, int] = {}
    for index, name in enumerate(names):
        first.setdefault(name, index)
    order = sorted(first.values(), key=lambda index: -lengths[index])
    everything = np.sort(
        np.concatenate([windows[index] for index in order])
    )  # np.unique is several times slower
    seen, kept = np.zeros(len(everything), np.bool_), []
    for index in order:
        # The first of equal hashes represents them all.
        places = np.searchsorted(everything, windows[index])
        if not len(places) or seen[places].mean() <= MOST_SHARED:
            seen[places] = True
            kept.append(index)
    return sorted(kept)


def overlaps(train: Sequence[str], *held_out: Sequence[str]) -> list[float]:
    """Return, for each held-out split, the share of its windows that occur verbatim in the training texts."""
    n_characters = sum(map(len, train))

    def windows(texts: Sequence[str]) -> Hashes:
        return np.concatenate([sampled(text, n_characters) for text in texts])

    known = np.sort(windows(train))
    return [share_of(windows(texts), known) for texts in held_out]


def share_of(hashes: Hashes, among: Hashes) -> float:
    """Return the share of hashes that are among others, which are sorted."""
    if not len(hashes) or not len(among):
        return 0.0
    return float(
        (among[np.searchsorted(among, hashes).clip(max=len(among) - 1)] == hashes).mean()
    )


def deal(documents: Sequence[str], shares: Mapping[str, int]) -> dict[str, str]:
    """Return the text of each split; every split has sections from all over the corpus.

    A section goes to the split that is furthest below its share so far, with some random variation: without it, if all
    documents had two sections, validation would get only beginnings, or only ends. Sections of a document keep their
    order within a split, and documents are separated by BETWEEN_DOCUMENTS.
    """
    texts = {split: list[str]() for split in shares}
    for split, section in dealt(enumerate(documents), sum(map(len, documents)), shares):
        texts[split].append(section)
    return {split: "".join(parts) for split, parts in texts.items()}


def dealt(
    documents: Iterable[tuple[int, str]], n_characters: int, shares: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Yield sections of numbered documents, each with its split, BETWEEN_DOCUMENTS before another document's.

    Parts of a long document have one number. `shares` are tenths.
    """
    length = max(
        n_characters / N_SECTIONS, min(SHORTEST_SECTION, n_characters / sum(shares.values()))
    )
    n_dealt, last = dict.fromkeys(shares, 0), dict.fromkeys(shares, -1)
    random = RandomStream(generator_key(0, "splits"))
    for number, document in documents:
        for section in _sections(document, length):
            n_in_all = sum(n_dealt.values()) + len(section)
            shift = dict(
                zip(
                    shares,
                    random.integers(len(shares), 1 + int(5 * length)).tolist(),
                    strict=True,
                )
            )
            lacking = {
                each: shares[each] * n_in_all - 10 * n_dealt[each] + shift[each]
                for each in shares
            }
            split = max(lacking, key=lacking.__getitem__)
            n_dealt[split] += len(section)
            if section:
                if last[split] not in (-1, number):
                    section = BETWEEN_DOCUMENTS + section
                yield split, section
                last[split] = number


def _sections(document: str, length: float) -> Iterator[str]:
    count, start = max(1, round(len(document) / length)), 0
    reach = len(document) // (4 * count)
    for index in range(1, count):
        due = index * len(document) // count
        end = _boundary(document, due, reach)
        yield document[start:end]
        start = end
    yield document[start:]


def _boundary(document: str, due: int, reach: int) -> int:
    for mark in BOUNDARIES:
        before, after = (
            document.rfind(mark, due - reach, due),
            document.find(mark, due, due + reach),
        )
        if before >= 0:
            return before + len(mark)
        if after >= 0:
            return after + len(mark)
    return due
