"""Open a trained run by whatever it is called on a command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.lab.listing import find_best, find_study, study_names
from sweeplab.records.folders import NAMES, StudyFolder, is_name
from sweeplab.records.runs import RunFolder

if TYPE_CHECKING:
    from sweeplab.runs.run import Run

RUN_ID = re.compile(r"[0-9a-f]{32}")
KINDS = (
    "a study's NAME, NAME/CELL, NAME/CELL/TRIAL-SEED, with @ITERATION one of its series of checkpoints, "
    "an MLflow run id or a model such as models:/NAME@best, a folder with a checkpoint, "
    "the name of what import-hf brought in"
)


def imported_folder(lab: Path, name: str) -> Path:
    """Return where a run lies that came from elsewhere."""
    return lab / "imported" / name


def check_imported_name(lab: Path, name: str) -> None:
    """Make sure that a run from elsewhere can be opened by a name.

    Raises:
        BadInput: it is none, or a study's.
    """
    if not is_name(name):
        raise BadInput(Problem(f"{name!r} is no name of a run", f"--name of {NAMES}"))
    if name in study_names(lab):
        raise BadInput(Problem(f"{name!r} is a study's name, and opens its best run", "--name with another"))


def open_run(text: str, lab: Path, uri: str | None = None) -> Run:
    """Open a run: a study's best one by NAME, or by NAME/CELL the best of a cell; NAME/CELL/TRIAL-SEED; an MLflow
    run id, or a model of its registry such as models:/NAME@best; a folder with a checkpoint, or with what was
    downloaded of a run or a model of MLflow's; or what was brought in under a name.
    NAME…@ITERATION is one of a run's series of checkpoints. `uri` says where MLflow is, as for a study.

    Raises:
        BadInput: there is no such run, with the nearest name; or it kept no checkpoint, or that is damaged.
        TrackingUnavailable: MLflow does not answer.
    """
    from sweeplab.runs.run import Run
    from sweeplab.tracking.loading import MODEL_URI, load_checkpoint, load_run
    from sweeplab.train.checkpoint import DamagedCheckpoint

    # By itself, or by the name it was brought in under.
    places = (Path(text), Path(text, "checkpoint"), imported_folder(lab, text))
    folders = [each for each in places if _is_file(each / "model.json")]
    if re.split("[/@]", text)[0] in study_names(lab):
        checkpoint, name = _of_study(text, lab)
    elif folders:
        checkpoint, name = folders[0], text
    elif RUN_ID.fullmatch(text) or text.startswith(MODEL_URI):
        return Run.of(load_run(text, lab, uri))
    else:
        raise BadInput(Problem(f"no run {text!r}", KINDS, nearest(text, _names(lab))))
    try:
        return Run.of(load_checkpoint(checkpoint, name))
    except (AttributeError, TypeError) as error:
        raise BadInput(f"run {name} cannot be opened: its model.json is none of a run's") from error
    except (ArithmeticError, DamagedCheckpoint, KeyError, OSError, ValueError) as error:
        why = f"its model.json has no {error}" if isinstance(error, KeyError) else error
        raise BadInput(f"run {name} cannot be opened: {why}") from error


def _of_study(text: str, lab: Path) -> tuple[Path, str]:
    text, _, iteration = text.partition("@")
    name, _, rest = text.partition("/")
    cell, _, run = rest.partition("/")
    folder = find_study(lab, name)
    path = folder.path / "runs" / cell / run if run else find_best(folder, cell or None).runs[0].path
    run_name = f"{name}/{path.parent.name}/{path.name}"
    if not _is_file(path / "run.json"):
        raise BadInput(Problem(f"no run {rest!r} in study {name}", nearest=nearest(rest, _runs(folder))))
    if iteration:
        at = RunFolder(path).series()
        if not iteration.isdecimal() or int(iteration) not in at:
            keeps = ", ".join(map(str, at)) or "none, and track: {checkpoints: all} keeps some"
            raise BadInput(Problem(f"run {run_name} has no checkpoint of iteration {iteration!r}", keeps))
        return RunFolder(path).checkpoint_at(int(iteration)), f"{run_name}@{iteration}"
    if not (checkpoint := RunFolder(path).checkpoint()):
        raise BadInput(f"run {run_name} kept no checkpoint; track: {{checkpoints: best}} keeps one")
    return checkpoint, run_name


def _is_file(path: Path) -> bool:
    # The method of paths raises where a part of one is longer than a file's name may be.
    return os.path.isfile(path)  # noqa: PTH113


def _runs(folder: StudyFolder) -> Iterator[str]:
    return (f"{run.cell}/{run.path.name}" for run in folder.runs())


def _names(lab: Path) -> Iterator[str]:
    for name in study_names(lab):
        yield name
        yield from (f"{name}/{run}" for run in _runs(StudyFolder(lab, name)))
    yield from sorted(each.parent.name for each in imported_folder(lab, "").glob("*/model.json"))
