"""Corpora of pairs: the user's files, functions with their docstrings, and synthetic pairs."""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import math
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from sweeplab.data.batches import LABELLED, DataKind
from sweeplab.data.corpora.base import AnyCorpus, Texts, document, user_files
from sweeplab.data.corpora.splits import TENTHS
from sweeplab.data.corpora.text import python_source_files
from sweeplab.data.generators import RandomStream, generator_key
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import listed

_DOCUMENT = "-DOCSTART-"  # begins a document in the files of the CoNLL tasks
# At most this many bad lines are reported; a file of another format has thousands.
MOST_NAMED = 10
TAG_KEYS = ("tokens", "tags")
MOST_LABELS = 1_000


class Pair(NamedTuple):
    """A source and its target; pairs of the same `group` are in the same split."""

    source: str
    target: str
    group: str


@dataclass(frozen=True)
class PairCorpus(AnyCorpus):
    """A corpus of pairs; a tenth of its groups, by a hash of their names, is for validation, and the next for test."""

    kind: DataKind = field(default="pairs", kw_only=True)

    pairs: Callable[[Sequence[Path]], Iterable[Pair]]

    def texts(self, files: Sequence[Path]) -> Texts:
        """Return the pairs by split; a pair whose source is in an earlier split is left out."""
        pairs = list(self.pairs(files))
        groups = sorted(
            {pair.group for pair in pairs}, key=lambda name: hashlib.sha256(name.encode()).digest()
        )
        if not pairs:
            raise BadInput(f"{self._called(files)} is empty")
        if len(groups) < len(TENTHS):
            what = f"{self._called(files)} has {len(pairs)} pairs from {len(groups)} sources: too few for three splits"
            raise BadInput(Problem(what, f"at least {len(TENTHS)} sources"))
        split_of = dict.fromkeys(groups, "train")
        tenth = max(1, len(groups) // sum(TENTHS.values()))
        split_of |= dict.fromkeys(groups[:tenth], "val") | dict.fromkeys(groups[tenth : 2 * tenth], "test")
        taken, texts = set[str](), []
        for split in TENTHS:
            own = [pair for pair in pairs if split_of[pair.group] == split and pair.source not in taken]
            if not own:
                what = f"repeats its sources: no pair is left for the {split} split"
                raise BadInput(f"{self._called(files)} {what}")
            taken |= {pair.source for pair in own}
            texts.append([text for pair in own for text in pair[:2]])
        train, val, test = texts
        if self.kind not in LABELLED:
            return Texts(train, val, test, self.kind)

        def labels_of(targets: Iterable[str]) -> set[str]:
            return {tag for each in targets for tag in each.split()} if self.kind == "tags" else {*targets}

        labels = tuple(sorted(labels_of(pair.target for pair in pairs)))
        if not 2 <= len(labels) <= MOST_LABELS:
            what = f"{self._called(files)} has {len(labels):,} labels"
            raise BadInput(Problem(what, f"2 to {MOST_LABELS:,}"))
        if new := sorted(labels_of((val + test)[1::2]) - labels_of(train[1::2])):
            what = f"the training split has no text with label {new[0]!r}"
            raise BadInput(f"{self._called(files)}: {what}")
        return Texts(train, val, test, self.kind, labels=labels)


def _parts(line: str, suffix: str, keys: Sequence[str]) -> Sequence[object]:
    if suffix == ".tsv":
        parts = line.split("\t")
        if len(parts) != len(keys):
            raise ValueError(f"has {len(parts) - 1} tabs; allowed: one, between {' and '.join(keys)}")
        return parts
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("has too deeply nested brackets") from None
    if not isinstance(found, dict) or not found.keys() >= set(keys):
        allowed = ", ".join(f'"{key}": "…"' for key in keys)
        raise ValueError(f"has no {listed(keys)}; allowed: {{{allowed}}}")
    # Labels are often numbers, scores always are.
    numbers = {"label": int, "score": int | float}
    return [str(found[key]) if isinstance(found[key], numbers.get(key, ())) else found[key] for key in keys]


def _texts(parts: Sequence[object], keys: Sequence[str]) -> list[str]:
    for key, text in zip(keys, parts, strict=True):
        if not isinstance(text, str):
            raise ValueError(f"has a {key} that is not a string")
        if not text.strip():
            raise ValueError(f"has an empty {key}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"has a {key} that is not valid text: {error.reason}") from None
    return [*map(str, parts)]


def _lines(file: Path, keys: Sequence[str]) -> Iterator[tuple[int, Callable[[], Sequence[object]]]]:
    """Yield the number of each non-empty line and a function that reads its texts; in a .conll, of each sentence."""
    if file.suffix == ".conll":
        yield from _sentences(file)
        return
    if file.suffix == ".csv":  # its fields may span several lines
        reader = csv.reader(document(file).splitlines(keepends=True))
        header = [each.strip() for each in next(reader, [])]
        if missing := [key for key in keys if key not in header]:
            allowed = f"a first line with {listed(keys)}"
            raise BadInput(Problem(f"there is no column {missing[0]}", allowed, file=file, line=1))
        columns = [header.index(key) for key in keys]
        for row in reader:
            if row:
                yield reader.line_num, partial(_fields, row, columns, len(header))
        return
    # splitlines would also split at characters that may occur in a text.
    for number, line in enumerate(document(file).split("\n"), start=1):
        if line.strip(" \r"):  # a line with only a tab is a pair
            yield number, partial(_parts, line.removesuffix("\r"), file.suffix, keys)


def _fields(row: Sequence[str], columns: Sequence[int], n_columns: int) -> Sequence[object]:
    if len(row) != n_columns:
        raise ValueError(f"has {len(row)} fields; allowed: {n_columns}, as in the first line")
    return [row[at] for at in columns]


def _sentences(file: Path) -> Iterator[tuple[int, Callable[[], Sequence[object]]]]:
    """Yield the sentences of a file whose lines start with a token and end with its tag."""
    rows: list[list[str]] = []
    for number, line in enumerate([*document(file).split("\n"), ""], start=1):
        row = line.split()
        if len(row) == 1 and row[0] != _DOCUMENT:
            yield number, partial(_untagged, row[0])
        elif row and row[0] != _DOCUMENT:
            rows.append(row)
        elif rows:
            words, tags = [each[0] for each in rows], [each[-1] for each in rows]
            yield number - len(rows), partial(list, (words, tags))
            rows = []


def _untagged(word: str) -> Sequence[object]:
    allowed = "a token and its tag, an empty line between sentences"
    raise ValueError(f"has no tag beside {word!r}; allowed: {allowed}")


def _tagged(tokens: object, tags: object) -> list[Pair]:
    """Return a sentence and its tags, each joined by spaces."""
    for key, words in zip(TAG_KEYS, (tokens, tags), strict=True):
        if not isinstance(words, list) or not words or not all(isinstance(each, str) for each in words):
            raise ValueError(f"has {key} that are not a list of strings")
        if odd := next((each for each in words if len(each.split()) != 1), None):
            raise ValueError(f"has {odd!r} among its {key}; allowed: strings without spaces")
        if "" in words:
            raise ValueError(f"has an empty string among its {key}")
    assert isinstance(tokens, list) and isinstance(tags, list)
    if len(tokens) != len(tags):
        raise ValueError(f"has {len(tokens)} tokens and {len(tags)} tags; allowed: a tag for each token")
    return _pair(*_texts((" ".join(tokens), " ".join(tags)), TAG_KEYS))


def _scored(first: str, second: str, score: str) -> list[Pair]:
    """Return the first text as source; the target is the score, a tab and the second text."""
    try:
        value = float(score)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"has {score!r} as its score; allowed: a number")
    if "\t" in second:
        raise ValueError("has a tab in its sentence2; allowed: spaces")
    return [Pair(first, f"{value!r}\t{second}", group=first)]


def _pair(source: str, target: str) -> list[Pair]:
    return [Pair(source, target, group=source)]


def _preference(prompt: str, chosen: str, rejected: str) -> list[Pair]:
    """Return two pairs: the prompt with each of the two answers."""
    if chosen == rejected:
        raise ValueError("has the same answer as chosen and rejected")
    return [Pair(prompt, answer, group=prompt) for answer in (chosen, rejected)]


def _of_files(
    name: DataKind,
    meaning: str,
    keys: Sequence[str],
    suffixes: Sequence[str],
    made: Callable[..., list[Pair]] = _pair,
) -> PairCorpus:
    """Return the corpus for the user's files with these keys; messages suggest the first suffix."""

    def read(files: Sequence[Path]) -> list[Pair]:
        pairs, problems = list[Pair](), []
        for file in files:
            if file.suffix not in suffixes:
                raise BadInput(Problem(f"{file} cannot hold {listed(keys)}", ", ".join(suffixes)))
            for number, parts in _lines(file, keys):
                try:
                    pairs += made(*(parts() if made is _tagged else _texts(parts(), keys)))
                except ValueError as error:
                    problems.append(Problem(f"line {number} {error}", file=file, line=number))
        if problems:
            more = len(problems) - MOST_NAMED
            rest = [Problem(f"and {more:,} more bad lines")] if more > 0 else []
            raise BadInput(*problems[:MOST_NAMED], *rest)
        return pairs

    return PairCorpus(name, meaning, lambda path: user_files(path, name, suffixes[0]), read, kind=name)


OF_FILES = (
    _of_files(
        "pairs",
        "Your pairs: a .tsv or .jsonl, or the files of a glob, one pair per line",
        ("source", "target"),
        (".tsv", ".jsonl"),
    ),
    _of_files(
        "labels",
        "Your texts and their labels, for `classification`: a .csv, .tsv or .jsonl, or the files of a glob",
        ("text", "label"),
        (".csv", ".tsv", ".jsonl"),
    ),
    _of_files(
        "tags",
        "Your sentences with a tag for each token, for `tagging`: a .jsonl of tokens and tags, a .conll, or the "
        "files of a glob",
        TAG_KEYS,
        (".jsonl", ".conll"),
        _tagged,
    ),
    _of_files(
        "scores",
        "Your pairs of texts and how alike they are, for `similarity`: a .jsonl or .csv, or the files of a glob",
        ("sentence1", "sentence2", "score"),
        (".jsonl", ".csv"),
        _scored,
    ),
    _of_files(
        "preferences",
        "Your prompts, each with a chosen and a rejected answer, for `preference`: a .jsonl or .csv, or the files "
        "of a glob",
        ("prompt", "chosen", "rejected"),
        (".jsonl", ".csv"),
        _preference,
    ),
)


def functions_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield each function's source without its docstring, and the docstring's first line.

    Skips functions without a docstring or with nothing else, and those whose docstring shares a line with
    other code.

    Raises:
        SyntaxError, ValueError: the text is not valid source for this Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of invalid escape sequences
        tree = ast.parse(text)
    lines = text.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
            continue
        said = (ast.get_docstring(node) or "").strip()
        docstring = node.body[0]
        end = docstring.end_lineno or docstring.lineno
        before, after = lines[docstring.lineno - 1].encode(), lines[end - 1].encode()
        if not said or before[: docstring.col_offset].strip() or after[docstring.end_col_offset :].strip():
            continue
        body = dropwhile(lambda line: not line.strip(), lines[end : node.end_lineno])
        kept = [*lines[node.lineno - 1 : docstring.lineno - 1], *body]
        yield textwrap.dedent("\n".join(kept)).strip(), said.partition("\n")[0].strip()


def _pairs(files: Sequence[Path]) -> list[Pair]:
    """Return the pairs of all files, grouped by module, so that similar functions are not in different splits."""
    library = sysconfig.get_path("stdlib")
    found: dict[tuple[str, str], str] = {}
    for file in files:
        try:
            pairs = list(functions_of(document(file)))
        except (BadInput, SyntaxError, ValueError):  # another encoding, or deliberately broken source
            continue
        for pair in pairs:
            found.setdefault(pair, file.relative_to(library).as_posix())
    return [Pair(*pair, group) for pair, group in found.items()]


DOCSTRINGS = PairCorpus(
    "python-docstrings",
    "Functions of Python's standard library, and the first line of their docstrings; always available",
    python_source_files,
    _pairs,
    takes_path=False,
)


N_PAIRS = 20_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORTEST, LONGEST = 4, 12
# The summands have at most this many digits.
N_DIGITS = 3


def _words(random: RandomStream) -> list[str]:
    lengths = SHORTEST + random.integers(N_PAIRS, LONGEST + 1 - SHORTEST)
    letters = iter(random.integers(int(lengths.sum()), len(LETTERS)).tolist())
    return ["".join(LETTERS[next(letters)] for _ in range(length)) for length in lengths.tolist()]


def _sums(random: RandomStream) -> list[str]:
    numbers = random.integers(2 * N_PAIRS, 10**N_DIGITS).reshape(-1, 2).tolist()
    return [f"{first}+{second}" for first, second in numbers]


def _rule(
    name: str, meaning: str, target: Callable[[str], str], draw: Callable[[RandomStream], list[str]] = _words
) -> PairCorpus:
    meaning = f"Words of random letters, and {meaning}" if draw is _words else meaning

    def pairs(files: Sequence[Path]) -> list[Pair]:
        drawn = dict.fromkeys(draw(RandomStream(generator_key(0, f"corpus {name}"))))
        return [Pair(source, target(source), group=source) for source in drawn]

    own_file = Path(__file__).absolute()
    return PairCorpus(name, meaning, lambda path: [own_file], pairs, needs_whole=True, takes_path=False)


def _sum(text: str) -> str:
    return str(sum(map(int, text.split("+"))))


RULES = (
    _rule("copy", "the same word again", str),
    _rule("reverse", "their letters from last to first", lambda word: word[::-1]),
    _rule("sort", "their letters in order", lambda word: "".join(sorted(word))),
    _rule("addition", f"Additions of two numbers of up to {N_DIGITS} digits, and their sums", _sum, _sums),
)
