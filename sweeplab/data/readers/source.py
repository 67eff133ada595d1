"""Where a study's data are, how they are read, and what they are where the study does not say; files of token ids.

These are such as nanoGPT's train.bin and val.bin or a .npy, with their vocabulary beside them.
"""

from __future__ import annotations

import io
import json
import os.path
import pickle
import pickletools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.readers.content import SAVED_SPLITS, user_files
from sweeplab.data.readers.formats import PAIR_FIELDS, TEXT_FIELDS, Reading, format_of, rows
from sweeplab.data.tokenizers import CharTokenizer, IdsTokenizer, Tokenizer
from sweeplab.data.tokenizers.base import LARGEST_VOCABULARY
from sweeplab.data.tokenizers.library import tokenizer_in
from sweeplab.errors import BadInput, Problem
from sweeplab.files import opened, read_bytes
from sweeplab.formatting import several

SPLITS = {"train": ("train",), "val": ("validation", "val", "valid", "dev"), "test": ("test",)}
WHOLE = "whole"  # the name of the place of texts that are cut into splits
# Texts of fewer bytes are read by characters; how many times its size a packed file counts.
CHAR_BELOW, UNPACKED = 10**6, 5
PACKED_SUFFIXES = (".gz", ".zst", ".parquet")


@dataclass(frozen=True)
class Source:
    """The user's data: a file, folder or glob at `path`, or one for each split, or files of `tokens`.

    `fields` are those of rows that are read; `format` and `encoding` those of files whose content does not show them.
    """

    path: str | None = None
    train: str | None = None
    val: str | None = None
    test: str | None = None
    tokens: str | None = None
    fields: tuple[str, ...] = ()
    format: str = ""
    encoding: str = ""

    @property
    def places(self) -> dict[str, str | None]:
        """Return the place of each split, or of the whole; a folder of Hugging Face `datasets` may have splits.

        Raises:
            BadInput: there is no place of a training split.
        """
        places = {name: place for name in SPLITS if (place := getattr(self, name))}
        if self.path is not None and _is_file(Path(self.path) / SAVED_SPLITS):
            places = dict(_saved(Path(self.path)))
        if places and "train" not in places:
            raise BadInput(f"there is no training split: {', '.join(places)} alone")
        if len(places) > 1:
            return {**places}
        return {WHOLE: places.get("train", self.path)}

    @property
    def reading_key(self) -> list[Any]:
        """Return what tells readings of the same files apart; empty where all is as the files show."""
        asked = [self.fields, self.format, self.encoding]
        if any(asked):
            return asked
        return []

    @property
    def reading(self) -> Reading:
        """Return how the files are read."""
        return Reading(self.fields, self.format, self.encoding)


def _saved(folder: Path) -> Iterator[tuple[str, str]]:
    for split, names in SPLITS.items():
        if place := next((folder / name for name in names if (folder / name).is_dir()), None):
            yield split, str(place)


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - that of paths raises where a name is too long


def guessed(source: Source) -> tuple[str, str]:
    """Return a corpus and a tokenizer for files; for what cannot be read those of a text, since reading it says why."""
    try:
        if source.tokens:
            files = token_files(source.tokens)
            return "text", vocabulary_of(files, LARGEST_VOCABULARY).name
        places = [user_files(place) for place in source.places.values()]
        tokenizer = "char" if size_of([file for files in places for file in files]) < CHAR_BELOW else "bpe"
        return _corpus(places[0][0], source), tokenizer
    except (BadInput, OSError):
        return "text", "ids" if source.tokens else "char"


def size_of(files: list[Path]) -> int:
    """Return about how many bytes of text files have."""
    return sum(
        file.stat().st_size * (UNPACKED if file.name.endswith(PACKED_SUFFIXES) else 1) for file in files
    )


def _corpus(file: Path, source: Source) -> str:
    form = format_of(file, source.format)
    if form is None or source.fields:
        if len(source.fields) < 2:
            return "text"
        return "pairs"
    row = next(islice((row for row in rows(file, form, source.encoding) if row.values), 1), None)
    names = {str(name).strip().lower() for name in row.values} if row else set[str]()
    if TEXT_FIELDS[0] not in names and any(names.issuperset(pair) for pair in PAIR_FIELDS):
        return "pairs"
    return "text"


# ------------------------------------------------------------------ files of token ids


SUFFIXES = (".bin", ".npy")
NAMES = {"train": ("train",), "val": ("val", "validation"), "test": ("test",)}
META = ("meta.pkl", "meta.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spm.model")
# llm.c's files begin with 256 numbers of 32 bits, the first of which is this one.
LLM_C, LLM_C_HEADER = 20240520, 1024
PIECE = 2**24  # tokens that are looked at at once
Array = NDArray[Any]


class TokenFiles(NamedTuple):
    """The files of tokens by split, or one whose tokens are cut into splits, and the file of their vocabulary."""

    arrays: dict[str, Path]
    vocabulary: Path | None

    @property
    def files(self) -> list[Path]:
        """Return all files."""
        return [file for file in (*self.arrays.values(), self.vocabulary) if file]


def token_files(place: str, tokenizer: str = "") -> TokenFiles:
    """Return the files of tokens in a folder, or at a path, with the vocabulary beside them or in the tokenizer's file.

    Raises:
        BadInput: there are none.
    """
    path = Path(place)
    folder, arrays = path.parent, {"train": path}
    if path.is_dir():
        folder, arrays = path, {}
        for split, names in NAMES.items():
            candidates = (path / f"{name}{suffix}" for name in names for suffix in SUFFIXES)
            present = next(filter(Path.is_file, candidates), None)
            if present:
                arrays[split] = present
    if "train" not in arrays or not arrays["train"].is_file():
        raise BadInput(
            Problem(f"there are no tokens at {place}", "a folder with train.bin, or a .bin or .npy")
        )
    if arrays["train"].suffix not in SUFFIXES:
        raise BadInput(Problem(f"{place} has no tokens", " or ".join(SUFFIXES)))
    beside = [folder / name for name in (*TOKENIZERS, *META)]
    vocabulary = Path(tokenizer) if tokenizer else next((file for file in beside if file.is_file()), None)
    return TokenFiles(arrays, vocabulary)


def token_splits(files: TokenFiles) -> list[Array]:
    """Return the tokens of training, validation and test, memory-mapped; of what has no file, a share of the others.

    A training file alone is cut into 80%, 10% and 10%; without a test file, it is the second half of the validation's.

    Raises:
        BadInput: a file has no whole numbers, or not those of a vocabulary of at most 65,536.
    """
    arrays = {split: _mapped(file) for split, file in files.arrays.items()}
    train, val, test = (arrays.get(split) for split in NAMES)
    assert train is not None
    if val is None and test is None:
        train, val, test = np.split(train, [len(train) * 8 // 10, len(train) * 9 // 10])
    elif val is None:
        train, val = np.split(train, [len(train) * 9 // 10])
    elif test is None:
        val, test = np.split(val, [len(val) // 2])
    return [train, val, test]  # type: ignore[list-item]


def _mapped(file: Path) -> Array:
    try:
        with opened(file, "rb") as stream:
            head = stream.read(8)
            size = stream.seek(0, 2)
        if file.suffix == ".npy":
            array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
        else:
            offset = LLM_C_HEADER if int.from_bytes(head[:4], "little") == LLM_C else 0
            if (size - offset) % 2 or size <= offset:
                raise BadInput(
                    Problem(f"{file} has {several(size - offset, 'byte')} of tokens", "2 for each, uint16")
                )
            array = np.memmap(file, "<u2", "r", offset)
    except BadInput:
        raise
    except (
        Exception
    ) as error:  # NumPy reads a header as Python's tokens, whose errors have no class in common
        raise BadInput(f"{file} cannot be read as tokens: {error}") from error
    if array.dtype.kind not in "iu" or array.ndim != 1 or not len(array):
        raise BadInput(
            Problem(f"{file} has {array.dtype} of shape {array.shape}", "one row of whole numbers")
        )
    if (
        file.suffix == ".bin"
        and len(array) > 2
        and array[: 2**16 : 2].any()
        and not array[1 : 2**16 : 2].any()
    ):
        raise BadInput(
            Problem(f"{file} seems to have numbers of 32 bits", "uint16, or a .npy, which tells its own")
        )
    return array


def checked(arrays: list[Array], vocab_size: int | None) -> int:
    """Return the number of tokens up to the largest one, or `vocab_size`.

    Raises:
        BadInput: a token is not in this vocabulary, or too large for any.
    """
    pieces = (array[at : at + PIECE] for array in arrays for at in range(0, len(array), PIECE))
    bounds = [(int(piece.min()), int(piece.max())) for piece in pieces]
    if not bounds or not all(map(len, arrays)):
        raise BadInput("there are too few tokens for three splits")
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    most = vocab_size or LARGEST_VOCABULARY
    if low < 0 or high >= most:
        odd = low if low < 0 else high
        raise BadInput(Problem(f"token {odd} is not in a vocabulary of {most:,}", f"0 to {most - 1:,}"))
    return vocab_size or high + 1


def vocabulary_of(files: TokenFiles, n_tokens: int) -> Tokenizer:
    """Return the tokenizer of the tokens; without a vocabulary, one whose texts are ids.

    Raises:
        BadInput: the vocabulary cannot be read.
    """
    file = files.vocabulary
    if file is None:
        return IdsTokenizer(n_tokens)
    if file.name not in META:
        return tokenizer_in(file)
    meta = _pickled(file) if file.suffix == ".pkl" else _json(file)
    itos, stoi, size = (meta.get(name) for name in ("itos", "stoi", "vocab_size"))
    if isinstance(itos, dict):
        if all(str(key).isdecimal() for key in itos):
            itos = [itos[key] for key in sorted(itos, key=int)]
        else:
            itos = None
    elif isinstance(stoi, dict) and all(isinstance(number, int) for number in stoi.values()):
        itos = sorted(stoi, key=stoi.__getitem__)
    if isinstance(itos, list) and all(isinstance(text, str) for text in itos):
        try:
            return CharTokenizer("".join(itos))
        except ValueError as error:
            raise BadInput(f"{file}: {error}") from error
    if isinstance(size, int) and 0 < size <= LARGEST_VOCABULARY:
        return IdsTokenizer(size)
    raise BadInput(Problem(f"{file} has no vocabulary", '{"itos": ["a", "b", …]} or {"vocab_size": 65}'))


def _json(file: Path) -> Mapping[str, Any]:
    try:
        meta = json.loads(read_bytes(file))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"cannot read {file}: {error}") from error
    if not isinstance(meta, dict):
        raise BadInput(Problem(f"{file} has no vocabulary", '{"itos": ["a", "b", …]}'))
    return meta


def _pickled(file: Path) -> Mapping[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in a damaged string
            return plain_pickle(read_bytes(file))
    except (OSError, ValueError) as error:
        allowed = 'meta.json in its place, such as {"itos": ["a", "b", …]}'
        raise BadInput(Problem(f"{file} is not read: {error}", allowed)) from error


class _Plain(pickle.Unpickler):
    """An unpickler that finds nothing to call, so that nothing is executed."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"it names {module}.{name}")


def plain_pickle(content: bytes) -> dict[Any, Any]:
    """Return the dict in a pickle of dicts, strings and whole numbers alone; nothing of it is called.

    Raises:
        ValueError: it has anything else, or is damaged.
    """
    try:
        for code, argument, _ in pickletools.genops(content):
            # The library makes room for as many objects as such a number says.
            if code.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content):
                raise ValueError(f"{code.name} {argument} is too large")
        meta = _Plain(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle raises errors of many classes
        raise ValueError(f"it is damaged, or {error}") from None
    if not isinstance(meta, dict) or not all(isinstance(part, dict | str | int) for part in meta.values()):
        raise ValueError("it has more than dicts, strings and whole numbers")
    return meta


def pieces(array: Array) -> Iterator[NDArray[np.uint16]]:
    """Yield an array's tokens as 16-bit numbers, in pieces."""
    yield from (array[at : at + PIECE].astype("<u2") for at in range(0, len(array), PIECE))


def in_bytes(tokenizer: Tokenizer, array: Array) -> int:
    """Return the bytes of the text of tokens; 0 where they have none."""
    if isinstance(tokenizer, IdsTokenizer):
        return 0
    lengths = tokenizer.byte_lengths()
    return sum(int(lengths[piece].sum()) for piece in pieces(array))
