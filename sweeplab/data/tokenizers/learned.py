"""Tokenizers that learn their tokens from the training split: subwords by three methods, and frequent words."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.tokenizers.base import (
    ALPHABET,
    BYTES,
    LARGEST_VOCABULARY,
    N_BYTES,
    FieldsTokenizer,
    Ids,
    Tokenizer,
    utf8,
)
from sweeplab.formatting import several

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


class LearnedTokenizer(Tokenizer):
    """A tokenizer with the 256 bytes and tokens that are learned from the training split only.

    Because of the bytes it encodes every text. A model may generate bytes that are not UTF-8: these decode to U+FFFD.
    """

    default_size: ClassVar[int]

    @classmethod
    def train(cls, text: str, vocab_size: int | None = None) -> Self:
        """Learn `vocab_size` tokens, by default `default_size`; fewer if the text has no more.

        Raises:
            ValueError: vocab_size is below 256 or above 65,536, or a character of the text is half of a surrogate pair.
        """
        size = cls.default_size if vocab_size is None else vocab_size
        if not N_BYTES <= size <= LARGEST_VOCABULARY:
            raise ValueError(
                f"the {cls.name} tokenizer cannot have {several(size, 'token')}; allowed: {N_BYTES} (the bytes) "
                f"to {LARGEST_VOCABULARY:,}"
            )
        return cls._learned(text, size)

    @classmethod
    @abstractmethod
    def _learned(cls, text: str, vocab_size: int) -> Self:
        """Learn at most `vocab_size` tokens, among them the bytes."""


# The library gets so many characters at once, because it needs a hundred bytes of memory per token.
PIECE = 2**20
END_OF_TEXT = "<|endoftext|>"
BEFORE_SPACE = re.compile(r"(?<=\S)(?=[ \t\r\n])")


@dataclass(frozen=True)
class LibraryTokenizer(LearnedTokenizer):
    """A tokenizer of the package `tokenizers`; if it is learned here, it splits words into bytes like GPT-2's.

    `definition` is the library's tokenizer.json, which other programs can read. An imported tokenizer may not encode
    every text, and may decode ids to a different text. `model` and `trainer` are classes of the library: both get the
    `options`, and the model also gets the `model_options`.
    """

    default_size: ClassVar[int] = 1024
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
            raise ValueError(f"invalid definition of a {self.name} tokenizer: {error}") from error

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
        if not self._is_of_bytes or json.loads(self.definition)["model"].get("unk_id") is not None:
            return set()
        return {byte for letter, byte in BYTES.items() if self._library.token_to_id(letter) is None}

    @classmethod
    def _learned(cls, text: str, vocab_size: int) -> Self:
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers, trainers

        trainer = getattr(trainers, cls.trainer)(
            vocab_size=vocab_size, initial_alphabet=sorted(ALPHABET), show_progress=False, **cls.options
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
            at = next(at for at, character in enumerate(text) if not missing.isdisjoint(character.encode()))
            raise ValueError(f"character {text[at]!r} at {at} has no token of the {self.name} tokenizer")
        ids = [self._library.encode(piece, add_special_tokens=False).ids for piece in _pieces(text)]
        return np.concatenate([np.empty(0, np.uint16), *(np.array(each, np.uint16) for each in ids)])

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
        return cls(json.dumps(description.get("definition"), ensure_ascii=False, separators=(",", ":")))


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
    def _learned(cls, text: str, vocab_size: int) -> Self:
        """Learn pieces, and give all missing bytes the same score."""
        definition = json.loads(super()._learned(text, vocab_size).definition)
        # Of a text of one repeated character the library learns no score: JSON has null for its NaN.
        scores = {token: round(score or 0.0, 9) for token, score in definition["model"]["vocab"]}
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


# A word or several punctuation marks, with the space before them; or other whitespace. Every character is in a match.
WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


@final
@dataclass(frozen=True)
class WordTokenizer(LearnedTokenizer, FieldsTokenizer):
    """One token for each of the most frequent words; other words are encoded as bytes, so every text can be encoded."""

    name: ClassVar[str] = "word"
    default_size: ClassVar[int] = 4096
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))  # of JSON, a list
        if len(set(self.words)) < len(self.words):
            raise ValueError("the words of a word tokenizer must be distinct")

    @cached_property
    def contents(self) -> list[bytes]:
        """Return the bytes of each token."""
        return [bytes((byte,)) for byte in range(N_BYTES)] + [word.encode() for word in self.words]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: N_BYTES + number for number, word in enumerate(self.words)}

    @property
    def vocab_size(self) -> int:
        """Return the number of bytes and words."""
        return N_BYTES + len(self.words)

    @classmethod
    def _learned(cls, text: str, vocab_size: int) -> Self:
        """Take the most frequent words of more than one byte; equally frequent words are in alphabetical order."""
        counts = Counter(WORD.findall(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        long = [word for word in ranked if len(utf8(word)) > 1]
        return cls(tuple(long[: vocab_size - N_BYTES]))

    def encode(self, text: str) -> Ids:
        """Return the ids of a text's words, or of their bytes."""
        utf8(text)
        ids: list[int] = []
        for word in WORD.findall(text):
            if word in self._ids:
                ids.append(self._ids[word])
            else:
                ids += word.encode()
        return np.array(ids, np.uint16)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of the words and bytes."""
        return b"".join(self.contents[each] for each in self._known(ids).tolist()).decode(errors="replace")

    def byte_lengths(self) -> NDArray[np.int64]:
        """Return the lengths of the bytes and of the words."""
        return np.array([len(each) for each in self.contents])
