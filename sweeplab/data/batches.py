"""Batches out of one split's tokens.

Legend: B batch_size, T block_size. A batch holds windows of T+1 tokens: the first T are the input, the
last T the targets. Which windows is a pure function of what is asked for, so there is no state to save.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.generators import generator_key

# A generator costs as much as thousands of draws, so a chunk of iterations shares one. Counted in draws
# and not in iterations: then what is kept (512 chunks of 32 KB) does not grow with the batch.
DRAWS_PER_CHUNK = 4096
CHUNKS_KEPT = 512


class Batch(NamedTuple):
    """What a step reads; numpy arrays from the data, tensors with a leading run dimension in a model.

    inputs [B, T] are the tokens that the blocks read, targets [B, T] what is to be predicted, -1 where no loss is
    taken. source [B, S] are the tokens that the encoder of an encoder_decoder reads. lengths and source_lengths
    [B] say where sequences differ in length: the rest, on the right, is padding.
    """

    inputs: Any
    targets: Any
    source: Any = None
    lengths: Any = None
    source_lengths: Any = None


def _draw(key: int, stream: int, count: int, below: int) -> NDArray[np.int64]:
    """Draw `count` integers from 0 to `below` - 1 out of one of the key's 2**128 streams.

    Scales Philox's own 64-bit words: numpy keeps those the same in every version, and
    `Generator.integers` not.
    """
    words = np.random.Philox(key=key, counter=stream << 128).random_raw(count)
    return ((words >> np.uint64(11)) * (below / 2**53)).astype(np.int64)


@lru_cache(CHUNKS_KEPT)
def _training_starts(
    seed: int, chunk: int, iterations: int, batch_size: int, below: int
) -> NDArray[np.int64]:
    key = generator_key(seed, "batches")
    return _draw(key, chunk, iterations * batch_size, below).reshape(iterations, batch_size)


class Batches:
    """The batches of one split.

    Raises:
        ValueError: the split has fewer than T+1 tokens.
    """

    def __init__(self, tokens: NDArray[np.uint16], block_size: int, batch_size: int) -> None:
        if len(tokens) <= block_size:
            raise ValueError(f"{len(tokens)} tokens have no window of block_size + 1 = {block_size + 1}")
        self.block_size = block_size
        self.batch_size = batch_size
        # A plain view of the mapped file: np.memmap's own indexing is several times slower.
        self._windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), block_size + 1)
        self._chunk_iterations = max(1, DRAWS_PER_CHUNK // batch_size)

    def training(self, seed: int, iteration: int) -> NDArray[np.int64]:
        """Return the batch [B, T+1] that a run of this seed trains on at this iteration (from 0)."""
        chunk, row = divmod(iteration, self._chunk_iterations)
        starts = _training_starts(seed, chunk, self._chunk_iterations, self.batch_size, len(self._windows))
        batch: NDArray[np.int64] = self._windows[starts[row]].astype(np.int64)
        return batch

    def evaluation(self, n_batches: int) -> NDArray[np.int64]:
        """Return the batches [n_batches, B, T+1] that every run is evaluated on, whatever its seed."""
        starts = _draw(generator_key(0, "evaluation"), 0, n_batches * self.batch_size, len(self._windows))
        return self._windows[starts.reshape(n_batches, self.batch_size)].astype(np.int64)

    def whole(self) -> Iterator[NDArray[np.int64]]:
        """Yield the split once, in order, as batches [<=B, T+1]: no token is a target twice.

        A window starts at the last target of the one before it; the last, incomplete window is dropped.
        """
        windows = self._windows[:: self.block_size]
        for first in range(0, len(windows), self.batch_size):
            yield windows[first : first + self.batch_size].astype(np.int64)
