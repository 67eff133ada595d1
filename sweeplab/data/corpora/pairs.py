"""Corpora of pairs: the user's files, functions with their docstrings, and synthetic pairs."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from sweeplab.data.batches import DataKind, RandomStream, generator_key
from sweeplab.data.corpora.base import (
    TEXTS,
    AnyCorpus,
    Files,
    Targets,
    Texts,
    python_source_files,
)
from sweeplab.data.corpora.splits import TENTHS
from sweeplab.data.formats import (
    FIELDS,
    Format,
    Reading,
    document,
    format_of,
    named_rows,
    user_files,
)
from sweeplab.data.source import missing_splits
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

    pairs: Callable[[Sequence[Path], Reading], Iterable[Pair]]

    def texts(self, files: Files, reading: Reading | None = None) -> Texts:
        """Return the pairs by split; a pair whose source is in an earlier split is left out."""
        reading = reading or Reading()
        of_split = {split: list(self.pairs(paths, reading)) for split, paths in files.items()}
        name = self._called(files["train"])
        for split, shares in missing_splits(files).items():
            of_split |= _cut(of_split[split], shares, self._called(files[split]))
        taken, texts = set[str](), dict[str, list[str]]()
        for split in TENTHS:
            kept = [pair for pair in of_split[split] if pair.source not in taken]
            n_known = len(of_split[split]) - len(kept)
            if not kept:
                raise BadInput(
                    f"{name} repeats its sources: no pair is left for the {split} split"
                )
            if split in files and n_known:
                reading.more.append(
                    f"{split}: {several(n_known, 'pair')} of known sources left out"
                )
            taken |= {pair.source for pair in kept}
            texts[split] = [text for pair in kept for text in pair[:2]]
        count, notes = sum(len(each) // 2 for each in texts.values()), tuple(reading.notes)
        train, val, test = texts.values()
        result = Texts(train, val, test, self.kind, count, targets=self.targets, notes=notes)
        if self.targets.labels is None:
            return result
        of_target = self.targets.labels
        names = {
            split: {label for target in texts[split][1::2] for label in of_target(target)}
            for split in TENTHS
        }
        labels = sorted(set().union(*names.values()))
        if not 2 <= len(labels) <= MOST_LABELS:
            raise BadInput(
                Problem(f"{name} has {several(len(labels), 'label')}", f"2 to {MOST_LABELS:,}")
            )
        if new := [label for label in labels if label not in names["train"]]:
            raise BadInput(f"{name}: the training split has no text with label {new[0]!r}")
        return replace(result, labels=tuple(labels))


def _cut(pairs: Sequence[Pair], shares: Mapping[str, int], name: str) -> dict[str, list[Pair]]:
    groups = sorted(
        {pair.group for pair in pairs}, key=lambda name: hashlib.sha256(name.encode()).digest()
    )
    if len(groups) < len(shares):
        counts = f"{several(len(pairs), 'pair')} from {several(len(groups), 'source')}"
        what = f"{name} has {counts}: too few for three splits"
        raise BadInput(Problem(what, f"at least {several(len(shares), 'source')}"))
    first, *others = shares
    split_of, start = dict.fromkeys(groups, first), 0
    for split in others:
        count = max(1, len(groups) * shares[split] // 10)
        split_of |= dict.fromkeys(groups[start : start + count], split)
        start += count
    return {
        split: [pair for pair in pairs if split_of[pair.group] == split] for split in shares
    }


def _text(value: object, key: str) -> str:
    if not isinstance(value, str | int | float):
        raise ValueError(f"has a {key} that is not a string")
    text = str(value)
    if not text.strip():
        raise ValueError(f"has an empty {key}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"has a {key} that is not valid text: {error.reason}") from None
    return text


def corpus_of_files(
    name: str,
    meaning: str,
    keys: Sequence[str],
    suffixes: Sequence[str],
    made: Callable[..., list[Pair]] = lambda source, target: [
        Pair(source, target, group=source)
    ],
    *,
    targets: Targets = TEXTS,
    formats: Sequence[Format] = (),
    are_texts: bool = True,
) -> PairCorpus:
    """Return the corpus for the user's files with these keys.

    `made` returns the pairs of a line's values, or raises ValueError with what is wrong. Values are texts, or numbers
    that become texts; with `are_texts` false `made` takes them as they are. `formats` are read
    besides those of `FORMATS`.
    """

    def read(files: Sequence[Path], reading: Reading) -> list[Pair]:
        pairs = list[Pair]()
        for file in files:
            form = next(
                (own for own in formats if file.suffix in own.suffixes), format_of(file)
            )
            if form is None or not {*form.suffixes} & {*suffixes}:
                raise BadInput(
                    Problem(f"{file} cannot hold {listed(keys)}", ", ".join(suffixes))
                )
            for line, values in named_rows(
                file, form, FIELDS.get(name, [tuple(keys)]), reading
            ):
                try:
                    if are_texts:
                        values = [
                            _text(value, key) for value, key in zip(values, keys, strict=True)
                        ]
                    pairs += made(*values)
                except ValueError as error:
                    reading.refuse(file, line, error)
        reading.check()
        return pairs

    return PairCorpus(name, meaning, user_files, read, kind=name, targets=targets)


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
        targets=Targets(
            lambda tokenizer, source, target, numbers: (
                tokenizer.encode(source),
                [numbers[target]],
            ),
            labels=lambda target: (target,),
            text=lambda target: "",
        ),
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
        first, end = expression.lineno - 1, expression.end_lineno or expression.lineno
        before = lines[first].encode()[: expression.col_offset]
        after = lines[end - 1].encode()[expression.end_col_offset :]
        if docstring and not before.strip() and not after.strip():
            body = dropwhile(lambda line: not line.strip(), lines[end : node.end_lineno])
            source = textwrap.dedent("\n".join([*lines[node.lineno - 1 : first], *body]))
            yield source.strip(), docstring.partition("\n")[0].strip()


def _docstrings(files: Sequence[Path], reading: Reading) -> list[Pair]:
    library = sysconfig.get_path("stdlib")
    group_of: dict[tuple[str, str], str] = {}
    for file in files:
        try:
            for pair in [*functions_of(document(file))]:
                group_of.setdefault(pair, file.relative_to(library).as_posix())
        # Another encoding, or deliberately broken source.
        except (BadInput, SyntaxError, ValueError):
            continue
    return [Pair(*pair, group) for pair, group in group_of.items()]


DOCSTRINGS = PairCorpus(
    "python-docstrings",
    "Functions of Python's standard library, and the first line of their docstrings; always available",
    python_source_files,
    _docstrings,
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
    return [
        "".join(LETTERS[next(letters)] for _ in range(length)) for length in lengths.tolist()
    ]


def _rule(
    name: str,
    meaning: str,
    target: Callable[[str], str],
    draw: Callable[[RandomStream], list[str]] = _words,
) -> PairCorpus:
    def pairs(files: Sequence[Path], reading: Reading) -> list[Pair]:
        drawn = dict.fromkeys(draw(RandomStream(generator_key(0, f"corpus {name}"))))
        return [Pair(source, target(source), group=source) for source in drawn]

    own_file = Path(__file__).absolute()
    return PairCorpus(
        name, meaning, lambda path: [own_file], pairs, needs_whole=True, takes_path=False
    )


def _sums(random: RandomStream) -> list[str]:
    numbers = random.integers(2 * N_PAIRS, 10**N_DIGITS).reshape(-1, 2).tolist()
    return [f"{first}+{second}" for first, second in numbers]


_WORDS = "Words of random letters, and"
RULES = (
    _rule("copy", f"{_WORDS} the same word again", str),
    _rule("reverse", f"{_WORDS} their letters from last to first", lambda word: word[::-1]),
    _rule("sort", f"{_WORDS} their letters in order", lambda word: "".join(sorted(word))),
    _rule(
        "addition",
        f"Additions of two numbers of up to {N_DIGITS} digits, and their sums",
        lambda text: str(sum(map(int, text.split("+")))),
        _sums,
    ),
)
