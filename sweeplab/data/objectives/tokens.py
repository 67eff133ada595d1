"""Objectives whose targets are tokens of running text: the next one (a decoder), or hidden ones (an encoder)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from sweeplab.data.batches import NO_TARGET, Batch, Ids
from sweeplab.data.generators import Noise, generator_key
from sweeplab.data.objectives.base import TextObjective, spread
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
    overlap = 1  # a window starts at the last target of the one before it

    @classmethod
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Go on from the text; refuse none at all, for there is no token that begins one."""
        if len(pieces) > 1:
            what = f"{HOLE} is for models that read both ways"
            raise BadInput(f"{what}; a decoder goes on from the prompt's end")
        if not len(pieces[0]):
            raise BadInput("the prompt is empty: a decoder finds a token from those before it")
        return Prompt(pieces[0])

    def example(self) -> Sequence[Sequence[int]]:
        """Return half of the first window."""
        (text,) = self._texts(np.array([0]))
        return [text[: len(text) // 2].tolist()]

    def _learned(self, texts: Ids, noise: Noise) -> Batch:
        return Batch(texts[:, :-1], texts[:, 1:])


# Of ten chosen tokens so many are hidden, and so many replaced; the rest stay as they are.
HIDDEN, REPLACED = 8, 1


@final
class Masked(TextObjective):
    """A share of a window's tokens are targets: 80% of them hidden, 10% replaced by any token, 10% left as they are.

    BERT's own count, the share rounded and at least one: each sequence has as many targets as every other. In an
    evaluation each stretch of the split has, so that its windows, of any length, find the same tokens.
    """

    name = "masked"
    meaning = "Hidden tokens, from all around them"
    families = ("encoder",)
    special_tokens = (MASK,)

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Return that tokens are hidden, and how many: the fewer, the more is known of them."""
        return f"{super().task(values)}, {values.mask_share:.0%} of them"

    @classmethod
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Hide a token at each hole."""
        if len(pieces) == 1:
            raise BadInput(f"the prompt has no {HOLE}: an encoder finds what stands there, one token each")
        start = filled(pieces, [special[MASK]] * (len(pieces) - 1))
        check_room(start, values)
        return Prompt(start, [place for place, token in enumerate(start) if token == special[MASK]])

    def example(self) -> Sequence[Sequence[int]]:
        """Return the first window with all of its targets hidden."""
        batch = self._batch(np.array([0]), Noise(generator_key(0, "evaluation masks")))
        inputs, targets = batch.inputs[0], batch.targets[0]
        holes = np.flatnonzero(targets != NO_TARGET)
        return cut(np.where(targets == NO_TARGET, inputs, targets).tolist(), holes.tolist())

    def _learned(self, inputs: Ids, noise: Noise) -> Batch:
        in_each = max(1, round(self._values.mask_share * inputs.shape[1]))
        chosen = noise.places(len(inputs), inputs.shape[1], in_each)
        targets = np.where(chosen, inputs, NO_TARGET)
        n_chosen = len(inputs) * in_each
        fate, others = noise.integers(n_chosen, 10), noise.integers(n_chosen, self.special.n_ordinary)
        kept = np.where(fate < HIDDEN + REPLACED, others, inputs[chosen])
        inputs[chosen] = np.where(fate < HIDDEN, self.special[MASK], kept)
        return Batch(inputs, targets)

    def alone(self, n_sequences: int) -> Iterator[Batch]:
        """Hide one token of each window, at any place: what Salazar et al. (2020) call its pseudo-likelihood.

        They hide each token of a text in turn; a token of many texts says as much of the mean, and more surely.
        """
        noise = Noise(generator_key(0, "alone"))
        for items, _ in self._together(spread(n_sequences, self._n_items), self._values.block_size):
            inputs = self._texts(items)
            chosen = noise.places(len(inputs), inputs.shape[1], 1)
            targets = np.where(chosen, inputs, NO_TARGET)
            inputs[chosen] = self.special[MASK]
            yield Batch(inputs, targets)
