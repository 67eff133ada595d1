"""One token a character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.tokenizers.base import LARGEST_VOCABULARY, Ids, Tokenizer


@final
@dataclass(frozen=True)
class CharTokenizer(Tokenizer):
    """One token a character: those of the corpus it was trained on, in code point order, as nanoGPT does."""

    name: ClassVar[str] = "char"
    characters: str

    def __post_init__(self) -> None:
        if not self.characters or list(self.characters) != sorted(set(self.characters)):
            raise ValueError("a char tokenizer has one character or more, all distinct, in code point order")
        if len(self.characters) > LARGEST_VOCABULARY:
            raise ValueError(
                f"the text has {len(self.characters):,} distinct characters, and a char tokenizer "
                f"at most {LARGEST_VOCABULARY:,}; the byte tokenizer takes any text"
            )

    @cached_property
    def _points(self) -> NDArray[np.uint32]:
        return _code_points(self.characters)

    @property
    def vocab_size(self) -> int:
        """Return the number of characters."""
        return len(self.characters)

    @classmethod
    def train(cls, text: str) -> Self:
        """Take the text's distinct characters."""
        return cls("".join(sorted(set(text))))

    def encode(self, text: str) -> Ids:
        """Return the rank of each character."""
        points = _code_points(text)
        ids = np.searchsorted(self._points, points)
        known = self._points.take(ids, mode="clip") == points
        if not known.all():
            place = int(np.argmin(known))
            raise ValueError(
                f"character {text[place]!r} at {place} is not among the {self.vocab_size} trained on"
            )
        return ids.astype(np.uint16)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the character of each rank."""
        return self._points[self._known(ids)].astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")

    def to_json(self) -> dict[str, Any]:
        """Return the name and the characters, joined."""
        return {"name": self.name, "characters": self.characters}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Take the characters from the description."""
        return cls(description.get("characters", ""))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint32, copy=False)
