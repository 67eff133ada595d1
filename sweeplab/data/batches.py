"""The data of a training step, and its random numbers.

Shapes: B batch_size, T positions of a sequence, S positions of an encoder's source.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# The kind of data that a corpus has: text, pairs, labels, or one of a plug-in.
DataKind = str


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sources and their targets, in turn, in `tokens`; `ends` [2 * n_pairs] has the end of each.

    With labels, a target is one number from 0 to n_labels - 1. A source comes `per_source` times in a row, each time
    with another target. Pairs of a plug-in's `kind` have as targets what its corpus encodes.
    """

    tokens: NDArray[np.uint16]
    ends: NDArray[np.int64]
    n_labels: int = 0
    per_source: int = 1
    kind: DataKind = "pairs"

    def __len__(self) -> int:
        """Return the number of tokens, as for a split of text."""
        return len(self.tokens)

    @property
    def n_pairs(self) -> int:
        """Return the number of pairs."""
        return len(self.ends) // 2

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Return the starts of all sources and targets [n_pairs, 2]."""
        return np.append(0, self.ends[:-1]).reshape(-1, 2)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Return the lengths of all sources and targets in tokens [n_pairs, 2]."""
        return np.diff(self.ends, prepend=0).reshape(-1, 2)


Split = NDArray[np.uint16] | Pairs


def kind_of(split: Split) -> DataKind:
    """Return the kind of a split's data."""
    if isinstance(split, Pairs):
        return split.kind
    return "text"


# A part of a text consists of stretches of so many tokens.
STRETCH = 1024


def limited(split: Split, n_tokens: int) -> Split:
    """Return `n_tokens` of a split, evenly spread over it: stretches of text, or whole pairs; all if it has fewer.

    The choice is always the same, and a larger part contains every smaller part.
    """
    if n_tokens >= len(split):
        return split
    if not isinstance(split, Pairs):
        order = _evenly(len(split) // STRETCH)
        n_whole, rest = divmod(n_tokens, STRETCH)
        lengths = dict.fromkeys(order[:n_whole].tolist(), STRETCH)
        if rest:  # the start of one more stretch, or of what follows the last whole one
            lengths[int(order[n_whole]) if n_whole < len(order) else len(order)] = rest
        return np.concatenate(
            [split[at * STRETCH : at * STRETCH + lengths[at]] for at in sorted(lengths)]
        )
    together = split.per_source
    order = _evenly(split.n_pairs // together)
    sizes = split.lengths.reshape(-1, 2 * together).sum(axis=1)
    n_kept = int(np.searchsorted(np.cumsum(sizes[order]), n_tokens, side="right"))
    kept = (np.sort(order[: max(1, n_kept)])[:, None] * together + np.arange(together)).ravel()
    tokens = [split.tokens[split.starts[pair, 0] : split.ends[2 * pair + 1]] for pair in kept]
    ends = np.cumsum(split.lengths[kept].ravel())
    return replace(split, tokens=np.concatenate(tokens), ends=ends)


def _evenly(count: int) -> NDArray[np.int64]:
    return np.argsort(np.arange(count) * (math.sqrt(5.0) - 1.0) / 2.0 % 1.0, kind="stable")


NO_TARGET = -1

Ids = NDArray[np.int64]
# A NumPy array in batches of the data; a torch tensor with a leading run dimension in batches for the model.
Array = Any


class Batch(NamedTuple):
    """A batch of sequences: `inputs` and `targets` [B, T], with NO_TARGET where nothing is predicted.

    `source` [B, S] is the input of the encoder of an encoder-decoder. Rows are padded on the right: `lengths` and
    `source_lengths` [B] are the lengths without padding, None if no row is padded. `reference` [B] has what the loss of
    a plug-in's objective needs of each sequence besides its tokens. For an objective that reads the start, it is the
    sequence's index in the split, which becomes its `at_start` before the loss is computed.
    """

    inputs: Array
    targets: Array
    source: Array | None = None
    lengths: Array | None = None
    source_lengths: Array | None = None
    reference: Array | None = None


def changed(batch: Batch, change: Callable[[Array], Array]) -> Batch:
    """Return the batch with a function applied to each of its arrays."""
    return Batch(*(None if part is None else change(part) for part in batch))


def stacked(batches: Sequence[Batch]) -> Batch:
    """Stack the batches of K runs along a leading run dimension."""
    parts = zip(*batches, strict=True)
    return Batch(*(None if part[0] is None else np.array(part) for part in parts))


# ------------------------------------------------------------------ random numbers
# They are the same in every process, on every machine and in every version of numpy.


@lru_cache(4096)  # every step asks for the keys of its runs again
def generator_key(seed: int, purpose: str) -> int:
    """Return the key, from 0 to 2**63 - 1, of a run's random generator for one purpose.

    Purposes of training are "init", "batches", "masks" and "dropout"; of evaluation, which is the same for all runs,
    "evaluation" and "evaluation masks"; of data, "corpus NAME" for a synthetic corpus and
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
        mask: NDArray[np.bool_] = (
            words <= np.partition(words, chosen - 1, axis=1)[:, chosen - 1 : chosen]
        )
        return mask
