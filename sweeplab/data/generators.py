"""Random numbers that are the same in every process, on every machine and in every version of numpy."""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(4096)  # every step asks for the keys of its runs again
def generator_key(seed: int, purpose: str) -> int:
    """Return the key, from 0 to 2**63 - 1, of a run's random generator for one purpose.

    Purposes of training are "init", "batches", "masks" and "dropout"; of evaluation, which is the same for all runs,
    "evaluation", "evaluation masks", "alone" and "baseline"; of data, "corpus NAME" for a synthetic corpus and
    "splits". For samplers, the purpose is a cell's key, alone or with a trial's number. The key is a hash, so even
    neighboring seeds give unrelated generators. It is the same in every process and on every machine.
    """
    return int.from_bytes(hashlib.sha256(f"{purpose}:{seed}".encode()).digest()[:8], "big") >> 1


class RandomStream:
    """One of the 2**128 streams of random numbers of a key; a stream costs nothing until its first draw.

    Uses the 64-bit words of Philox: every version of numpy draws the same ones. For `Generator.integers` it may not.
    """

    def __init__(self, key: int, stream: int = 0) -> None:
        self._key, self._stream = key, stream

    @cached_property
    def _philox(self) -> np.random.Philox:
        return np.random.Philox(key=self._key, counter=self._stream << 128)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Draw the next `count` words of 64 random bits."""
        return self._philox.random_raw(count).astype(np.uint64, copy=False)

    def integers(self, count: int, below: int) -> NDArray[np.int64]:
        """Draw `count` integers from 0 to `below` - 1."""
        return ((self.words(count) >> np.uint64(11)) * (below / 2**53)).astype(np.int64)

    def choose(self, n_rows: int, length: int, chosen: int) -> NDArray[np.bool_]:
        """Choose exactly `chosen` of the `length` positions of each row; return a mask [n_rows, length]."""
        if chosen == 0:
            return np.zeros((n_rows, length), np.bool_)
        words = self.words(n_rows * length).reshape(n_rows, length)
        # The lowest bits hold the position: the words of a row are all different, so exactly `chosen` are selected.
        n_bits = np.uint64(length.bit_length())
        words = words >> n_bits << n_bits | np.arange(length, dtype=np.uint64)
        mask: NDArray[np.bool_] = words <= np.partition(words, chosen - 1, axis=1)[:, chosen - 1 : chosen]
        return mask
