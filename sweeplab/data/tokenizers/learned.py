"""Tokenizers that learn subwords from the training split, by three methods of the package `tokenizers`."""

from __future__ import annotations

import json
import re
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
    Ids,
    Tokenizer,
    utf8,
)
from sweeplab.formatting import several

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


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
    def train(cls, text: str, vocab_size: int = DEFAULT_SIZE) -> Self:
        """Learn pieces, and give all missing bytes the same score."""
        definition = json.loads(super().train(text, vocab_size).definition)
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
