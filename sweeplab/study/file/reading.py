"""Read a study file into a typed study in three steps: parse its text, resolve what it names elsewhere, check it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, Problem
from sweeplab.study.file.check import study_from
from sweeplab.study.file.parse import file_text, parse
from sweeplab.study.file.resolve import FindRun, no_run, resolve
from sweeplab.study.problems import Problems
from sweeplab.study.spec import StudySpec


def read_study(
    path: Path,
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
    find_run: FindRun = no_run,
) -> StudySpec:
    """Read a study file, apply `name=value` overrides to it, and check it.

    An override names a hyperparameter, which is then fixed, or a place, such as `budget.time`; or it is an option of
    the command line as `lay_all_over` has it. No two may set the same thing to different values. The study's plugins
    are imported only with `allow_plugins`. `find_run` returns the checkpoint of a run whose name `init_from` gives.

    Raises:
        BadInput: lists everything that is wrong, each with its file, line and column, or its override.
    """
    return read_text(file_text(path), path, overrides, allow_plugins, find_run)


def read_text(
    text: str,
    path: Path,
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
    find_run: FindRun = no_run,
) -> StudySpec:
    """Read a study file's text as `read_study` does; `path` is its file, which need not exist."""
    problems = Problems(path, text)
    document = parse(text, problems)
    if document is None and problems.found:
        raise BadInput(*problems.found)
    resolve(document, problems, overrides, allow_plugins, find_run)
    return study_from(document, problems)


def said_name(path: Path) -> str:
    """Return the study's name in a study file.

    Raises:
        BadInput: the file cannot be read, or has no name.
    """
    problems = Problems(path)
    document = parse(file_text(path), problems)
    name = document.get("name") if isinstance(document, dict) else None
    if not isinstance(name, str):
        raise BadInput(
            *(problems.found or [Problem("the file gives no study name", file=path)])
        )
    return name


def read_plain(
    document: Mapping[str, Any],
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
    find_run: FindRun = no_run,
) -> StudySpec:
    """Read a study from plain values instead of a file, as `read_study` does."""
    # As in a file: tuples are lists, paths texts.
    plain = json.loads(json.dumps(document, default=_plain))
    problems = Problems()
    resolve(plain, problems, overrides, allow_plugins, find_run)
    return study_from(plain, problems)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # of NumPy
        return value.tolist()
    return str(value)
