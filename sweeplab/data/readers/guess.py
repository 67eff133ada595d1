"""What the user's files are, where a study does not say: a corpus of texts or of pairs, and a tokenizer that suits."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from sweeplab.data.readers.documents import PAIR_FIELDS, TEXT_FIELDS
from sweeplab.data.readers.files import user_files
from sweeplab.data.readers.formats import format_of, rows
from sweeplab.data.readers.source import Source
from sweeplab.data.readers.tokens import token_files, vocabulary_of
from sweeplab.data.tokenizers.base import LARGEST_VOCABULARY
from sweeplab.errors import BadInput

# Texts of fewer bytes are read by characters; how many times its size a packed file counts.
CHAR_BELOW, UNPACKED = 10**6, 5
PACKED_SUFFIXES = (".gz", ".zst", ".parquet")


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
