"""What every tokenizer does: text to token ids and back, exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint16]
LARGEST_VOCABULARY = 2**16  # token files hold 16-bit numbers
N_BYTES = 256


def utf8(text: str) -> bytes:
    """Return the bytes of a text.

    Raises:
        ValueError: a character has none; names it and its position.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {text[error.start]!r} at {error.start} is half of one, and no text"
        ) from None


class Tokenizer(ABC):
    """What every tokenizer does: `decode(encode(text)) == text` for any text it was trained on."""

    name: ClassVar[str]
    version: ClassVar[str] = ""  # another one cuts other tokens: those kept are not used
    blank: ClassVar[str] = ""  # what stands between two tokens of a text

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Return the number of distinct tokens; ids go from 0 to vocab_size - 1."""

    @property
    def end_of_text(self) -> int | None:
        """Return the token after which a text is over, where there is one."""
        return None

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
            ValueError: a character has no token; names it and its position.
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


class LearnedTokenizer(Tokenizer):
    """A tokenizer whose tokens are learned from the training split alone: bytes, and what is frequent there.

    With the bytes among its tokens it knows every text. Ids that a model made up need not be UTF-8: a broken sequence
    decodes to U+FFFD.
    """

    default_size: ClassVar[int]

    @classmethod
    def train(cls, text: str, vocab_size: int | None = None) -> Self:
        """Learn `vocab_size` tokens; without it as many as is usual, or fewer where the text has no more.

        Raises:
            ValueError: the text has fewer than asked for, or so many are fewer than the bytes or too many for 16 bits.
        """
        if vocab_size is None:
            return cls._learned(text, cls.default_size)
        if not N_BYTES <= vocab_size <= LARGEST_VOCABULARY:
            raise ValueError(
                f"the {cls.name} tokenizer has {vocab_size:,} tokens; it takes {N_BYTES} for the bytes, "
                f"and at most {LARGEST_VOCABULARY:,}"
            )
        found = cls._learned(text, vocab_size)
        if found.vocab_size < vocab_size:
            raise ValueError(
                f"the {cls.name} tokenizer finds {found.vocab_size:,} tokens in the training split, "
                f"not {vocab_size:,}"
            )
        return found

    @classmethod
    @abstractmethod
    def _learned(cls, text: str, vocab_size: int) -> Self:
        """Learn at most `vocab_size` tokens."""
