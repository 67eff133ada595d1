"""Tokenizers that learn their tokens from the training split: pieces of words by three methods, and frequent words."""

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

from sweeplab.data.tokenizers.base import LARGEST_VOCABULARY, N_BYTES, FieldsTokenizer, Ids, Tokenizer, utf8

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


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


# Characters to cut into tokens at once: the library keeps a hundred bytes a token.
PIECE = 2**20
END_OF_TEXT = "<|endoftext|>"
BEFORE_A_BLANK = re.compile(r"(?<=\S)(?=[ \t\r\n])")


@dataclass(frozen=True)
class LibraryTokenizer(LearnedTokenizer):
    """A tokenizer of the package `tokenizers`; one learned here cuts words into bytes as GPT-2's does.

    `definition` is the library's own tokenizer.json, which other programs read too. One that was made elsewhere may
    know fewer texts, and what it decodes may be another text than it was given. `model` and `trainer` are the library's
    classes; both take the `options`, and the model its own.
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
        except Exception as error:  # the library raises that and nothing narrower
            raise ValueError(f"no definition of a {self.name} tokenizer: {error}") from error

    @property
    def vocab_size(self) -> int:
        """Return the number of bytes and of what was learned."""
        return int(self._library.get_vocab_size())

    @property
    def end_of_text(self) -> int | None:
        """Return GPT-2's end of text, which tokenizers made elsewhere may have."""
        found = self._library.token_to_id(END_OF_TEXT)
        return None if found is None else int(found)

    @classmethod
    def _learned(cls, text: str, vocab_size: int) -> Self:
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers, trainers

        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = getattr(trainers, cls.trainer)(
            vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False, **cls.options
        )
        library = Library(getattr(models, cls.model)(**cls.model_options, **cls.options))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        library.train_from_iterator(_pieces(text), trainer)
        return cls.from_json({"definition": json.loads(library.to_str())})

    def encode(self, text: str) -> Ids:
        """Return the ids of what the text is cut into."""
        utf8(text)  # the library's own refusal names neither character nor place
        cut = [self._library.encode(piece, add_special_tokens=False).ids for piece in _pieces(text)]
        return np.concatenate([np.array(ids, np.uint16) for ids in cut]) if cut else np.empty(0, np.uint16)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of the ids."""
        return str(self._library.decode(self._known(ids).tolist(), skip_special_tokens=False))

    def byte_lengths(self) -> NDArray[np.int64]:
        """Return the lengths of what the library writes tokens with: a letter a byte, or the text itself."""
        from tokenizers import pre_tokenizers

        letters = set(pre_tokenizers.ByteLevel.alphabet())
        is_bytes = self._decoder == "ByteLevel"
        written = [str(self._library.id_to_token(token)) for token in range(self.vocab_size)]
        if not is_bytes:  # as BERT's and SentencePiece's write the inside of a word, and a blank
            written = [each.removeprefix("##").replace("\u2581", " ") for each in written]
        spelled = (each if is_bytes and letters.issuperset(each) else utf8(each) for each in written)
        return np.array([*map(len, spelled)])

    @property
    def _decoder(self) -> str | None:
        found = json.loads(self.definition).get("decoder")
        return found.get("type") if isinstance(found, dict) else None

    def to_json(self) -> dict[str, Any]:
        """Return the name and the library's definition."""
        return {"name": self.name, "definition": json.loads(self.definition)}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Take the library's definition from the description."""
        return cls(json.dumps(description.get("definition"), ensure_ascii=False, separators=(",", ":")))


@final
@dataclass(frozen=True)
class BpeTokenizer(LibraryTokenizer):
    """Byte-pair encoding as GPT-2's: frequent sequences of bytes within a word, merged in the order learned."""

    name, model, trainer = "bpe", "BPE", "BpeTrainer"


@final
@dataclass(frozen=True)
class WordPieceTokenizer(LibraryTokenizer):
    """WordPiece as BERT's: a word is cut into the longest known pieces, from its begin on; here they are of bytes."""

    name, model, trainer = "wordpiece", "WordPiece", "WordPieceTrainer"
    # Without ##: each of the bytes is a piece at any place. Longer words than BERT's are known too.
    options: ClassVar[dict[str, Any]] = {"continuing_subword_prefix": ""}
    model_options: ClassVar[dict[str, Any]] = {"max_input_chars_per_word": 2**20}


# The library gives bytes that it would leave out the least score and a bit, in an order that is never the same: up to
# 256 times 1e-4. Here all of them are less likely than any piece by so many nats.
LEFT_OUT, A_BIT = 10.0, 0.03


@final
@dataclass(frozen=True)
class UnigramTokenizer(LibraryTokenizer):
    """Unigram as T5's (Kudo 2018): a word is cut into its likeliest pieces, by a probability of each; here of bytes."""

    name, model, trainer = "unigram", "Unigram", "UnigramTrainer"

    @classmethod
    def _learned(cls, text: str, vocab_size: int) -> Self:
        """Learn pieces, and give the bytes that are left out one score."""
        found = json.loads(super()._learned(text, vocab_size).definition)
        scores = {token: round(score, 9) for token, score in found["model"]["vocab"]}
        ranked = sorted(scores, key=lambda token: (-scores[token], token))
        longer = [token for token in ranked if len(token) > 1]
        least = scores[longer[-1]] if longer else 0.0
        letters = {
            each: scores[each] if scores[each] > least + A_BIT else round(least - LEFT_OUT, 9)
            for each in sorted(scores.keys() - {*longer})
        }
        kept = letters | {token: scores[token] for token in longer[: vocab_size - len(letters)]}
        found["model"]["vocab"] = [[token, score] for token, score in kept.items()]
        return cls.from_json({"definition": found})


def _pieces(text: str) -> Iterator[str]:
    """Yield the text in pieces, cut before a blank where words are cut anyway: GPT-2's pattern looks across none."""
    start = 0
    while found := BEFORE_A_BLANK.search(text, start + PIECE):
        yield text[start : found.start()]
        start = found.start()
    if start < len(text):
        yield text[start:]


# A word or a run of signs, with the blank before it; or other blanks. Whatever the text, nothing lies between two.
WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


@final
@dataclass(frozen=True)
class WordTokenizer(LearnedTokenizer, FieldsTokenizer):
    """One token a word, of the most frequent ones; others are spelled in bytes, so that it knows every text."""

    name: ClassVar[str] = "word"
    default_size: ClassVar[int] = 4096
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.words)) < len(self.words):
            raise ValueError("a word tokenizer's words are all distinct")

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: N_BYTES + rank for rank, word in enumerate(self.words)}

    @cached_property
    def _spelled(self) -> list[bytes]:
        return [bytes((byte,)) for byte in range(N_BYTES)] + [word.encode() for word in self.words]

    @property
    def vocab_size(self) -> int:
        """Return the number of bytes and words."""
        return N_BYTES + len(self.words)

    @classmethod
    def _learned(cls, text: str, vocab_size: int) -> Self:
        """Take the most frequent words of more than a byte; of equal ones those that are first in the alphabet."""
        counts = Counter(WORD.findall(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        long = [word for word in ranked if len(word.encode()) > 1]
        return cls(tuple(long[: vocab_size - N_BYTES]))

    def encode(self, text: str) -> Ids:
        """Return the ids of the words, or of their bytes."""
        utf8(text)
        found: list[int] = []
        for word in WORD.findall(text):
            known = self._ids.get(word)
            if known is None:
                found.extend(word.encode())
            else:
                found.append(known)
        return np.array(found, np.uint16)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of the words and bytes."""
        return b"".join(self._spelled[each] for each in self._known(ids).tolist()).decode(errors="replace")

    def byte_lengths(self) -> NDArray[np.int64]:
        """Return the lengths of the bytes and of the words."""
        return np.array([len(each) for each in self._spelled])

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Take the words from the description."""
        return cls(tuple(description.get("words", ())))
