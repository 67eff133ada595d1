"""A tokenizer of the user: a tokenizer.json of the `tokenizers` library, or a SentencePiece .model."""

from __future__ import annotations

import json
from pathlib import Path

from sweeplab.data.tokenizers.base import Tokenizer
from sweeplab.data.tokenizers.library import read_tokenizer
from sweeplab.data.tokenizers.sentencepiece import definition_of
from sweeplab.errors import BadInput
from sweeplab.files import read_bytes

SUFFIXES = (".json", ".model")


def is_file_of_tokenizer(name: str) -> bool:
    """Return whether the name of a tokenizer is that of a file."""
    return name.endswith(SUFFIXES)


def tokenizer_in(file: Path) -> Tokenizer:
    """Return the tokenizer in a file.

    Raises:
        BadInput: it cannot be read, or we have no tokenizer that gives the same ids.
    """
    try:
        content = read_bytes(file)
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror or error}") from error
    try:
        definition = json.loads(definition_of(content) if file.suffix == ".model" else content)
        tokenizer = read_tokenizer(definition, is_ours=False)
        _ = tokenizer.vocab_size  # for which the library reads the definition
    except RecursionError:
        raise BadInput(f"{file} has too deeply nested brackets") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"it has no whole definition ({error})"
        raise BadInput(f"{file} is no tokenizer that can be used: {reason}") from error
    return tokenizer
