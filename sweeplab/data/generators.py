"""Random numbers that are the same in every process, on every machine and in every version of numpy."""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(4096)  # a step asks for those of its runs again
def generator_key(seed: int, purpose: str) -> int:
    """Return the key, from 0 to 2**63 - 1, of the generator that serves `purpose` in a run of this seed.

    Purposes are "init", "batches", "masks" and "dropout" of training; "evaluation", "evaluation masks", "alone" and
    "baseline" of what every run is judged by; "corpus NAME" of one that is made, and "splits" of how any is cut; a
    cell's key, alone or followed by a trial's number, of what is sampled there. The key is a hash, so neighboring
    seeds are as far apart as any two, and it is the same in every process and on every machine.
    """
    return int.from_bytes(hashlib.sha256(f"{purpose}:{seed}".encode()).digest()[:8], "big") >> 1


class Noise:
    """One of a key's 2**128 streams of random numbers; a stream that nobody draws from costs nothing.

    Uses Philox's own 64-bit words: numpy keeps those the same in every version, and `Generator.integers` not.
    """

    def __init__(self, key: int, stream: int = 0) -> None:
        self._key, self._stream = key, stream

    @cached_property
    def _philox(self) -> np.random.Philox:
        return np.random.Philox(key=self._key, counter=self._stream << 128)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Draw the stream's next `count` words of 64 random bits."""
        return self._philox.random_raw(count).astype(np.uint64, copy=False)

    def integers(self, count: int, below: int) -> NDArray[np.int64]:
        """Draw `count` integers from 0 to `below` - 1."""
        return ((self.words(count) >> np.uint64(11)) * (below / 2**53)).astype(np.int64)

    def places(self, n_rows: int, length: int, chosen: int) -> NDArray[np.bool_]:
        """Choose exactly `chosen` of the `length` places of each row: a mask [n_rows, length]."""
        if chosen == 0:
            return np.zeros((n_rows, length), np.bool_)
        words = self.words(n_rows * length).reshape(n_rows, length)
        # The place in the lowest bits: no two words of a row are equal, so that as many as asked for are chosen.
        n_bits = np.uint64(length.bit_length())
        words = words >> n_bits << n_bits | np.arange(length, dtype=np.uint64)
        mask: NDArray[np.bool_] = words <= np.partition(words, chosen - 1, axis=1)[:, chosen - 1 : chosen]
        return mask
