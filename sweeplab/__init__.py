"""Experiment tracking and hyperparameter sweeps for small transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sweeplab.api import Study
    from sweeplab.tracking.loading import LoadedRun

__version__ = VERSION
__all__ = ["load_run", "load_study", "open_study"]


def load_study(
    path: str | Path,
    *,
    lab: str | Path | None = None,
    name: str | None = None,
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
) -> Study:
    """Read a study file; `.run()` runs it.

    `overrides` are written as on the command line: "max_iters=100". What they name, a file or tracking's address, is
    your word: what the file alone names may be refused. The Python files that the study names as
    plugins are imported with `allow_plugins` only.

    Raises:
        BadInput: with everything that is wrong in the file.
    """
    from sweeplab.api import Study
    from sweeplab.records.folders import lab_folder
    from sweeplab.study.file.reading import read_study
    from sweeplab.tracking.connection import name_address

    spec = read_study(Path(path), overrides, name, allow_plugins)
    if spec.track.uri and spec.is_overridden(("track", "uri")):
        name_address(spec.track.uri)
    return Study(spec, lab_folder(Path(lab) if lab else None))


def open_study(name: str, lab: str | Path | None = None, *, allow_plugins: bool = False) -> Study:
    """Open a study that the lab has, as it was last run; `.run()` continues it.

    Raises:
        BadInput: there is no such study; offers the nearest name.
    """
    from sweeplab.api import Study
    from sweeplab.lab.listing import find_study, read_spec

    folder = find_study(Path(lab) if lab else None, name)
    return Study(read_spec(folder, allow_plugins), folder.lab)


def load_run(run_id: str, *, lab: str | Path | None = None, uri: str | None = None) -> LoadedRun:
    """Load a trained run's model and tokenizer by its MLflow run id.

    Raises:
        BadInput: there is no such run, or it kept no checkpoint.
    """
    from sweeplab.records.folders import lab_folder
    from sweeplab.tracking.loading import load_run

    return load_run(run_id, lab_folder(Path(lab) if lab else None), uri)
