"""Write our tokenizers as tokenizer.json of the `tokenizers` library, and read one back if we have the same tokenizer.

All but char work on bytes, each written as a printable character as in GPT-2 (Radford et al., 2019). WordPiece and
Unigram are the library's own and used unchanged, including BERT's and T5's, which normalize texts before cutting them.

A SentencePiece .model is read as the library's definition too: its pieces, how it normalizes and where it cuts. The
file is a message of Protocol Buffers, whose fields are numbered in SentencePiece's sentencepiece_model.proto.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeplab.data.tokenizers import (
    BYTES,
    LARGEST_VOCABULARY,
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    LibraryTokenizer,
    Tokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    utf8,
)
from sweeplab.errors import BadInput
from sweeplab.files import read_bytes

Definition = dict[str, Any]
SUFFIXES = (".json", ".model")  # of the files of tokenizers that users bring

ANY = r"[\s\S]"
# What `write_tokenizer` adds.
OURS = re.compile(r"<\|((pad|bos|eos|mask)|(sentinel|label|unused)_\d+)\|>")

# The score of a Unigram token that represents no text, so that no text is cut into it.
NEVER = -1e9
# The library's own tokenizers, by the library's name of their model.
LIBRARYS = {each.model: each for each in (BpeTokenizer, WordPieceTokenizer, UnigramTokenizer)}


def _definition(tokenizer: Tokenizer) -> Definition:
    """Return the library's form of a tokenizer: whole characters, or bytes that are looked up whole."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    if isinstance(tokenizer, LibraryTokenizer):
        return dict(json.loads(tokenizer.definition))
    if isinstance(tokenizer, CharTokenizer):
        # The library's own error names neither character nor position.
        utf8(tokenizer.characters)
        library = Library(
            models.WordLevel({each: rank for rank, each in enumerate(tokenizer.characters)})
        )
        library.pre_tokenizer = pre_tokenizers.Split(Regex(ANY), "isolated")
        library.decoder = decoders.Fuse()
        return dict(json.loads(library.to_str()))
    if not isinstance(tokenizer, ByteTokenizer):
        raise BadInput(f"tokenizer {tokenizer.name} cannot be written as a tokenizer.json")
    library = Library(models.BPE(BYTES, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    return dict(json.loads(library.to_str()))


def write_tokenizer(
    tokenizer: Tokenizer, special: Mapping[str, int], vocab_size: int
) -> Definition:
    """Return tokenizer.json, which gives every text the same ids and has `vocab_size` ids in all.

    A special token is written `<|name|>`, an unused id `<|unused_id|>`.

    Raises:
        BadInput: the library cannot express the tokenizer.
    """
    try:
        definition = _definition(tokenizer)
    except ValueError as error:
        raise BadInput(f"tokenizer {tokenizer.name}: {error}") from error
    vocabulary, added = definition["model"]["vocab"], definition["added_tokens"]
    known = 1 + max(_ids_of(definition).values())
    is_scored = isinstance(vocabulary, list)
    if not is_scored:
        vocabulary |= {each["content"]: each["id"] for each in added}
    names = {number: f"<|{name}|>" for name, number in special.items()}
    for number in range(known, vocab_size):
        content = names.get(number, f"<|unused_{number}|>")
        if is_scored:
            vocabulary.append([content, NEVER])
        else:
            vocabulary[content] = number
        if number in names:
            plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            added.append({"id": number, "content": content, **plain, "special": True})
    return definition


def _ids_of(definition: Definition) -> dict[str, int]:
    vocabulary: Any = definition["model"].get("vocab", {})
    if isinstance(vocabulary, list):  # Unigram's: tokens with scores, in the order of their ids
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    return {
        **vocabulary,
        **{each["content"]: each["id"] for each in definition["added_tokens"]},
    }


def contents_of(definition: Definition) -> dict[int, str]:
    """Return the tokens of a tokenizer.json by their ids."""
    return {number: token for token, number in _ids_of(definition).items()}


def read_tokenizer(definition: Definition) -> Tokenizer:
    """Return our tokenizer that gives the same ids as a tokenizer.json; it may decode them to another text.

    Raises:
        ValueError: we have no such tokenizer; the message says why.
    """
    model = definition["model"]
    vocabulary, kind = model.get("vocab", {}), LIBRARYS.get(str(model.get("type")))
    written: Any
    if kind is UnigramTokenizer:
        written = [scored for scored in vocabulary if not OURS.fullmatch(scored[0])]
    else:
        written = {
            token: number for token, number in vocabulary.items() if not OURS.fullmatch(token)
        }
    added = [
        each
        for each in definition.get("added_tokens") or []
        if not OURS.fullmatch(each["content"])
    ]
    definition = {
        **definition,
        "added_tokens": added,
        "model": {**model, "vocab": written},
        **dict.fromkeys(("truncation", "padding", "post_processor")),
    }
    ids = _ids_of(definition)
    tokens = sorted(ids, key=ids.__getitem__)
    if sorted(ids.values()) != list(range(len(tokens))) or len(tokens) > LARGEST_VOCABULARY:
        raise ValueError(
            f"its ids are not consecutive from 0, or more than {LARGEST_VOCABULARY:,}"
        )
    candidates: list[Tokenizer] = [ByteTokenizer()]
    if all(len(token) == 1 for token in tokens) and tokens == sorted({*tokens}):
        candidates.append(CharTokenizer("".join(tokens)))
    for candidate in candidates:
        if definition == _definition(candidate):
            return candidate
    if kind is None:
        raise ValueError(
            f"its type is {model.get('type')}; supported are {', '.join(LIBRARYS)}"
        )
    return kind.from_json({"definition": definition})


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
        tokenizer = read_tokenizer(
            json.loads(definition_of(content) if file.suffix == ".model" else content)
        )
        _ = tokenizer.vocab_size  # for which the library reads the definition
    except RecursionError:
        raise BadInput(f"{file} has too deeply nested brackets") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (
            str(error)
            if isinstance(error, ValueError)
            else f"it has no whole definition ({error})"
        )
        raise BadInput(f"{file} is no tokenizer that can be used: {reason}") from error
    return tokenizer


# ------------------------------------------------------------------ SentencePiece's files


SPACE = "\u2581"
UNIGRAM, BPE = 1, 2
UNKNOWN, USER_DEFINED, BYTE, NEVER_CUT = 2, 4, 6, (3, 5)


def definition_of(content: bytes) -> str:
    """Return the tokenizer.json that cuts texts as a .model does.

    Raises:
        ValueError: it is no such file, or its pieces are neither Unigram's nor BPE's.
    """
    from google.protobuf.message import DecodeError
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    try:
        model = _by_number(content)
        pieces = [_piece(held) for held in model.get(1, ())]
        trainer, normalizer = (_by_number(model.get(number, [b""])[0]) for number in (2, 3))
    except (DecodeError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"it is no SentencePiece model ({error})") from None
    vocabulary = {text: number for number, (text, _, _) in enumerate(pieces)}
    unknown = [text for text, _, kind in pieces if kind == UNKNOWN]
    if len(unknown) != 1 or len(vocabulary) < len(pieces):
        raise ValueError(
            "it is no SentencePiece model: it has not one unknown piece, or two alike"
        )
    kind, has_bytes = trainer.get(3, [UNIGRAM])[0], any(kind == BYTE for *_, kind in pieces)
    if kind == UNIGRAM:
        scored = [(text, NEVER if kind in NEVER_CUT else score) for text, score, kind in pieces]
        library = Tokenizer(
            models.Unigram(scored, vocabulary[unknown[0]], byte_fallback=has_bytes)
        )
    elif kind == BPE:
        merges = _merges({text: score for text, score, kind in pieces if kind not in NEVER_CUT})
        library = Tokenizer(
            models.BPE(
                vocabulary, merges, unk_token=unknown[0], fuse_unk=True, byte_fallback=has_bytes
            )
        )
    else:
        raise ValueError("its pieces are words or characters; Unigram's and BPE's are read")
    charsmap, has_prefix, is_trimmed = (
        normalizer.get(number, [default])[0] for number, default in ((2, b""), (3, 1), (4, 1))
    )
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if is_trimmed:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if has_prefix:
        steps.append(normalizers.Prepend(SPACE))
    library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    # Else a piece may have several spaces.
    is_split = not any(SPACE in text[1:] for text in vocabulary)
    library.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "never", split=is_split)
    texts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*texts, decoders.Strip(" ", int(bool(has_prefix)), 0)])
    library.add_tokens([text for text, _, kind in pieces if kind == USER_DEFINED])
    return str(library.to_str())


def _piece(held: Any) -> tuple[str, float, int]:
    fields = _by_number(held)
    # Given as a whole number.
    (score,) = struct.unpack("<f", struct.pack("<I", fields.get(2, [0])[0]))
    return fields.get(1, [b""])[0].decode(), score, int(fields.get(3, [1])[0])


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    pairs = []
    for text, score in scores.items():
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in scores and right in scores:
                pairs.append((-score, -scores[left], -scores[right], (left, right)))
    return [pair for *_, pair in sorted(pairs)]


def _by_number(message: bytes) -> dict[int, list[Any]]:
    """Return the values of each field of a message."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    fields: dict[int, list[Any]] = {}
    for field in UnknownFieldSet(Empty.FromString(message)):
        fields.setdefault(field.field_number, []).append(field.data)
    return fields
