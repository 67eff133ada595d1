"""Documents into three splits: near-duplicates go, long documents are cut into sections, and these are dealt out.

All of it is a function of the documents alone: the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.generators import Noise, generator_key

# Of ten parts: a tenth for validation keeps room in a small corpus for evaluations of 20,000 targets, and a test
# split of the same size is as sure.
TENTHS = {"train": 8, "val": 1, "test": 1}
BETWEEN_DOCUMENTS = "\n\n"
# Text that is found elsewhere word for word is found in windows of so many characters.
WINDOW = 64
# A document of whose windows more than this share stand in longer ones is a near-duplicate. Of Python's sources a
# half would leave 4% of the test split in the training text, where this leaves 2%.
MOST_SHARED = 0.3
# Validation text that stands in training text is worth a warning above this share: of what comes with Python at most
# 4% does, of its documentation 8% did with near-duplicates in it and its end for validation.
MOST_OVERLAP = 0.05
# Of a longer corpus about so many windows are looked at, chosen by their hashes, so wherever one stands.
MOST_WINDOWS = 2**20
# A document longer than this part of its corpus is cut: ten sections or so are validated on.
N_SECTIONS = 100
SHORTEST_SECTION = 1024
# What is above a heading or a definition, a paragraph, a line, a word.
BOUNDARIES = ("\n\n\n", "\n\n", "\n", " ")

_CHUNK = 2**20  # characters whose hashes are made at once
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)
Hashes = NDArray[np.uint64]


@cache
def _powers(base: int) -> Hashes:
    powers = np.full(_CHUNK + WINDOW, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _hashes(text: str) -> Iterator[Hashes]:
    """Yield hashes of a text's windows, chunk by chunk; a shorter text has none.

    Rolling hashes (Karp and Rabin 1987) modulo 2**64, mixed so that all of their bits depend on all characters.
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
    """Return the hashes of each text's windows: all, or those that are chosen of a corpus of so many characters."""
    below = np.uint64(min(2**64 - 1, 2**64 * MOST_WINDOWS // max(n_characters, 1)))
    none = np.zeros(0, np.uint64)
    return [np.concatenate([none, *(each[each <= below] for each in _hashes(text))]) for text in texts]


def without_near_duplicates(documents: Sequence[str]) -> list[str]:
    """Return the documents in their order, without those most of whose windows stand in longer ones that stay.

    Those shorter than a window go where they are the same.
    """
    documents = list(dict.fromkeys(documents))
    order = sorted(range(len(documents)), key=lambda index: -len(documents[index]))
    windows = _windows([documents[index] for index in order], sum(map(len, documents)))
    everything = np.sort(np.concatenate(windows))  # np.unique is several times slower
    seen, kept = np.zeros(len(everything), np.bool_), []
    for index, own in zip(order, windows, strict=True):
        places = np.searchsorted(everything, own)  # the first of those that are alike stands for all
        if not len(places) or seen[places].mean() <= MOST_SHARED:
            seen[places] = True
            kept.append(index)
    return [documents[index] for index in sorted(kept)]


def overlaps(train: Sequence[str], *held_out: Sequence[str]) -> list[float]:
    """Return which share of the windows of each of the splits held out stand word for word in training texts."""
    n_characters = sum(map(len, train))
    trained, *found = (np.concatenate(_windows(each, n_characters)) for each in (train, *held_out))
    trained.sort()
    return [_share(each, trained) for each in found]


def _share(hashes: Hashes, among: Hashes) -> float:
    """Return which share of hashes is among sorted ones."""
    if not len(hashes) or not len(among):
        return 0.0
    return float((among[np.searchsorted(among, hashes).clip(max=len(among) - 1)] == hashes).mean())


def deal(documents: Sequence[str]) -> dict[str, str]:
    """Return the text of each split; every one has sections from all over the corpus.

    A section goes to the split that lacks most of its share so far, give or take a few sections by chance: else of
    documents that are all of two sections validation would have beginnings, or ends, alone. Sections of one document
    follow each other in a split as they do in it, and documents are set apart by BETWEEN_DOCUMENTS.
    """
    n_characters = sum(map(len, documents))
    length = max(n_characters / N_SECTIONS, min(SHORTEST_SECTION, n_characters / sum(TENTHS.values())))
    dealt, texts = dict.fromkeys(TENTHS, 0), {split: list[str]() for split in TENTHS}
    noise = Noise(generator_key(0, "splits"))
    for document in documents:
        parts = dict.fromkeys(TENTHS, "")
        for section in _sections(document, length):
            n_dealt = sum(dealt.values()) + len(section)
            chance = dict(zip(TENTHS, noise.integers(len(TENTHS), 1 + int(5 * length)).tolist(), strict=True))
            lacking = {each: TENTHS[each] * n_dealt - 10 * dealt[each] + chance[each] for each in TENTHS}
            split = max(lacking, key=lacking.__getitem__)
            dealt[split] += len(section)
            parts[split] += section
        for split, part in parts.items():
            texts[split] += [part] if part else []
    return {split: BETWEEN_DOCUMENTS.join(each) for split, each in texts.items()}


def _sections(document: str, length: float) -> Iterable[str]:
    """Yield a document in sections of about this length, cut at the best boundary that is near."""
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
