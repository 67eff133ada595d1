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
from typing import TYPE_CHECKING, Any

from sweeplab.data.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    LibraryTokenizer,
    Tokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from sweeplab.data.tokenizers.base import ALPHABET, BYTES, LARGEST_VOCABULARY, utf8
from sweeplab.errors import BadInput
from sweeplab.files import read_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

Definition = dict[str, Any]
SUFFIXES = (".json", ".model")  # of the files of tokenizers that users bring

ANY = r"[\s\S]"
# The word tokenizer's pattern in the library's dialect, whose \w has combining accents and whose \s lacks separators.
WORD, BLANK = r"\p{L}\p{N}_", r"\s\x1c-\x1f"
WORDS = rf" ?[{WORD}]+| ?[^{WORD}{BLANK}]+|[{BLANK}]+"
OURS = re.compile(r"<\|((pad|bos|eos|mask)|(sentinel|label|unused)_\d+)\|>")  # what `write_tokenizer` adds
GPT2_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


# The score of a Unigram token that represents no text, so that no text is cut into it.
NEVER = -1e9
# Our tokenizers that have another form in the library.
REWRITTEN = (CharTokenizer, ByteTokenizer, WordTokenizer)
# The library's own tokenizers, by the library's name of their model.
LIBRARYS = {each.model: each for each in (BpeTokenizer, WordPieceTokenizer, UnigramTokenizer)}


def _in_library(tokenizer: Tokenizer) -> Library:
    """Return the library's form of one of REWRITTEN: whole characters, or bytes and words that are looked up whole."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    if isinstance(tokenizer, CharTokenizer):
        utf8(tokenizer.characters)  # the library's own error names neither character nor position
        library = Library(models.WordLevel({each: rank for rank, each in enumerate(tokenizer.characters)}))
        library.pre_tokenizer = pre_tokenizers.Split(Regex(ANY), "isolated")
        library.decoder = decoders.Fuse()
        return library
    texts = [bytes((byte,)) for byte in BYTES.values()]
    if isinstance(tokenizer, WordTokenizer):
        texts = tokenizer.contents
    spelled = ["".join(ALPHABET[byte] for byte in text) for text in texts]
    has_words = any(len(each) > 1 for each in spelled)
    library = Library(
        models.BPE({each: number for number, each in enumerate(spelled)}, [], ignore_merges=has_words)
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if isinstance(tokenizer, WordTokenizer):
        cut = pre_tokenizers.Split(Regex(WORDS), "isolated")
        library.pre_tokenizer = pre_tokenizers.Sequence([cut, library.pre_tokenizer])
    library.decoder = decoders.ByteLevel()
    return library


def _from_library(kind: type[Tokenizer], tokens: list[str]) -> Tokenizer:
    if kind is CharTokenizer:
        return CharTokenizer("".join(each for each in tokens if len(each) == 1))
    if kind is ByteTokenizer:
        return ByteTokenizer()
    texts = [bytes(BYTES[each] for each in token) for token in tokens]
    letters = tuple(text[0] for text in texts if len(text) == 1)
    return WordTokenizer(tuple(text.decode() for text in texts[len(letters) :]), letters)


def write_tokenizer(tokenizer: Tokenizer, special: Mapping[str, int], vocab_size: int) -> Definition:
    """Return tokenizer.json, which gives every text the same ids and has `vocab_size` ids in all.

    A special token is written `<|name|>`, an unused id `<|unused_id|>`.

    Raises:
        BadInput: the library cannot express the tokenizer.
    """
    definition = _library_definition(tokenizer)
    vocabulary, added = definition["model"]["vocab"], definition["added_tokens"]
    is_scored = isinstance(vocabulary, list)  # Unigram's: tokens with scores, in the order of their ids
    known = len(vocabulary)
    if not is_scored:
        vocabulary |= {each["content"]: each["id"] for each in added}
        known = len(vocabulary)
    elif added:
        known = max(known, 1 + max(each["id"] for each in added))
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


def contents_of(definition: Definition) -> dict[int, str]:
    """Return the tokens of a tokenizer.json by their ids."""
    vocabulary = definition["model"]["vocab"]
    if isinstance(vocabulary, list):
        known = {number: token for number, (token, _) in enumerate(vocabulary)}
    else:
        known = {number: token for token, number in vocabulary.items()}
    return known | {each["id"]: each["content"] for each in definition["added_tokens"]}


def _library_definition(tokenizer: Tokenizer) -> Definition:
    if isinstance(tokenizer, LibraryTokenizer):
        definition: Definition = json.loads(tokenizer.definition)
        return definition
    if not isinstance(tokenizer, REWRITTEN):
        known = ", ".join([*(each.name for each in REWRITTEN), *(each.name for each in LIBRARYS.values())])
        raise BadInput(f"tokenizer {tokenizer.name} cannot be written as a tokenizer.json; {known} can")
    try:
        return dict(json.loads(_in_library(tokenizer).to_str()))
    except ValueError as error:
        raise BadInput(f"tokenizer {tokenizer.name}: {error}") from error


def read_tokenizer(definition: Definition, is_ours: bool = True) -> Tokenizer:
    """Return our tokenizer that gives the same ids as a tokenizer.json.

    Unless `is_ours`, its BPE need not be one that encodes every text and decodes it as it was.

    Raises:
        ValueError: we have no such tokenizer; the message says why.
    """
    added = [each for each in definition.get("added_tokens") or [] if not OURS.fullmatch(each["content"])]
    model = definition["model"]
    vocabulary, kind = model.get("vocab", {}), LIBRARYS.get(str(model.get("type")))
    if kind is UnigramTokenizer:
        written: Any = [scored for scored in vocabulary if not OURS.fullmatch(scored[0])]
        vocabulary = {token: number for number, (token, _) in enumerate(written)}
    else:
        written = {token: number for token, number in vocabulary.items() if not OURS.fullmatch(token)}
        vocabulary = written
    definition = {
        **definition,
        "added_tokens": added,
        "model": {**model, "vocab": written},
        **dict.fromkeys(("truncation", "padding", "post_processor")),
    }
    vocabulary = vocabulary | {each["content"]: each["id"] for each in added}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if sorted(vocabulary.values()) != list(range(len(tokens))) or len(tokens) > LARGEST_VOCABULARY:
        raise ValueError(f"its ids are not consecutive from 0, or more than {LARGEST_VOCABULARY:,}")
    for ours in REWRITTEN:
        try:
            candidate = _from_library(ours, tokens)
        except (KeyError, ValueError):
            continue
        if definition == _library_definition(candidate):
            return candidate
    if kind is None:
        raise ValueError(f"its type is {model.get('type')}; supported are {', '.join(LIBRARYS)}")
    if kind is not BpeTokenizer or not is_ours:
        return kind.from_json({"definition": definition})
    wrong = _no_bpe(definition)
    if wrong:
        raise ValueError(wrong)
    return BpeTokenizer.from_json({"definition": definition})


def _no_bpe(definition: Definition) -> str:
    model = definition["model"]
    cut, decoder = (definition.get(part) or {} for part in ("pre_tokenizer", "decoder"))
    if definition.get("normalizer") is not None:
        return "it normalizes texts before it cuts them, so that decoding gives another text"
    if {key: cut.get(key) for key in GPT2_WORDS} != GPT2_WORDS or decoder.get("type") != "ByteLevel":
        return "it does not cut words as GPT-2 does"
    odd = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    present = [key for key in odd if model.get(key)]
    return f"its BPE has {', '.join(present)}" if present else ""


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


# ------------------------------------------------------------------ SentencePiece's files


SPACE = "\u2581"
UNIGRAM, BPE = 1, 2
UNKNOWN, USER_DEFINED, BYTE, NEVER_CUT = 2, 4, 6, (3, 5)


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
    steps: list[Any] = []
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    if is_trimmed:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    has_prefix = bool(normalizer.get(3, [1])[0])
    if has_prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
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
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value: Any
        wire_type = tag & 7
        if wire_type == 0:
            value, at = _varint(message, at)
        else:
            if wire_type == 2:
                length, at = _varint(message, at)
            else:
                length = {1: 8, 5: 4}[wire_type]
            if at + length > len(message):
                raise IndexError("it is cut short")
            value, at = message[at : at + length], at + length
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = message[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at
    raise IndexError("a number is too long")
