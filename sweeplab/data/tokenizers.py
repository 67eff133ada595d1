"""Text to token ids and back, exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint16]
LARGEST_VOCABULARY = 2**16  # token files hold 16-bit numbers


class Tokenizer(ABC):
    """What every tokenizer does: `decode(encode(text)) == text` for any text it was trained on."""

    name: ClassVar[str]
    version: ClassVar[str] = ""  # another one cuts other tokens: those kept are not used

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Return the number of distinct tokens; ids go from 0 to vocab_size - 1."""

    @classmethod
    @abstractmethod
    def train(cls, text: str) -> Self:
        """Make the tokenizer of a corpus; the same text gives an equal one.

        Raises:
            ValueError: the text needs more tokens than 16 bits can number.
        """

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the ids of a text.

        Raises:
            ValueError: a character has no token; names it.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of the ids.

        Raises:
            ValueError: an id is not in the vocabulary.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return what `load_tokenizer` needs to make an equal tokenizer; `name` is part of it."""

    @classmethod
    @abstractmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Make the tokenizer that `to_json` described.

        Raises:
            ValueError: the description is not one of this tokenizer's.
        """

    def _known(self, ids: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        array = np.asarray(ids, dtype=np.int64)
        if array.size and not 0 <= array.min() <= array.max() < self.vocab_size:
            unknown = array[(array < 0) | (array >= self.vocab_size)][0]
            raise ValueError(
                f"token {unknown} is not among the {self.vocab_size} of the {self.name} tokenizer"
            )
        return array


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
        return 256

    @classmethod
    def train(cls, text: str) -> Self:
        """Take nothing from the text."""
        return cls()

    def encode(self, text: str) -> Ids:
        """Return the UTF-8 bytes."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint16)

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


TOKENIZERS: dict[str, type[Tokenizer]] = {each.name: each for each in (CharTokenizer, ByteTokenizer)}


def load_tokenizer(description: Mapping[str, Any]) -> Tokenizer:
    """Make the tokenizer that a `to_json` described.

    Raises:
        ValueError: no tokenizer has its name, or the description is not one of that tokenizer's.
    """
    name = description.get("name")
    if name not in TOKENIZERS:
        raise ValueError(f"no tokenizer is named {name!r}; there are {', '.join(TOKENIZERS)}")
    return TOKENIZERS[name].from_json(description)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint32, copy=False)
