"""Objectives whose targets are tokens of running text: the next token (a decoder), or masked tokens (an encoder)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import final

import numpy as np

from sweeplab.data.batches import NO_TARGET, Batch, Ids
from sweeplab.data.generators import RandomStream, generator_key
from sweeplab.data.objectives.base import TextObjective, rows_together, spread
from sweeplab.data.prompts import HOLE, MASK, Prompt, SpecialTokens, check_room, cut, filled
from sweeplab.errors import BadInput
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
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Continue the text, which must have a token: no special token begins a text."""
        if len(pieces) > 1:
            what = f"{HOLE} is for models that attend to both sides"
            raise BadInput(f"{what}; a decoder continues the prompt at its end")
        if not len(pieces[0]):
            raise BadInput("the prompt is empty: a decoder predicts a token from the tokens before it")
        return Prompt(pieces[0])

    def example(self) -> Sequence[Sequence[int]]:
        """Return the first half of the first window."""
        (text,) = self._texts(np.array([0]))
        return [text[: len(text) // 2].tolist()]

    @classmethod
    def likelihood(
        cls, tokens: Ids, values: Hyperparameters, own_special: Mapping[str, int] | None = None
    ) -> Iterator[Batch]:
        """Predict every token but the first, in windows of block_size as an evaluation has."""
        if len(tokens) < 2:
            raise BadInput("the text is one token, and no token is before it to predict it from")
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
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Put a mask at each hole."""
        if len(pieces) == 1:
            raise BadInput(f"the prompt has no {HOLE}: an encoder predicts one token for each")
        start = filled(pieces, [special[MASK]] * (len(pieces) - 1))
        check_room(start, values)
        return Prompt(start, [place for place, token in enumerate(start) if token == special[MASK]])

    def example(self) -> Sequence[Sequence[int]]:
        """Return the first window with a hole at each target."""
        batch = self._batch(np.array([0]), RandomStream(generator_key(0, "evaluation masks")))
        inputs, targets = batch.inputs[0], batch.targets[0]
        holes = np.flatnonzero(targets != NO_TARGET)
        return cut(np.where(targets == NO_TARGET, inputs, targets).tolist(), holes.tolist())

    def _batch_of_texts(self, inputs: Ids, random: RandomStream) -> Batch:
        per_row = max(1, round(self._values.mask_share * inputs.shape[1]))
        chosen = random.choose(len(inputs), inputs.shape[1], per_row)
        targets = np.where(chosen, inputs, NO_TARGET)
        n_chosen = len(inputs) * per_row
        draw, others = random.integers(n_chosen, 10), random.integers(n_chosen, self.special.n_ordinary)
        shown = np.where(draw < HIDDEN + REPLACED, others, inputs[chosen])
        inputs[chosen] = np.where(draw < HIDDEN, self.special[MASK], shown)
        return Batch(inputs, targets)

    @classmethod
    def likelihood(
        cls, tokens: Ids, values: Hyperparameters, own_special: Mapping[str, int] | None = None
    ) -> Iterator[Batch]:
        """Mask each token in turn: the pseudo-likelihood of Salazar et al. (2020), in windows of block_size."""
        mask = SpecialTokens(values.vocab_size, cls.special_names(values), own_special)[MASK]
        for start in range(0, len(tokens), values.block_size):
            window = tokens[start : start + values.block_size].astype(np.int64)
            n_rows = rows_together(len(window))
            for first in range(0, len(window), n_rows):
                is_masked = np.eye(len(window), dtype=bool)[first : first + n_rows]
                yield Batch(np.where(is_masked, mask, window), np.where(is_masked, window, NO_TARGET))

    def alone(self, n_sequences: int) -> Iterator[Batch]:
        """Mask one token of each window, at a random position, for the pseudo-likelihood of Salazar et al. (2020).

        Departure: they mask each token of a text in turn; one token of many texts estimates the mean more precisely.
        """
        random = RandomStream(generator_key(0, "alone"))
        for items, _ in self._evaluation_items(spread(n_sequences, self._n_items), self._values.block_size):
            inputs = self._texts(items)
            chosen = random.choose(len(inputs), inputs.shape[1], 1)
            targets = np.where(chosen, inputs, NO_TARGET)
            inputs[chosen] = self.special[MASK]
            yield Batch(inputs, targets)
