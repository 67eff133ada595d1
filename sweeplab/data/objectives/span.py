"""Find hidden spans from the text around them (Raffel et al., "T5", 2020, section 3.1.4).

A window's text falls into segments, by turns shown and hidden. The source has the shown ones with a sentinel in the
place of each hidden one; the target has the hidden ones, each after its sentinel. As in the published code both end
with `eos`, a window begins shown and ends hidden, and the numbers of hidden tokens and of spans are the same for
every window: so are the lengths, and no row is padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.batches import Batch, Ids
from sweeplab.data.generators import Noise
from sweeplab.data.objectives.base import TextObjective, spread
from sweeplab.data.prompts import BOS, EOS, HOLE, Prompt, SpecialTokens, check_room, cut, filled, sentinel
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters


@dataclass(frozen=True)
class Corruption:
    """A window's counts: `n_hidden` of its tokens, in `n_spans` spans."""

    window: int
    n_hidden: int
    n_spans: int

    @property
    def source_length(self) -> int:
        """Return the length of what the encoder reads."""
        return self.window - self.n_hidden + self.n_spans + 1

    @property
    def target_length(self) -> int:
        """Return the length of what the decoder is to find."""
        return self.n_hidden + self.n_spans + 1

    @classmethod
    def of(cls, window: int, mask_share: float, span_length: float) -> Corruption:
        """Return the counts of a window of this many tokens, at least two."""
        n_hidden = min(max(round(window * mask_share), 1), window - 1)
        n_spans = min(max(round(n_hidden / span_length), 1), n_hidden, window - n_hidden)
        return cls(window, n_hidden, n_spans)


@lru_cache(256)
def _longest(block_size: int, mask_share: float, span_length: float) -> Corruption:
    # Source and target share out a window's tokens: one longer than both of them fits neither.
    for window in range(2 * block_size, 1, -1):
        found = Corruption.of(window, mask_share, span_length)
        if max(found.source_length, found.target_length) <= block_size:
            return found
    raise ValueError(f"block_size {block_size} has no room for a span; it takes {Span.shortest_block}")


def corruption(values: Hyperparameters) -> Corruption:
    """Return the counts of the longest window whose source and target fit block_size.

    Raises:
        ValueError: none does.
    """
    return _longest(values.block_size, values.mask_share, values.span_length)


@final
class Span(TextObjective):
    """Spans of a window's text are hidden behind sentinels, and are to be found in order."""

    name = "span"
    meaning = "Hidden spans, from the text around them"
    families = ("encoder_decoder",)
    shortest_block = 3  # a token shown or hidden, its sentinel, and eos
    dense = True

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return what begins and ends a target, and as many sentinels as a window has spans."""
        return (BOS, EOS, *map(sentinel, range(corruption(values).n_spans)))

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Return that spans are hidden, how much of the text, and how long they are."""
        return f"{super().task(values)}, {values.mask_share:.0%} of it, {values.span_length:g} tokens each"

    @classmethod
    def lengths(cls, values: Hyperparameters) -> tuple[int, int]:
        """Return the lengths of a corrupted window's target and source."""
        return corruption(values).target_length, corruption(values).source_length

    @classmethod
    def window(cls, values: Hyperparameters) -> int:
        """Return how many tokens are corrupted together: block_size and some more, for spans shrink to a token."""
        return corruption(values).window

    @classmethod
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Hide a span at each hole, or after the text where it has none."""
        pieces = pieces if len(pieces) > 1 else [*pieces, []]
        counts, n_holes = corruption(values), len(pieces) - 1
        if n_holes > counts.n_spans:
            what = f"the prompt has {n_holes} times {HOLE}; the model knows texts of {counts.n_spans}"
            raise BadInput(what)
        sentinels = [special[sentinel(index)] for index in range(counts.n_spans)]
        source = [*filled(pieces, sentinels[:n_holes]), special[EOS]]
        check_room(source, values)
        markers = [*sentinels, special[EOS]]
        return Prompt([special[BOS]], (), source, markers, special[EOS], room=values.block_size)

    def example(self) -> Sequence[Sequence[int]]:
        """Return the first window's source, but for its end."""
        first = next(self.evaluation()).source
        assert first is not None  # its batches have one
        source = first[0][:-1].tolist()
        return cut(source, [place for place, token in enumerate(source) if token in self._sentinels])

    def _take(self, split: NDArray[np.uint16]) -> int:
        self._counts = corruption(self._values)
        self._sentinels = np.array([self.special[sentinel(span)] for span in range(self._counts.n_spans)])
        return super()._take(split)

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield windows spread over the split, or all of it but its last, incomplete one.

        How many spans a window has follows from block_size: unlike a token's, its targets are of that size alone.
        """
        length = self._counts.window
        n_windows = (self._n_items + length - 1) // length
        count = n_windows if n_tokens is None else max(1, round(n_tokens / length))
        for items, noise in self._together(spread(count, n_windows) * length, length):
            yield self._batch(items, noise)

    def _learned(self, texts: Ids, noise: Noise) -> Batch:
        starts = self._segments(len(texts), noise)
        segment = np.cumsum(starts, axis=1) - 1
        is_hidden = segment % 2 == 1
        sentinels = self._sentinels[segment // 2]
        source = self._without(is_hidden, texts, sentinels, starts)
        targets = self._without(~is_hidden, texts, sentinels, starts)
        inputs = np.roll(targets, 1, axis=1)
        inputs[:, 0] = self.special[BOS]
        return Batch(inputs, targets, source)

    def _segments(self, n_rows: int, noise: Noise) -> NDArray[np.bool_]:
        """Cut each window into segments, shown and hidden by turns: a mask [B, window] of where they start."""
        window, n_hidden, n_spans = self._counts.window, self._counts.n_hidden, self._counts.n_spans
        lengths = [_parts(n_rows, total, n_spans, noise) for total in (window - n_hidden, n_hidden)]
        by_turns = np.stack(lengths, axis=2).reshape(n_rows, 2 * n_spans)
        starts = np.zeros((n_rows, window), np.bool_)
        starts[:, 0] = True
        np.put_along_axis(starts, np.cumsum(by_turns, axis=1)[:, :-1], True, axis=1)
        return starts

    def _without(
        self, left_out: NDArray[np.bool_], texts: Ids, sentinels: Ids, starts: NDArray[np.bool_]
    ) -> Ids:
        """Return the texts with each segment that is left out shrunk to its sentinel, and `eos` at the end."""
        shrunk = np.where(left_out, sentinels, texts)[starts | ~left_out].reshape(len(texts), -1)
        return np.pad(shrunk, ((0, 0), (0, 1)), constant_values=self.special[EOS])


def _parts(n_rows: int, total: int, n_parts: int, noise: Noise) -> Ids:
    """Divide `total` into parts of at least 1, every way as likely as any other: [n_rows, n_parts]."""
    cuts = np.nonzero(noise.places(n_rows, total - 1, n_parts - 1))[1].reshape(n_rows, n_parts - 1) + 1
    return np.diff(cuts, axis=1, prepend=0, append=total)
