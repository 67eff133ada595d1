"""Find the next token from all before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from sweeplab.data.batches import Batch, Ids
from sweeplab.data.generators import Noise
from sweeplab.data.objectives.base import TextObjective, Values
from sweeplab.data.prompts import HOLE, Prompt
from sweeplab.data.special import SpecialTokens
from sweeplab.errors import BadInput


@final
class NextToken(TextObjective):
    """The target of a position is the token after it: a window has one token more than a sequence."""

    name = "next_token"
    meaning = "The next token, from all before it"
    families = ("decoder",)
    dense = True

    @classmethod
    def window(cls, values: Values) -> int:
        """Return block_size + 1."""
        return int(values["block_size"]) + 1

    @classmethod
    def stride(cls, values: Values) -> int:
        """Return block_size: a window starts at the last target of the one before it."""
        return int(values["block_size"])

    @classmethod
    def prompt(cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Values) -> Prompt:
        """Go on from the text; refuse none at all, for there is no token that begins one."""
        if len(pieces) > 1:
            raise BadInput(
                f"{HOLE} is for models that read both ways; a decoder goes on from the prompt's end"
            )
        if not len(pieces[0]):
            raise BadInput("the prompt is empty: a decoder finds a token from those before it")
        return Prompt(pieces[0])

    def _batch(self, items: Ids, noise: Noise) -> Batch:
        texts = self._texts(items)
        return Batch(texts[:, :-1], texts[:, 1:])
