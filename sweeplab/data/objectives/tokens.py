"""Objectives whose targets are tokens of running text: the next token, masked tokens, or hidden spans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.batches import NO_TARGET, Batch, Ids, RandomStream
from sweeplab.data.objectives.base import (
    BOS,
    EOS,
    HOLE,
    MASK,
    OwnIds,
    Pieces,
    Prompt,
    SpecialTokens,
    TextObjective,
    check_room,
    filled,
    sentinel,
    spread_items,
)
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.hyperparameters import Hyperparameters


@final
class NextToken(TextObjective):
    """The target of a position is the token after it: a window has one token more than a sequence."""

    name = "next_token"
    meaning = "The next token, from all before it"
    families = ("decoder",)
    dense = True
    overlap = 1  # the last target of a window is the first input of the next one

    @classmethod
    def prompt(cls, pieces: Pieces, special: SpecialTokens, values: Hyperparameters) -> Prompt:
        """Continue the text, which must have a token: no special token begins a text."""
        if len(pieces) > 1:
            what = f"{HOLE} is for models that attend to both sides"
            raise BadInput(f"{what}; a decoder continues the prompt at its end")
        if not len(pieces[0]):
            raise BadInput(
                "the prompt is empty: a decoder predicts a token from the tokens before it"
            )
        return Prompt(pieces[0])

    @classmethod
    def likelihood(
        cls, tokens: Ids, values: Hyperparameters, own_special: OwnIds = None
    ) -> Iterator[Batch]:
        """Predict every token but the first, in windows of block_size as an evaluation has."""
        if len(tokens) < 2:
            raise BadInput(
                "the text is one token, and no token is before it to predict it from"
            )
        block_size = min(values.block_size, len(tokens) - 1)
        return cls(tokens, values.replace(block_size=block_size), own_special).evaluation()

    def _batch_of_texts(self, texts: Ids, random: RandomStream) -> Batch:
        return Batch(texts[:, :-1], texts[:, 1:])


# Of ten targets, so many are masked in the input and so many replaced; the others are kept.
HIDDEN, REPLACED = 8, 1


@final
class Masked(TextObjective):
    """A share of a window's tokens are targets: 80% are masked, 10% replaced by a random token, 10% kept, as in BERT.

    Every sequence has the same number of targets: the share of its length, rounded, and at least one, as in BERT's
    code. In an evaluation this holds for stretches of the split, so the targets are the same for every block_size.
    """

    name = "masked"
    meaning = "Hidden tokens, from all around them"
    families = ("encoder",)
    special_tokens = (MASK,)

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task, with the share of masked tokens: with fewer of them a loss is lower."""
        return f"{super().task(values)}, {values.mask_share:.0%} of them"

    @classmethod
    def prompt(cls, pieces: Pieces, special: SpecialTokens, values: Hyperparameters) -> Prompt:
        """Put a mask at each hole."""
        if len(pieces) == 1:
            raise BadInput(f"the prompt has no {HOLE}: an encoder predicts one token for each")
        start = filled(pieces, [special[MASK]] * (len(pieces) - 1))
        check_room(start, values)
        return Prompt(
            start, [place for place, token in enumerate(start) if token == special[MASK]]
        )

    def _batch_of_texts(self, inputs: Ids, random: RandomStream) -> Batch:
        per_row = max(1, round(self._values.mask_share * inputs.shape[1]))
        chosen = random.choose(len(inputs), inputs.shape[1], per_row)
        targets = np.where(chosen, inputs, NO_TARGET)
        n_chosen = len(inputs) * per_row
        draw, others = (
            random.integers(n_chosen, 10),
            random.integers(n_chosen, self.special.n_ordinary),
        )
        shown = np.where(draw < HIDDEN + REPLACED, others, inputs[chosen])
        inputs[chosen] = np.where(draw < HIDDEN, self.special[MASK], shown)
        return Batch(inputs, targets)


# ------------------------------------------------------------------ spans


class Corruption(NamedTuple):
    """The size of a window in tokens, of which `n_hidden` are hidden, in `n_spans` spans."""

    window: int
    n_hidden: int
    n_spans: int

    @property
    def source_length(self) -> int:
        """Return the length of the encoder's input."""
        return self.window - self.n_hidden + self.n_spans + 1

    @property
    def target_length(self) -> int:
        """Return the length of the decoder's output."""
        return self.n_hidden + self.n_spans + 1


@lru_cache(256)
def _longest(block_size: int, mask_share: float, span_length: float) -> Corruption:
    # Every token is in the source or in the target, so a window has at most 2 * block_size tokens.
    for window in range(2 * block_size, 1, -1):
        n_hidden = min(max(round(window * mask_share), 1), window - 1)
        n_spans = min(max(round(n_hidden / span_length), 1), n_hidden, window - n_hidden)
        counts = Corruption(window, n_hidden, n_spans)
        if max(counts.source_length, counts.target_length) <= block_size:
            return counts
    raise ValueError(
        f"block_size {block_size} is too small for spans: at least {Span.shortest_block}"
    )


def corruption(values: Hyperparameters) -> Corruption:
    """Return the counts for the longest window whose source and target fit into block_size.

    Raises:
        ValueError: no window fits.
    """
    return _longest(values.block_size, values.mask_share, values.span_length)


@final
class Span(TextObjective):
    """Span corruption: predict hidden spans from the text around (Raffel et al., "T5", 2020, section 3.1.4).

    A window of text is divided into segments, shown and hidden in turn. The source is the window with a sentinel in
    place of each hidden span; the target is the hidden spans, each after its sentinel. As in the published code, both
    end with `eos`, the first segment is shown and the last is hidden, and every window has the same number of hidden
    tokens and of spans. So all rows have the same length, and none is padded.
    """

    name = "span"
    meaning = "Hidden spans, from the text around them"
    families = ("encoder_decoder",)
    shortest_block = 3  # one shown or hidden token, a sentinel, and eos
    dense = True

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return the tokens that begin and end a target, and a sentinel for each span of a window."""
        return (BOS, EOS, *map(sentinel, range(corruption(values).n_spans)))

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task, with the share of hidden tokens and the length of spans."""
        return f"{super().task(values)}, {values.mask_share:.0%} of it, {values.span_length:g} tokens each"

    @classmethod
    def lengths(cls, values: Hyperparameters) -> tuple[int, int]:
        """Return the lengths of a corrupted window's target and source."""
        return corruption(values).target_length, corruption(values).source_length

    @classmethod
    def window(cls, values: Hyperparameters) -> int:
        """Return the number of tokens of a window: more than block_size, since each span becomes one sentinel."""
        return corruption(values).window

    @classmethod
    def prompt(cls, pieces: Pieces, special: SpecialTokens, values: Hyperparameters) -> Prompt:
        """Put a sentinel at each hole; without holes, at the end of the text."""
        pieces = pieces if len(pieces) > 1 else [*pieces, []]
        counts, n_holes = corruption(values), len(pieces) - 1
        if n_holes > counts.n_spans:
            what = f"the prompt has {HOLE} {several(n_holes, 'time')}"
            raise BadInput(Problem(what, f"at most {counts.n_spans}, as in training"))
        sentinels = [special[sentinel(index)] for index in range(counts.n_spans)]
        source = [*filled(pieces, sentinels[:n_holes]), special[EOS]]
        check_room(source, values)
        markers = [*sentinels, special[EOS]]
        return Prompt([special[BOS]], (), source, markers, special[EOS], room=values.block_size)

    def _load(self, split: NDArray[np.uint16]) -> int:
        self._counts = corruption(self._values)
        self._sentinels = np.array(
            [self.special[sentinel(span)] for span in range(self._counts.n_spans)]
        )
        return super()._load(split)

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Return windows evenly spread over the split; or all windows, except the last if it is incomplete.

        The spans of a window depend on block_size, so here the targets are not the same for every block_size.
        """
        length = self._counts.window
        n_windows = (self._n_items + length - 1) // length
        starts = spread_items(n_tokens, length, n_windows) * length
        return self._evaluated(starts, length)

    def _batch_of_texts(self, texts: Ids, random: RandomStream) -> Batch:
        n_rows, (window, n_hidden, n_spans) = len(texts), self._counts
        # Segments, shown and hidden in turn: their lengths [B, 2 * n_spans], and a mask [B, window] of their starts.
        lengths = [
            _parts(n_rows, total, n_spans, random) for total in (window - n_hidden, n_hidden)
        ]
        ends = np.cumsum(np.stack(lengths, axis=2).reshape(n_rows, 2 * n_spans), axis=1)
        starts = np.zeros((n_rows, window), np.bool_)
        starts[:, 0] = True
        np.put_along_axis(starts, ends[:, :-1], True, axis=1)
        segment = np.cumsum(starts, axis=1) - 1
        is_hidden = segment % 2 == 1
        sentinels = self._sentinels[segment // 2]

        def with_sentinels(removed: NDArray[np.bool_]) -> Ids:
            kept = np.where(removed, sentinels, texts)[starts | ~removed].reshape(n_rows, -1)
            return np.pad(kept, ((0, 0), (0, 1)), constant_values=self.special[EOS])

        targets = with_sentinels(~is_hidden)
        inputs = np.roll(targets, 1, axis=1)
        inputs[:, 0] = self.special[BOS]
        return Batch(inputs, targets, with_sentinels(is_hidden))


def _parts(n_rows: int, total: int, n_parts: int, random: RandomStream) -> Ids:
    """Divide `total` into parts of at least 1, all divisions equally likely: [n_rows, n_parts]."""
    cuts = (
        np.nonzero(random.choose(n_rows, total - 1, n_parts - 1))[1].reshape(
            n_rows, n_parts - 1
        )
        + 1
    )
    return np.diff(cuts, axis=1, prepend=0, append=total)
