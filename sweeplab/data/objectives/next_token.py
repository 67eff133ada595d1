"""Find the next token from all before it."""

from __future__ import annotations

from typing import final

from sweeplab.data.batches import Batch, Ids
from sweeplab.data.generators import Noise
from sweeplab.data.objectives.base import TextObjective, Values


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

    def _batch(self, items: Ids, noise: Noise) -> Batch:
        texts = self._texts(items)
        return Batch(texts[:, :-1], texts[:, 1:])
