"""Experiment tracking and hyperparameter sweeps for small transformers."""

import sys

# `python -m sweeplab` has put the working folder first on the module path: nothing is imported from there.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    del sys.path[0]

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from sweeplab import laws as laws
    from sweeplab.api import Study as Study
    from sweeplab.errors import BadInput as BadInput
    from sweeplab.runs.run import Run as Run

__version__ = VERSION
__all__ = [
    "BadInput",
    "Run",
    "Study",
    "laws",
    "load_run",
    "load_study",
    "make_study",
    "open_study",
]
# Where the public names live that are imported when they are first used: `import sweeplab` alone is quick.
_HOMES = {"BadInput": "sweeplab.errors", "Run": "sweeplab.runs.run", "Study": "sweeplab.api"}


def __getattr__(name: str) -> "Any":
    """Import a public name where it is first used."""
    if name == "laws":
        return import_module("sweeplab.laws")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sweeplab' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]


def make_study(
    name: str, *, lab: str | Path | None = None, allow_plugins: bool = False, **parts: "Any"
) -> "Study":
    """Make a study from values instead of a file; `.run()` runs it, or continues the one of this name in the lab.

    `parts` are the keys of a study file: data, fixed, grid, search, budget, seeds, …. Relative paths start at the
    working folder.

    >>> study = sweeplab.make_study("mine", data={"path": "notes.txt"}, grid={"n_embd": [16, 32]})

    Raises:
        BadInput: lists every problem in the values.
    """
    from functools import partial

    from sweeplab.api import Study
    from sweeplab.records.folders import lab_folder
    from sweeplab.runs import find_checkpoint
    from sweeplab.study.file.reading import read_plain

    folder = lab_folder(lab)
    find_run = partial(find_checkpoint, lab=folder)
    return Study(read_plain({"name": name} | parts, [], allow_plugins, find_run), folder)


def load_study(
    path: str | Path,
    *,
    lab: str | Path | None = None,
    name: str | None = None,
    overrides: "Sequence[str]" = (),
    allow_plugins: bool = False,
) -> "Study":
    """Read a study, given by its file or its name; `.run()` runs it.

    The name `small` means studies/small.yaml or small.yaml, else the lab's study as it was last run.

    `overrides` are written as on the command line, ["budget.time=5m"]. A file or tracking address in an override is
    trusted, while one that only the file names may be refused. The study's plugins, Python files, are imported only
    with `allow_plugins`.

    Raises:
        BadInput: the file is wrong; lists every problem in it.
    """
    from functools import partial

    from sweeplab.api import Study
    from sweeplab.lab.listing import study_source
    from sweeplab.permissions import name_address
    from sweeplab.records.folders import lab_folder
    from sweeplab.runs import find_checkpoint
    from sweeplab.study.file.reading import read_study

    folder, changes = lab_folder(lab), [*overrides]
    if name is not None:
        changes.append(f"--name {name}")
    find_run = partial(find_checkpoint, lab=folder)
    spec = read_study(study_source(path, folder), changes, allow_plugins, find_run)
    for place, _, address in spec.addresses:
        if spec.is_overridden(place):
            name_address(address)
    return Study(spec, folder)


def open_study(
    name: str, lab: str | Path | None = None, *, allow_plugins: bool = False
) -> "Study":
    """Open a study of the lab as it was last run; `.run()` continues it.

    Raises:
        BadInput: there is no such study; offers the nearest name.
    """
    from sweeplab.api import Study
    from sweeplab.lab.listing import find_study, read_spec

    folder = find_study(lab, name)
    return Study(read_spec(folder, allow_plugins), folder.lab)


def load_run(run: str, *, lab: str | Path | None = None) -> "Run":
    """Load a trained run, given by NAME (the best run of a study), NAME/CELL, NAME/CELL/TRIAL-SEED, an MLflow run id,
    or a folder with a checkpoint.

    Raises:
        BadInput: there is no such run (offers the nearest name), or it kept no checkpoint.
    """
    from sweeplab.records.folders import lab_folder
    from sweeplab.runs import open_run

    return open_run(run, lab_folder(lab))
