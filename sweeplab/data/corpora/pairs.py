"""Corpora of pairs: the user's files, functions with their docstrings, and synthetic pairs."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sweeplab.data.batches import DataKind
from sweeplab.data.corpora.base import (
    TEXTS,
    AnyCorpus,
    Files,
    Targets,
    Texts,
    document,
    missing_splits,
    python_source_files,
    user_files,
)
from sweeplab.data.corpora.splits import TENTHS
from sweeplab.data.generators import RandomStream, generator_key
from sweeplab.data.readers.content import NoText
from sweeplab.data.readers.formats import FIELDS, Reading, Row, check_lines, format_of, named_rows
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import listed, several

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
    targets: Targets = field(default=TEXTS, kw_only=True)

    pairs: Callable[[Sequence[Path]], Iterable[Pair]]
    of_rows: Callable[[Sequence[Path], Reading], Iterable[Pair]] | None = field(default=None, kw_only=True)

    def texts(self, files: Files, reading: Reading | None = None) -> Texts:
        """Return the pairs by split; a pair whose source is in an earlier split is left out."""
        reading = reading or Reading()
        brought = files if isinstance(files, Mapping) else {"train": files}
        of_split = {split: list(self._pairs(paths, reading)) for split, paths in brought.items()}
        for split, shares in missing_splits(brought).items():
            of_split |= self._cut(of_split[split], shares, self._called(brought[split]))
        taken, texts = set[str](), []
        for split in TENTHS:
            kept = [pair for pair in of_split[split] if pair.source not in taken]
            if not kept:
                what = f"repeats its sources: no pair is left for the {split} split"
                raise BadInput(f"{self._called(brought.get(split, brought['train']))} {what}")
            n_known = len(of_split[split]) - len(kept)
            if split in brought and split != "train" and n_known:
                reading.more.append(f"{split}: {several(n_known, 'pair')} of known sources left out")
            taken |= {pair.source for pair in kept}
            texts.append([text for pair in kept for text in pair[:2]])
        train, val, test = texts
        all_targets = [target for texts_of_split in texts for target in texts_of_split[1::2]]
        notes = tuple(reading.notes)
        labels_of = self.targets.labels
        if labels_of is None:
            return Texts(train, val, test, self.kind, len(all_targets), targets=self.targets, notes=notes)

        def labels_in(targets: Iterable[str]) -> set[str]:
            return {name for target in targets for name in labels_of(target)}

        labels, name = tuple(sorted(labels_in(all_targets))), self._called(brought["train"])
        if not 2 <= len(labels) <= MOST_LABELS:
            what = f"{name} has {several(len(labels), 'label')}"
            raise BadInput(Problem(what, f"2 to {MOST_LABELS:,}"))
        if new := sorted(labels_in((val + test)[1::2]) - labels_in(train[1::2])):
            what = f"the training split has no text with label {new[0]!r}"
            raise BadInput(f"{name}: {what}")
        count = len(all_targets)
        return Texts(train, val, test, self.kind, count, labels=labels, targets=self.targets, notes=notes)

    def _pairs(self, files: Sequence[Path], reading: Reading) -> Iterable[Pair]:
        if self.of_rows:
            return self.of_rows(files, reading)
        return self.pairs(files)

    @staticmethod
    def _cut(pairs: Sequence[Pair], shares: Mapping[str, int], name: str) -> dict[str, list[Pair]]:
        groups = sorted(
            {pair.group for pair in pairs}, key=lambda name: hashlib.sha256(name.encode()).digest()
        )
        if not pairs:
            raise BadInput(f"{name} is empty")
        if len(groups) < len(shares):
            what = (
                f"{name} has {several(len(pairs), 'pair')} from {several(len(groups), 'source')}: too few for"
            )
            raise BadInput(Problem(f"{what} three splits", f"at least {several(len(shares), 'source')}"))
        first, *others = shares
        split_of, start = dict.fromkeys(groups, first), 0
        for split in others:
            count = max(1, len(groups) * shares[split] // 10)
            split_of |= dict.fromkeys(groups[start : start + count], split)
            start += count
        return {split: [pair for pair in pairs if split_of[pair.group] == split] for split in shares}


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


# The number of a line, and a function that reads its values or raises ValueError.
Line = tuple[int, Callable[[], Sequence[object]]]


def _values(row: Row, keys: Sequence[str], numbers: Container[str]) -> Sequence[object]:
    if row.wrong:
        raise ValueError(row.wrong)
    return [
        str(value) if key in numbers and isinstance(value, int | float) else value
        for key, value in zip(keys, row.values, strict=True)
    ]


def corpus_of_files(
    name: str,
    meaning: str,
    keys: Sequence[str],
    suffixes: Sequence[str],
    made: Callable[..., list[Pair]] = lambda source, target: [Pair(source, target, group=source)],
    *,
    targets: Targets = TEXTS,
    numbers: Container[str] = (),
    readers: Mapping[str, Callable[[Path], Iterator[Line]]] = MappingProxyType({}),
    are_texts: bool = True,
) -> PairCorpus:
    """Return the corpus for the user's files with these keys; messages suggest the first suffix.

    `made` returns the pairs of a line's values, or raises ValueError with what is wrong. Values are texts, `numbers`
    the keys of those that a file may write as numbers; with `are_texts` false `made` takes them as they are. Files of
    a suffix that is not in `FORMATS` have their own `readers`.
    """

    def read(files: Sequence[Path], reading: Reading) -> list[Pair]:
        pairs, problems = list[Pair](), []
        for file in files:
            form, reader = format_of(file, reading.format), readers.get(file.suffix)
            with suppress(NoText):  # it is empty: said of all files together
                if reader:
                    of_file = reader(file)
                elif form is None or not {*form.suffixes} & {*suffixes}:
                    raise BadInput(Problem(f"{file} cannot hold {listed(keys)}", ", ".join(suffixes)))
                else:
                    rows = named_rows(file, form, FIELDS.get(name, [tuple(keys)]), reading)
                    of_file = ((row.line, partial(_values, row, keys, numbers)) for row in rows)
                for number, values in of_file:
                    try:
                        pairs += made(*(_texts(values(), keys) if are_texts else values()))
                    except ValueError as error:
                        problems.append(Problem(f"line {number} {error}", file=file, line=number))
        check_lines(problems)
        return pairs

    return PairCorpus(
        name,
        meaning,
        lambda path: user_files(path, name, suffixes[0]),
        lambda files: read(files, Reading()),
        kind=name,
        targets=targets,
        of_rows=read,
    )


def _labelled(tokenizer: Any, source: str, target: str, numbers: Mapping[str, int]) -> tuple[Any, Any]:
    return tokenizer.encode(source), [numbers[target]]


OF_FILES = (
    corpus_of_files(
        "pairs",
        "Your pairs: a table or .jsonl, a folder or the files of a glob, a pair a row",
        ("source", "target"),
        (".tsv", ".jsonl", ".json", ".csv", ".parquet", ".arrow"),
    ),
    corpus_of_files(
        "labels",
        "Your texts and their labels, for `classification`: a table or .jsonl, a folder or the files of a glob",
        ("text", "label"),
        (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow"),
        targets=Targets(_labelled, labels=lambda target: (target,), text=lambda target: ""),
        numbers=("label",),
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
        docstring = (ast.get_docstring(node) or "").strip()
        expression = node.body[0]
        end = expression.end_lineno or expression.lineno
        before, after = lines[expression.lineno - 1].encode(), lines[end - 1].encode()
        if (
            not docstring
            or before[: expression.col_offset].strip()
            or after[expression.end_col_offset :].strip()
        ):
            continue
        body = dropwhile(lambda line: not line.strip(), lines[end : node.end_lineno])
        kept = [*lines[node.lineno - 1 : expression.lineno - 1], *body]
        yield textwrap.dedent("\n".join(kept)).strip(), docstring.partition("\n")[0].strip()


def _pairs(files: Sequence[Path]) -> list[Pair]:
    library = sysconfig.get_path("stdlib")
    group_of: dict[tuple[str, str], str] = {}
    for file in files:
        try:
            pairs = list(functions_of(document(file)))
        except (BadInput, SyntaxError, ValueError):  # another encoding, or deliberately broken source
            continue
        for pair in pairs:
            group_of.setdefault(pair, file.relative_to(library).as_posix())
    return [Pair(*pair, group) for pair, group in group_of.items()]


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
