"""Pairs of the user's: a line each, `source TAB target` in a .tsv, `{"source": …, "target": …}` in a .jsonl."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sweeplab.data.corpora.base import Pair, PairCorpus
from sweeplab.data.corpora.files import document, user_files
from sweeplab.errors import BadInput, Problem

# So many bad lines are named; a file of another kind has thousands.
MOST_NAMED = 10
KEYS = ("source", "target")


def _of_tsv(line: str) -> Sequence[object]:
    parts = line.split("\t")
    if len(parts) != 2:
        raise ValueError(f"has {len(parts) - 1} tabs; allowed: one, between source and target")
    return parts


def _of_jsonl(line: str) -> Sequence[object]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
    except RecursionError:
        raise ValueError("has brackets within brackets, too many to read") from None
    if not isinstance(found, dict) or not found.keys() >= set(KEYS):
        raise ValueError('has no source and target; allowed: {"source": "…", "target": "…"}')
    return [found[key] for key in KEYS]


PARSERS: Mapping[str, Callable[[str], Sequence[object]]] = {".tsv": _of_tsv, ".jsonl": _of_jsonl}


def _pair(line: str, parse: Callable[[str], Sequence[object]]) -> Pair:
    source, target = parse(line)
    for key, text in zip(KEYS, (source, target), strict=True):
        if not isinstance(text, str):
            raise ValueError(f"has no text as its {key}")
        if not text.strip():
            raise ValueError(f"has an empty {key}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"has a {key} that is no text: {error.reason}") from None
    return Pair(str(source), str(target), group=str(source))


def _read(files: Sequence[Path]) -> list[Pair]:
    pairs, problems = [], []
    for file in files:
        if file.suffix not in PARSERS:
            raise BadInput(Problem(f"{file} is no file of pairs", allowed=", ".join(PARSERS)))
        # Not splitlines: that one ends a line at characters that may stand in a text.
        for number, line in enumerate(document(file).split("\n"), start=1):
            if not line.strip(" \r"):  # a tab makes it a pair
                continue
            try:
                pairs.append(_pair(line.removesuffix("\r"), PARSERS[file.suffix]))
            except ValueError as error:
                problems.append(Problem(f"line {number} {error}", file=file, line=number))
    if problems:
        more = len(problems) - MOST_NAMED
        rest = [Problem(f"and {more:,} more bad lines")] if more > 0 else []
        raise BadInput(*problems[:MOST_NAMED], *rest)
    return pairs


PAIRS = PairCorpus(
    "pairs",
    "Pairs of yours: a .tsv or .jsonl, or the files of a glob, a pair a line",
    lambda path: user_files(path, "pairs", ".tsv"),
    _read,
)
