"""Token ids as numbers, where a run's own tokenizer is not at hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.tokenizers.base import Tokenizer


@final
@dataclass(frozen=True)
class IdsTokenizer(Tokenizer):
    """Its texts are ids with blanks between them, such as `12 7 304`: all that can be said to a model of unknown words.

    No study takes it: a corpus has no ids.
    """

    name: ClassVar[str] = "ids"
    blank: ClassVar[str] = " "
    n_tokens: int

    @property
    def vocab_size(self) -> int:
        """Return the number of ids."""
        return self.n_tokens

    @classmethod
    def train(cls, text: str) -> Self:
        """Count the ids up to the largest one of the text."""
        return cls(1 + max(map(int, text.split())))

    def encode(self, text: str) -> NDArray[Any]:
        """Return the ids that the text names; some need more than 16 bits."""
        for word in re.finditer(r"\S+", text):
            if not re.fullmatch(r"[0-9]{1,9}", word[0]) or int(word[0]) >= self.n_tokens:
                known = f"a token's number from 0 to {self.n_tokens - 1}"
                raise ValueError(f"{word[0]!r} at {word.start()} is not {known}: the run has no tokenizer")
        return np.array(text.split(), np.int64)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the ids with blanks between them."""
        return self.blank.join(map(str, self._known(ids).tolist()))

    def to_json(self) -> dict[str, Any]:
        """Return the name and the number of ids."""
        return {"name": self.name, "n_tokens": self.n_tokens}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Take the number of ids from the description."""
        return cls(int(description.get("n_tokens", 0)))
