"""The table of tokenizers, which turn text into token ids and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeplab.data.tokenizers.base import ByteTokenizer as ByteTokenizer
from sweeplab.data.tokenizers.base import CharTokenizer as CharTokenizer
from sweeplab.data.tokenizers.base import IdsTokenizer as IdsTokenizer
from sweeplab.data.tokenizers.base import Tokenizer as Tokenizer
from sweeplab.data.tokenizers.learned import BpeTokenizer as BpeTokenizer
from sweeplab.data.tokenizers.learned import LibraryTokenizer as LibraryTokenizer
from sweeplab.data.tokenizers.learned import UnigramTokenizer as UnigramTokenizer
from sweeplab.data.tokenizers.learned import WordPieceTokenizer as WordPieceTokenizer

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
