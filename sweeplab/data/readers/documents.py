"""Documents and rows of the files that a user brings: which of their fields are read, and what is said of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sweeplab.data.readers.content import NoText, text_parts
from sweeplab.data.readers.formats import TEXT, Format, Row, check_no_markup, format_of, rows
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import listed, several, several_named

# The usual names of fields, the likeliest first. A file's own may have capitals.
TEXT_FIELDS = (
    *("text", "content", "contents", "body", "document", "article", "story", "passage", "sentence"),
    *("review", "comment", "message", "lyrics", "abstract", "code"),
)
LABEL_FIELDS = ("label", "labels", "class", "category", "sentiment", "intent")
PAIR_FIELDS = (
    ("source", "target"), ("prompt", "completion"), ("question", "answer"), ("instruction", "output"),
    ("instruction", "response"), ("prompt", "response"), ("input", "output"), ("query", "response"), ("src", "tgt"),
)  # fmt: skip
# Of each corpus of the user's files.
FIELDS: dict[str, Sequence[tuple[str, ...]]] = {
    "text": [(name,) for name in TEXT_FIELDS],
    "pairs": PAIR_FIELDS,
    "labels": [*itertools.product(TEXT_FIELDS, LABEL_FIELDS)],
}
# An instruction may come with a text of its own.
CONTEXT: dict[tuple[str, ...], str] = {
    ("instruction", "output"): "input",
    ("instruction", "response"): "input",
}
MOST_NAMED = 10  # bad lines that are named; a file of another format has thousands


class Document(NamedTuple):
    """A document, or the next part of a long one that `continues`, and where it is."""

    text: str
    file: Path
    line: int = 1
    continues: bool = False


@dataclass
class Reading:
    """How the user's files are read: the `fields` of rows, the format and the encoding, if the user names them.

    While they are read it counts which fields were taken, which files were skipped and how many rows had no text.
    """

    fields: tuple[str, ...] = ()
    format: str = ""
    encoding: str = ""
    taken: Counter[tuple[str, ...]] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    n_empty: int = 0
    more: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Return what a plan says of the reading."""
        notes = [f"rows: {listed(names)} ({several(n, 'file')})" for names, n in self.taken.items()]
        if self.skipped:
            counted = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.skipped.items()))
            notes.append(f"{several(self.skipped.total(), 'file')} skipped: {counted}")
        if self.n_empty:
            notes.append(f"{several(self.n_empty, 'row')} without text left out")
        return notes + self.more


def documents(files: Sequence[Path], reading: Reading) -> Iterator[Document]:
    """Yield the documents of the files: each text, and each row's; a file among several that is no text is skipped.

    Raises:
        BadInput: a file cannot be read, or is markup named as a text; or no file is a text.
    """
    for file in files:
        is_begun = False
        try:
            form = format_of(file, reading.format)
            for part in _of_rows(file, form, reading) if form else _of_text(file, reading):
                yield part
                is_begun = True
        except NoText as error:
            if len(files) == 1 or is_begun:
                raise
            reading.skipped[error.kind] += 1
    if len(files) > 1 and reading.skipped.total() == len(files):
        allowed = f"data.tokens: {files[0].parent}" if any(file.suffix == ".bin" for file in files) else ""
        raise BadInput(Problem(f"there is no text in {files[0].parent}: {reading.notes[-1]}", allowed))


def _of_text(file: Path, reading: Reading) -> Iterator[Document]:
    is_begun = False
    for part in text_parts(file, reading.encoding):
        if not is_begun and reading.format != TEXT:
            check_no_markup(file, part)
        if is_begun or part.strip():
            yield Document(part, file, continues=is_begun)
            is_begun = True
    if not is_begun:
        raise NoText("empty", f"{file} is empty")


def _of_rows(file: Path, form: Format, reading: Reading) -> Iterator[Document]:
    wrong: list[Problem] = []
    for row in named_rows(file, form, FIELDS["text"], reading):
        (value,) = row.values if not row.wrong else ("",)
        text = value if isinstance(value, str) else ""
        if row.wrong or not isinstance(value, str | None):
            wrong.append(bad_line(file, row, f"has a text that is {type(value).__name__}, no string"))
        elif text.strip():
            yield Document(text, file, row.line)
        else:
            reading.n_empty += 1
    check_lines(wrong)


def bad_line(file: Path, row: Row, otherwise: str = "") -> Problem:
    """Return the problem of a row, with its file and line."""
    return Problem(f"line {row.line} {row.wrong or otherwise}", file=file, line=row.line)


def check_lines(problems: Sequence[Problem]) -> None:
    """Raise BadInput with the first of these problems, and the number of the others; nothing if there is none."""
    if problems:
        more = len(problems) - MOST_NAMED
        rest = [Problem(f"and {more:,} more bad lines")] if more > 0 else []
        raise BadInput(*problems[:MOST_NAMED], *rest)


def named_rows(
    file: Path, form: Format, wanted: Sequence[tuple[str, ...]], reading: Reading
) -> Iterator[Row]:
    """Yield the rows of a file with the values of the wanted fields, in their order.

    `wanted` are alternatives: the first row decides which; the fields that the reading names come before them.

    Raises:
        BadInput: the file has none of them; says which it has.
    """
    known = [reading.fields] if reading.fields else wanted
    all_rows = rows(file, form, reading.encoding)
    first = next((row for row in all_rows if row.values or not row.wrong), None)
    if first is None:
        # Each of its lines is bad, or it has none.
        bad = [bad_line(file, row) for row in rows(file, form, reading.encoding)]
        check_lines(bad)
        raise NoText("empty", f"{file} is empty")
    head = [name.strip() for name in first.values] if form.is_table else [*first.values]
    names = _chosen(file, head, first, known, form, len(wanted[0]) > 1)
    if names:
        reading.taken[names] += 1
    yield from _picked(all_rows, first, names, head, known[0], form)


def _chosen(
    file: Path, head: list[str], first: Row, known: Sequence[tuple[str, ...]], form: Format, are_pairs: bool
) -> tuple[str, ...]:
    spelled = {name.lower(): name for name in reversed(head)} | {name: name for name in head}
    for names in known:
        if all(name in spelled or name.lower() in spelled for name in names):
            return tuple(spelled[name] if name in spelled else spelled[name.lower()] for name in names)
    if form.name == "tsv" and are_pairs:
        return ()
    if not form.is_table and are_pairs:
        return known[0]
    values = first.values
    if isinstance(values, dict):
        texts = [name for name, value in values.items() if isinstance(value, str)]
    else:
        texts = head
    missing = known[0][0] if len(known) == 1 else listed(known[0])
    if are_pairs:
        absent = next(name for name in known[0] if name.lower() not in spelled)
        what, allowed = f"there is no column {absent}", f"a first line with {listed(known[0])}"
        raise BadInput(
            Problem(
                f"{what}, but {several_named(head)}",
                f"{allowed}, or data.field: [NAME, NAME]",
                file=file,
                line=first.line,
            )
        )
    what = f"{file} has no field {missing}, but {several_named(head)}" if head else f"{file} has no fields"
    raise NoText(
        "without a field of text",
        what,
        f"data.field: {texts[0] if texts else 'NAME'}, or another",
        nearest(missing, head),
    )


def _picked(
    rest: Iterator[Row],
    first: Row,
    names: tuple[str, ...],
    head: list[str],
    keys: Sequence[str],
    form: Format,
) -> Iterator[Row]:
    if not form.is_table:
        context = CONTEXT.get(tuple(name.lower() for name in names), "")
        for row in itertools.chain([first], rest):
            values = row.values
            if row.wrong:
                yield row
            elif not isinstance(values, dict) or not all(name in values for name in names):
                allowed = ", ".join(f'"{key}": "…"' for key in names)
                yield Row(row.line, (), f"has no {listed(names)}; allowed: {{{allowed}}}")
            else:
                picked = [values[name] for name in names]
                if isinstance(more := values.get(context), str) and more.strip():
                    picked[0] = f"{picked[0]}\n\n{more}"
                yield Row(row.line, picked)
        return
    if not names:  # a table without names has the columns alone, in their order
        for row in itertools.chain([first], rest):
            n_tabs = several(len(row.values) - 1, "tab")
            wrong = f"has {n_tabs}; allowed: one, between {' and '.join(keys)}"
            yield row if len(row.values) == len(keys) else Row(row.line, (), wrong)
        return
    columns = [head.index(name) for name in names]
    for row in rest:
        if len(row.values) == len(head):
            cells = [*row.values]
            yield Row(row.line, [cells[at] for at in columns])
        else:
            wrong = f"has {several(len(row.values), 'field')}; allowed: {len(head)}, as in the first line"
            yield Row(row.line, (), wrong)
