"""One token a frequent word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.tokenizers.base import N_BYTES, Ids, LearnedTokenizer, utf8

# A word or a run of signs, with the blank before it; or other blanks. Whatever the text, nothing lies between two.
WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


@final
@dataclass(frozen=True)
class WordTokenizer(LearnedTokenizer):
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

    def to_json(self) -> dict[str, Any]:
        """Return the name and the words."""
        return {"name": self.name, "words": list(self.words)}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Self:
        """Take the words from the description."""
        return cls(tuple(description.get("words", ())))
