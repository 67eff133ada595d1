"""Functions of Python's standard library, and what their docstrings say of them in a line."""

from __future__ import annotations

import ast
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from pathlib import Path

from sweeplab.data.corpora.base import Pair, PairCorpus
from sweeplab.data.corpora.files import document
from sweeplab.data.corpora.text import python_source_files
from sweeplab.errors import BadInput


def functions_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield each function's source without its docstring, and the docstring's first line.

    Left out are functions without a docstring or with nothing else, and those whose docstring shares a line with
    other code.

    Raises:
        SyntaxError, ValueError: the text is no source of this Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's escape sequences
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
    """Return the pairs of all files, grouped by module: what is alike in one, no split shares."""
    library = sysconfig.get_path("stdlib")
    found: dict[tuple[str, str], str] = {}
    for file in files:
        try:
            pairs = list(functions_of(document(file)))
        except (BadInput, SyntaxError, ValueError):  # in another encoding, or broken on purpose
            continue
        for pair in pairs:
            found.setdefault(pair, file.relative_to(library).as_posix())
    return [Pair(*pair, group) for pair, group in found.items()]


DOCSTRINGS = PairCorpus(
    "python-docstrings",
    "Functions of Python's standard library, and the first line of their docstrings; always there",
    python_source_files,
    _pairs,
    takes_path=False,
)
