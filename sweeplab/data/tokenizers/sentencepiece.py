"""A tokenizer of the user: a tokenizer.json of the `tokenizers` library, or a SentencePiece .model.

A .model is read as the library's definition: its pieces, how it normalizes and where it cuts. The file is a message
of Protocol Buffers, whose fields are numbered in SentencePiece's sentencepiece_model.proto.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweeplab.data.tokenizers.base import Tokenizer
from sweeplab.data.tokenizers.library import read_tokenizer
from sweeplab.errors import BadInput
from sweeplab.files import read_bytes

SPACE = "\u2581"
UNIGRAM, BPE = 1, 2
UNKNOWN, USER_DEFINED, BYTE, NEVER_CUT = 2, 4, 6, (3, 5)
# The score of pieces that no text is cut into.
NEVER = -1e9


def definition_of(content: bytes) -> str:
    """Return the tokenizer.json that cuts texts as a .model does.

    Raises:
        ValueError: it is no such file, or its pieces are neither Unigram's nor BPE's.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    try:
        model = _by_number(content)
        pieces = [_piece(held) for held in model.get(1, ())]
        trainer, normalizer = (_by_number(model.get(number, [b""])[0]) for number in (2, 3))
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"it is no SentencePiece model ({error})") from None
    unknown = [number for number, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN]
    texts = [text for text, _, _ in pieces]
    if len(unknown) != 1 or len({*texts}) < len(texts):
        raise ValueError("it is no SentencePiece model: it has not one unknown piece, or two alike")
    kind, has_bytes = trainer.get(3, [UNIGRAM])[0], any(kind == BYTE for *_, kind in pieces)
    if kind == UNIGRAM:
        scored = [(text, NEVER if kind in NEVER_CUT else score) for text, score, kind in pieces]
        library = Tokenizer(models.Unigram(scored, unknown[0], byte_fallback=has_bytes))
    elif kind == BPE:
        scores = {text: score for text, score, kind in pieces if kind not in NEVER_CUT}
        vocabulary = {text: number for number, text in enumerate(texts)}
        unk = texts[unknown[0]]
        merges = _merges(scores)
        library = Tokenizer(
            models.BPE(vocabulary, merges, unk_token=unk, fuse_unk=True, byte_fallback=has_bytes)
        )
    else:
        raise ValueError("its pieces are words or characters; Unigram's and BPE's are read")
    charsmap, is_trimmed = normalizer.get(2, [b""])[0], normalizer.get(4, [1])[0]
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if is_trimmed:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    has_prefix = bool(normalizer.get(3, [1])[0])
    steps += [normalizers.Prepend(SPACE)] * has_prefix + [normalizers.Replace(" ", SPACE)]
    library.normalizer = normalizers.Sequence(steps)
    is_split = not any(SPACE in text[1:] for text in texts)  # else a piece may have several spaces
    library.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "never", split=is_split)
    strip = [decoders.Strip(" ", int(has_prefix), 0)]
    library.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    library.add_tokens([text for text, _, kind in pieces if kind == USER_DEFINED])
    return str(library.to_str())


def _piece(held: Any) -> tuple[str, float, int]:
    fields = _by_number(held)
    (score,) = struct.unpack("<f", fields.get(2, [bytes(4)])[0])
    return fields[1][0].decode() if 1 in fields else "", score, int(fields.get(3, [1])[0])


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    pairs = []
    for text, score in scores.items():
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in scores and right in scores:
                pairs.append((-score, -scores[left], -scores[right], (left, right)))
    return [pair for *_, pair in sorted(pairs)]


def _by_number(message: bytes) -> dict[int, list[Any]]:
    fields: dict[int, list[Any]] = {}
    for number, value in _fields(message):
        fields.setdefault(number, []).append(value)
    return fields


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value: Any
        if tag & 7 == 0:
            value, at = _varint(message, at)
        else:
            length, at = {1: (8, at), 5: (4, at)}[tag & 7] if tag & 7 != 2 else _varint(message, at)
            if at + length > len(message):
                raise IndexError("it is cut short")
            value, at = message[at : at + length], at + length
        yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = message[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at
    raise IndexError("a number is too long")


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
