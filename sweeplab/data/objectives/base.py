"""What every objective does: turn a split's items, windows of running text or pairs, into batches.

Which items a batch has is a pure function of what is asked for, so there is no state to save.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from sweeplab.data.batches import NO_TARGET, Batch, DataKind, Ids
from sweeplab.data.generators import Noise, generator_key
from sweeplab.data.prompts import Prompt, SpecialTokens
from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import Hyperparameters

# A generator costs as much as thousands of draws, so a chunk of iterations shares one. Counted in draws
# and not in iterations: then what is kept (512 chunks of 32 KB) does not grow with the batch.
DRAWS_PER_CHUNK = 4096
# Consecutive tokens of a split that are evaluated together, as windows of any block_size up to this cut them.
STRETCH = 1024


def rows_together(length: int) -> int:
    """Return how many sequences of this length an evaluation has in a batch; its last may have fewer."""
    return max(1, STRETCH // length)


@lru_cache(512)
def _training_items(seed: int, chunk: int, iterations: int, batch_size: int, n_items: int) -> Ids:
    noise = Noise(generator_key(seed, "batches"), chunk)
    return noise.integers(iterations * batch_size, n_items).reshape(iterations, batch_size)


def spread(count: int, among: int) -> Ids:
    """Return `count` of the numbers below `among`, at even distances; all of them where there are no more."""
    count = min(count, among)
    found: Ids = (2 * np.arange(count) + 1) * among // (2 * max(count, 1))
    return found


class Objective(ABC):
    """What is to be found, and from what; batches are pure functions of what is asked for.

    `families` are those that can learn it, `learns` says what a split is for it: an array of text, or pairs of a kind.
    `dense`: every position has a target. `finds_whole`: a target is right only as a whole, so that exact matches are
    worth counting. `per_loss` sequences of a batch have one loss together, of which `unit` is the unit.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    families: ClassVar[tuple[str, ...]]
    learns: ClassVar[DataKind] = "text"
    per_loss: ClassVar[int] = 1
    unit: ClassVar[str] = "nats/token"
    dense: ClassVar[bool] = False
    finds_whole: ClassVar[bool] = False
    shortest_block: ClassVar[int] = 1
    special_tokens: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, split: Any, values: Hyperparameters, own_special: Mapping[str, int] | None = None
    ) -> None:
        self.special = SpecialTokens(values.vocab_size, self.special_names(values), own_special)
        self._values, self._batch_size = values, values.batch_size // self.per_loss
        self._n_items = self._take(split)

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return the special tokens that it needs."""
        return cls.special_tokens

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Return in a few words what a loss is of: only those of one task may be compared."""
        return cls.meaning.lower()

    @classmethod
    def lengths(cls, values: Hyperparameters) -> tuple[int, int]:
        """Return T and S of its batches, S being 0 without a source; of pairs, whose rows may be shorter, the most."""
        return values.block_size, 0

    @classmethod
    @abstractmethod
    def check(cls, name: str, split: Any, values: Hyperparameters) -> None:
        """Make sure that the split of this name can be learned.

        Raises:
            BadInput: it cannot; says what would do.
        """

    @classmethod
    @abstractmethod
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Lay out a person's prompt as the objective's sequences are: a text in pieces, with a hole between each two.

        Raises:
            BadInput: it cannot be, such as one that is too long.
        """

    @property
    def n_sequences(self) -> int:
        """Return how many sequences there are to draw from."""
        return self._n_items * self.per_loss

    @property
    def n_candidates(self) -> int:
        """Return how many ids at the vocabulary's end a target is one of; 0 where it may be any."""
        return 0

    @abstractmethod
    def example(self) -> Sequence[Sequence[int]]:
        """Return the split's beginning as a person's prompt: what `prompt` takes."""

    @abstractmethod
    def _take(self, split: Any) -> int:
        """Take a split in and return how many items it has."""

    @abstractmethod
    def _batch(self, items: Ids, noise: Noise) -> Batch:
        """Make the batch of these items; whatever is random in it comes from `noise`."""

    def training(self, seed: int, iteration: int) -> Batch:
        """Return the batch that a run of this seed trains on at this iteration (from 0)."""
        iterations = max(1, DRAWS_PER_CHUNK // self._batch_size)
        chunk, row = divmod(iteration, iterations)
        items = _training_items(seed, chunk, iterations, self._batch_size, self._n_items)[row]
        return self._batch(items, Noise(generator_key(seed, "masks"), iteration))

    @abstractmethod
    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield what every run is evaluated on: about `n_tokens` targets spread over the split, or all of it.

        They are the same for every seed and batch_size: the batches of an evaluation are not those of a step.
        """

    def alone(self, n_sequences: int) -> Iterator[Batch] | None:
        """Return at most so many of the split's sequences with one token hidden in each; None if it hides none."""
        return None

    def _together(self, items: Ids, length: int) -> Iterator[tuple[Ids, Noise]]:
        """Yield items with their noise, as many at a time as have a stretch of tokens together."""
        n_rows, key = rows_together(length), generator_key(0, "evaluation masks")
        for index, first in enumerate(range(0, len(items), n_rows)):
            yield items[first : first + n_rows], Noise(key, index)


class TextObjective(Objective):
    """An objective of running text: its items are all windows of one length.

    An evaluation takes stretches of consecutive tokens at even distances over the split, and cuts each into windows
    of block_size tokens. So its targets are the same for every block_size up to a stretch's length; what differs is
    the context, which begins with a window. Where windows do not fill a stretch the last one is moved back, and what
    the one before it has counted is no target again.
    """

    overlap: ClassVar[int] = 0  # tokens that two windows have in common which share no target

    @classmethod
    def window(cls, values: Hyperparameters) -> int:
        """Return how many tokens of the text an item has."""
        return values.block_size + cls.overlap

    @classmethod
    def check(cls, name: str, split: Any, values: Hyperparameters) -> None:
        """Refuse a context that is longer than the data."""
        block_size, n_tokens = values.block_size, len(split)
        if cls.window(values) <= n_tokens:
            return
        sizes = range(cls.shortest_block, block_size)
        n_fitting = bisect_right(
            sizes, n_tokens, key=lambda size: cls.window(values.replace(block_size=size))
        )
        what = f"block_size {block_size} is longer than the data: the {name} split has {n_tokens} tokens"
        allowed = f"at most {sizes[n_fitting - 1]}" if n_fitting else "none, the corpus is too short"
        raise BadInput(Problem(what, allowed))

    def _take(self, split: Any) -> int:
        length = self.window(self._values)
        if len(split) < length:
            raise ValueError(f"{len(split)} tokens have no window of {length}")
        # A plain view of the mapped file: np.memmap's own indexing is several times slower.
        self._split = np.asarray(split)
        self._windows = np.lib.stride_tricks.sliding_window_view(self._split, length)
        return len(self._windows)

    def _batch(self, items: Ids, noise: Noise) -> Batch:
        return self._learned(self._texts(items), noise)

    def _texts(self, items: Ids) -> Ids:
        """Return the windows [B, window], to be written on."""
        texts: Ids = self._windows[items].astype(np.int64)
        return texts

    @abstractmethod
    def _learned(self, texts: Ids, noise: Noise) -> Batch:
        """Make the batch of these texts [B, any length], which may be written on."""

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield windows that find each target of evenly spread stretches of the split once."""
        length = self._values.block_size
        n_places = self._n_items + length - 1  # where an input has a target
        wanted = n_places if n_tokens is None else min(n_tokens, n_places)
        whole = n_places if wanted == n_places else min(max(STRETCH, length), n_places)
        count = max(1, round(wanted / whole))
        starts = spread(count, n_places // whole) * whole
        places = starts[:, None] + np.arange(whole + self.overlap)
        noise = Noise(generator_key(0, "evaluation masks"))
        learned = self._learned(self._split[places].astype(np.int64), noise)
        inputs, targets = learned.inputs.ravel(), learned.targets.ravel()
        due = np.arange(0, whole, length)
        moved = np.minimum(due, whole - length)
        windows = (np.arange(len(starts))[:, None] * whole + moved).ravel()
        counted = np.tile(due - moved, len(starts))
        for rows, _ in self._together(np.arange(len(windows)), length):
            at = windows[rows, None] + np.arange(length)
            is_new = np.arange(length) >= counted[rows, None]
            yield Batch(inputs[at], np.where(is_new, targets[at], NO_TARGET))
