"""What a step reads, and which items of a split it is made of.

Legend: B batch_size, T positions of the sequence that is learned, S positions of an encoder's source.
An item is a window of running text, or a pair. Which items a batch has is a pure function of what is asked for, so
there is no state to save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.generators import Noise, generator_key


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sources and the targets that follow from them, one after the other in `tokens`.

    `ends` [2 * n_pairs] says where each source and each target ends.
    """

    tokens: NDArray[np.uint16]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of tokens, as of any split."""
        return len(self.tokens)

    @property
    def n_pairs(self) -> int:
        """Return the number of pairs."""
        return len(self.ends) // 2

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Return where each source and each target starts [n_pairs, 2]."""
        return np.append(0, self.ends[:-1]).reshape(-1, 2)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Return how many tokens each source and each target has [n_pairs, 2]."""
        return np.diff(self.ends, prepend=0).reshape(-1, 2)


Split = NDArray[np.uint16] | Pairs


# A generator costs as much as thousands of draws, so a chunk of iterations shares one. Counted in draws
# and not in iterations: then what is kept (512 chunks of 32 KB) does not grow with the batch.
DRAWS_PER_CHUNK = 4096
CHUNKS_KEPT = 512
NO_TARGET = -1

Ids = NDArray[np.int64]
# NumPy's as the data make them; torch's, with a leading run dimension, as the model takes them.
Array = Any


class Batch(NamedTuple):
    """Sequences to learn from; the token to be found at a position is its target, and NO_TARGET where none is.

    `inputs` and `targets` are [B, T], `source` [B, S] is what the encoder of an encoder-decoder reads. Lengths [B]
    say where sequences end that are shorter than their row, which is padded on the right; without them none is.
    """

    inputs: Array
    targets: Array
    source: Array | None = None
    lengths: Array | None = None
    source_lengths: Array | None = None

    @property
    def n_targets(self) -> int:
        """Return how many targets count."""
        return int((self.targets != NO_TARGET).sum())


def changed(batch: Batch, change: Callable[[Array], Array]) -> Batch:
    """Return the batch with all that it has changed alike."""
    return Batch(*(None if part is None else change(part) for part in batch))


def stacked(batches: Sequence[Batch]) -> Batch:
    """Put the batches of K runs into one, with a leading run dimension."""
    parts = zip(*batches, strict=True)
    return Batch(*(None if part[0] is None else np.array(part) for part in parts))


@lru_cache(CHUNKS_KEPT)
def _training_items(seed: int, chunk: int, iterations: int, batch_size: int, n_items: int) -> Ids:
    noise = Noise(generator_key(seed, "batches"), chunk)
    return noise.integers(iterations * batch_size, n_items).reshape(iterations, batch_size)


class Draws:
    """Which of a split's items make up a batch."""

    def __init__(self, n_items: int, batch_size: int) -> None:
        self.n_items = n_items
        self.batch_size = batch_size
        self._chunk_iterations = max(1, DRAWS_PER_CHUNK // batch_size)

    def training(self, seed: int, iteration: int) -> Ids:
        """Return the items [B] that a run of this seed trains on at this iteration (from 0)."""
        chunk, row = divmod(iteration, self._chunk_iterations)
        chunk_items = _training_items(seed, chunk, self._chunk_iterations, self.batch_size, self.n_items)
        items: Ids = chunk_items[row]
        return items

    def evaluation(self, n_batches: int) -> Ids:
        """Return the items [n_batches, B] that every run is evaluated on, whatever its seed."""
        noise = Noise(generator_key(0, "evaluation"))
        return noise.integers(n_batches * self.batch_size, self.n_items).reshape(n_batches, -1)

    def whole(self, stride: int = 1) -> Iterator[Ids]:
        """Yield every item, or one in `stride`, once and in order: [<=B] at a time."""
        items = np.arange(0, self.n_items, stride)
        for first in range(0, len(items), self.batch_size):
            yield items[first : first + self.batch_size]


def windows(tokens: NDArray[np.uint16], length: int) -> NDArray[np.uint16]:
    """Return every stretch of `length` tokens, without copying one.

    Raises:
        ValueError: there is none.
    """
    if len(tokens) < length:
        raise ValueError(f"{len(tokens)} tokens have no window of {length}")
    # A plain view of the mapped file: np.memmap's own indexing is several times slower.
    return np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), length)
