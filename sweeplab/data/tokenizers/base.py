"""The tokenizer interface, and tokenizers that learn nothing: bytes, characters, and ids written as numbers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.formatting import several

Ids = NDArray[np.uint16]
LARGEST_VOCABULARY = 2**16  # token files hold 16-bit numbers
N_BYTES = 256
# The character that represents each byte, as in GPT-2: itself if printable, otherwise one from U+0100 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(N_BYTES) if byte not in PRINTABLE]
ALPHABET = [chr(byte if byte in PRINTABLE else N_BYTES + OTHERS.index(byte)) for byte in range(N_BYTES)]
BYTES = {character: byte for byte, character in enumerate(ALPHABET)}


def utf8(text: str) -> bytes:
    """Return a text in UTF-8.

    Raises:
        ValueError: a character is half of a surrogate pair; the message has the character and its position.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        what = f"character {text[error.start]!r} at {error.start} is half of a surrogate pair, not text"
        raise ValueError(what) from None


class Tokenizer(ABC):
    """A tokenizer: `decode(encode(text)) == text` for every text that it was trained on."""

    name: ClassVar[str]
    version: ClassVar[str] = ""  # cached tokens of another version are not used
    blank: ClassVar[str] = ""  # the text between two tokens

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Return the number of distinct tokens; ids go from 0 to vocab_size - 1."""

    @property
    def end_of_text(self) -> int | None:
        """Return the token that ends a text, None if there is none."""
        return None

    @classmethod
    @abstractmethod
    def train(cls, text: str) -> Self:
        """Return the tokenizer of a corpus; the same text gives an equal tokenizer.

        Raises:
            ValueError: the text needs more tokens than there are 16-bit numbers.
        """

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the ids of a text.

        Raises:
            ValueError: a character has no token; the message has the character and its position.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of the ids.

        Raises:
            ValueError: an id is not in the vocabulary.
        """

    def byte_lengths(self) -> NDArray[np.int64]:
        """Return the number of UTF-8 bytes of each token [vocab_size]."""
        return np.array([len(utf8(self.decode([token]))) for token in range(self.vocab_size)])

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return a description, with `name`, from which `load_tokenizer` makes an equal tokenizer."""

    @classmethod
    @abstractmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Return the tokenizer of a description from `to_json`.

        Raises:
            ValueError: the description does not suit this tokenizer.
        """

    def _known(self, ids: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        array = np.asarray(ids, dtype=np.int64)
        if array.size and not 0 <= array.min() <= array.max() < self.vocab_size:
            unknown = array[(array < 0) | (array >= self.vocab_size)][0]
            what = f"token {unknown} is not among the {self.vocab_size} of the {self.name} tokenizer"
            raise ValueError(what)
        return array


@dataclass(frozen=True)
class FieldsTokenizer(Tokenizer):
    """A tokenizer whose description is its name and fields."""

    def to_json(self) -> dict[str, Any]:
        """Return the name and the fields."""
        return {"name": self.name, **asdict(self)}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Return the tokenizer with the fields of the description."""
        try:
            return cls(**{name: value for name, value in description.items() if name != "name"})
        except TypeError as error:
            raise ValueError(f"this describes no {cls.name} tokenizer: {error}") from None


@final
@dataclass(frozen=True)
class ByteTokenizer(FieldsTokenizer):
    """One token per byte of UTF-8: encodes every text and needs no training.

    A model may generate bytes that are not UTF-8: these decode to U+FFFD.
    """

    name: ClassVar[str] = "byte"
    vocab_size = N_BYTES

    @classmethod
    def train(cls, text: str) -> Self:
        """Return the tokenizer; it does not depend on the text."""
        return cls()

    def encode(self, text: str) -> Ids:
        """Return the UTF-8 bytes."""
        return np.frombuffer(utf8(text), np.uint8).astype(np.uint16)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of the UTF-8 bytes."""
        return self._known(ids).astype(np.uint8).tobytes().decode(errors="replace")

    def byte_lengths(self) -> NDArray[np.int64]:
        """Return a length of 1 for each token."""
        return np.ones(N_BYTES, np.int64)


@final
@dataclass(frozen=True)
class CharTokenizer(FieldsTokenizer):
    """One token per distinct character of the training corpus, in code point order, like nanoGPT's."""

    name: ClassVar[str] = "char"
    characters: str

    def __post_init__(self) -> None:
        if not self.characters or list(self.characters) != sorted(set(self.characters)):
            raise ValueError("a char tokenizer has one character or more, all distinct, in code point order")
        if len(self.characters) > LARGEST_VOCABULARY:
            raise ValueError(
                f"the text has {several(len(self.characters), 'distinct character')}, and a char tokenizer "
                f"at most {LARGEST_VOCABULARY:,}; the byte tokenizer takes any text"
            )

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.characters)}

    @property
    def vocab_size(self) -> int:
        """Return the number of characters."""
        return len(self.characters)

    @classmethod
    def train(cls, text: str) -> Self:
        """Return the tokenizer of the text's distinct characters."""
        return cls("".join(sorted(set(text))))

    def encode(self, text: str) -> Ids:
        """Return the index of each character."""
        try:
            return np.fromiter(map(self._ids.__getitem__, text), np.uint16, len(text))
        except KeyError as error:
            (unknown,) = error.args
            what = f"is not among the {self.vocab_size} of the training text"
            raise ValueError(f"character {unknown!r} at {text.index(unknown)} {what}") from None

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the character of each index."""
        return "".join(map(self.characters.__getitem__, self._known(ids).tolist()))


@final
@dataclass(frozen=True)
class IdsTokenizer(FieldsTokenizer):
    """For an imported run without a tokenizer: its texts are ids separated by spaces, such as `12 7 304`.

    A study cannot use it, since a corpus has no ids.
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
        """Return the tokenizer of the ids up to the largest one in the text."""
        return cls(1 + max(map(int, text.split())))

    def encode(self, text: str) -> NDArray[Any]:
        """Return the ids in the text, which may need more than 16 bits."""
        for word in re.finditer(r"\S+", text):
            if not re.fullmatch(r"[0-9]{1,9}", word[0]) or int(word[0]) >= self.n_tokens:
                known = f"a token id from 0 to {self.n_tokens - 1}"
                raise ValueError(f"{word[0]!r} at {word.start()} is not {known}: the run has no tokenizer")
        return np.array(text.split(), np.int64)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the ids, separated by spaces."""
        return self.blank.join(map(str, self._known(ids).tolist()))
