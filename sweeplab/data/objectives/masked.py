"""Find hidden tokens from all around them (Devlin et al., "BERT", 2019, section 3.1)."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.batches import NO_TARGET, Batch, Ids
from sweeplab.data.generators import Noise
from sweeplab.data.objectives.base import TextObjective, Values
from sweeplab.data.special import MASK

# Of ten chosen tokens so many are hidden, and so many replaced; the rest stay as they are.
HIDDEN, REPLACED = 8, 1


@final
class Masked(TextObjective):
    """A share of a window's tokens are targets: 80% of them hidden, 10% replaced by any token, 10% left as they are.

    BERT's own count, the share rounded and at least one: each sequence has as many targets as every other.
    """

    name = "masked"
    meaning = "Hidden tokens, from all around them"
    families = ("encoder",)

    @classmethod
    def special_names(cls, values: Values) -> tuple[str, ...]:
        """Return what stands where a token is hidden."""
        return (MASK,)

    @classmethod
    def task(cls, values: Values) -> str:
        """Return that tokens are hidden, and how many: the fewer, the more is known of them."""
        return f"{super().task(values)}, {values['mask_share']:.0%} of them"

    @classmethod
    def window(cls, values: Values) -> int:
        """Return block_size."""
        return int(values["block_size"])

    def _take(self, split: NDArray[np.uint16], values: Values) -> int:
        self._n_chosen = max(1, round(values["mask_share"] * values["block_size"]))
        return super()._take(split, values)

    def _batch(self, items: Ids, noise: Noise) -> Batch:
        inputs = self._texts(items)
        chosen = noise.places(len(inputs), inputs.shape[1], self._n_chosen)
        targets = np.where(chosen, inputs, NO_TARGET)
        n_chosen = len(inputs) * self._n_chosen
        fate, others = noise.integers(n_chosen, 10), noise.integers(n_chosen, self.special.n_ordinary)
        kept = np.where(fate < HIDDEN + REPLACED, others, inputs[chosen])
        inputs[chosen] = np.where(fate < HIDDEN, self.special[MASK], kept)
        return Batch(inputs, targets)
