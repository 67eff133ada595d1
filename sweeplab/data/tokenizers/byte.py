"""One token a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.tokenizers.base import N_BYTES, Ids, Tokenizer, utf8


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
