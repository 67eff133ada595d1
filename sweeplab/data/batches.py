"""What a step reads. Legend: B batch_size, T positions of the sequence that is learned, S of an encoder's source."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

# What a corpus has to learn from.
DataKind = Literal["text", "pairs", "labels", "tags", "scores", "preferences"]
# Kinds in which what is to be found is one of a few labels.
LABELLED: Sequence[DataKind] = ("labels", "tags")
# Of scores each second text ends with so many numbers of 16 bits: a score as a 64-bit float.
SCORE_SIZE = 4
# Stands among tags for a token that has none.
NO_TAG = 2**16 - 1


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sources and the targets that follow from them, one after the other in `tokens`.

    `ends` [2 * n_pairs] says where each source and each target ends. Where there are `n_labels` a target is one number,
    from 0, and no text; of tags one for each token of its source, or NO_TAG. Of preferences, `per_source` 2, each
    source stands twice: with the target that is chosen, then with the one that is rejected. Of scores a target is a
    second text, and then the score, SCORE_SIZE numbers.
    """

    tokens: NDArray[np.uint16]
    ends: NDArray[np.int64]
    n_labels: int = 0
    per_source: int = 1
    of: DataKind | None = None

    @property
    def kind(self) -> DataKind:
        """Return what they are pairs of."""
        return self.of or ("labels" if self.n_labels else "preferences" if self.per_source > 1 else "pairs")

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


def kind_of(split: Split) -> DataKind:
    """Return what a split has to learn from."""
    return split.kind if isinstance(split, Pairs) else "text"


# A part of a text is taken in stretches of so many tokens.
STRETCH = 1024


def limited(split: Split, n_tokens: int) -> Split:
    """Return so many tokens of a split, in stretches, or in whole pairs, evenly spread over it; all where it has less.

    They are always the same ones, and those of a smaller part are in a larger one too.
    """
    if n_tokens >= len(split):
        return split
    if not isinstance(split, Pairs):
        order = _evenly(len(split) // STRETCH)
        n_whole, rest = divmod(n_tokens, STRETCH)
        lengths = dict.fromkeys(order[:n_whole].tolist(), STRETCH)
        if rest:  # of a stretch more; of a split shorter than that its begin
            lengths[int(order[n_whole]) if n_whole < len(order) else len(order)] = rest
        return np.concatenate([split[at * STRETCH : at * STRETCH + lengths[at]] for at in sorted(lengths)])
    together = split.per_source
    order = _evenly(split.n_pairs // together)
    sizes = split.lengths.reshape(-1, 2 * together).sum(axis=1)
    n_kept = int(np.searchsorted(np.cumsum(sizes[order]), n_tokens, side="right"))
    kept = (np.sort(order[: max(1, n_kept)])[:, None] * together + np.arange(together)).ravel()
    tokens = [split.tokens[split.starts[pair, 0] : split.ends[2 * pair + 1]] for pair in kept]
    ends = np.cumsum(split.lengths[kept].ravel())
    return replace(split, tokens=np.concatenate(tokens), ends=ends)


def _evenly(count: int) -> NDArray[np.int64]:
    """Return the numbers below `count` so that the first few, however many, lie evenly: by the golden ratio."""
    return np.argsort(np.arange(count) * (math.sqrt(5.0) - 1.0) / 2.0 % 1.0, kind="stable")


NO_TARGET = -1

Ids = NDArray[np.int64]
# NumPy's as the data make them; torch's, with a leading run dimension, as the model takes them.
Array = Any


class Batch(NamedTuple):
    """Sequences to learn from; the token to be found at a position is its target, and NO_TARGET where none is.

    `inputs` and `targets` are [B, T], `source` [B, S] is what the encoder of an encoder-decoder reads. Lengths [B]
    say where sequences end that are shorter than their row, which is padded on the right; without them none is.
    `reference` [B], of preferences: as the data make it, which of the split's sequences each is; as the model takes it,
    the log-probability that the run had for its targets at its start. Of scores it is the score of each.
    """

    inputs: Array
    targets: Array
    source: Array | None = None
    lengths: Array | None = None
    source_lengths: Array | None = None
    reference: Array | None = None

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
