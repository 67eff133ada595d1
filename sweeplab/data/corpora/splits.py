"""Divide documents into three splits: drop near-duplicates, cut long documents into sections, and assign these.

The result depends only on the documents: it is the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.generators import RandomStream, generator_key

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
        points = np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64) + 1
        sums = np.append(np.uint64(0), np.cumsum(points * _powers(_BASE)[: len(points)], dtype=np.uint64))
        found = (sums[WINDOW:] - sums[:-WINDOW]) * _powers(_INVERSE)[: len(points) - WINDOW + 1]
        found ^= found >> np.uint64(32)
        found *= np.uint64(0xD6E8FEB86659FD93)
        yield found ^ found >> np.uint64(32)


def _windows(texts: Sequence[str], n_characters: int) -> list[Hashes]:
    """Return the hashes of each text's windows; in a corpus of many characters, only those of the chosen sample."""
    below = np.uint64(min(2**64 - 1, 2**64 * MOST_WINDOWS // max(n_characters, 1)))
    none = np.zeros(0, np.uint64)
    return [np.concatenate([none, *(each[each <= below] for each in _hashes(text))]) for text in texts]


def without_near_duplicates(documents: Sequence[str]) -> list[str]:
    """Return the documents in order, without near-duplicates of longer ones that are kept.

    Documents shorter than a window are dropped only if they are identical.
    """
    documents = list(dict.fromkeys(documents))
    order = sorted(range(len(documents)), key=lambda index: -len(documents[index]))
    windows = _windows([documents[index] for index in order], sum(map(len, documents)))
    everything = np.sort(np.concatenate(windows))  # np.unique is several times slower
    seen, kept = np.zeros(len(everything), np.bool_), []
    for index, own in zip(order, windows, strict=True):
        places = np.searchsorted(everything, own)  # the first of equal hashes represents them all
        if not len(places) or seen[places].mean() <= MOST_SHARED:
            seen[places] = True
            kept.append(index)
    return [documents[index] for index in sorted(kept)]


def overlaps(train: Sequence[str], *held_out: Sequence[str]) -> list[float]:
    """Return, for each held-out split, the share of its windows that occur verbatim in the training texts."""
    n_characters = sum(map(len, train))
    trained, *found = (np.concatenate(_windows(each, n_characters)) for each in (train, *held_out))
    trained.sort()
    return [_share(each, trained) for each in found]


def _share(hashes: Hashes, among: Hashes) -> float:
    """Return the share of hashes that occur among sorted ones."""
    if not len(hashes) or not len(among):
        return 0.0
    return float((among[np.searchsorted(among, hashes).clip(max=len(among) - 1)] == hashes).mean())


def deal(documents: Sequence[str]) -> dict[str, str]:
    """Return the text of each split; every split has sections from all over the corpus.

    A section goes to the split that is furthest below its share so far, with some random variation: without it, if all
    documents had two sections, validation would get only beginnings, or only ends. Sections of a document keep their
    order within a split, and documents are separated by BETWEEN_DOCUMENTS.
    """
    n_characters = sum(map(len, documents))
    length = max(n_characters / N_SECTIONS, min(SHORTEST_SECTION, n_characters / sum(TENTHS.values())))
    dealt, texts = dict.fromkeys(TENTHS, 0), {split: list[str]() for split in TENTHS}
    random = RandomStream(generator_key(0, "splits"))
    for document in documents:
        parts = dict.fromkeys(TENTHS, "")
        for section in _sections(document, length):
            n_dealt = sum(dealt.values()) + len(section)
            shift = dict(zip(TENTHS, random.integers(len(TENTHS), 1 + int(5 * length)).tolist(), strict=True))
            lacking = {each: TENTHS[each] * n_dealt - 10 * dealt[each] + shift[each] for each in TENTHS}
            split = max(lacking, key=lacking.__getitem__)
            dealt[split] += len(section)
            parts[split] += section
        for split, part in parts.items():
            texts[split] += [part] if part else []
    return {split: BETWEEN_DOCUMENTS.join(each) for split, each in texts.items()}


def _sections(document: str, length: float) -> Iterable[str]:
    """Yield a document in sections of about this length, cut at the best boundary nearby."""
    count, start = max(1, round(len(document) / length)), 0
    reach = len(document) // (4 * count)
    for index in range(1, count):
        due = index * len(document) // count
        end = next(_boundaries(document, due, reach), due)
        yield document[start:end]
        start = end
    yield document[start:]


def _boundaries(document: str, due: int, reach: int) -> Iterator[int]:
    for mark in BOUNDARIES:
        before, after = document.rfind(mark, due - reach, due), document.find(mark, due, due + reach)
        if max(before, after) >= 0:
            yield (after if before < 0 else before) + len(mark)
