"""Open a trained run by whatever it is called on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.study.best import find_best
from sweeplab.study.folder import StudyFolder
from sweeplab.study.listing import find_study, study_names
from sweeplab.tracking.folder import RunFolder

if TYPE_CHECKING:
    from sweeplab.tracking.loading import LoadedRun

RUN_ID = re.compile(r"[0-9a-f]{32}")
KINDS = "a study's NAME, NAME/CELL, NAME/CELL/TRIAL-SEED, an MLflow run id, a folder with a checkpoint"


def open_run(text: str, lab: Path, uri: str | None = None) -> LoadedRun:
    """Open a run: a study's best one by NAME, or by NAME/CELL the best of a cell; NAME/CELL/TRIAL-SEED; an MLflow
    run id; or a folder with a checkpoint. `uri` says where MLflow is, as for a study.

    Raises:
        BadInput: there is no such run, with the nearest name; or it kept no checkpoint, or that is damaged.
        TrackingUnavailable: MLflow does not answer.
    """
    from sweeplab.tracking.loading import load_checkpoint, load_run
    from sweeplab.train.checkpoint import DamagedCheckpoint

    if text.partition("/")[0] in study_names(lab):
        checkpoint, name = _of_study(text, lab)
    elif (Path(text) / "model.json").is_file():
        checkpoint, name = Path(text), text
    elif RUN_ID.fullmatch(text):
        return load_run(text, lab, uri)
    else:
        raise BadInput(Problem(f"no run {text!r}", KINDS, nearest(text, _names(lab))))
    try:
        return load_checkpoint(checkpoint, name)
    except (DamagedCheckpoint, FileNotFoundError, ValueError) as error:
        raise BadInput(f"run {name} cannot be opened: {error}") from error


def _of_study(text: str, lab: Path) -> tuple[Path, str]:
    """Return the checkpoint's folder of a study's run, and the run's name."""
    name, _, rest = text.partition("/")
    cell, _, run = rest.partition("/")
    folder = find_study(lab, name)
    path = folder.path / "runs" / cell / run if run else Path(find_best(folder, cell or None).runs[0])
    named = f"{name}/{path.parent.name}/{path.name}"
    if not (path / "run.json").exists():
        known = [each.removeprefix(f"{name}/") for each in _runs(folder)]
        raise BadInput(Problem(f"no run {rest!r} in study {name}", nearest=nearest(rest, known)))
    if not (checkpoint := RunFolder(path, {}).checkpoint()):
        raise BadInput(f"run {named} kept no checkpoint; track: {{checkpoints: best}} keeps one")
    return checkpoint, named


def _runs(folder: StudyFolder) -> Iterator[str]:
    for run in folder.runs():
        yield f"{folder.name}/{run.path.parent.name}/{run.path.name}"


def _names(lab: Path) -> Iterator[str]:
    """Yield what could have been meant."""
    for name in study_names(lab):
        yield name
        yield from _runs(StudyFolder(lab, name))
