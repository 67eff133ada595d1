"""Where a study's data are, how they are read, and what they are where the study does not say; files of token ids.

These are such as nanoGPT's train.bin and val.bin or a .npy, with their vocabulary beside them.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.formats import (
    PAIR_FIELDS,
    SAVED_SPLITS,
    TEXT_FIELDS,
    Reading,
    format_of,
    named_rows,
    user_files,
)
from sweeplab.data.tokenizers import LARGEST_VOCABULARY, CharTokenizer, IdsTokenizer, Tokenizer
from sweeplab.data.tokenizers.library import tokenizer_in
from sweeplab.errors import BadInput, Problem
from sweeplab.files import opened, read_bytes
from sweeplab.formatting import several

SPLITS = {"train": ("train",), "val": ("validation", "val", "valid", "dev"), "test": ("test",)}
# Texts of fewer bytes are read by characters; how many times its size a packed file counts.
CHAR_BELOW, UNPACKED = 10**6, 5
PACKED_SUFFIXES = (".gz", ".zst", ".parquet")


@dataclass(frozen=True)
class Source:
    """The user's data: a file, folder or glob at `path`, or one for each split, or files of `tokens`.

    `fields` are those of rows that are read; `encoding` is that of files whose content does not show it.
    """

    path: str | None = None
    train: str | None = None
    val: str | None = None
    test: str | None = None
    tokens: str | None = None
    fields: tuple[str, ...] = ()
    encoding: str = ""

    @property
    def places(self) -> dict[str, str | None]:
        """Return the place of each split; the others are cut. A folder of Hugging Face `datasets` may have splits.

        Raises:
            BadInput: there is no place of a training split.
        """
        places: dict[str, str | None] = {split: getattr(self, split) for split in SPLITS}
        # Not `Path.is_file`, which raises where a name is too long.
        if self.path is not None and os.path.isfile(Path(self.path) / SAVED_SPLITS):  # noqa: PTH113
            for split, names in SPLITS.items():
                folders = (Path(self.path, name) for name in names)
                places[split] = next(
                    (str(folder) for folder in folders if folder.is_dir()), None
                )
        places = {split: place for split, place in places.items() if place}
        if not places:
            return {"train": self.path}
        if "train" not in places:
            raise BadInput(f"there is no training split: {', '.join(places)} alone")
        return places

    @property
    def reading(self) -> Reading:
        """Return how the files are read."""
        return Reading(self.fields, self.encoding)


def missing_splits(there: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the split of the user that is cut because others are missing, with the tenths of its parts."""
    missing = [split for split in ("val", "test") if split not in there]
    if missing == ["test"]:
        return {"val": {"val": 5, "test": 5}}
    if missing:
        return {"train": {"train": 10 - len(missing), **dict.fromkeys(missing, 1)}}
    return {}


def guessed(source: Source) -> tuple[str, str]:
    """Return a corpus and a tokenizer for files; for what cannot be read those of a text, since reading it says why.

    Files of tokens have the ids of the vocabulary beside them.
    """
    if source.tokens:
        return "text", "ids"
    try:
        files = [file for place in source.places.values() for file in user_files(place)]
        tokenizer = "char" if size_of(files) < CHAR_BELOW else "bpe"
        form, reading = format_of(files[0]), source.reading
        if form and not source.fields:
            next(named_rows(files[0], form, [TEXT_FIELDS[:1], *PAIR_FIELDS], reading), None)
    except (BadInput, OSError):
        return "text", "char"
    is_of_pairs = any(len(names) > 1 for names in [source.fields, *reading.taken])
    return "pairs" if is_of_pairs else "text", tokenizer


def size_of(files: Sequence[Path]) -> int:
    """Return about how many bytes of text files have."""
    size = 0
    for file in files:
        packed = UNPACKED if file.name.endswith(PACKED_SUFFIXES) else 1
        size += file.stat().st_size * packed
    return size


# ------------------------------------------------------------------ files of token ids


SUFFIXES = (".bin", ".npy")
META = ("meta.pkl", "meta.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spm.model")
PIECE = 2**24  # tokens that are looked at at once
Array = NDArray[Any]


class TokenFiles(NamedTuple):
    """The files of tokens by split, or one whose tokens are cut into splits, and the file of their vocabulary."""

    arrays: dict[str, Path]
    vocabulary: Path | None


def token_files(place: str, tokenizer: str = "") -> TokenFiles:
    """Return the files of tokens in a folder, or at a path, with the vocabulary beside them or in the tokenizer's file.

    Raises:
        BadInput: there are none.
    """
    path = Path(place)
    folder, arrays = path.parent, {"train": path}
    if path.is_dir():
        folder, arrays = path, {}
        for split, names in SPLITS.items():
            for file in (path / f"{name}{suffix}" for name in names for suffix in SUFFIXES):
                if file.is_file():
                    arrays[split] = file
    train = arrays.get("train")
    if train is None or train.suffix not in SUFFIXES or not train.is_file():
        allowed = "a folder with train.bin, or a .bin or .npy"
        raise BadInput(Problem(f"there are no tokens at {place}", allowed))
    beside = (folder / name for name in (*TOKENIZERS, *META))
    vocabulary = (
        Path(tokenizer)
        if tokenizer
        else next((file for file in beside if file.is_file()), None)
    )
    return TokenFiles(arrays, vocabulary)


def token_splits(files: TokenFiles) -> list[Array]:
    """Return the tokens of training, validation and test, memory-mapped; of what has no file, a share of the others.

    A training file alone is cut into 80%, 10% and 10%; without a test file, it is the second half of the validation's.

    Raises:
        BadInput: a file has no whole numbers, or not those of a vocabulary of at most 65,536.
    """
    arrays = {split: _mapped(file) for split, file in files.arrays.items()}
    for split, shares in missing_splits(arrays).items():
        ends = np.cumsum([*shares.values()]) * len(arrays[split]) // sum(shares.values())
        arrays |= dict(zip(shares, np.split(arrays[split], ends[:-1]), strict=True))
    return [arrays[split] for split in SPLITS]


def _mapped(file: Path) -> Array:
    array: Array
    try:
        with opened(file, "rb") as stream:
            size = stream.seek(0, 2)
        if file.suffix == ".npy":
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        elif size % 2 or not size:
            raise ValueError(f"it has {several(size, 'byte')}; allowed: 2 for each, uint16")
        else:
            array = np.memmap(file, "<u2", "r")
    # NumPy's errors, such as those of a header, have no class in common.
    except Exception as error:
        raise BadInput(f"{file} cannot be read as tokens: {error}") from error
    if array.dtype.kind not in "iu" or array.ndim != 1 or not len(array):
        what = f"{file} has {array.dtype} of shape {array.shape}"
        raise BadInput(Problem(what, "one row of whole numbers"))
    evens, odds = array[: 2**16 : 2], array[1 : 2**16 : 2]
    if file.suffix == ".bin" and len(odds) > 1 and evens.any() and not odds.any():
        what = f"{file} seems to have numbers of 32 bits"
        raise BadInput(Problem(what, "uint16, or a .npy, which tells its own"))
    return array


def checked(arrays: list[Array], vocab_size: int | None) -> int:
    """Return the number of tokens up to the largest one, or `vocab_size`.

    Raises:
        BadInput: a token is not in this vocabulary, or too large for any.
    """
    if not all(map(len, arrays)):
        raise BadInput("there are too few tokens for three splits")
    parts = [array[at : at + PIECE] for array in arrays for at in range(0, len(array), PIECE)]
    low, high = min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)
    most = vocab_size or LARGEST_VOCABULARY
    if low < 0 or high >= most:
        odd = low if low < 0 else high
        raise BadInput(
            Problem(f"token {odd} is not in a vocabulary of {most:,}", f"0 to {most - 1:,}")
        )
    return vocab_size or high + 1


def vocabulary_of(files: TokenFiles) -> Tokenizer | None:
    """Return the tokenizer of the tokens, one whose texts are ids if only their number is known; None without one.

    Raises:
        BadInput: the vocabulary cannot be read.
    """
    file = files.vocabulary
    if file is None:
        return None
    if file.name not in META:
        return tokenizer_in(file)
    try:
        content = read_bytes(file)
        meta = plain_pickle(content) if file.suffix == ".pkl" else json.loads(content)
        if "itos" in meta:
            itos = meta["itos"]
            if isinstance(itos, dict):
                itos = [itos[key] for key in sorted(itos, key=int)]
            return CharTokenizer("".join(itos))
        size = int(meta["vocab_size"])
        if not 0 < size <= LARGEST_VOCABULARY:
            raise ValueError(
                f"vocab_size is {size}, and 1 to {LARGEST_VOCABULARY:,} are allowed"
            )
        return IdsTokenizer(size)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        allowed = 'a meta.json such as {"itos": ["a", "b", …]} or {"vocab_size": 65}'
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in a damaged string
            for code, argument, _ in pickletools.genops(content):
                # The library makes room for as many objects as such a number says.
                if code.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content):
                    raise ValueError(f"{code.name} {argument} is too large")
            meta = _Plain(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle raises errors of many classes
        raise ValueError(f"it is damaged, or {error}") from None
    if not isinstance(meta, dict) or not all(
        isinstance(part, dict | str | int) for part in meta.values()
    ):
        raise ValueError("it has more than dicts, strings and whole numbers")
    return meta


def pieces(array: Array) -> Iterator[NDArray[np.uint16]]:
    """Yield an array's tokens as 16-bit numbers, in pieces."""
    yield from (array[at : at + PIECE].astype("<u2") for at in range(0, len(array), PIECE))
