"""A trained run in use: opened here by any of its names; it generates text, is evaluated and inspected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.lab.listing import StudyTrials, find_study, is_file, read_spec, study_names
from sweeplab.records.folders import NAMES, StudyFolder, is_name
from sweeplab.records.runs import RunFolder

if TYPE_CHECKING:
    from sweeplab.runs.run import Run


RUN_ID = re.compile(r"[0-9a-f]{32}")
KINDS = (
    "a study's NAME, NAME/CELL or NAME/CELL/TRIAL-SEED, "
    "an MLflow run id, a folder with a checkpoint, "
    "or the name of a run imported by import-hf"
)


def imported_folder(lab: Path, name: str) -> Path:
    """Return the folder of an imported run."""
    return lab / "imported" / name


def check_imported_name(lab: Path, name: str) -> None:
    """Refuse a name by which an imported run could not be opened: one not allowed, or of a study."""
    if not is_name(name):
        raise BadInput(Problem(f"{name!r} cannot be a run's name", f"--name of {NAMES}"))
    if name in study_names(lab):
        raise BadInput(
            Problem(f"{name!r} is a study's name and opens its best run", "--name with another")
        )


def open_run(text: str, lab: Path, allow_plugins: bool = False) -> Run:
    """Open a run by a name, an MLflow run id or a folder.

    NAME is the best run of a study, NAME/CELL that of a cell, NAME/CELL/TRIAL-SEED one run. A folder holds a
    checkpoint, or a run or model downloaded from MLflow. A name may also be an imported run's. With `allow_plugins` the
    plugins of the run's study are imported first.

    Raises:
        BadInput: there is no such run (offers the nearest name), or its checkpoint is missing or damaged.
        TrackingUnavailable: MLflow does not answer.
    """
    from sweeplab.runs.run import Run
    from sweeplab.tracking.models import load_checkpoint, load_run
    from sweeplab.train.checkpoint import DamagedCheckpoint

    # The folder itself, or that of an imported run.
    places = (Path(text), Path(text, "checkpoint"), imported_folder(lab, text))
    folders = [place for place in places if is_file(place / "model.json")]
    study = text.partition("/")[0]
    if study in study_names(lab):
        if allow_plugins:
            read_spec(find_study(lab, study), allow_plugins=True)
        checkpoint, name = _of_study(text, lab)
    elif folders:
        checkpoint, name = folders[0], text
    elif RUN_ID.fullmatch(text):
        return Run.of(load_run(text, lab))
    else:
        raise BadInput(Problem(f"no run {text!r}", KINDS, nearest(text, _names(lab))))
    try:
        return Run.of(load_checkpoint(checkpoint, name))
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise BadInput(
            f"run {name} cannot be opened: its model.json does not describe a run"
        ) from error
    except (DamagedCheckpoint, OSError, ValueError) as error:
        raise BadInput(f"run {name} cannot be opened: {error}") from error


def find_checkpoint(name: str, lab: Path) -> Path | None:
    """Return the checkpoint of a run of a study, or of an imported run, by its name; None where there is none.

    Raises:
        BadInput: the study has no such run, or the run kept no checkpoint.
    """
    if name.partition("/")[0] in study_names(lab):
        return _of_study(name, lab)[0]
    imported = imported_folder(lab, name)
    if is_name(name) and is_file(imported / "model.json"):
        return imported
    return None


def _of_study(text: str, lab: Path) -> tuple[Path, str]:
    name, _, rest = text.partition("/")
    cell, _, run = rest.partition("/")
    folder = find_study(lab, name)
    if run:
        path = folder.path / "runs" / cell / run
        if not is_file(path / "run.json"):
            path = folder.path / "runs" / str(StudyTrials(folder).cell_named(cell)) / run
    else:
        path = StudyTrials(folder).find(cell or None).runs[0].path
    run_name = f"{name}/{path.parent.name}/{path.name}"
    if not is_file(path / "run.json"):
        raise BadInput(
            Problem(f"no run {rest!r} in study {name}", nearest=nearest(rest, _runs(folder)))
        )
    checkpoint = RunFolder(path).checkpoint()
    if not checkpoint:
        raise BadInput(
            f"run {run_name} kept no checkpoint; track: {{checkpoints: best}} keeps one"
        )
    return checkpoint, run_name


def _runs(folder: StudyFolder) -> Iterator[str]:
    return (f"{run.cell}/{run.path.name}" for run in folder.runs())


def _names(lab: Path) -> Iterator[str]:
    for name in study_names(lab):
        yield name
        yield from (f"{name}/{run}" for run in _runs(StudyFolder(lab, name)))
    imported = (file.parent.name for file in imported_folder(lab, "").glob("*/model.json"))
    yield from sorted(filter(is_name, imported))
