"""Tokenizers, which turn text into token ids and back: bytes, characters, and subwords that are learned.

The learned ones are those of the package `tokenizers`, by three methods.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.formatting import several

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

Ids = NDArray[np.uint16]
LARGEST_VOCABULARY = 2**16  # token files hold 16-bit numbers
N_BYTES = 256
# The character that represents each byte, as in GPT-2: itself if printable, otherwise one from U+0100 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = {
    chr(
        byte
        if byte in PRINTABLE
        else N_BYTES + sum(other not in PRINTABLE for other in range(byte))
    ): byte
    for byte in range(N_BYTES)
}


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
    def train(cls, text: str) -> Self:
        """Return the tokenizer of a corpus; the same text gives an equal tokenizer.

        Raises:
            ValueError: the text needs more tokens than there are 16-bit numbers.
        """
        raise NotImplementedError

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
            raise ValueError(
                "a char tokenizer has one character or more, all distinct, in code point order"
            )
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

    def encode(self, text: str) -> NDArray[Any]:
        """Return the ids in the text, which may need more than 16 bits."""
        for word in re.finditer(r"\S+", text):
            if not re.fullmatch(r"[0-9]{1,9}", word[0]) or int(word[0]) >= self.n_tokens:
                known = f"a token id from 0 to {self.n_tokens - 1}"
                raise ValueError(
                    f"{word[0]!r} at {word.start()} is not {known}: the run has no tokenizer"
                )
        return np.array(text.split(), np.int64)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the ids, separated by spaces."""
        return self.blank.join(map(str, self._known(ids).tolist()))


# ------------------------------------------------------------------ learned from the training split
DEFAULT_SIZE = 1024
# The library gets so many characters at once, because it needs a hundred bytes of memory per token.
PIECE = 2**20
END_OF_TEXT = "<|endoftext|>"
BEFORE_SPACE = re.compile(r"(?<=\S)(?=[ \t\r\n])")


@dataclass(frozen=True)
class LibraryTokenizer(Tokenizer):
    """A tokenizer of the package `tokenizers`; if it is learned here, it splits words into bytes like GPT-2's.

    So it encodes every text. A model may generate bytes that are not UTF-8: these decode to U+FFFD.
    `definition` is the library's tokenizer.json, which other programs can read. An imported tokenizer may not encode
    every text, and may decode ids to a different text. `model` and `trainer` are classes of the library: both get the
    `options`, and the model also gets the `model_options`.
    """

    model: ClassVar[str]
    trainer: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    model_options: ClassVar[dict[str, Any]] = {}
    definition: str

    @cached_property
    def _library(self) -> Library:
        from tokenizers import Tokenizer as Library

        try:
            return Library.from_str(self.definition)
        except Exception as error:  # the library raises no narrower class
            raise ValueError(
                f"invalid definition of a {self.name} tokenizer: {error}"
            ) from error

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens, including the bytes."""
        return int(self._library.get_vocab_size())

    @property
    def end_of_text(self) -> int | None:
        """Return the id of GPT-2's end-of-text token, which an imported tokenizer may have."""
        token: int | None = self._library.token_to_id(END_OF_TEXT)
        return token

    @cached_property
    def _is_of_bytes(self) -> bool:
        decoder = json.loads(self.definition).get("decoder") or {}
        return bool(decoder.get("type") == "ByteLevel")

    @cached_property
    def _missing(self) -> set[int]:
        if (
            not self._is_of_bytes
            or json.loads(self.definition)["model"].get("unk_id") is not None
        ):
            return set()
        return {
            byte for letter, byte in BYTES.items() if self._library.token_to_id(letter) is None
        }

    @classmethod
    def train(cls, text: str, vocab_size: int = DEFAULT_SIZE) -> Self:
        """Learn `vocab_size` tokens, among them the 256 bytes; fewer if the text has no more.

        Raises:
            ValueError: vocab_size is below 256 or above 65,536, or a character of the text is half of a surrogate pair.
        """
        if not N_BYTES <= vocab_size <= LARGEST_VOCABULARY:
            raise ValueError(
                f"the {cls.name} tokenizer cannot have {several(vocab_size, 'token')}; allowed: {N_BYTES} (the bytes) "
                f"to {LARGEST_VOCABULARY:,}"
            )
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers, trainers

        trainer = getattr(trainers, cls.trainer)(
            vocab_size=vocab_size,
            initial_alphabet=sorted(BYTES),
            show_progress=False,
            **cls.options,
        )
        library = Library(getattr(models, cls.model)(**cls.model_options, **cls.options))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        library.train_from_iterator(_pieces(text), trainer)
        return cls.from_json({"definition": json.loads(library.to_str())})

    def encode(self, text: str) -> Ids:
        """Return the ids of a text."""
        missing = self._missing.intersection(utf8(text))
        if missing:  # the library would leave them out
            at = next(
                at
                for at, character in enumerate(text)
                if not missing.isdisjoint(character.encode())
            )
            raise ValueError(
                f"character {text[at]!r} at {at} has no token of the {self.name} tokenizer"
            )
        ids = [
            self._library.encode(piece, add_special_tokens=False).ids for piece in _pieces(text)
        ]
        return np.concatenate(
            [np.empty(0, np.uint16), *(np.array(each, np.uint16) for each in ids)]
        )

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of the ids."""
        return str(self._library.decode(self._known(ids).tolist(), skip_special_tokens=False))

    def byte_lengths(self) -> NDArray[np.int64]:
        """Return the number of bytes of each token, which the library writes as one letter per byte, or as text."""
        lengths = []
        for token in range(self.vocab_size):
            written = str(self._library.id_to_token(token))
            is_byte = not self._is_of_bytes and re.fullmatch("<0x[0-9A-F]{2}>", written)
            if is_byte:
                lengths.append(1)
            elif self._is_of_bytes and BYTES.keys() >= {*written}:
                lengths.append(len(written))
            else:  # with BERT's mark of a continued word, or SentencePiece's mark of a space
                lengths.append(len(utf8(written.removeprefix("##").replace("\u2581", " "))))
        return np.array(lengths)

    def to_json(self) -> dict[str, Any]:
        """Return the name and the library's definition."""
        return {"name": self.name, "definition": json.loads(self.definition)}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Return the tokenizer with the library's definition in the description."""
        return cls(
            json.dumps(description.get("definition"), ensure_ascii=False, separators=(",", ":"))
        )


@final
@dataclass(frozen=True)
class BpeTokenizer(LibraryTokenizer):
    """Byte-pair encoding like GPT-2's: frequent sequences of bytes within a word, merged in the order of learning."""

    name, model, trainer = "bpe", "BPE", "BpeTrainer"


@final
@dataclass(frozen=True)
class WordPieceTokenizer(LibraryTokenizer):
    """WordPiece like BERT's: a word is split into the longest known pieces, from left to right; here, of bytes."""

    name, model, trainer = "wordpiece", "WordPiece", "WordPieceTrainer"
    # No ## prefix: a byte is the same token anywhere in a word. The limit on a word's length is higher than BERT's.
    options: ClassVar[dict[str, Any]] = {"continuing_subword_prefix": ""}
    model_options: ClassVar[dict[str, Any]] = {"max_input_chars_per_word": 2**20}


# The library gives the bytes that its vocabulary lacks the lowest score plus up to 256 * 1e-4, in random order. Here
# they all get the same score: so many nats below the lowest score of a longer piece.
BYTE_GAP, TOLERANCE = 10.0, 0.03


@final
@dataclass(frozen=True)
class UnigramTokenizer(LibraryTokenizer):
    """Unigram like T5's (Kudo 2018): a word is split into its most probable pieces, here of bytes."""

    name, model, trainer = "unigram", "Unigram", "UnigramTrainer"

    @classmethod
    def train(cls, text: str, vocab_size: int = DEFAULT_SIZE) -> Self:
        """Learn pieces, and give all missing bytes the same score."""
        definition = json.loads(super().train(text, vocab_size).definition)
        # Of a text of one repeated character the library learns no score: JSON has null for its NaN.
        scores = {
            token: round(score or 0.0, 9) for token, score in definition["model"]["vocab"]
        }
        ranked = sorted(scores, key=lambda token: (-scores[token], token))
        longer = [token for token in ranked if len(token) > 1]
        least = scores[longer[-1]] if longer else 0.0
        kept = []
        for letter in sorted(scores.keys() - {*longer}):
            score = scores[letter]
            if score <= least + TOLERANCE:
                score = round(least - BYTE_GAP, 9)
            kept.append([letter, score])
        kept += [[token, scores[token]] for token in longer[: vocab_size - len(kept)]]
        definition["model"]["vocab"] = kept
        return cls.from_json({"definition": definition})


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces, cut between a word and the space after it, where GPT-2's pattern splits too."""
    start = 0
    while space := BEFORE_SPACE.search(text, start + PIECE):
        yield text[start : space.start()]
        start = space.start()
    if start < len(text):
        yield text[start:]


_OURS = (CharTokenizer, ByteTokenizer, BpeTokenizer, WordPieceTokenizer, UnigramTokenizer)
TOKENIZERS: dict[str, type[Tokenizer]] = {each.name: each for each in _OURS}

# Tokenizers that only imported runs have.
OTHERS: dict[str, type[Tokenizer]] = {IdsTokenizer.name: IdsTokenizer}


def load_tokenizer(description: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a description from `to_json`.

    Raises:
        ValueError: no tokenizer has this name, or the description does not suit the tokenizer.
    """
    name, known = description.get("name"), TOKENIZERS | OTHERS
    if name not in known:
        raise ValueError(f"no tokenizer is named {name!r}; there are {', '.join(known)}")
    return known[name].from_json(description)
