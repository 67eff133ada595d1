"""Corpora of running text."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from sweeplab.data.corpora.base import Corpus
from sweeplab.data.corpora.files import BETWEEN_DOCUMENTS, download, joined_readable, user_files
from sweeplab.errors import BadInput
from sweeplab.files import cache_folder

TINYSHAKESPEARE_VARIABLE = "SWEEPLAB_TINYSHAKESPEARE"
TINYSHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# Of the standard library: what is not its own, what is not source, and tests, some of them broken on purpose.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


def _tinyshakespeare_files(path: str | None) -> list[Path]:
    if given := path or os.environ.get(TINYSHAKESPEARE_VARIABLE):
        return user_files(given)
    target = cache_folder() / "tinyshakespeare.txt"
    try:
        return [download(TINYSHAKESPEARE_URL, target, TINYSHAKESPEARE_SHA256)]
    except OSError as error:
        raise BadInput(
            f"tinyshakespeare is not on this machine and cannot be fetched ({error}); "
            f"get {TINYSHAKESPEARE_URL} and set {TINYSHAKESPEARE_VARIABLE}, or path in the study, to the file"
        ) from error


def _python_docs_files(path: str | None) -> list[Path]:
    from pydoc_data import topics

    return [Path(topics.__file__)]


def _python_docs(files: Sequence[Path]) -> str:
    from pydoc_data.topics import topics

    return BETWEEN_DOCUMENTS.join(topics[name] for name in sorted(topics))


def python_source_files(path: str | None) -> list[Path]:
    """Return the sources of the standard library, without its tests."""
    found: list[Path] = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = set(folders) - SKIPPED_FOLDERS
        found += (Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(found)


TEXTS = (
    Corpus(
        "python-docs",
        "Python's language reference, as its help() ships it; always there",
        _python_docs_files,
        _python_docs,
        takes_path=False,
    ),
    Corpus(
        "python-source",
        "The sources of Python's standard library, without its tests",
        python_source_files,
        joined_readable,
        takes_path=False,
    ),
    Corpus(
        "tinyshakespeare",
        f"40,000 lines of Shakespeare: path, or ${TINYSHAKESPEARE_VARIABLE}, or fetched once",
        _tinyshakespeare_files,
    ),
    Corpus("text", "A text file of yours, or the files of a glob, one document each", user_files),
)
