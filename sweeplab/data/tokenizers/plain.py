"""Tokenizers that learn nothing: bytes, characters, and ids as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.tokenizers.base import LARGEST_VOCABULARY, N_BYTES, Ids, Tokenizer, utf8


@final
@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    """One token a byte of UTF-8: knows every text and needs no training.

    Ids that a model made up need not be UTF-8: a broken sequence decodes to U+FFFD.
    """

    name: ClassVar[str] = "byte"

    @property
    def vocab_size(self) -> int:
        """Return 256."""
        return N_BYTES

    @classmethod
    def train(cls, text: str) -> Self:
        """Take nothing from the text."""
        return cls()

    def encode(self, text: str) -> Ids:
        """Return the UTF-8 bytes."""
        return np.frombuffer(utf8(text), np.uint8).astype(np.uint16)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of the UTF-8 bytes."""
        return self._known(ids).astype(np.uint8).tobytes().decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        """Return the name."""
        return {"name": self.name}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Take nothing from the description."""
        return cls()


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
