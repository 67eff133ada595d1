"""Find what a person names: a study of the lab, or a trial of a study."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.records.folders import StudyFolder, lab_folder

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

MOST_NAMED = 10


def study_names(lab: Path) -> list[str]:
    """Return the names of a lab's studies."""
    return sorted(file.parent.name for file in (lab / "studies").glob("*/study.json"))


def find_study(lab: Path | None, name: str) -> StudyFolder:
    """Return a study's folder.

    Raises:
        BadInput: there is no such study; offers the nearest name.
    """
    folder = lab_folder(lab)
    names = study_names(folder)
    if not names:
        raise BadInput(
            f"no study {name!r} in {folder}, which has none; --lab or SWEEPLAB_LAB name another lab"
        )
    if name not in names:
        raise BadInput(Problem(f"no study {name!r} in {folder}", _some(names), nearest(name, names)))
    return StudyFolder(folder, name)


def read_spec(folder: StudyFolder, allow_plugins: bool = False) -> StudySpec:
    """Return the study as it was last run; without its plugins only the names of their parts are known."""
    from sweeplab.study.file.reading import read_study

    return read_study(folder.canonical_file, allow_plugins=allow_plugins)


def tracking_uri_of(folder: StudyFolder) -> str | None:
    """Return the tracking URI that the study file names, if it names one."""
    return read_spec(folder).track.uri


def check_free(lab: Path, name: str) -> None:
    """Make sure that no study has a name.

    Raises:
        BadInput: one has.
    """
    if name in study_names(lab):
        raise BadInput(f"a study {name!r} stands in {lab}; give another name")


def find_trial(study: str, trials: Mapping[str, Collection[int]], number: int, cell: str | None) -> str:
    """Return the cell of the trial that is meant; `trials` has the numbers of each cell's.

    Raises:
        BadInput: there is no such cell or trial, or several cells have a trial of this number.
    """
    if cell is not None and cell not in trials:
        raise BadInput(Problem(f"study {study} has no cell {cell!r}", _some(trials), nearest(cell, trials)))
    searched = {cell: trials[cell]} if cell is not None else trials
    found = [key for key, numbers in searched.items() if number in numbers]
    if len(found) > 1:
        what = f"{len(found)} cells of study {study} have a trial {number}; --cell says which is meant"
        raise BadInput(Problem(what, _some(found)))
    if not found:
        where = f"cell {cell}" if cell is not None else f"study {study}"
        last = max((max(numbers) for numbers in searched.values() if numbers), default=None)
        allowed = "none yet" if last is None else f"0 to {last}"
        raise BadInput(Problem(f"{where} has no trial {number}", allowed))
    return found[0]


def _some(names: Collection[str]) -> str:
    return ", ".join(list(names)[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
