"""The files at a path of the user: a file, a folder with all below it, or a glob."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from itertools import dropwhile, islice
from pathlib import Path

from sweeplab.errors import BadInput, Problem, nearest

# A glob from the root of a disk would list the files of the whole system.
MOST_FILES = 100_000
# What Hugging Face `datasets` saves beside the arrow files of a dataset, and of one with splits.
SAVED, SAVED_SPLITS = "dataset_info.json", "dataset_dict.json"


def user_files(path: str | None, corpus: str = "text", suffix: str = ".txt") -> list[Path]:
    """Return the files at a path, in a folder (but hidden ones), or of a glob.

    Raises:
        BadInput: no path is given, or there are no files.
    """
    if path is None:
        raise BadInput(
            f"corpus {corpus} needs a path: a file, a folder, or a glob such as notes/**/*{suffix}"
        )
    pattern = Path(path)
    try:
        is_folder = pattern.is_dir()
    except OSError as error:  # such as a name that is too long
        raise BadInput(f"{path[:60]}… cannot be a file: {error.strerror}") from error
    if pattern.is_file():
        return [pattern.resolve()]
    if is_folder:
        inside = "data-*.arrow" if (pattern / SAVED).is_file() else "**"
        path = str(Path(glob.escape(path)) / inside)
    files = sorted({*islice(filter(os.path.isfile, _matches(path)), MOST_FILES + 1)})
    if len(files) > MOST_FILES:
        what = f"more than {MOST_FILES:,} files match {path}"
        raise BadInput(Problem(what, "the files of one folder, such as notes/**/*.txt"))
    if is_folder and not files:
        raise BadInput(f"there are no files in {pattern}")
    if not files and glob.has_magic(path):
        raise BadInput(f"no file matches {path}")
    if not files:
        beside = [each.name for each in pattern.parent.glob("*") if each.is_file()]
        raise BadInput(Problem(f"there is no file {path}", nearest=nearest(pattern.name, beside)))
    return [Path(match).absolute() for match in files]


def _matches(path: str) -> Iterator[str]:
    """Yield the matches of a glob as `glob` does, but `**` does not follow links, which may form cycles."""
    # Path.glob would descend into hidden folders, such as .git.
    parts = Path(path).parts
    if "**" not in parts:
        yield from glob.iglob(path)  # noqa: PTH207
        return
    at = parts.index("**")
    rest = tuple(dropwhile("**".__eq__, parts[at:]))
    for top in glob.iglob(str(Path(*parts[:at]))):  # noqa: PTH207
        for folder, below, files in os.walk(top):
            below[:] = [each for each in below if not each.startswith(".")]
            if rest:
                yield from _matches(str(Path(glob.escape(folder), *rest)))
            else:
                yield from (str(Path(folder, each)) for each in files if not each.startswith("."))
