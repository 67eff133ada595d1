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
    from types import ModuleType

    from sweeplab.api import Study
    from sweeplab.runs.run import Run

__version__ = VERSION
__all__ = ["laws", "load_run", "load_study", "open_study"]


def __getattr__(name: str) -> "ModuleType":
    """Import `sweeplab.laws` where it is first used: `import sweeplab` alone is quick."""
    if name != "laws":
        raise AttributeError(f"module 'sweeplab' has no attribute {name!r}")
    return import_module("sweeplab.laws")


def load_study(
    path: str | Path,
    *,
    lab: str | Path | None = None,
    name: str | None = None,
    overrides: "Sequence[str]" = (),
    allow_plugins: bool = False,
) -> "Study":
    """Read a study, given by its file or its name; `.run()` runs it.

    The name `small` means studies/small.yaml or small.yaml, else the lab's study as it was last run. What was ordered
    since the file was last run stays in force where the file has not changed.

    `overrides` are written as on the command line: "max_iters=100". A file or tracking address in an override is
    trusted, while one that only the file names may be refused. The study's plugins, Python files, are imported only
    with `allow_plugins`.

    Raises:
        BadInput: the file is wrong; lists every problem in it.
    """
    from sweeplab.api import Study
    from sweeplab.lab.listing import study_source
    from sweeplab.lab.orders import standing
    from sweeplab.permissions import name_address
    from sweeplab.records.folders import StudyFolder, lab_folder
    from sweeplab.study.file.reading import read_study

    folder = lab_folder(Path(lab) if lab else None)
    file = study_source(path, folder)
    spec = read_study(file, overrides, name, allow_plugins)
    if ordered := standing(StudyFolder(folder, spec.name), spec):
        spec = read_study(file, overrides, name, allow_plugins, ordered)
    for place, _, address in spec.addresses:
        if spec.is_overridden(place):
            name_address(address)
    return Study(spec, folder)


def open_study(name: str, lab: str | Path | None = None, *, allow_plugins: bool = False) -> "Study":
    """Open a study of the lab as it was last run; `.run()` continues it.

    Raises:
        BadInput: there is no such study; offers the nearest name.
    """
    from sweeplab.api import Study
    from sweeplab.lab.listing import find_study, read_spec

    folder = find_study(Path(lab) if lab else None, name)
    return Study(read_spec(folder, allow_plugins), folder.lab)


def load_run(run: str, *, lab: str | Path | None = None, uri: str | None = None) -> "Run":
    """Load a trained run, given by NAME (the best run of a study), NAME/CELL, NAME/CELL/TRIAL-SEED, an MLflow run id,
    or a folder with a checkpoint.

    Raises:
        BadInput: there is no such run (offers the nearest name), or it kept no checkpoint.
    """
    from sweeplab.records.folders import lab_folder
    from sweeplab.runs.opening import open_run

    return open_run(run, lab_folder(Path(lab) if lab else None), uri)
