"""What every tokenizer does, and those that learn nothing: bytes, characters, and ids as numbers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property
from typing import Any, ClassVar, Self, final

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
        what = f"character {text[error.start]!r} at {error.start} is half of one, and no text"
        raise ValueError(what) from None


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

    def byte_lengths(self) -> NDArray[np.int64]:
        """Return how many bytes of UTF-8 each token [vocab_size] stands for."""
        return np.array([len(utf8(self.decode([token]))) for token in range(self.vocab_size)])

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
            what = f"token {unknown} is not among the {self.vocab_size} of the {self.name} tokenizer"
            raise ValueError(what)
        return array


@dataclass(frozen=True)
class FieldsTokenizer(Tokenizer):
    """A tokenizer that its fields describe whole, in JSON too."""

    def to_json(self) -> dict[str, Any]:
        """Return the name and the fields."""
        return {"name": self.name, **asdict(self)}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Take the fields from the description."""
        try:
            return cls(**{each.name: description[each.name] for each in fields(cls)})
        except KeyError as error:
            raise ValueError(f"the description of a {cls.name} tokenizer has no {error}") from None


@final
@dataclass(frozen=True)
class ByteTokenizer(FieldsTokenizer):
    """One token a byte of UTF-8: knows every text and needs no training.

    Ids that a model made up need not be UTF-8: a broken sequence decodes to U+FFFD.
    """

    name: ClassVar[str] = "byte"
    vocab_size = N_BYTES

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

    def byte_lengths(self) -> NDArray[np.int64]:
        """Return one for each."""
        return np.ones(N_BYTES, np.int64)


@final
@dataclass(frozen=True)
class CharTokenizer(FieldsTokenizer):
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
            what = f"character {text[place]!r} at {place} is not among the {self.vocab_size} trained on"
            raise ValueError(what)
        return ids.astype(np.uint16)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the character of each rank."""
        return self._points[self._known(ids)].astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint32, copy=False)


@final
@dataclass(frozen=True)
class IdsTokenizer(FieldsTokenizer):
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


def word_encoder(tokenizer: Tokenizer) -> Callable[[Sequence[str]], tuple[NDArray[np.int64], list[int]]]:
    """Return what encodes words with a space between each two: their tokens, and where each word's first one stands.

    A word is cut alone, the same way wherever it stands but at the beginning. The function raises ValueError where a
    character has no token, or a word none at all.
    """

    @cache
    def cut(word: str, is_first: bool) -> tuple[NDArray[np.int64], int]:
        own = np.asarray(tokenizer.encode(word)).astype(np.int64)
        if not len(own):
            raise ValueError(f"{word!r} has no token")
        if is_first:
            return own, 0
        # What a tokenizer has before a word, its space, is none of its tokens, if it can be told apart.
        space = np.asarray(tokenizer.encode(" ")).astype(np.int64)
        whole = np.asarray(tokenizer.encode(f" {word}")).astype(np.int64)
        return whole, len(space) if np.array_equal(whole, np.append(space, own)) else 0

    def encode(words: Sequence[str]) -> tuple[NDArray[np.int64], list[int]]:
        parts = [cut(word, at == 0) for at, word in enumerate(words)]
        starts = np.cumsum([0, *(len(tokens) for tokens, _ in parts)])[:-1]
        places = [int(start) + ahead for start, (_, ahead) in zip(starts, parts, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *(tokens for tokens, _ in parts)]), places

    return encode
