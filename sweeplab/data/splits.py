"""A split of a corpus as tokens: an array of running text, or pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sources and the targets that follow from them, one after the other in `tokens`.

    `ends` [2 * n_pairs] says where each source and each target ends.
    """

    tokens: NDArray[np.uint16]
    ends: NDArray[np.int64]

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
